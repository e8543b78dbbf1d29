"""Rows in place of a pipeline's sources, lists in place of its sinks: what a test gives and what it looks at.

The pipeline itself is not touched: `rewired` makes a copy of its plan. Rows are judged as the source in whose place they
stand would judge them: its schema, event time, watermarks, idleness, policy for bad rows, and rate.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.connectors import base, collecting, iterables
from penstock.connectors.base import EndOfSplit, Fetched, Position, ReadContext, Split, SplitReader
from penstock.connectors.watermarks import Periodic
from penstock.core.times import Duration, duration_us
from penstock.errors import UsageError, nearest
from penstock.plan.logical import LogicalPlan, Node
from penstock.plan.operations.read import Read
from penstock.plan.operations.write import Write
from penstock.task.sources import silence_per_ask_ms
from penstock.testing.virtual_time import VirtualLoop, timers_do_not_count

Rows = Sequence[Any]
"""Objects of the source's class or dicts, and pauses between them (`elapse`)."""
Collected = dict[str, list[dict[str, Any]]]
"""The rows of every sink, by the id of the sink."""

_LOOK_S: Final = 0.02
"""How long a reader that has nothing to hand out keeps its subtask from looking at anything else."""


@dataclass(frozen=True)
class Elapse:
    """A pause in the input; made by `elapse`."""

    duration_us: int


def elapse(duration: Duration) -> Elapse:
    """A pause between rows: so much processing time passes before the source goes on.

    Under `run_pipeline` that costs nothing, because its clock jumps; timers of processing time that are due meanwhile
    fire in their order.

    Example:
        >>> class Silent(KeyedProcess[Bid, Total]):
        ...     def on_row(self, row, ctx):
        ...         ctx.processing_timer(ctx.processing_time + timedelta(minutes=30))
        ...     def on_timer(self, at, ctx):
        ...         ctx.emit(Total(ctx.key, 0.0))
        >>> written = bids.key_by("auction").process(Silent()).write(files.Sink("out"))
        >>> bid = Bid(1, 99.0, datetime(2026, 1, 1, tzinfo=UTC), [])
        >>> len(run_pipeline(p, [bid])), len(run_pipeline(p, [bid, elapse("1h"), bid]))
        (0, 1)
    """
    return Elapse(duration_us(duration, "elapse"))


@dataclass
class Feed:
    """What a source reads: `items` may grow until `ended`. Items stay, so that any position can be read again."""

    items: list[Any] = field(default_factory=list[Any])
    ended: bool = True


def feeds_of(plan: LogicalPlan, rows: Rows | Mapping[str, Rows], *, ended: bool = True) -> dict[str, Feed]:
    """A feed per source, by the id of the source; one for which there are no rows is empty.

    Raises:
        UsageError: there is no such source, or it is unclear whose the rows are.
    """
    sources = source_ids(plan)
    if not isinstance(rows, Mapping):
        if len(sources) != 1:
            raise UsageError(f"{plan.name} has the sources {', '.join(sources)}: say which rows are whose, as a dict")
        rows = {sources[0]: rows}
    for name in rows:
        if name not in sources:
            raise UsageError(f"{plan.name} has no source {name!r}; {nearest(name, sources)}")
    return {name: Feed(list(rows.get(name, ())), ended) for name in sources}


def source_ids(plan: LogicalPlan) -> list[str]:
    """The ids of all sources, but of rows that the plan holds itself."""
    return [
        node.operator_id
        for node in plan
        if isinstance(node.operation, Read) and not isinstance(node.operation.source, iterables.Constants)
    ]


def rewired(plan: LogicalPlan, feeds: Mapping[str, Feed], sinks: Collected | None, batch: int) -> LogicalPlan:
    """A copy of a plan that reads `feeds` and writes into `sinks`.

    Args:
        plan: as declared.
        feeds: by source; a source without one stays what it is.
        sinks: gets a list per sink; None: sinks stay what they are.
        batch: rows that are read at a time.

    A watermark interval is left out: time stands still while rows are worked on.
    """
    copies: dict[str, Node] = {}
    for node in plan:
        operation = node.operation
        if isinstance(operation, Read) and node.operator_id in feeds:
            operation = replace(operation, source=_GivenRows(operation.source, feeds[node.operator_id], batch))
        elif isinstance(operation, Write) and sinks is not None:
            operation = replace(operation, sink=collecting.Sink(sinks.setdefault(node.operator_id, [])))
        copies[node.id] = replace(node, operation=operation, inputs=tuple(copies[n.id] for n in node.inputs))
    return LogicalPlan(plan.name, list(copies.values()), plan.max_parallelism)


class _GivenRows(iterables.Source[Any]):
    """A feed in place of a source."""

    def __init__(self, source: base.Source[Any], feed: Feed, batch: int) -> None:
        rate: float | None = getattr(source, "rate", None)
        super().__init__([], schema=source.schema, timezone=getattr(source, "timezone", None), rate=rate)
        self.row_type, self.event_time, self.bad_rows = source.row_type, source.event_time, source.bad_rows
        self.feed: Final = feed
        self.batch: Final = batch

    def open(self, split: Split, position: Position, context: ReadContext) -> SplitReader:
        """See `Source.open`."""
        at: int = position or 0
        known = sum(not isinstance(item, Elapse) for item in self.feed.items[:at])
        taken = _Taken([None] * known)  # passed over, so that messages count rows from the first
        decoding = iterables.Source[Any](lambda: taken, schema=self.schema, timezone=self.timezone)
        return _FeedReader(self, at, taken, decoding.open(split, known, context), context)


