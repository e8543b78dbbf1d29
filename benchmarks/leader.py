"""How much of a core a leader needs: simulated task managers, ports in memory, no rows.

    python -m benchmarks.leader --slots 1000 --jobs 100 --seconds 20
    python -m benchmarks.leader --slots 1000 --restart

Every worker has one slot, sends a heartbeat twice a second and acknowledges every barrier at once, as `WorkerService`
would. Time is virtual, so that neither other work on the machine nor a leader that is used up changes what a second
asks of it: what is measured is the processor time per such second, without what the simulated workers take.

With `--restart` one job has all slots but those of one task manager, and a task manager is lost: how long it takes until
all subtasks are deployed again, on ports that need some virtual milliseconds for every answer.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from penstock import Pipeline, col, count, tumbling
from penstock.adapters.memory import MemoryLog
from penstock.connectors import collecting, iterables
from penstock.coordination.control_topics import COMMANDS, EVENTS
from penstock.graph.jobgraph import build_job_graph
from penstock.jobmanager.coordinator import CoordinatorTimeouts
from penstock.ports import NewRecord
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.joblog import JobSettings
from penstock.protocol.messages import (
    Acknowledged,
    BarrierMarker,
    CancelAttempt,
    CheckpointCompleted,
    Deploy,
    FinishAttempt,
    Heartbeat,
    OperatorMetrics,
    SubtaskSnapshot,
    TaskChanged,
    TaskProgress,
    TaskStatus,
    decode_command,
    encode,
)
from penstock.protocol.phases import Phase
from penstock.protocol.requests import SubmitJob
from penstock.protocol.restarts import FixedDelay
from penstock.testing.memory_cluster import MemoryCluster
from penstock.testing.virtual_time import VirtualClock, VirtualLoop

HEARTBEAT_S = 0.5
ANSWER_S = 0.005
"""How long an append, or the question for offsets, takes where a restart is measured."""
PROGRESS = TaskProgress(watermark=0, busy_us=1, idle_us=1, bytes_in=1, bytes_out=1)


class SimulatedWorkers:
    """All workers of a cluster in one object. `spent_s` is what they cost, which the leader does not."""

    def __init__(self, cluster: MemoryCluster, slots: int) -> None:
        self._cluster = cluster
        self._names = [f"tm-{n // 10}.{n % 10}" for n in range(slots)]
        self._tasks: dict[str, dict[tuple[str, str, object], TaskStatus]] = {name: {} for name in self._names}
        self._of_attempt: dict[tuple[str, str], list[tuple[str, TaskStatus]]] = defaultdict(list)
        self.spent_s = 0.0
        self.completed: set[tuple[str, int]] = set()
        self.running = 0

    async def run(self) -> None:
        """Until cancelled."""
        _, position = await self._cluster.log.offsets(COMMANDS, 0)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._heartbeats())
            group.create_task(self._obey(position))

    async def _heartbeats(self) -> None:
        pieces = 20
        while True:
            for piece in range(pieces):
                began = time.thread_time()
                records = [NewRecord(encode(self._heartbeat(name))) for name in self._names[piece::pieces]]
                self.spent_s += time.thread_time() - began
                await self._cluster.log.append(EVENTS, 0, records)
                await asyncio.sleep(HEARTBEAT_S / pieces)

    def _heartbeat(self, name: str) -> Heartbeat:
        tasks = tuple(self._tasks[name].values())
        return Heartbeat(worker=name, slots=1, host=name.partition(".")[0], tasks=tasks)

    def lose(self, host: str) -> None:
        """A task manager is gone with all its workers, without a word."""
        self._names = [name for name in self._names if name.partition(".")[0] != host]

    async def _obey(self, position: int) -> None:
        while True:
            records = await self._cluster.log.read(COMMANDS, 0, position, timeout_s=1.0)
            began = time.thread_time()
            events: list[NewRecord] = []
            for record in records:
                position = record.next_offset
                events += [NewRecord(encode(event)) for event in self._answer(decode_command(record.value))]
            self.spent_s += time.thread_time() - began
            if events:
                await self._cluster.log.append(EVENTS, 0, events)
            await asyncio.sleep(0)

    def _answer(self, command: object) -> list[TaskChanged | Acknowledged]:
        match command:
            case Deploy():
                if command.worker not in self._names:
                    return []
                metrics = {f"op{n}": OperatorMetrics(rows_in=1, rows_out=1) for n in range(3)}
                status = TaskStatus(
                    command.job, command.attempt, command.subtask, "running", 10**9, metrics=metrics, progress=PROGRESS
                )
                self._tasks[command.worker][command.job, command.attempt, command.subtask] = status
                self._of_attempt[command.job, command.attempt].append((command.worker, status))
                self.running += 1
                return [TaskChanged(worker=command.worker, status=status)]
            case BarrierMarker():
                return [
                    Acknowledged(
                        job=command.job, attempt=command.attempt, checkpoint=command.checkpoint, nonce=command.nonce,
                        subtask=status.subtask, snapshot=SubtaskSnapshot(size_bytes=1),
                    )
                    for _, status in self._of_attempt[command.job, command.attempt]
                ]  # fmt: skip
            case CheckpointCompleted():
                self.completed.add((command.job, command.checkpoint))
            case CancelAttempt() | FinishAttempt():
                for worker, status in self._of_attempt.pop((command.job, command.attempt), []):
                    self._tasks[worker].pop((status.job, status.attempt, status.subtask), None)
                    self.running -= 1
            case _:
                pass
        return []


def pipeline(max_parallelism: int = 240) -> Pipeline:
    """A source, a window, a sink: two vertices, whose subtasks share slots."""
    made = Pipeline("load", max_parallelism=max_parallelism)
    rows = iterables.Source(lambda: iter(()), schema=Row, event_time="at")
    windows = made.read(rows).key_by("key").window(tumbling("1s")).agg(n=count(), total=col("key").sum())
    windows.write(collecting.Sink())
    return made


@dataclass
class Row:
    """What the source would read."""

    key: int
    at: datetime


@dataclass(frozen=True)
class Figures:
    """What was measured."""

    subtasks: int
    deploying_s: float
    """Processor time from the first submission until all subtasks ran."""
    completed_per_s: float
    """Checkpoints."""
    cores: float
    """What the leader needs."""


async def measure(slots: int, jobs: int, seconds: float, interval_ms: int) -> Figures:
    """Run the jobs for so many virtual seconds."""
    loop = asyncio.get_running_loop()
    cluster = MemoryCluster(
        clock=VirtualClock(0), timeouts=CoordinatorTimeouts(lease_ttl_ms=15_000, takeover_ms=1_000, worker_ms=60_000)
    )
    workers = SimulatedWorkers(cluster, slots)
    coordinator = cluster.coordinator()
    while not coordinator.epoch:  # noqa: ASYNC110 (a coordinator tells nobody else)
        await asyncio.sleep(0.05)
    working = asyncio.create_task(workers.run())
    await asyncio.sleep(2)
    graph = build_job_graph(pipeline().plan, slots // jobs).to_json()
    settings = JobSettings(CheckpointSettings(interval_ms=interval_ms), FixedDelay(attempts=20, delay_ms=10))
    began_s, began_cpu_s = loop.time(), time.process_time()
    subtasks = 0
    for _ in range(jobs):
        job = uuid.uuid4().hex
        await cluster.request(SubmitJob(request=job, job=job, name="load", graph=graph, settings=settings))
        subtasks += sum(vertex["parallelism"] for vertex in graph["vertices"])
    while workers.running < subtasks:
        if loop.time() - began_s > 120:
            raise SystemExit(f"{workers.running} of {subtasks} subtasks run after 120 s")
        await asyncio.sleep(0.05)
    started_s = time.process_time() - began_cpu_s
    while len({job for job, _ in workers.completed}) < jobs:
        if loop.time() - began_s > 180:
            raise SystemExit(f"{len({job for job, _ in workers.completed})} of {jobs} jobs had a checkpoint in 180 s")
        await asyncio.sleep(0.05)
    before, spent_s, own_s = len(workers.completed), time.process_time(), workers.spent_s
    await asyncio.sleep(seconds)
    used_s = time.process_time() - spent_s - (workers.spent_s - own_s)
    completed = (len(workers.completed) - before) / seconds
    working.cancel()
    await cluster.stop()
    return Figures(subtasks, started_s, completed, used_s / seconds)


class AnsweringLog(MemoryLog):
    """A log whose every answer takes some milliseconds."""

    async def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> int:
        """See `Log.append`."""
        await asyncio.sleep(ANSWER_S)
        return await super().append(topic, partition, records)

    async def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """See `Log.offsets`."""
        await asyncio.sleep(ANSWER_S)
        return await super().offsets(topic, partition)


@dataclass(frozen=True)
class Restart:
    """What was measured. Seconds but for `cpu_s` are those that the leader's ports and timeouts take."""

    subtasks: int
    noticed_s: float
    """From the loss of a task manager until its attempt is given up."""
    deployed_s: float
    """From then until the leader has heard that all subtasks of the next attempt run."""
    cpu_s: float
    """Processor time of the leader in `deployed_s`."""
    attempts: int
    """All that there were: 2 if the loss was one failure."""


