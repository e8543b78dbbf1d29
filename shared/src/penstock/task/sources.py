"""The source of a subtask: which splits it owns, their positions, their watermarks. Records are judged by `bad_rows`."""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
import polars as pl
import structlog

from penstock.connectors.base import (
    A_MOMENT_S,
    ConfirmsPositions,
    EndOfSplit,
    Fetched,
    KnowsAnswers,
    MeasuresLag,
    Position,
    ReadContext,
    Source,
    Split,
    SplitReader,
    WatermarkGenerator,
)
from penstock.core.batches import EVENT_TIME, with_watermarks
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import ExternalError
from penstock.protocol.messages import OperatorMetrics
from penstock.protocol.watermarks import InputProgress, combined, least
from penstock.task.alignment import SourceAlignment
from penstock.task.bad_rows import RowValidator

BATCH_ROWS = 65_536
FEW_ROWS = 1_024
"""Fewer cost about as much as so many, whatever is done with them as a batch."""
DISCOVERY_INTERVAL_MS = 10_000
SILENT_MS = 10_000
"""A split that brings no row for so long is told of, if event time waits for it."""
VAIN_ASKS = 10
"""So many times in a row must a split be asked in vain to be idle, unless the asks of all splits take that long."""
LONGEST_ASK_MS = int(4 * A_MOMENT_S * 1_000)
"""What an ask counts for at most: a reader returns after a moment, unless its process is held up."""
DISCOVERY_PATIENCE_MS = 120_000
"""How long nobody need answer who is asked for splits; the readers of Kafka wait as long for their partitions."""

SPLITS_TOLD = 10
"""Of so many splits a heartbeat tells how far they are behind, however many there are."""
OPENED_AT_ONCE = 16
"""Splits that somebody publishes: each has a producer, and looks for its mark."""

MOMENT = "\0moment"
"""Under which name the moment of a source is remembered; no split has it."""
SPARING_S = 0.01
"""How long to wait when only splits that are too far ahead have rows: readers of the others may return at once then."""

_log = structlog.get_logger("penstock.source")


class Begin(Protocol):
    """Says where a split is read from: not where a checkpoint has it, but where its rows are published up to."""

    async def __call__(self, split: str, position: Position, *, known: bool, splits: int) -> Position:
        """See `SplitPublishing.begin`."""
        ...


Remember = Callable[[str, Position], Awaitable[Position]]
"""Keeps where a split begins for all attempts of a job; returns what was kept first."""


class SplitEntry(msgspec.Struct, frozen=True):
    """A split in a snapshot."""

    split: str
    position: Position
    finished: bool
    watermark: int
    idle: bool
    generator: Any
    aligned: bool = True


@dataclass(frozen=True)
class SourceBatch:
    """What one step of a source brought."""

    frame: pl.DataFrame | None = None
    dead: pl.DataFrame | None = None
    watermark: int | None = None
    became_idle: bool = False
    exhausted: bool = False
    paused: bool = False
    """Nothing may be read until other subtasks have caught up."""
    few: bool = False
    """Every split was read once more, and all that they had at hand was few rows."""
    size_bytes: int = 0
    split: str = ""
    """Which one was read, and where it stands behind what was: of a source whose splits somebody publishes."""
    position: Position = None


@dataclass(frozen=True)
class SilentSplit:
    """A split that event time waits for and that brings nothing."""

    split: str
    silent_ms: int
    """How long it has been asked in vain."""
    is_empty: bool
    """Whether it has not had a single row, before a restart neither."""
    furthest: int
    """The watermark of the split of this subtask that is furthest ahead."""


@dataclass
class _SplitState(InputProgress):
    split: Split
    reader: SplitReader | None
    generator: WatermarkGenerator | None
    stored: Position = None
    """Where the split stands while no reader is open."""
    finished: bool = False
    vain_ms: int | None = None
    """When it was last asked in vain; None if it had rows then, or has not been asked since it may be read (again)."""
    vain_asked_ms: int = 0
    """How long all splits of the subtask had been asked by then."""
    silent_ms: int = 0
    """How long it has been asked in vain; one that nobody asks is not silent."""
    paused: bool = False
    """Whether it was passed over last because it is too far ahead."""

    def heard(self) -> None:
        """What has been silence ends, or says nothing: silence begins with the next ask in vain."""
        self.vain_ms, self.silent_ms = None, 0

    def asked_in_vain(self, now_ms: int, asked_ms: int, most_ms: int) -> None:
        """Since it was last asked in vain there was nothing. Of that time counts how long splits were asked, this one or
        others in turn (`asked_ms` in all), and no more than `most_ms` of the rest."""
        if self.vain_ms is not None:
            self.silent_ms += min(now_ms - self.vain_ms, asked_ms - self.vain_asked_ms + most_ms)
        self.vain_ms, self.vain_asked_ms = now_ms, asked_ms

    @property
    def position(self) -> Position:
        """Behind everything that was handed out; asked for at snapshots only, because it may cost a look at the input."""
        return self.reader.position() if self.reader is not None else self.stored


