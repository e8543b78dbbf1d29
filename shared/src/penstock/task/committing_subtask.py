"""A subtask whose attempt publishes only: it commits the parts that its sinks staged for the restored checkpoint.

No row is read and no operator is built. What is committed when is decided by `penstock.protocol.committing`. A sink
behind an exchange of its own needs nothing of this: its `PublishingRunner` is the same in every attempt.
"""

from __future__ import annotations

from penstock.connectors.base import SinkWriter
from penstock.errors import PipelineError
from penstock.plan.operations.write import Write
from penstock.protocol.committing import StagedPart
from penstock.protocol.subtask import FinishRead
from penstock.task.committer import STAGED, decode_staged
from penstock.task.task_loop import TaskLoop, Work


class CommittingRunner(TaskLoop):
    """A deployed subtask that commits. It sends no events: there are no checkpoints to acknowledge."""

    async def _open(self) -> None:
        writers: dict[str, SinkWriter] = {}
        staged: list[StagedPart] = []
        for operator in self._vertex.operators:
            if operator.verb == "write":
                writers[operator.id] = self._writer(operator.id)
                state = await self._environment.restored(operator.id)
                staged += decode_staged(state.lists.get(STAGED, ())) if state is not None else []
        self._committer = self._environment.committer(writers, staged, self._changed)
        self._is_now("running")

    def _writer(self, operator: str) -> SinkWriter:
        node = self._environment.plan.by_operator(operator)
        if node is None or not isinstance(node.operation, Write):
            raise PipelineError(f"the pipeline has no sink {operator!r}, which has staged rows to make visible")
        return node.operation.sink.open(node.schema, self._environment.write_context(operator))

    def _works_beside(self) -> list[Work]:
        """Commit everything."""
        assert self._committer is not None
        return [self._committer.run()]

    async def _work(self) -> None:
        """Wait until the leader ends the attempt."""
        while True:
            self.inbox.clear()
            event = self.inbox.take(frames=False)
            if isinstance(event, FinishRead):
                self._final = event.final
                return
            if event is None:
                await self.inbox.wait(1.0)
