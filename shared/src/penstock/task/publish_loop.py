"""The publish loop of one sink partition: carries out what its `PublisherMachine` commands, one command at a time.

What happened comes back to the machine as an event; doubts become `Doubtful`, and the machine decides. Where frames
come from, and what follows when something is visible, is given by whoever runs the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec
import structlog

from penstock.connectors.base import ProducerFencedError, PublishedMark, SinkPublisher
from penstock.coordination import failpoints
from penstock.errors import CorruptDataError, ExternalError, PenstockError
from penstock.ports import Clock, Log, OffsetOutOfRangeError
from penstock.protocol.frames import decode_frame
from penstock.protocol.manifests import Interval
from penstock.protocol.publishing import (
    BackedOff,
    BackOff,
    Committed,
    CommitTransaction,
    Covered,
    Doubtful,
    Exit,
    FailJob,
    Fenced,
    FramesGone,
    FramesRead,
    InitProducer,
    Mark,
    MarkAged,
    MarkRead,
    ProducerReady,
    PublisherCommand,
    PublisherEvent,
    PublisherMachine,
    ReadFrames,
    ReadMark,
    ReportPublished,
)

if TYPE_CHECKING:
    import polars as pl

MARK_AGE_MS: Final = 6 * 3_600_000
"""An unchanged mark is committed again so often: Kafka forgets group offsets after days."""
PATIENCE_MS: Final = 300_000
"""Doubts without a single commit for so long fail the subtask, so that the restart strategy decides."""

_log = structlog.get_logger("penstock.publishing")


class PublishingError(PenstockError):
    """Publishing cannot go on: rows would be lost or doubled, or the sink's system refuses for too long."""

    domain = "external"


class DamagedExchangeError(PublishingError):
    """Rows that are complete and not published are gone from the log."""

    terminal = True


@dataclass(frozen=True)
class PublishHooks:
    """What the owner of a loop does when something happens."""

    read: Callable[[ReadFrames], Awaitable[FramesRead | FramesGone]]
    """Read frames of the exchange; raises `ExternalError`."""
    decode: Callable[[Any], pl.DataFrame]
    """The rows of a frame by its reference."""
    committed: Callable[[Mark, int], None]
    """A mark is committed, and so many rows with it."""
    published: Callable[[int], None]
    """Everything up to this checkpoint is visible."""
    waits: Callable[[str], None] = lambda _: None
    """What keeps it from publishing, and with an empty text that nothing does any more."""


class PublishLoop:
    """The loop of one partition in one attempt. `run` ends by cancellation, or raises."""

    def __init__(self, machine: PublisherMachine, publisher: SinkPublisher, clock: Clock, hooks: PublishHooks) -> None:
        self.machine = machine
        self._publisher = publisher
        self._clock = clock
        self._hooks = hooks
        self._commands: deque[PublisherCommand] = deque()
        self._wake = asyncio.Event()
        self._started = False
        self._covered_early: list[Covered] = []
        self._doubtful_since_ms: int | None = None

    def covered(self, intervals: Iterable[Interval]) -> None:
        """COMPLETE covers these intervals."""
        event = Covered(tuple(intervals))
        if self._started:
            self._commands.extend(self.machine.handle(event))
        else:
            self._covered_early.append(event)
        self._wake.set()

    async def run(self, intervals: Sequence[Interval]) -> None:
        """Announce the attempt, publish what the restored checkpoint covers, then whatever is covered."""
        try:
            while not await self._opened():
                await self._clock.sleep_ms(1_000)
            self._start(intervals)
            while True:
                await self._step()
        finally:
            await self._publisher.close()

    def _start(self, intervals: Sequence[Interval]) -> None:
        self._commands.extend(self.machine.start(intervals))
        self._started = True
        for event in self._covered_early:
            self._commands.extend(self.machine.handle(event))
        self._covered_early.clear()

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
            self._commands.extend(self.machine.handle(event))

    async def _wait(self) -> None:
        """Until something is covered, or the mark is old."""
        self._hooks.waits("")
        try:
            async with asyncio.timeout(MARK_AGE_MS / 1_000):
                await self._wake.wait()
        except TimeoutError:
            self._commands.extend(self.machine.handle(MarkAged()))
        self._wake.clear()

    async def _carry_out(self, command: PublisherCommand) -> PublisherEvent | None:
        try:
            return await self._answer(command)
        except ProducerFencedError as error:
            _log.debug("fenced", reason=str(error))
            return Fenced()
        except ExternalError as error:
            self._doubt(error)
            return Doubtful(str(error))

    async def _answer(self, command: PublisherCommand) -> PublisherEvent | None:
        match command:
            case InitProducer():
                failpoints.reached(failpoints.BEFORE_INIT)
                granted = await self._publisher.init_producer()
                failpoints.reached(failpoints.AFTER_INIT)
                return ProducerReady(granted)
            case ReadMark():
                found = await self._publisher.read_mark()
                return MarkRead(None if found is None else decode_mark(found))
            case ReadFrames():
                return await self._hooks.read(command)
            case CommitTransaction():
                return await self._commit(command)
            case BackOff():
                await self._clock.sleep_ms(command.delay_ms)
                return BackedOff()
            case ReportPublished():
                self._hooks.published(command.checkpoint)
                return None
            case Exit():
                _log.info("publisher leaves", reason=command.reason)
                return None
            case FailJob():
                raise (DamagedExchangeError if command.damaged else PublishingError)(command.reason)
            case _:
                assert_never(command)

    async def _commit(self, command: CommitTransaction) -> Committed:
        frames = [self._hooks.decode(ref) for ref in command.refs]
        if frames:
            failpoints.reached(failpoints.BEFORE_COMMIT)
        await self._publisher.commit(frames, encode_mark(command.mark))
        if frames:
            failpoints.reached(failpoints.AFTER_COMMIT)
        self._doubtful_since_ms = None
        self._hooks.waits("")
        self._hooks.committed(command.mark, sum(frame.height for frame in frames))
        return Committed()

    def _doubt(self, error: ExternalError) -> None:
        """Go on for a while; what no retry can help fails at once."""
        now_ms = self._clock.monotonic_ms()
        if self._doubtful_since_ms is None:
            self._doubtful_since_ms = now_ms
        if not error.retryable:
            raise error
        self._hooks.waits(f"publishing: {error}")
        if now_ms - self._doubtful_since_ms >= PATIENCE_MS:
            raise PublishingError(
                f"nothing could be published for {PATIENCE_MS // 1_000} s; the last reason: {error}"
            ) from error
        _log.warning("publishing: no certain answer, trying again", reason=str(error))


