"""A cluster that is no more than what it has recorded: a job's log in the store, and what its leader showed last."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from small_cluster import SmallCluster

from penstock.coordination.cluster_view import (
    VIEW,
    AckView,
    CheckpointView,
    ClusterView,
    JobView,
    TaskRates,
    TaskView,
    VertexView,
    WorkerView,
)
from penstock.coordination.job_catalog import ACTIVE, FINISHED, FinishedJob
from penstock.graph.jobgraph import JobGraph, build_job_graph
from penstock.graph.rescaling import scalable_form
from penstock.protocol.joblog import (
    AnyRecord,
    Artifact,
    AttemptFailed,
    Begin,
    Complete,
    Leader,
    Savepoint,
    Submit,
    Terminated,
    encode_record,
    log_key,
)
from penstock.protocol.manifests import Manifest, encode_manifest, manifest_key
from penstock.protocol.messages import Handle, OperatorHandles, OperatorMetrics, Restore, SubtaskSnapshot, TaskProgress
from penstock.protocol.requests import AnyRequest, decode_request

JOB: Final = "a" * 32
OTHER: Final = "b" * 32
ATTEMPT: Final = "c" * 32
NONCE: Final = "d" * 16
T0: Final = 1_795_000_000_000_000
"""When the job was submitted; everything that it records comes some seconds later."""
SECOND: Final = 1_000_000
HOST: Final = "machine-1 127.0.0.1:4711"


def at(seconds: float) -> int:
    """So long after the submission, in microseconds."""
    return T0 + round(seconds * SECOND)


def manifest_of(checkpoint: int, job: str = JOB) -> str:
    """The key of a checkpoint's manifest."""
    return manifest_key(job, ATTEMPT, checkpoint, NONCE)