class _Taken(Iterator[Any]):
    """Rows on their way into a batch: it ends whenever it is empty, and goes on when there are more."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self.rows = deque(rows)

    def __next__(self) -> Any:
        if not self.rows:
            raise StopIteration
        return self.rows.popleft()


def _moment(seconds: float) -> float:
    """To the microsecond, as the loop tells time: what is the least bit later would never be reached."""
    return round(seconds, 6)


class _FeedReader:
    """Position: the number of items taken, pauses included."""

    def __init__(self, source: _GivenRows, at: int, taken: _Taken, decoding: SplitReader, context: ReadContext) -> None:
        self._feed = source.feed
        self._batch = source.batch
        self._rate = source.rate
        self._event_time = source.event_time
        self._at = at
        self._taken = taken
        self._decoding = decoding
        self._context = context
        self._tells_at_once = True
        """Whether the next read in vain is not to wait: silence begins with it, and the subtask sends rows on that were
        handed out, because it hears that there are no more for now."""
        self._paused_until_s: float | None = None
        now_s = asyncio.get_running_loop().time()
        self._last_row_s = self._paced_from_s = now_s
        time = source.event_time
        self._period_s = time.watermarks.every_us / 1_000_000 if time is not None else 0.0
        self._next_period_s = now_s + self._period_s
        self._paced_rows = 0

    async def read(self, max_rows: int) -> Fetched | None:
        """See `SplitReader.read`."""
        while True:
            ended = self._feed.ended  # first, because items may come while this looks
            if self._at >= len(self._feed.items):
                if ended:
                    raise EndOfSplit
                await self._rest(math.inf)
                return None
            item = self._feed.items[self._at]
            if not isinstance(item, Elapse):
                return await self._rows(min(max_rows, self._batch))
            if not self._pause_is_over(item):
                await self._rest(self._paused_until_s or 0.0)
                return None

    def _pause_is_over(self, pause: Elapse) -> bool:
        now_s = asyncio.get_running_loop().time()
        if self._paused_until_s is None:
            self._paused_until_s = _moment(now_s + pause.duration_us / 1_000_000)
        if now_s < self._paused_until_s:
            return False
        self._at += 1
        self._paused_until_s = None
        self._paced_from_s, self._paced_rows = now_s, 0
        return True

    async def _rows(self, limit: int) -> Fetched | None:
        now_s = asyncio.get_running_loop().time()
        if self._rate is not None:
            limit = min(limit, int((now_s - self._paced_from_s) * self._rate + 1e-6) - self._paced_rows)
            if limit <= 0:
                await self._rest(self._paced_from_s + (self._paced_rows + 1) / self._rate)
                return None
        end = self._at
        while end < len(self._feed.items) and end - self._at < limit:
            if isinstance(self._feed.items[end], Elapse):
                break
            end += 1
        self._taken.rows.extend(self._feed.items[self._at : end])
        self._paced_rows += end - self._at
        self._at = end
        self._last_row_s = now_s
        self._tells_at_once = True
        return await self._decoding.read(limit)

    async def _rest(self, until_s: float) -> None:
        """Wait a little, but in virtual time no longer than until something of this subtask is due."""
        if self._tells_at_once:
            self._tells_at_once = False
            return
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        stop_s = min(until_s, *self._stops(now_s))
        pause_s = max(0.0, min(_LOOK_S, stop_s - now_s))
        if not isinstance(loop, VirtualLoop):
            await asyncio.sleep(pause_s)
            return
        loop.hold(self, stop_s)
        try:
            with timers_do_not_count():
                await asyncio.sleep(pause_s)
        finally:
            loop.hold(self, None)

    def _stops(self, now_s: float) -> list[float]:
        """When the source counts as idle, its watermarks are asked for, an operator behind it has a timer."""
        stops: list[float] = []
        time = self._event_time
        if time is not None and time.idle_after_us is not None:
            # Silence counts by asks in vain: one is due whenever another has counted for as much as it may.
            ask_s, last_s = (
                silence_per_ask_ms(time.idle_after_us) / 1_000,
                math.ceil(time.idle_after_us / 1_000) / 1_000,
            )
            asked = math.floor((now_s - self._last_row_s) / ask_s + 1e-6)
            if asked * ask_s < last_s:
                stops.append(self._last_row_s + min(last_s, (asked + 1) * ask_s))
        if time is not None and isinstance(time.watermarks, Periodic):
            if now_s >= self._next_period_s:
                self._next_period_s = now_s + self._period_s
            stops.append(self._next_period_s)
        timer = self._context.next_timer_us()
        if timer is not None:
            stops.append(now_s + (timer - self._context.clock_us()) / 1_000_000)
        return [stop for stop in map(_moment, stops) if stop > now_s] or [math.inf]

    def position(self) -> Position:
        """See `SplitReader.position`."""
        return self._at

    async def close(self) -> None:
        """See `SplitReader.close`."""
        await self._decoding.close()