async def read_frames(log: Log, topic: str, partition: int, command: ReadFrames) -> FramesRead | FramesGone:
    """Read frames of an exchange as the command says.

    Raises:
        ExternalError: the log cannot be reached, or does not show yet what it has confirmed.
    """
    frames: list[tuple[int, int, Any, Any, int]] = []
    position, size = command.start, 0
    while position < command.end and size < command.max_bytes:
        try:
            records = await log.read(topic, partition, position, max_bytes=command.max_bytes, timeout_s=1.0)
        except OffsetOutOfRangeError as error:
            return FramesGone(str(error))
        if not records:
            _, end = await log.offsets(topic, partition)
            if end < command.end:
                return FramesGone(f"it ends at {end}")
            raise ExternalError(f"{topic}[{partition}]: nothing at {position}, before {command.end}")
        for record in records:
            if size >= command.max_bytes:
                break
            if record.offset >= command.end:  # what should stand before it is gone; the machine sees that
                position = command.end
                break
            frame, payload = decode_frame(record.value)
            frames.append((record.offset, record.next_offset, frame, payload, len(payload)))
            position, size = record.next_offset, size + len(payload)
    return FramesRead(frames, position)


def encode_mark(mark: Mark) -> PublishedMark:
    """The mark as it stands in the sink's system: the position as the offset, the rest as JSON beside it."""
    rest = msgspec.structs.asdict(mark)
    position = rest.pop("position")
    return PublishedMark(position, msgspec.json.encode(rest).decode())


def decode_mark(found: PublishedMark) -> Mark:
    """The inverse of `encode_mark`.

    Raises:
        CorruptDataError: somebody else has written there.
    """
    try:
        rest = msgspec.json.decode(found.metadata, type=dict[str, Any])
        return msgspec.convert({**rest, "position": found.position}, Mark)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CorruptDataError(
            f"the mark of this sink is unreadable ({found.metadata[:80]!r} at {found.position}): the group offset was "
            "changed by somebody else; publishing from there is not safe"
        ) from error


class ScannedFrames:
    """Frames that were scanned and are not published, kept so that publishing need not read them again.

    A run without holes: once it is full it takes no more until it is empty, and what is behind it is read from the log.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._frames: deque[tuple[int, int, Any, Any]] = deque()
        """(offset from which, offset up to which, header, payload)."""
        self._bytes = 0
        self._taking = True

    def scanned(self, start: int, end: int, frame: Any, payload: Any) -> None:
        """The frame behind `start`; `end` is the offset behind it."""
        if not self._taking:
            return
        if self._bytes + len(payload) > self._limit_bytes and self._frames:
            self._taking = False
            return
        self._frames.append((start, end, frame, payload))
        self._bytes += len(payload)

    def read(self, command: ReadFrames) -> FramesRead | None:
        """What is kept of the asked range from its beginning on; None if nothing is."""
        found: list[tuple[int, int, Any, Any, int]] = []
        size, position = 0, command.start
        for start, end, frame, payload in self._frames:
            if end <= command.start:
                continue
            if start != position or start >= command.end or size >= command.max_bytes:
                break
            found.append((start, end, frame, payload, len(payload)))
            size += len(payload)
            position = end
        return FramesRead(found, position) if found else None

    def published(self, offset: int) -> None:
        """Everything below `offset` is visible."""
        while self._frames and self._frames[0][1] <= offset:
            self._bytes -= len(self._frames.popleft()[3])
        if not self._frames:
            self._taking = True
