"""What a deployed subtask is given: its place in the job, the job's code and restored state, and the world's services."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from penstock.connectors.base import SinkWriter, WriteContext
from penstock.coordination.collected_rows import collecting_sinks
from penstock.coordination.retrying_ports import RetryingLog, Waiting
from penstock.graph.executiongraph import ExecutionGraph
from penstock.graph.jobgraph import JobGraph, JobVertex
from penstock.plan.logical import LogicalPlan
from penstock.ports import Blobs, Clock, Log
from penstock.protocol.committing import StagedPart
from penstock.protocol.joblog import StateBackend
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import AnyEvent, Deploy, TaskStatus
from penstock.protocol.outputs import CREDIT_BYTES
from penstock.task.committer import Committer
from penstock.task.inbox import Inbox
from penstock.task.operator import RestoredState
from penstock.task.snapshot_objects import RestoreFolder
from penstock.task.snapshots import restore_operator


@dataclass(frozen=True)
class SubtaskSettings:
    """Settings of the data path."""

    flush_ms: int = 50
    gather_ms: int = 10
    """How long a subtask of a job without end lets rows come together after few of them: a batch costs the same, whether
    it has one row or a hundred. Barriers do not wait for it."""
    gather_covered_ms: int = 30
    """The same where no sink shows a row before the checkpoint that covers it: so nobody waits for it."""
    credit_bytes: int = CREDIT_BYTES
    state_backend: StateBackend = "fs"
    local_state: str = ""
    """The folder for state on the local disk (backend `rocksdb`); the system's one for temporary files if empty."""
    incremental: bool = False
    """Whether checkpoints store what has changed since one before (backend `rocksdb`)."""
    longest_wait_ms: int = 1_000
    """How long a subtask that has nothing to do waits before it looks at wall time again, which may have jumped."""
    broker_patience_ms: int = 0
    """How long a subtask waits for a log that is away before its attempt fails; 0: not at all."""


@dataclass(frozen=True)
class Services:
    """What a subtask is given of the world."""

    log: Log
    blobs: Blobs
    clock: Clock
    settings: SubtaskSettings = field(default_factory=SubtaskSettings)
    pressed: Callable[[], bool] = lambda: False
    """Whether memory is short: sources then wait a little between two batches."""
    collects: bool = False
    """Whether rows that a sink gathers in memory are for another process, and so go into the store."""


@dataclass(frozen=True)
class TaskEnvironment:
    """Everything that one deployed subtask is given (an Environment in Flink)."""

    deploy: Deploy
    graph: JobGraph
    plan: LogicalPlan
    manifest: Manifest | None
    """Of the restored checkpoint; None if there is none."""
    services: Services
    inbox: Inbox
    send_event: Callable[[AnyEvent], None]
    status_changed: Callable[[TaskStatus], None]

    @cached_property
    def execution(self) -> ExecutionGraph:
        """The subtasks of the job and their channels."""
        return ExecutionGraph(self.graph)

    @cached_property
    def vertex(self) -> JobVertex:
        """The vertex that this is a subtask of."""
        return self.graph.vertex(self.deploy.subtask.vertex)

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups of the subtask."""
        return self.execution.key_groups(self.deploy.subtask)

    @property
    def local_state(self) -> Path | None:
        """The folder for state on the local disk; None if the job has its objects in memory."""
        settings = self.services.settings
        return Path(settings.local_state or tempfile.gettempdir()) if settings.state_backend == "rocksdb" else None

    def exchange_log(self, waiting: Waiting) -> Log:
        """The log as the exchanges of the subtask use it; `waiting` hears what it waits for.

        A frame may be appended twice then, the second time behind later ones at the worst: readers know it by its seq.
        """
        log, patience_ms = self.services.log, self.services.settings.broker_patience_ms
        return RetryingLog(log, self.services.clock, patience_ms, waiting) if patience_ms else log

    def write_context(self, operator: str) -> WriteContext:
        """What the writer of this sink operator is told."""
        deploy = self.deploy
        return WriteContext(
            operator, deploy.subtask.index, deploy.attempt, deploy.attempt_number, self.services.clock.now_us
        )

    async def restored(self, operator: str, folder: RestoreFolder | None = None) -> RestoredState | None:
        """What the restored checkpoint has of an operator for this subtask; `folder` as in `restore_operator`.

        Raises:
            CorruptDataError: a snapshot object is missing or not what was written.
        """
        if self.manifest is None:
            return None
        index, parallelism = self.deploy.subtask.index, self.vertex.parallelism
        return await restore_operator(
            self.manifest, operator, self.key_groups, index, parallelism, self.services.blobs, folder
        )

    def restore_folder(self) -> AbstractContextManager[RestoreFolder | None]:
        """Where restored state lies until the operators have read it; nowhere if it is held in memory anyway."""
        if self.manifest is None or self.local_state is None:
            return nullcontext()
        return closing(RestoreFolder(self.local_state))

    def committer(
        self, writers: Mapping[str, SinkWriter], staged: Sequence[StagedPart], changed: Callable[[], None]
    ) -> Committer:
        """What makes the parts of the subtask's sinks visible, in the sinks or in the store: see `Services.collects`."""
        checkpoint = self.deploy.restore.checkpoint if self.deploy.restore else 0
        if not self.services.collects:
            return Committer(writers, staged, checkpoint, changed)
        collected = collecting_sinks(self.vertex, self.plan, self.deploy.job, self.services.blobs)
        return Committer(writers, staged, checkpoint, changed, collected)
