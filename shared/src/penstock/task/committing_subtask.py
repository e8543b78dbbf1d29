"""A subtask whose attempt publishes only: it commits the parts that its sinks staged for the restored checkpoint.

No row is read and no operator is built. What is committed when is decided by `penstock.protocol.committing`. A sink
behind an exchange of its own needs nothing of this: its `PublishingRunner` is the same in every attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.connectors.base import SinkWriter, WriteContext
from penstock.coordination.collected_rows import collecting_sinks
from penstock.errors import PipelineError
from penstock.graph.executiongraph import ExecutionGraph
from penstock.graph.jobgraph import JobGraph
from penstock.graph.logical import LogicalPlan, Write
from penstock.protocol.committing import StagedPart
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import AnyEvent, Deploy, TaskState, TaskStatus
from penstock.protocol.subtask import FinishRead
from penstock.task.committer import STAGED, Committer, decode_staged
from penstock.task.exchange_io import CreditReport
from penstock.task.inbox import Inbox
from penstock.task.snapshots import restore_operator
from penstock.task.subtask import Services


class CommittingRunner:
    """A deployed subtask that commits; the same interface as `SubtaskRunner`."""

    def __init__(
        self,
        deploy: Deploy,
        graph: JobGraph,
        plan: LogicalPlan,
        manifest: Manifest | None,
        services: Services,
        inbox: Inbox,
        send_event: Callable[[AnyEvent], None],
        status_changed: Callable[[TaskStatus], None],
    ) -> None:
        """`send_event` is not used: there are no checkpoints to acknowledge."""
        self.deploy = deploy
        self.inbox = inbox
        self.state: TaskState = "initializing"
        self._execution = ExecutionGraph(graph)
        self._vertex = graph.vertex(deploy.subtask.vertex)
        self._plan = plan
        self._manifest = manifest
        self._services = services
        self._status_changed = status_changed
        self._committer: Committer | None = None

    async def run(self) -> None:
        """Commit everything, then wait until the leader ends the attempt."""
        writers, staged = await self._open()
        checkpoint = self.deploy.restore.checkpoint if self.deploy.restore else 0
        collected = collecting_sinks(self._vertex, self._plan, self.deploy.job, self._services.blobs)
        elsewhere = collected if self._services.collects else {}
        self._committer = Committer(writers, staged, checkpoint, self._changed, elsewhere)
        self.state = "running"
        self._changed()
        async with asyncio.TaskGroup() as group:
            committing = group.create_task(self._committer.run())
            final = await self._until_finished()
            committing.cancel()
        if final:
            await self._committer.job_ended()
        self.state = "finished"

    async def _open(self) -> tuple[dict[str, SinkWriter], list[StagedPart]]:
        writers: dict[str, SinkWriter] = {}
        staged: list[StagedPart] = []
        subtask, execution = self.deploy.subtask, self._execution
        for operator in self._vertex.operators:
            if operator.verb != "write":
                continue
            node = self._plan.by_operator(operator.id)
            if node is None or not isinstance(node.operation, Write):
                raise PipelineError(f"the pipeline has no sink {operator.id!r}, which has staged rows to make visible")
            writers[operator.id] = node.operation.sink.open(node.schema, self._context(operator.id))
            if self._manifest is not None:
                state = await restore_operator(
                    self._manifest, operator.id, execution.key_groups(subtask), subtask.index,
                    self._vertex.parallelism, self._services.blobs,
                )  # fmt: skip
                staged += decode_staged(state.lists.get(STAGED, ())) if state is not None else []
        return writers, staged

    def _context(self, operator: str) -> WriteContext:
        deploy = self.deploy
        return WriteContext(
            operator, deploy.subtask.index, deploy.attempt, deploy.attempt_number, self._services.clock.now_us
        )

    async def _until_finished(self) -> bool:
        """Returns whether the job has ended."""
        while True:
            self.inbox.clear()
            event = self.inbox.take(frames=False)
            if isinstance(event, FinishRead):
                return event.final
            if event is None:
                await self.inbox.wait(1.0)

    @property
    def status(self) -> TaskStatus:
        """What the leader hears."""
        published = self._committer.published if self._committer is not None else 0
        return TaskStatus(self.deploy.job, self.deploy.attempt, self.deploy.subtask, self.state, published)

    def credit(self, report: CreditReport) -> None:
        """It produces for nobody."""

    def _changed(self) -> None:
        self._status_changed(self.status)