_Found = tuple[Split, SplitEntry | None, Position]
"""A split, what a snapshot says of it, and where it begins."""


def owner_of(split_id: str, parallelism: int) -> int:
    """The subtask that reads a split: by number where the id is one, else by a hash of it."""
    if split_id.isdecimal():
        return int(split_id) % parallelism
    digest = hashlib.sha256(split_id.encode()).digest()
    return int.from_bytes(digest[:8], "little") % parallelism


def silence_per_ask_ms(idle_after_us: int | None) -> int:
    """How much of silence one ask in vain is good for, by the `idle_after` of the source."""
    idle_after_ms = SILENT_MS if idle_after_us is None else math.ceil(idle_after_us / 1_000)
    return max(int(A_MOMENT_S * 1_000), math.ceil(idle_after_ms / VAIN_ASKS))


class SourceDriver:
    """Reads the splits of one subtask in turn. Not started until `open`."""

    def __init__(
        self,
        source: Source[Any],
        subtask: int,
        parallelism: int,
        context: ReadContext,
        metrics: OperatorMetrics,
        remember: Remember,
        *,
        carries_watermarks: bool = False,
        window_reach_us: int = 0,
        alignment: SourceAlignment | None = None,
        begin: Begin | None = None,
    ) -> None:
        """A driver of the splits that belong to `subtask`; `carries_watermarks`: every row tells its watermark."""
        self._alignment = alignment
        self._begin_by_mark = begin
        self._silent_reads = 0
        """How many reads in a row have brought nothing."""
        self._round_reads = self._round_rows = 0
        """Since every split was read once more: how often one was read, and what that brought."""
        self._remember = remember
        self._carries_watermarks = carries_watermarks
        self._source = source
        self._subtask = subtask
        self._parallelism = parallelism
        self._context = replace(context, other_work=self._other_work)
        self._others = context.other_work
        self._judge = RowValidator(source, metrics, context.clock_us, window_reach_us)
        self._splits: dict[str, _SplitState] = {}
        self._turn: list[str] = []
        self._asked_ms = 0
        """How long splits have been asked, in all."""
        self._watermark = MIN_WATERMARK
        self._idle = False
        self._next_period_ms = 0
        self._next_discovery_ms = 0
        self._unanswered_ms: int | None = None
        """Since when nobody answers who is asked for splits."""
        self._frozen: dict[int, dict[str, Position]] = {}
        """Per checkpoint under way: where splits stood whose readers hear of it when it is complete."""
        self._looking: asyncio.Task[list[_Found]] | None = None
        """Looks for splits that have come since."""

    async def open(self, entries: Sequence[bytes]) -> None:
        """Find the splits; those with an entry of a snapshot continue at its position."""
        restored = {entry.split: entry for entry in (msgspec.json.decode(data, type=SplitEntry) for data in entries)}
        if self._source.has_moment and (moment := await asyncio.to_thread(self._source.moment)) is not None:
            self._source = self._source.at(await self._remember(MOMENT, moment))
        found = await self._discover(restored, late=bool(restored))
        there = {split.id for split, _, _ in found}
        gone = [entry for entry in restored.values() if entry.split not in there]
        mine = [entry for entry in gone if owner_of(entry.split, self._parallelism) == self._subtask]
        self._join([*found, *((Split(entry.split), entry, entry.position) for entry in mine)])
        self._next_period_ms = self._period_from(self._context.monotonic_ms())

    async def _look_for_splits(self, now_ms: int) -> None:
        """Splits that have come are looked for beside the steps, and join between two of them.

        They can wait while nobody answers, as long as a reader would wait for its own.
        """
        looking = self._looking
        if looking is None and now_ms >= self._next_discovery_ms:
            self._looking = asyncio.create_task(self._discover({}, late=True))
        if looking is None or not looking.done():
            return
        self._looking = None
        try:
            self._join(await looking)
        except ExternalError as error:
            since_ms = self._unanswered_ms = now_ms if self._unanswered_ms is None else self._unanswered_ms
            if not error.retryable or now_ms - since_ms > DISCOVERY_PATIENCE_MS:
                raise
            _log.warning("cannot look for new splits, trying again", error=str(error))
            self._next_discovery_ms = self._context.monotonic_ms() + DISCOVERY_INTERVAL_MS

    async def _discover(self, restored: dict[str, SplitEntry], *, late: bool) -> list[_Found]:
        """The splits of this subtask that it does not have yet, and where they begin."""
        found = await asyncio.to_thread(self._source.discover)
        mine = [split for split in found if owner_of(split.id, self._parallelism) == self._subtask]
        new = [split for split in mine if split.id not in self._splits]
        entries = [restored.get(split.id) for split in new]
        begins = [
            await self._begin(split, late) if entry is None else await self._begin_again(split, entry)
            for split, entry in zip(new, entries, strict=True)
        ]
        begins = await self._marked(new, entries, begins, len(found))
        return list(zip(new, entries, begins, strict=True))

    def _join(self, found: Sequence[_Found]) -> None:
        """Take these splits into the turn."""
        for split, entry, begin in found:
            self._splits[split.id] = self._start(split, entry, begin)
        self._turn = sorted(split_id for split_id, state in self._splits.items() if not state.finished)
        self._unanswered_ms = None
        self._next_discovery_ms = self._context.monotonic_ms() + DISCOVERY_INTERVAL_MS

    async def _marked(
        self, new: Sequence[Split], entries: Sequence[SplitEntry | None], begins: list[Position], splits: int
    ) -> list[Position]:
        """Where splits begin that somebody publishes; all are asked for at once, because each takes a while."""
        by_mark = self._begin_by_mark
        if by_mark is None:
            return begins
        some = asyncio.Semaphore(OPENED_AT_ONCE)

        async def marked(split: Split, entry: SplitEntry | None, begin: Position) -> Position:
            async with some:
                return await by_mark(split.id, begin, known=entry is not None, splits=splits)

        try:
            async with asyncio.TaskGroup() as group:
                found = [group.create_task(marked(*each)) for each in zip(new, entries, begins, strict=True)]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in found]

    async def _begin(self, split: Split, late: bool) -> Position:
        """Where a new split begins: what the first attempt to ask was told, so that no attempt begins elsewhere."""
        begin = await asyncio.to_thread(self._source.resolve, split, late=late)
        return None if begin is None else await self._remember(split.id, begin)

    async def _begin_again(self, split: Split, entry: SplitEntry) -> Position:
        """Where a split of a snapshot goes on. One that a batch run read has no end, which a bounded source needs."""
        if entry.finished or not (self._source.bounded and self._source.ends_on_request):
            return entry.position
        position = await asyncio.to_thread(self._source.until_now, split, entry.position)
        if position == entry.position:
            return position
        where = hashlib.sha256(msgspec.json.encode(entry.position)).hexdigest()
        return await self._remember(f"{split.id}\0{where}", position)  # where the split began is another thing

    def _start(self, split: Split, entry: SplitEntry | None, begin: Position) -> _SplitState:
        event_time = self._source.event_time
        generator = event_time.watermarks.generator() if event_time is not None else None
        state = _SplitState(split, None, generator, begin)
        if entry is not None:
            state.finished = entry.finished
            state.watermark = entry.watermark
            state.idle = entry.idle
            state.aligned = entry.aligned and not entry.idle
            if generator is not None:
                generator.restore(entry.generator)
        if not state.finished:
            state.reader = self._source.open(split, state.stored, self._context)
        return state

    def frozen(self, checkpoint: int) -> None:
        """The splits as they stand belong to this checkpoint."""
        stand = {
            split_id: state.position
            for split_id, state in self._splits.items()
            if isinstance(state.reader, ConfirmsPositions)
        }
        if stand:
            self._frozen[checkpoint] = stand

    def completed(self, checkpoint: int) -> None:
        """This one is COMPLETE: whoever keeps the input outside may forget what is before it."""
        stand = self._frozen.get(checkpoint, {})
        self._frozen = {later: kept for later, kept in self._frozen.items() if later > checkpoint}
        for split_id, position in stand.items():
            reader = self._splits[split_id].reader
            if isinstance(reader, ConfirmsPositions):
                reader.confirm(position)

    def entries(self) -> list[bytes]:
        """Every split as it stands behind the rows handed out so far."""
        return [
            msgspec.json.encode(
                SplitEntry(
                    split=split_id,
                    position=state.position,
                    finished=state.finished,
                    watermark=state.watermark,
                    idle=state.idle,
                    generator=state.generator.state() if state.generator is not None else None,
                    aligned=state.aligned,
                )
            )
            for split_id, state in sorted(self._splits.items())
        ]

    @property
    def split_count(self) -> int:
        """How many splits are read."""
        return len(self._turn)

    @property
    def watermark(self) -> int:
        """The combined watermark last handed out."""
        return self._watermark

    def lag(self) -> tuple[int | None, dict[str, int]]:
        """Records that wait in the source, as far as its readers know, None where they cannot; and those of the splits
        with the most of them, the most first, of no more than `SPLITS_TOLD`."""
        known = [
            (behind, split_id)
            for split_id, state in self._splits.items()
            if isinstance(state.reader, MeasuresLag) and (behind := state.reader.records_behind()) is not None
        ]
        if not known:
            return None, {}
        furthest = heapq.nlargest(SPLITS_TOLD, known)
        return sum(behind for behind, _ in known), {split_id: behind for behind, split_id in furthest if behind}

    @property
    def silent_split(self) -> SilentSplit | None:
        """The split that event time waits for, if it has brought no row for `SILENT_MS`; of several, the most silent."""
        counted = [state for state in self._active() if state.aligned]
        if self._source.event_time is None or not counted:
            return None
        reached = min(state.watermark for state in counted)
        held = max((state for state in counted if state.watermark == reached), key=lambda state: state.silent_ms)
        if held.silent_ms < SILENT_MS:
            return None
        furthest = max(state.watermark for state in self._splits.values())
        return SilentSplit(held.split.id, held.silent_ms, held.watermark == MIN_WATERMARK, furthest)

    async def step(self) -> SourceBatch:
        """Read once from the next split; waits at most as long as its reader does."""
        now_ms = self._context.monotonic_ms()
        if not self._source.bounded:
            await self._look_for_splits(now_ms)
        limit = self._limit()
        if not self._turn:
            if self._source.bounded:
                return SourceBatch(exhausted=True)
            await asyncio.sleep(0.05)
            return self._with_watermark(SourceBatch())
        state = self._next_split(limit)
        if state is None:
            return self._with_watermark(SourceBatch(paused=True))
        assert state.reader is not None
        asked_ms = self._context.monotonic_ms()
        try:
            fetched = await state.reader.read(BATCH_ROWS)
        except EndOfSplit:
            await self._finish(state)
            return self._with_watermark(SourceBatch())
        self._asked_ms += min(self._context.monotonic_ms() - asked_ms, LONGEST_ASK_MS)
        if fetched is None:
            self._turn.append(state.split.id)
            self._note_silence(state)
            await self._spare()
            return self._with_watermark(SourceBatch(few=self._ends_few(0, is_all=True)))
        self._turn.insert(0 if self._is_read_to_its_end(state.split) else len(self._turn), state.split.id)
        self._silent_reads = 0
        state.heard()
        state.wake(self._reached())
        batch = self._accept(state, fetched)
        if self._begin_by_mark is not None:
            batch = replace(batch, split=state.split.id, position=state.position)
        rows = batch.frame.height if batch.frame is not None else 0
        return self._with_watermark(replace(batch, few=self._ends_few(rows, is_all=fetched.is_all)))

    def _ends_few(self, rows: int, *, is_all: bool) -> bool:
        """Whether with these rows every split was read once more, and all that was at hand was few rows; not of a source
        that has an end."""
        self._round_reads += 1
        self._round_rows += rows if is_all else FEW_ROWS
        if self._round_reads < len(self._turn):
            return False
        few = 0 < self._round_rows < FEW_ROWS and not self._source.bounded
        self._round_reads = self._round_rows = 0
        return few

    def _is_read_to_its_end(self, split: Split) -> bool:
        """Before the next one: a reader of a file holds a part of it in memory, and there may be thousands of them. With
        event time, which is that of the split that is furthest behind, all go on side by side."""
        return self._source.bounded and self._source.event_time is None and split.size_bytes is not None

    def _limit(self) -> int:
        """The watermark above which splits are not read for now."""
        if self._alignment is None:
            return MAX_WATERMARK
        reached, idle = combined(self._active(), self._watermark)
        return self._alignment.limit(MAX_WATERMARK if idle else reached)

    def _next_split(self, limit: int) -> _SplitState | None:
        """The split whose turn it is. One that is too far ahead is passed over, which does not make it idle."""
        for place, split_id in enumerate(self._turn):
            state = self._splits[split_id]
            if state.idle or state.watermark <= limit:
                del self._turn[place]
                if state.paused:
                    state.paused = False
                    state.heard()
                return state
            state.paused = True
        return None

    async def _spare(self) -> None:
        """Wait a little if all that may be read is silent, and what may not be perhaps has rows."""
        self._silent_reads += 1
        if self._silent_reads >= len(self._turn) and any(state.paused for state in self._active()):
            self._silent_reads = 0
            await asyncio.sleep(SPARING_S)

    async def _finish(self, state: _SplitState) -> None:
        assert state.reader is not None
        state.stored = state.reader.position()
        state.finished = True
        await state.reader.close()
        state.reader = None

    def _note_silence(self, state: _SplitState) -> None:
        """It was asked in vain. It becomes idle by such asks alone: time in which nothing was asked, or could not answer
        because the process was held up, counts for little."""
        if isinstance(state.reader, KnowsAnswers) and not state.reader.has_answered:
            state.heard()
            return
        state.asked_in_vain(self._context.monotonic_ms(), self._asked_ms, self._most_per_ask_ms)
        event_time = self._source.event_time
        if event_time is None or event_time.idle_after_us is None:
            return
        if state.silent_ms * 1_000 >= event_time.idle_after_us:
            state.rest()

    @property
    def _most_per_ask_ms(self) -> int:
        """How much of silence one ask in vain is good for."""
        event_time = self._source.event_time
        return silence_per_ask_ms(event_time.idle_after_us if event_time is not None else None)

    def _accept(self, state: _SplitState, fetched: Fetched) -> SourceBatch:
        frame, dead = self._judge.judge(fetched, state.split.id)
        if state.generator is not None and frame.height:
            moves = state.generator.on_batch(frame[EVENT_TIME], frame)
            if moves is not None:
                reached = self._reached()
                others = least((each for each in self._active() if each is not state), MAX_WATERMARK)
                frame = with_watermarks(frame, moves.at_rows, reached, others, every_row=self._carries_watermarks)
                if moves.after is not None:
                    state.advance(moves.after, reached)
        return SourceBatch(frame=frame, dead=dead, size_bytes=fetched.size_bytes)

    def _active(self) -> list[_SplitState]:
        return [state for state in self._splits.values() if not state.finished]

    def _reached(self) -> int:
        """The watermark of the splits together. After a restore it is known before it has been handed out again."""
        return combined(self._active(), self._watermark)[0]

    def _with_watermark(self, batch: SourceBatch) -> SourceBatch:
        """Add the combined watermark if it has risen, or that there is nothing to be waited for here.

        That is so if every split is idle, and if there is none: where there are more subtasks than splits, or all that
        were found are read, nobody knows whether and when this one will have rows.
        """
        if self._source.event_time is None:
            return batch
        self._poll_periodic()
        active = self._active()
        reached, idle = combined(active, self._watermark)
        idle = idle and bool(active or not self._source.bounded)  # bounded input without more splits is at its end
        risen = self._watermark < reached < MAX_WATERMARK
        became_idle = idle and not self._idle
        self._idle = idle
        if risen:
            self._watermark = reached
        return replace(batch, watermark=reached if risen else None, became_idle=became_idle)

    def _poll_periodic(self) -> None:
        now_ms = self._context.monotonic_ms()
        if now_ms < self._next_period_ms:
            return
        self._next_period_ms = self._period_from(now_ms)
        for state in self._splits.values():
            if state.generator is not None and not state.finished:
                watermark = state.generator.on_period()
                # A generator that is asked says nothing about rows: it wakes no idle split.
                if watermark is not None and state.idle:
                    state.watermark = max(state.watermark, watermark)
                elif watermark is not None:
                    state.advance(watermark, self._reached())

    async def _other_work(self) -> None:
        """As the context's, or until silence has lasted long enough to say something of event time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s()):
                await self._others()

    def _patience_s(self) -> float | None:
        event_time = self._source.event_time
        if event_time is None:
            return None
        now_ms, due_ms = self._context.monotonic_ms(), [self._next_period_ms]
        if event_time.idle_after_us is not None:
            awake = (state for state in self._active() if not (state.idle or state.paused))
            due_ms += [self._ask_due_ms(state, event_time.idle_after_us, now_ms) for state in awake]
        return max(0.001, (min(due_ms) - now_ms) / 1_000)

    def _ask_due_ms(self, state: _SplitState, idle_after_us: int, now_ms: int) -> int:
        """When it is to be asked again, so that all the time since it was last asked in vain counts as silence."""
        left_ms = math.ceil(idle_after_us / 1_000) - state.silent_ms
        return (now_ms if state.vain_ms is None else state.vain_ms) + min(left_ms, self._most_per_ask_ms)

    def _period_from(self, now_ms: int) -> int:
        event_time = self._source.event_time
        return now_ms + event_time.watermarks.every_us // 1_000 if event_time is not None else now_ms

    async def close(self) -> None:
        """Close all readers."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        for state in self._splits.values():
            if state.reader is not None:
                await state.reader.close()
                state.reader = None
