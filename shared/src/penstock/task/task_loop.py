"""What every deployed subtask is, whatever it does: a service with a state, an inbox, and work beside its loop.

`TaskLoop` holds the life cycle and what the leader hears; `CheckpointedLoop` adds the subtask's machine and the exchange
partition that it reads. What is done with rows is left to `SubtaskRunner` and its siblings.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import structlog

from penstock.errors import UserCodeError, described
from penstock.observability.user_frames import first_cause
from penstock.protocol.frames import Channel
from penstock.protocol.messages import OperatorMetrics, TaskProgress, TaskState, TaskStatus
from penstock.protocol.outputs import OutputLedger
from penstock.protocol.subtask import FrameRead, SubtaskCommand, SubtaskEvent, SubtaskMachine
from penstock.task.committer import Committer
from penstock.task.environment import TaskEnvironment
from penstock.task.exchange_io import CreditReport, ExchangeReader

Work = Coroutine[Any, Any, None]

_log = structlog.get_logger("penstock.task")


async def as_failure(work: Work) -> None:
    """Do it. What would end the process, with exit code 0 perhaps, fails the subtask: `sys.exit()` in a user's function,
    a panic of a library in Rust.

    Raises:
        UserCodeError: in the place of such.
    """
    try:
        await work
    except BaseException as error:
        cause = first_cause(error)
        if isinstance(cause, Exception | asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
            raise
        raise UserCodeError(described(cause)) from cause


@dataclass
class TimeUse:
    """Where a subtask's time went, in microseconds."""

    busy_us: int = 0
    idle_us: int = 0
    blocked_us: int = 0


class TaskLoop(ABC):
    """A deployed subtask. `run` returns when the leader commands the end, and raises when the subtask fails."""

    def __init__(self, environment: TaskEnvironment) -> None:
        self.deploy = environment.deploy
        self.inbox = environment.inbox
        self.time_use = TimeUse()
        self.state: TaskState = "initializing"
        self.waits_for = ""
        self._environment = environment
        self._services = environment.services
        self._vertex = environment.vertex
        self._send_event = environment.send_event
        self._background: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []
        """What runs beside the subtask; its end ends them, and a failure of one fails the subtask."""
        self._committer: Committer | None = None
        """Makes visible what its sinks have staged, where they stage anything."""
        self._final = False
        """Whether the job has ended with this attempt."""

    # -- life -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Open, work until finished, close."""
        await as_failure(self._run())

    async def _run(self) -> None:
        await self._open()
        try:
            async with asyncio.TaskGroup() as group:
                self._background = group
                for work in self._works_beside():
                    self._beside(work)
                await self._work()
                for task in list(self._tasks):
                    task.cancel()
            await self._finished()
            self.state = "finished"
        except BaseException:
            await self._close_behind_a_failure()
            raise
        await self._close()

    async def _close_behind_a_failure(self) -> None:
        """What closing raises would hide why the subtask fails, and is often but a consequence of it."""
        try:
            await self._close()
        except Exception as error:
            _log.warning("closing raised behind a failure", error=described(error))

    async def _open(self) -> None:
        """Before anything runs."""

    @abstractmethod
    def _works_beside(self) -> list[Work]:
        """What runs beside the loop from its beginning to its end."""

    @abstractmethod
    async def _work(self) -> None:
        """The loop: returns when the leader ends the attempt."""

    async def _finished(self) -> None:
        """The leader has ended the attempt, and nothing runs beside the loop any more."""
        if self._final and self._committer is not None:
            await self._committer.job_ended()

    async def _close(self) -> None:
        """Give back what `_open` has taken; also after a failure."""

    def _beside(self, work: Work) -> None:
        assert self._background is not None
        task = self._background.create_task(as_failure(work))
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)
        task.add_done_callback(lambda _: work.close())  # where it was cancelled before its first step

    # -- what others hear -----------------------------------------------------------------------------------------------

    @property
    def status(self) -> TaskStatus:
        """What the leader hears."""
        return TaskStatus(
            job=self.deploy.job,
            attempt=self.deploy.attempt,
            subtask=self.deploy.subtask,
            state=self.state,
            published=self._published_checkpoint(),
            metrics={operator: copy(metrics) for operator, metrics in self._operator_metrics().items()},
            progress=self._progress(),
            waits_for=self._waited_for(),
        )

    def _published_checkpoint(self) -> int:
        """The checkpoint up to which everything of this subtask is visible."""
        return self._committer.published if self._committer is not None else 0

    def _operator_metrics(self) -> Mapping[str, OperatorMetrics]:
        """Per operator id."""
        return {}

    def _progress(self) -> TaskProgress:
        return TaskProgress()

    def _changed(self) -> None:
        self._environment.status_changed(self.status)

    def _is_now(self, state: TaskState) -> None:
        self.state = state
        self._changed()

    def _waited_for(self) -> str:
        """What it waits for that does not answer, and why."""
        return self.waits_for

    def _waits(self, what: str) -> None:
        self.waits_for = what

    def credit(self, report: CreditReport) -> None:
        """A consumer's report, read from the credits topic: nothing to those who produce for nobody."""

    def _micros(self) -> int:
        return self._services.clock.monotonic_us()


class CheckpointedLoop(TaskLoop):
    """A subtask that takes part in checkpoints: it feeds its `SubtaskMachine` and carries out what that commands."""

    def __init__(
        self,
        environment: TaskEnvironment,
        ledger: OutputLedger,
        processed: Callable[[], Mapping[Channel, int]] | None = None,
    ) -> None:
        """A subtask that produces for the outputs of `ledger`.

        Args:
            environment: what it is given.
            ledger: of its outputs.
            processed: per channel, the bytes that no longer count against its credit; those that the machine's gate has
                let through if it is not given.
        """
        super().__init__(environment)
        deploy = self.deploy
        self._log = environment.exchange_log(self._waits)
        self.machine = SubtaskMachine(
            deploy.job,
            deploy.attempt,
            deploy.subtask,
            "source" if self._vertex.is_source else "inner",
            environment.execution.channels(deploy.subtask),
            ledger,
        )
        self._reader = ExchangeReader(
            deploy,
            self._log,
            processed or self.machine.gate.processed_bytes,
            self._services.settings.credit_bytes,
            self.inbox.put,
        )

    def _works_beside(self) -> list[Work]:
        if not self._vertex.inputs:
            return []
        return [self._reader.fetch(), self._reader.report_credit(), self._reader.trim()]

    async def _feed(self, event: SubtaskEvent) -> None:
        if isinstance(event, FrameRead):
            self._reader.fed(event)
        for command in self.machine.handle(event):
            await self._carry_out(command)

    @abstractmethod
    async def _carry_out(self, command: SubtaskCommand) -> None:
        """Do what the machine commands, and feed it what comes of that."""