async def measure_restart(slots: int) -> Restart:
    """Lose a task manager of a job that has as many subtasks as there are slots, ten slots aside which are free."""
    loop = asyncio.get_running_loop()
    cluster = MemoryCluster(clock=VirtualClock(0), log=AnsweringLog(), timeouts=CoordinatorTimeouts())
    workers = SimulatedWorkers(cluster, slots // 2 + 10)
    coordinator = cluster.coordinator()
    await _until(lambda: coordinator.epoch > 0)
    working = asyncio.create_task(workers.run())
    await asyncio.sleep(2)
    job, graph = uuid.uuid4().hex, build_job_graph(pipeline(max(240, slots // 2)).plan, slots // 2).to_json()
    settings = JobSettings(CheckpointSettings(interval_ms=1_000), FixedDelay(attempts=20, delay_ms=0))
    await cluster.request(SubmitJob(request=job, job=job, name="load", graph=graph, settings=settings))
    subtasks = sum(vertex["parallelism"] for vertex in graph["vertices"])
    await _until(lambda: workers.running == subtasks and bool(workers.completed))
    lost_s, attempt = loop.time(), coordinator.shells[0].attempt
    workers.lose("tm-0")
    await _until(lambda: coordinator.shells[0].phase is not Phase.RUNNING)
    noticed_s, cpu_s, own_s = loop.time(), time.process_time(), workers.spent_s
    shell = coordinator.shells[0]
    await _until(lambda: shell.attempt != attempt and len(shell.progress.statuses) == subtasks)
    deployed_s, spent_s = loop.time(), time.process_time() - cpu_s - (workers.spent_s - own_s)
    begun = shell.history.begin
    assert begun is not None
    working.cancel()
    await cluster.stop()
    return Restart(subtasks, noticed_s - lost_s, deployed_s - noticed_s, spent_s, begun.attempt_number)


async def _until(holds: Callable[[], bool], limit_s: float = 180) -> None:
    deadline_s = asyncio.get_running_loop().time() + limit_s
    while not holds():
        if asyncio.get_running_loop().time() > deadline_s:
            raise SystemExit(f"what is waited for has not come within {limit_s:.0f} s")
        await asyncio.sleep(0.005)


def main() -> None:
    """Parse the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--interval-ms", type=int, default=1_000)
    parser.add_argument("--restart", action="store_true", help="lose a task manager, instead of a steady load")
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        if options.restart:
            lost = runner.run(measure_restart(options.slots))
            print(
                f"{lost.subtasks} subtasks: noticed after {lost.noticed_s:.1f} s, deployed again {lost.deployed_s:.2f} s "
                f"later in {lost.attempts - 1} attempts; leader {lost.cpu_s:.2f} s of the processor"
            )
            return
        found = runner.run(measure(options.slots, options.jobs, options.seconds, options.interval_ms))
    wanted = options.jobs * 1_000 / options.interval_ms
    print(
        f"{options.slots} slots, {options.jobs} jobs, {found.subtasks} subtasks: deployed for {found.deploying_s:.1f} s "
        f"of the processor; {found.completed_per_s:.1f} checkpoints/s of {wanted:.0f} wanted; "
        f"leader {found.cores:.2f} cores"
    )


if __name__ == "__main__":
    main()