class RecordedCluster(SmallCluster):
    """Its leader is a view that never changes."""

    def __init__(self, other: SmallCluster | None = None) -> None:
        super().__init__(other=other)
        self.graph: JobGraph = build_job_graph(self.pipeline.plan, 2)
        self.source, self.sink_vertex = self.graph.vertices

    async def write(self, *records: AnyRecord, job: str = JOB) -> None:
        """The log of a job, from its first record on."""
        for seq, record in enumerate(records):
            named = msgspec.structs.replace(record, seq=seq, nonce=f"{job[0]}{seq}")
            await self.blobs.create(log_key(job, seq), encode_record(named))
        await self.blobs.put(ACTIVE + job, b"")

    async def show(self, *jobs: JobView, workers: tuple[WorkerView, ...] | None = None) -> None:
        """What the leader shows from now on."""
        shown = (WorkerView("worker-1", HOST, 1, {JOB: 1}, 2, 200 << 20, at(9)),
                 WorkerView("worker-2", HOST, 1, {JOB: 1}, 2, 100 << 20, at(9.5)),
                 WorkerView("worker-3", HOST, 1, {}, 0, 50 << 20, at(9.5))) if workers is None else workers  # fmt: skip
        view = ClusterView("leader", "here", 3, self.clock.now_us(), 3, 1, shown, jobs)
        await self.metadata.put(VIEW, msgspec.json.encode(view))

    def submitted(self, **changes: Any) -> Submit:
        """The first record of the job."""
        artifact = Artifact("key", "0" * 64, "cluster.py", {"password": "hunter2"})
        fields: dict[str, Any] = {
            "job": JOB, "name": "counts", "graph": self.graph.to_json(), "submitted_us": T0, "at_us": T0 + 1_000,
            "artifact": artifact, "scalable": scalable_form(self.pipeline.plan).to_json(),
        }  # fmt: skip
        return Submit(**{**fields, **changes})

    def begun(self, number: int = 1, seconds: float = 1, **changes: Any) -> Begin:
        """An attempt."""
        return Begin(
            attempt=ATTEMPT if number == 1 else f"{number:032x}", attempt_number=number, restore=None, parallelism=2,
            generation=0, start_offsets={}, at_us=at(seconds), **changes,
        )  # fmt: skip

    def complete(self, checkpoint: int, seconds: float, attempt: str = ATTEMPT, parent: int = -1) -> Complete:
        """A COMPLETE."""
        return Complete(
            checkpoint=checkpoint, checkpoint_nonce=NONCE, attempt=attempt, parent=parent,
            manifest=manifest_of(checkpoint), sha256="0" * 64, at_us=at(seconds),
        )  # fmt: skip

    async def put_manifest(self, checkpoint: int, job: str = JOB, refers_to: str = "") -> str:
        """A manifest in the store, and an object beside it."""
        key = manifest_of(checkpoint, job)
        own = key.replace("manifest.json", "v1-0-state")
        handles = OperatorHandles(keyed=Handle(refers_to or own, "0" * 64, 10))
        subtasks = {
            vertex.id: {
                index: SubtaskSnapshot({"op": handles}, size_bytes=100 + index, sync_us=2_000, async_us=5_000)
                for index in range(2)
            }
            for vertex in self.graph.vertices
        }
        await self.blobs.put(key, encode_manifest(Manifest(job, checkpoint, ATTEMPT, 2, 240, subtasks, {})))
        await self.blobs.put(own, b"state")
        return key

    def running(self, **changes: Any) -> JobView:
        """The job as its leader shows it in its second attempt: with checkpoints of every kind."""
        fields: dict[str, Any] = {
            "job": JOB, "name": "counts", "state": "RUNNING", "parallelism": 2, "submitted_us": T0, "attempts": 2,
            "missing_slots": 0, "restored": 1, "last_checkpoint": 3, "vertices": self._vertices(),
            "checkpoints": self._checkpoints(), "failures": ("v1[0]: ValueError: no such key",),
            "graph": self.graph.to_json(), "totals": {"complete": 2, "aborted": 1, "failed": 1},
        }  # fmt: skip
        return JobView(**{**fields, **changes})

    def _vertices(self) -> tuple[VertexView, ...]:
        shares = ((0.2, 0.7, 0.1), (0.1, 0.3, 0.6))
        return tuple(
            VertexView(vertex.id, vertex.name, 2, tuple(
                self._task(vertex.operators[0].id, vertex.operators[-1].id, index, shares[index]) for index in range(2)
            ))
            for vertex in self.graph.vertices
        )  # fmt: skip

    @staticmethod
    def _task(first: str, last: str, index: int, shares: tuple[float, float, float]) -> TaskView:
        metrics = {first: OperatorMetrics(rows_in=1_000 * (index + 1), late_rows=3)}
        metrics[last] = msgspec.structs.replace(metrics.get(last, OperatorMetrics()), rows_out=50)
        progress = TaskProgress(
            watermark=at(index), busy_us=2_000_000, idle_us=5_000_000, blocked_us=1_000_000, bytes_in=10_000,
            bytes_out=500, records_behind=7,
        )  # fmt: skip
        busy, idle, blocked = shares
        rates = TaskRates(busy, idle, blocked, 100.0, 10.0, {first: (40.0, 2.0), last: (40.0, 2.0)})
        since_us = {"deployed": at(4), "initializing": at(4.2), "running": at(4.5)}
        return TaskView(
            index, "running", f"worker-{index + 1}", metrics=metrics, progress=progress, since_us=since_us, rates=rates
        )

    def _checkpoints(self) -> tuple[CheckpointView, ...]:
        def acks(seconds: float, *counts: int) -> dict[str, tuple[AckView, ...]]:
            return {
                vertex.id: tuple(AckView(i, at(seconds + i / 10), 100, 2_000, 5_000, 1_000) for i in range(count))
                for vertex, count in zip(self.graph.vertices, counts, strict=True)
            }

        return (
            CheckpointView(2, "aborted", at(5), None, 0, 0, "timeout", at(5.9), 4, acks(5.2, 2, 1)),
            CheckpointView(3, "complete", at(6), 400_000, 400, 2_000, "", at(6.4), 4, acks(6.1, 2, 2)),
            CheckpointView(4, "in progress", at(7), None, 0, 0, "", None, 4, acks(7.1, 1, 0)),
        )

    async def record_running(self) -> None:
        """A job that has failed once, went on from its first checkpoint, and has a savepoint."""
        restored = Restore(1, manifest_of(1), "0" * 64)
        second = f"{2:032x}"
        failed = AttemptFailed(
            attempt=ATTEMPT, attempt_number=1, reason=f"{self.sink_vertex.id}[0]: ValueError: no such key",
            subtask=f"{self.sink_vertex.id}[0]", worker="worker-1", frames='  File "cluster.py", line 3, in f',
            at_us=at(3),
        )  # fmt: skip
        savepoint = Savepoint(
            checkpoint=3, manifest=manifest_of(3), sha256="0" * 64, request="e" * 32, published=True, at_us=at(6.5)
        )
        await self.write(
            self.submitted(), Leader(epoch=1, at_us=at(0.5)), self.begun(), self.complete(1, 2), failed,
            msgspec.structs.replace(self.begun(2, 4), restore=restored), self.complete(3, 6.4, second, 3), savepoint,
        )  # fmt: skip
        await self.show(self.running())

    async def record_ended(self, state: Any = "FINISHED", reason: str = "") -> None:
        """A job that has ended; nobody shows it any more."""
        await self.write(
            self.submitted(), Leader(epoch=1, at_us=at(0.5)), self.begun(), self.complete(1, 2),
            Terminated(state=state, reason=reason, at_us=at(8)),
        )  # fmt: skip
        summary = FinishedJob(JOB, "counts", state, reason, T0, at(8.5), 2, 1)
        await self.blobs.put(FINISHED + JOB, msgspec.json.encode(summary))
        await self.blobs.delete(ACTIVE + JOB)

    async def asked(self) -> list[AnyRequest]:
        """What was asked of the leader."""
        if "requests" not in await self.log.topics():
            return []
        records = await self.log.read("requests", 0, 0, timeout_s=0)
        return [decode_request(record.value) for record in records]  # type: ignore[misc]


@asynccontextmanager
async def recorded_cluster() -> AsyncGenerator[RecordedCluster]:
    """One with nothing in it."""
    cluster = RecordedCluster()
    try:
        yield cluster
    finally:
        await cluster.stop()
