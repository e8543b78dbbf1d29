"""What a history may have beside its faults, drawn from a generator of its own: other histories stay what they are.

Little credit, with reports of it that are lost, late and repeated; acks that are larger than a record may be; a log that
takes only small frames and acks, under limits of production's own that are as small.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from penstock.coordination.control_topics import EVENTS
from penstock.coordination.job_catalog import answer_key
from penstock.graph.executiongraph import ExecutionGraph
from penstock.graph.jobgraph import graph_from_json
from penstock.protocol.joblog import Begin
from penstock.protocol.messages import Acknowledged, BesideKeys, OperatorHandles, decode_event
from penstock.protocol.requests import Answer
from penstock.task import exchange, snapshots
from penstock.task.environment import SubtaskSettings
from penstock.task.snapshots import size_beside

if TYPE_CHECKING:
    from tests.simulation.shells.cluster import ClusterWorld
    from tests.simulation.shells.jobs import Job
    from tests.simulation.shells.loop import Process

FIRST_SEED = 100_000
"""Histories of lower seeds have nothing of this: mutants were recorded with some before it was there."""
LITTLE_BYTES = 60
"""Of credit: a frame."""
UNTIL_S = 6.0
REPORTS = ("vanish", "vanish", "lost", "late")
SMALL_PAYLOAD_BYTES = 64
SMALL_FRAME_BYTES = 320
"""A record of four rows: 64 bytes, and what stands around them."""
SMALL_BESIDE_BYTES = 60


def install_extras(world: ClusterWorld, seed: int) -> SubtaskSettings:
    """Turn on what this history has; returns the settings of its subtasks."""
    if seed < FIRST_SEED:
        return SubtaskSettings(longest_wait_ms=500)
    draw = random.Random(f"{seed}/extras")
    little, large = draw.random() < 0.12, draw.random() < 0.08
    if large:
        _large_acks(world, draw)
    if random.Random(f"{seed}/sizes").random() < 0.08:
        _small_records(world)
    if any(job.replaces for job in world.jobs.values()) and draw.random() < 0.5:
        world.trapped.append(("list", lambda process: _look_for_long(world, process, draw.uniform(3.0, 6.0))))
    if not little:
        return SubtaskSettings(longest_wait_ms=500)
    world.jobs = {job.id: replace(job, patient=True) for job in world.jobs.values()}
    former = world.wire.trouble

    def trouble(action: str, what: str) -> str:
        if action != "append" or "credits" not in what or world.loop.now_s > UNTIL_S or draw.random() > 0.3:
            return former(action, what)
        kind = draw.choice(REPORTS)
        world.coverage[f"credit report {kind}"] += 1
        return kind

    world.wire.trouble = trouble
    return SubtaskSettings(longest_wait_ms=500, credit_bytes=LITTLE_BYTES)


def _look_for_long(world: ClusterWorld, process: Process, seconds: float) -> None:
    """A worker stands still where it looks for what is to be replaced, until newer attempts have made parts visible."""
    world.coverage["stopped while it looks for former files"] += 1
    world.stop(process, seconds)


def _large_acks(world: ClusterWorld, draw: random.Random) -> None:
    def too_large(topic: str, value: bytes) -> bool:
        found = topic == EVENTS and b'"Acknowledged"' in value and world.loop.now_s < UNTIL_S and draw.random() < 0.3
        world.coverage["ack larger than a record"] += found
        return found

    world.log.too_large = too_large


def _small_records(world: ClusterWorld) -> None:
    """Whoever does not keep to the limits is refused for as long as the history lasts: its job never ends."""
    world.small = True
    world.jobs = {job.id: replace(job, rate=None) for job in world.jobs.values()}  # many rows at once
    world.plans = {job.id: job.plan() for job in world.jobs.values()}
    former = world.log.too_large

    def too_large(topic: str, value: bytes) -> bool:
        if topic == EVENTS:
            event = decode_event(value)
            acked = event.snapshot.operators.values() if isinstance(event, Acknowledged) else ()
            found = any(_beside(operator) > SMALL_BESIDE_BYTES for operator in acked)
        else:
            found = ".x." in topic and len(value) > SMALL_FRAME_BYTES
            world.coverage["frame that is as large as may be"] += ".x." in topic and len(value) == SMALL_FRAME_BYTES
        return found or former(topic, value)

    world.log.too_large = too_large


def _beside(operator: OperatorHandles) -> int:
    return size_beside(BesideKeys(operator.lists, operator.unions, operator.broadcast))


@contextlib.contextmanager
def small_limits() -> Generator[None]:
    """Of frames, and of what an ack holds itself."""
    former = exchange.MAX_PAYLOAD_BYTES, snapshots.MAX_BESIDE_BYTES
    exchange.MAX_PAYLOAD_BYTES, snapshots.MAX_BESIDE_BYTES = SMALL_PAYLOAD_BYTES, SMALL_BESIDE_BYTES  # pyright: ignore
    try:
        yield
    finally:
        exchange.MAX_PAYLOAD_BYTES, snapshots.MAX_BESIDE_BYTES = former  # pyright: ignore


def check_rescale(world: ClusterWorld, job: Job) -> None:
    """C11: who is told that a job was rescaled finds a BEGIN that says so; more than there are slots never begin."""
    answer = msgspec.json.decode(
        world.blobs.object(answer_key(job.id, f"rescale-{job.id}")) or b"null", type=Answer | None
    )
    outcome = answer.outcome if answer is not None else "not asked"
    world.coverage[f"rescale {outcome}"] += 1
    begun = world.parallelisms.get(job.id, set())
    if outcome == "completed" and job.wanted not in begun | {job.parallelism}:
        world.violated(f"C11: {job.id[:4]} is said to be rescaled to {job.wanted}, it ran at {sorted(begun)}")


def parallelism_of(record: Begin) -> int | None:
    """Of the graph that an attempt begins with; None: as before."""
    return ExecutionGraph(graph_from_json(record.graph)).topology().parallelism if record.graph else None
