"""What the loops of publishers have in common: they carry out what a machine commands for one transactional id.

One command at a time; what happened comes back to the machine as an event. Doubts become `Doubtful`, and the machine
decides.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol

import structlog

from penstock.connectors.base import ProducerFencedError, PublishedMark, SinkPublisher
from penstock.coordination import failpoints
from penstock.errors import ExternalError, PenstockError
from penstock.ports import Clock
from penstock.protocol.publishing import (
    BackedOff,
    BackOff,
    Committed,
    CommitTransaction,
    Doubtful,
    Exit,
    FailJob,
    Fenced,
    InitProducer,
    M,
    MarkRead,
    ProducerReady,
    ReadMark,
)

if TYPE_CHECKING:
    import polars as pl

PATIENCE_MS: Final = 300_000
"""Doubts without a single commit for so long fail the subtask, so that the restart strategy decides."""

_log = structlog.get_logger("penstock.publishing")


class PublishingError(PenstockError):
    """Publishing cannot go on: rows would be lost or doubled, or the sink's system refuses for too long."""

    domain = "external"


class DamagedExchangeError(PublishingError):
    """Rows that are complete and not published are gone from the log."""

    terminal = True


class Machine(Protocol):
    """What decides."""

    def handle(self, event: Any) -> Iterable[Any]:
        """Take an event; the commands are to be carried out in order."""
        ...


class TransactionLoop(ABC, Generic[M]):
    """The loop of one transactional id in one attempt."""

    def __init__(self, machine: Machine, publisher: SinkPublisher, clock: Clock) -> None:
        self._machine = machine
        self._publisher = publisher
        self._clock = clock
        self._commands: deque[Any] = deque()
        self._wake = asyncio.Event()
        self._doubtful_since_ms: int | None = None

    # -- what a machine and its owner say -------------------------------------------------------------------------------

    @abstractmethod
    def _mark(self, found: PublishedMark) -> M:
        """The mark as the machine knows it; raises `CorruptDataError`."""

    @abstractmethod
    def _transaction(self, command: CommitTransaction[M]) -> tuple[Sequence[pl.DataFrame], PublishedMark]:
        """The rows of a transaction, and its mark as it stands in the sink's system."""

    @abstractmethod
    def _committed(self, command: CommitTransaction[M], rows: int, left_out: int) -> None:
        """It is committed for certain, with so many rows, and without those that the destination refuses."""

    @abstractmethod
    def _waits(self, what: str) -> None:
        """What keeps it from publishing, and with an empty text that nothing does any more."""

    async def _answer_other(self, command: Any) -> Any:
        """What this machine alone commands."""
        raise NotImplementedError(f"{type(command).__name__}")

    # -- the loop -------------------------------------------------------------------------------------------------------

    def tell(self, event: Any) -> None:
        """Something happened outside."""
        self._commands.extend(self._machine.handle(event))
        self._wake.set()

    async def _open(self) -> None:
        while not await self._opened():
            await self._clock.sleep_ms(1_000)

    async def _opened(self) -> bool:
        try:
            await self._publisher.open()
        except ExternalError as error:
            self._doubt(error)
            return False
        return True

    async def _step(self) -> None:
        if not self._commands:
            await self._wait()
            return
        event = await self._carry_out(self._commands.popleft())
        if event is not None:
            self._commands.extend(self._machine.handle(event))

    async def _wait(self) -> None:
        """Until something is to be done: nothing is in doubt then."""
        self._doubtful_since_ms = None
        self._waits("")
        await self._wake.wait()
        self._wake.clear()

    async def _carry_out(self, command: Any) -> Any:
        try:
            return await self._answer(command)
        except ProducerFencedError as error:
            _log.debug("fenced", reason=str(error))
            return Fenced()
        except ExternalError as error:
            self._doubt(error)
            return Doubtful(str(error))

    async def _answer(self, command: Any) -> Any:
        match command:
            case InitProducer():
                failpoints.reached(failpoints.BEFORE_INIT)
                granted = await self._publisher.init_producer()
                failpoints.reached(failpoints.AFTER_INIT)
                return ProducerReady(granted)
            case ReadMark():
                found = await self._publisher.read_mark()
                return MarkRead(None if found is None else self._mark(found))
            case CommitTransaction():
                return await self._commit(command)
            case BackOff():
                await self._clock.sleep_ms(command.delay_ms)
                return BackedOff()
            case Exit():
                _log.info("publisher leaves", reason=command.reason)
                return None
            case FailJob():
                raise (DamagedExchangeError if command.damaged else PublishingError)(command.reason)
            case _:
                return await self._answer_other(command)

    async def _commit(self, command: CommitTransaction[M]) -> Committed:
        frames, mark = self._transaction(command)
        if frames:
            failpoints.reached(failpoints.BEFORE_COMMIT)
        left_out = await self._publisher.commit(frames, mark) or 0
        if frames:
            failpoints.reached(failpoints.AFTER_COMMIT)
        self._doubtful_since_ms = None
        self._waits("")
        self._committed(command, sum(frame.height for frame in frames) - left_out, left_out)
        return Committed()

    def _doubt(self, error: ExternalError) -> None:
        """Go on for a while; what no retry can help fails at once."""
        now_ms = self._clock.monotonic_ms()
        if self._doubtful_since_ms is None:
            self._doubtful_since_ms = now_ms
        if not error.retryable:
            raise error
        self._waits(f"publishing: {error}")
        if now_ms - self._doubtful_since_ms >= PATIENCE_MS:
            raise PublishingError(
                f"nothing could be published for {PATIENCE_MS // 1_000} s; the last reason: {error}"
            ) from error
        _log.warning("publishing: no certain answer, trying again", reason=str(error))
