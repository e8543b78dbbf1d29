"""The publish loop of one sink partition: carries out what its `PublisherMachine` commands, one command at a time.

What happened comes back to the machine as an event; doubts become `Doubtful`, and the machine decides. Where frames
come from, and what follows when something is visible, is given by whoever runs the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.connectors.base import PublishedMark, SinkPublisher
from penstock.errors import CorruptDataError, ExternalError
from penstock.ports import Clock, Log, OffsetOutOfRangeError
from penstock.protocol.frames import decode_frame
from penstock.protocol.manifests import Interval
from penstock.protocol.publishing import (
    CommitTransaction,
    Covered,
    FramesGone,
    FramesRead,
    Mark,
    MarkAged,
    PublisherEvent,
    PublisherMachine,
    ReadFrames,
    ReportPublished,
)
from penstock.task.transaction_loop import TransactionLoop

if TYPE_CHECKING:
    import polars as pl

MARK_AGE_MS: Final = 6 * 3_600_000
"""An unchanged mark is committed again so often: Kafka forgets group offsets after days."""


@dataclass(frozen=True)
class PublishHooks:
    """What the owner of a loop does when something happens."""

    read: Callable[[ReadFrames], Awaitable[FramesRead | FramesGone]]
    """Read frames of the exchange; raises `ExternalError`."""
    decode: Callable[[Any], pl.DataFrame]
    """The rows of a frame by its reference."""
    committed: Callable[[Mark, int, int], None]
    """A mark is committed, and so many rows with it; and so many were left out because the destination refuses them."""
    published: Callable[[int], None]
    """Everything up to this checkpoint is visible."""
    waits: Callable[[str], None] = lambda _: None
    """What keeps it from publishing, and with an empty text that nothing does any more."""


class PublishLoop(TransactionLoop[Mark]):
    """The loop of one partition in one attempt. `run` ends by cancellation, or raises."""

    def __init__(self, machine: PublisherMachine, publisher: SinkPublisher, clock: Clock, hooks: PublishHooks) -> None:
        super().__init__(machine, publisher, clock)
        self.machine = machine
        self._hooks = hooks
        self._started = False
        self._covered_early: list[Covered] = []

    def covered(self, intervals: Iterable[Interval]) -> None:
        """COMPLETE covers these intervals."""
        event = Covered(tuple(intervals))
        if self._started:
            self.tell(event)
        else:
            self._covered_early.append(event)

    async def run(self, intervals: Sequence[Interval]) -> None:
        """Announce the attempt, publish what the restored checkpoint covers, then whatever is covered."""
        try:
            await self._open()
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

    async def _wait(self) -> None:
        """Until something is covered, or the mark is old."""
        try:
            async with asyncio.timeout(MARK_AGE_MS / 1_000):
                await super()._wait()
        except TimeoutError:
            self._commands.extend(self.machine.handle(MarkAged()))

    def _mark(self, found: PublishedMark) -> Mark:
        return decode_mark(found)

    def _transaction(self, command: CommitTransaction[Mark]) -> tuple[Sequence[pl.DataFrame], PublishedMark]:
        return [self._hooks.decode(ref) for ref in command.refs], encode_mark(command.mark)

    def _committed(self, command: CommitTransaction[Mark], rows: int, left_out: int) -> None:
        self._hooks.committed(command.mark, rows, left_out)

    def _waits(self, what: str) -> None:
        self._hooks.waits(what)

    async def _answer_other(self, command: Any) -> PublisherEvent | None:
        match command:
            case ReadFrames():
                return await self._hooks.read(command)
            case ReportPublished():
                self._hooks.published(command.checkpoint)
                return None
            case _:
                return await super()._answer_other(command)


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
