"""What happens to a cluster: each fault has a name, and ends by itself or when the world heals."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.shells.cluster import ClusterWorld
from tests.simulation.shells.loop import Process
from tests.simulation.shells.ports import at_once

from penstock.adapters.memory import MemoryLog
from penstock.coordination.control_topics import EVENTS, REQUESTS
from penstock.ports import NewRecord

Fault = Callable[[ClusterWorld], None]
FAULTS: dict[str, Fault] = {}
STEPS = ("look", "touch", "rename", "fsync", "unlink", "list")
LATEST_S = 5.0


def _fault(function: Fault) -> Fault:
    FAULTS[function.__name__] = function
    return function


def draw_faults(seed: int) -> list[tuple[float, Fault, str]]:
    """Which faults, and when."""
    draw = random.Random(seed ^ 0xFA)
    count = 0 if draw.random() < 0.05 else draw.randint(1, 7)
    names = list(FAULTS)
    drawn = [(draw.uniform(0.2, LATEST_S), draw.choice(names)) for _ in range(count)]
    return [(at_s, FAULTS[name], name) for at_s, name in sorted(drawn)]


# -- processes ----------------------------------------------------------------------------------------------------------


def _kill(kind: str) -> Fault:
    def inject(world: ClusterWorld) -> None:
        process = world.leader() if kind == "the leader" else world.some(kind)
        if process is not None:
            world.kill(process)

    return inject


def _stop(kind: str) -> Fault:
    def inject(world: ClusterWorld) -> None:
        process = world.leader() if kind == "the leader" else world.some(kind)
        if process is not None:
            world.stop(process, world.draw.choice((world.draw.uniform(0.3, 2.0), world.draw.uniform(2.0, 7.0))))

    return inject


FAULTS |= {"kill_worker": _kill("worker"), "stop_worker": _stop("worker")}
FAULTS |= {"kill_leader": _kill("the leader"), "stop_leader": _stop("the leader")}
FAULTS |= {"kill_candidate": _kill("leader")}


def _at_step(step: str, *, kill: bool) -> Fault:
    """When a worker's thread is about to take a step in a sink's folder."""

    def inject(world: ClusterWorld) -> None:
        def act(process: Process) -> None:
            if kill:
                world.coverage[f"killed at {step}"] += 1
                world.kill(process)
            else:
                world.coverage[f"stopped at {step}"] += 1
                world.stop(process, world.draw.uniform(1.0, 6.0))

        world.trapped.append((step, act))

    return inject


for _step in STEPS:
    FAULTS[f"kill_worker at {_step}"] = _at_step(_step, kill=True)
    FAULTS[f"stop_worker at {_step}"] = _at_step(_step, kill=False)


@_fault
def threads_linger(world: ClusterWorld) -> None:
    """What runs in threads outlives the tasks that wait for it, by seconds."""
    draw = world.loop.random
    world.loop.thread_delay_s = lambda: draw.uniform(0, 4.0) if draw.random() < 0.3 else draw.uniform(0, 0.005)
    world.later(draw.uniform(0.5, 3.0), _quick_threads, world)


def _quick_threads(world: ClusterWorld) -> None:
    world.loop.thread_delay_s = lambda: world.loop.random.uniform(0, 0.005)


@_fault
def threads_linger_and_an_attempt_fails(world: ClusterWorld) -> None:
    """A worker is gone while the threads of the others stand in a folder."""
    threads_linger(world)
    world.later(world.draw.uniform(0.1, 1.0), _kill("worker"), world)


# -- folders ------------------------------------------------------------------------------------------------------------


@_fault
def power_fails(world: ClusterWorld) -> None:
    """On the machine of all workers."""
    for process in list(world.processes):
        if process.alive and process.name in world.workers:
            world.kill(process)
    world.folders.lose_power(world.draw)


@_fault
def files_consumed(world: ClusterWorld) -> None:
    """A consumer takes every visible file and deletes it, for certain."""
    folders = world.folders
    for name in [name for name in folders.files if ".staging/" not in name and name in folders.durable]:
        folders.take(name)


# -- ports --------------------------------------------------------------------------------------------------------------


def _trouble(
    kinds: tuple[str, ...], actions: tuple[str, ...], only: str, chance: float, longest_s: float = 2.0
) -> Fault:
    """Calls of this kind go wrong for a while."""

    def inject(world: ClusterWorld) -> None:
        draw, former = world.loop.random, world.wire.trouble
        end_s = world.loop.now_s + draw.uniform(0.3, longest_s)

        def trouble(action: str, what: str) -> str:
            if world.loop.now_s < end_s and action in actions and only in what and draw.random() < chance:
                kind = draw.choice(kinds)
                world.coverage[f"{kind} {action} {what.split('/')[0].split('.')[0]}"] += 1
                return kind
            return former(action, what)

        world.wire.trouble = trouble

    return inject


UNCERTAIN = ("error", "lost", "late")
FAULTS["commands_uncertain"] = _trouble(UNCERTAIN, ("append",), "commands/", 0.5)
FAULTS["events_uncertain"] = _trouble(UNCERTAIN, ("append",), "events/", 0.5)
FAULTS["requests_uncertain"] = _trouble(UNCERTAIN, ("append",), "requests/", 0.5)
FAULTS["exchange_uncertain"] = _trouble(UNCERTAIN, ("append",), ".g", 0.2)
FAULTS["log_unreadable"] = _trouble(("error",), ("read", "offsets"), "", 0.3)
FAULTS["store_uncertain"] = _trouble(UNCERTAIN, ("put", "create"), "", 0.4)
FAULTS["store_conflicts"] = _trouble(("conflict",), ("create",), "", 0.6)
FAULTS["store_down"] = _trouble(("error",), ("put", "create", "get", "list", "delete"), "", 1.0)
FAULTS["metadata_down"] = _trouble(
    ("error", "lost"), ("acquire", "renew", "put", "get", "release"), "metadata", 1.0, 6.0
)


@_fault
def everything_slow(world: ClusterWorld) -> None:
    """Every call takes its time."""
    world.wire.slow_s = world.draw.choice((0.1, 0.5, 1.5))
    world.later(world.draw.uniform(0.3, 2.0), setattr, world.wire, "slow_s", 0.0)


@_fault
def metadata_wiped(world: ClusterWorld) -> None:
    """Another candidate gets the lease while the leader acts."""
    world.metadata.wipe()
    world.lease_lost_s = world.loop.now_s


@_fault
def two_candidates_mint(world: ClusterWorld) -> None:
    """The leader is killed, and while its successor creates the epoch the lease is forgotten: another does so too."""
    former, done = world.wire.trouble, [False]

    def trouble(action: str, what: str) -> str:
        if action == "create" and what.startswith("leaders/") and not done[0]:
            done[0] = True
            metadata_wiped(world)
            world.coverage["lease forgotten while an epoch is minted"] += 1
            return "slow"
        return former(action, what)

    world.wire.trouble = trouble
    world.start_coordinator()
    _kill("the leader")(world)


# -- poison -------------------------------------------------------------------------------------------------------------


@_fault
def strange_records(world: ClusterWorld) -> None:
    """Events and requests that nobody can read."""
    for topic in (EVENTS, REQUESTS):
        for value in (b"\xff", b'{"type":"Danced"}', b"[]"):
            at_once(MemoryLog.append(world.log, topic, 0, [NewRecord(value)]))


@_fault
def a_master_fails(world: ClusterWorld) -> None:
    """What nobody expected happens in the master of one job."""
    world.failing_masters.add(world.draw.choice(list(world.jobs)))
