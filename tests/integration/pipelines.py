"""Pipelines that cover every operator, with what their results come to whatever happens on the way.

Each adds itself to a pipeline, which may have others besides, and knows the folder it writes to and a rate: rows per
second, so that a run lasts long enough to be interrupted; None for as fast as possible. Their final results depend
neither on batches nor on the parallelism.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import pyarrow as pa
from embedded_runs import counted, newest, rows

from penstock import (
    Accumulator,
    AggregatingState,
    BatchContext,
    BroadcastProcess,
    BroadcastState,
    Context,
    DecimalType,
    KeyedBatchContext,
    KeyedBroadcastProcess,
    KeyedContext,
    KeyedCoProcess,
    KeyedProcess,
    ListState,
    MapState,
    OperatorListState,
    OutputTag,
    Pattern,
    Pipeline,
    Process,
    ReducingState,
    Row,
    TimeWindow,
    ValueState,
    aggregate,
    at_watermark,
    col,
    count,
    cumulative,
    every,
    lag,
    lead,
    purging,
    row_number,
    session,
    sliding,
    tumbling,
    when,
)
from penstock.connectors import files, generate, iterables
from penstock.connectors.lookups import Key, Lookup, LookupClient
from penstock.errors import ExternalError
from penstock.types import Schema

ROWS = 3_000
START = datetime(2026, 1, 1, tzinfo=UTC)
START_US = int(START.timestamp()) * 1_000_000


@dataclass
class Event:
    number: int
    key: str
    value: int
    at: datetime


def events(numbers: Any) -> pl.DataFrame:
    """Ten rows a second of event time, out of order by up to four seconds, with bursts of silence."""
    mixed = generate.random_bits(numbers, 7)
    jitter = (mixed % 4_000_000).astype("int64")
    at = START_US + numbers * 100_000 + (numbers // 400) * 60_000_000 - jitter
    return pl.DataFrame(
        {
            "number": numbers,
            "key": pl.Series((mixed >> 32) % 11).cast(pl.String),
            "value": (mixed >> 16).astype("int64") % 100,
            "at": pl.Series(at, dtype=pl.Int64).cast(pl.Datetime("us", "UTC")),
        }
    )


@cache
def source(
    rate: float | None, *, splits: int = 4, events: Callable[[Any], pl.DataFrame] = events, bound: str = "5s"
) -> generate.Source[Event]:
    return generate.Source(
        events, schema=Event, rows=ROWS, rate=rate, splits=splits, event_time="at", max_out_of_orderness=bound
    )


Result = Counter[str] | dict[Any, Any]


@dataclass(frozen=True)
class Case:
    """What a pipeline does, and what is compared of its output folder."""

    name: str
    add: Callable[[Pipeline, Path, float | None], None]
    """To a pipeline that may do other things besides."""
    result: Callable[[Path], Result]
    on_spark: bool = True
    """Whether Spark runs it; what it does instead is told by tests of refusals."""

    def declare(self, out: Path, rate: float | None) -> Pipeline:
        """A pipeline that does this alone."""
        p = Pipeline(self.name)
        self.add(p, out, rate)
        return p


def every_row(out: Path) -> Counter[str]:
    """The rows as a multiset."""
    return counted(rows(out))


# -- windows ------------------------------------------------------------------------------------------------------------

AGGREGATES = {"n": count(), "total": col("value").sum(), "top": col("value").max(), "mean": col("value").mean()}


def tumbling_windows(p: Pipeline, out: Path, rate: float | None) -> None:
    p.read(source(rate)).key_by("key").window(tumbling("10s")).agg(**AGGREGATES).uid("w").write(files.Sink(out))


def retimed_windows(p: Pipeline, out: Path, rate: float | None) -> None:
    """Windows by a time that the rows are given on the way, in another unit, from rows far out of order."""
    read = p.read(source(rate)).with_columns(ms=col("at").dt.epoch("ms") * 2)
    later = read.with_event_time("ms", time_unit="ms", max_out_of_orderness="1h")
    later.key_by("key").window(tumbling("10s")).agg(**AGGREGATES).uid("retimed").write(files.Sink(out))


def sliding_windows(p: Pipeline, out: Path, rate: float | None) -> None:
    p.read(source(rate)).key_by("key").window(sliding("12s", every="5s")).agg(**AGGREGATES).write(files.Sink(out))


def listed(key: str, window: TimeWindow, rows: list[Event]) -> Iterator[Minute]:
    yield Minute(key, window.start, len(rows), json.dumps(sorted(row.number for row in rows)), 0)


def joins(p: Pipeline, out: Path, rate: float | None) -> None:
    """Two sources joined in time in every way, and results of windows by their window, of which one is of a join."""
    left = p.read(source(rate)).filter(col("value") < 60)
    right = p.read(source(rate, splits=3)).filter(col("value") > 30).select("key", "at", other=col("number") * 7)
    near = left.join(right, on="key", within=("-2s", "1s"), how="full").uid("near")
    near.write(files.Sink(out / "near"))
    unlike = (col("value") + col("other")) % 3 > 0
    shared = left.join(right, on="key", window=tumbling("10s"), how="left", where=unlike).uid("shared")
    shared.write(files.Sink(out / "shared"))
    held = left.join(right, on="key", as_of=True, within="30s", how="left").uid("held")
    held.write(files.Sink(out / "held"))
    left.join(right, on="key", within="200ms", how="semi").uid("met").write(files.Sink(out / "met"))
    unmet = left.join(right, on="key", within="200ms", how="anti", where=unlike, nulls_equal=True)
    unmet.uid("unmet").write(files.Sink(out / "unmet"))
    pairs = left.join(right, on="key", within=("-100ms", "300ms"), suffix="_met").uid("nearest")
    pairs.write(files.Sink(out / "nearest"))
    for time, delay in (("at", "300ms"), ("at_met", "100ms")):  # none of them is late
        timed = pairs.with_event_time(time, watermark_delay=delay).key_by("key").window(tumbling("2s"))
        timed.agg(n=count(), least=col("other").min()).uid(f"of-{time}").write(files.Sink(out / f"of-{time}"))
    often = left.join(right, on="key", window=sliding("10s", every="5s"), how="right").uid("often")
    often.write(files.Sink(out / "often"))
    windows = [each.key_by("key").window(tumbling("20s")) for each in (left, near.drop("at"))]
    counts = [window.agg(n=count()).uid(uid) for window, uid in zip(windows, ("own", "pairs"), strict=True)]
    of_window = counts[0].join(counts[1], on=["key", "window_start", "window_end"], within="0s", how="full")
    of_window.write(files.Sink(out / "of-windows"))


def applied(p: Pipeline, out: Path, rate: float | None) -> None:
    """Functions over the rows of windows, and aggregates of them under a trigger."""
    keyed = p.read(source(rate)).key_by("key")
    keyed.window(sliding("12s", every="5s")).apply(listed).write(files.Sink(out / "first"))
    parts = keyed.window(tumbling("10s")).trigger(purging(at_watermark())).agg(**AGGREGATES)
    parts.write(files.Sink(out / "second"))


def count_windows(p: Pipeline, out: Path, rate: float | None) -> None:
    """Which rows are in a window is a matter of arrival, how many windows there are is not."""
    p.read(source(rate)).key_by("key").count_window(20, every=8).agg(n=count()).write(files.Sink(out))


def sessions(p: Pipeline, out: Path, rate: float | None) -> None:
    p.read(source(rate)).key_by("key").window(session("2s")).agg(**AGGREGATES).write(files.Sink(out))


def subtotals(p: Pipeline, out: Path, rate: float | None) -> None:
    """Grouping sets, combined before they cross, and with every row of the sets behind them."""
    read = p.read(source(rate)).with_columns(low=when(col("value") > 30).then(col("value") % 3))
    windows = read.cube("key", "low").window(tumbling("10s")).agg(rows=count(), most=col("value").max())
    windows.uid("cube").write(files.Sink(out / "cube"))
    gaps = read.rollup("low", "key").window(session("2s")).agg(rows=count(), total=col("value").sum())
    gaps.uid("gaps").write(files.Sink(out / "gaps"))
    near = read.grouping_sets(["low"], []).over(within="1s").with_columns(total=col("value").sum())
    near.uid("near").write(files.Sink(out / "near"))


AUTUMN_US = int(datetime(2025, 10, 30, tzinfo=UTC).timestamp()) * 1_000_000


def autumn(numbers: Any) -> pl.DataFrame:
    """The same, a thousand times as fast through a night on which clocks change."""
    shown = (pl.col("at").dt.epoch("us") - START_US) * 1_000 + AUTUMN_US
    return events(numbers).with_columns(shown.cast(pl.Datetime("us", "UTC")).alias("at"))


def local_days(p: Pipeline, out: Path, rate: float | None) -> None:
    """What local days bring, hour by hour; and sessions whose rows wait as long as they say."""
    days = p.read(source(rate, events=autumn, bound="5000s")).key_by("key")
    hours = days.window(cumulative("1d", every="1h", offset="-6h", timezone="America/New_York"))
    hours.agg(**AGGREGATES).uid("days").write(files.Sink(out / "days"))
    patient = days.window(session(col("value") * 36_000_000 + 1))
    patient.agg(n=count(), total=col("value").sum()).uid("patient").write(files.Sink(out / "sessions"))


def two_stages(p: Pipeline, out: Path, rate: float | None) -> None:
    """Windows of windows under another key: at parallelism 1 one chain, else three vertices."""
    first = p.read(source(rate)).key_by("key").window(tumbling("4s")).agg(n=count(), total=col("value").sum())
    again = first.with_columns(parity=col("total") % 2).key_by("parity").window(sliding("40s", every="20s"))
    again.agg(n=col("n").sum(), windows=count(), keys=col("key").max()).write(files.Sink(out / "second"))
    first.select("key", "window_start", "n").write(files.Sink(out / "first"))


LATE = OutputTag("late", Event)


def late_windows(p: Pipeline, out: Path, rate: float | None) -> None:
    impatient = generate.Source(
        events, schema=Event, rows=ROWS, rate=rate, splits=4, event_time="at", max_out_of_orderness="1s"
    )
    keyed = p.read(impatient).key_by("key")
    windows = keyed.window(tumbling("3s")).late_to(LATE).allowed_lateness("1s").agg(n=count())
    windows.write(files.Sink(out / "windows"))
    windows.side(LATE).write(files.Sink(out / "late"))


def accounted_for(out: Path) -> dict[Any, Any]:
    """What is late depends on batches; that every row is in a window or set aside does not."""
    final = newest(rows(out / "windows"), "key", "window_start").values()
    late = rows(out / "late")
    assert len({row["number"] for row in late}) == len(late)
    totals = Counter(row["key"] for row in late)
    for row in final:
        totals[row["key"]] += row["n"]
    return dict(totals)


# -- running results ----------------------------------------------------------------------------------------------------


def running(p: Pipeline, out: Path, rate: float | None) -> None:
    keyed = p.read(source(rate)).key_by("key")
    keyed.agg(n=count(), total=col("value").sum(), top=col("value").max()).write(files.Sink(out))


def over_rows(p: Pipeline, out: Path, rate: float | None) -> None:
    """Rows with the rows of their key before and behind them, of which no two have one time."""
    read = p.read(source(rate)).with_columns(us=(col("at").dt.epoch("us") - START_US) * 4096 + col("number"))
    keyed = read.with_event_time("us", time_unit="us", max_out_of_orderness="1000d").key_by("key")
    total = keyed.over().with_columns(n=row_number(), total=col("value").sum(), before=lag("value", 2, default=-1))
    total.write(files.Sink(out / "all"))
    keyed.over(rows=3).with_columns(mean=col("value").mean(), then=lead("value")).write(files.Sink(out / "rows"))
    keyed.over(within="10h").with_columns(top=col("value").max(), n=count()).write(files.Sink(out / "within"))


def ranked(p: Pipeline, out: Path, rate: float | None) -> None:
    """The best rows of a key, in windows and at the end; what is there once; windows that fire early."""
    read = p.read(source(rate))
    keyed = read.key_by("key")
    keyed.window(tumbling("10s")).top(2, by="number").uid("best").write(files.Sink(out / "windows"))
    keyed.window(tumbling("10s")).deduplicate("last").select("key", "window_end").write(files.Sink(out / "last"))
    keyed.top(3, by=col("value") * 1_000_000 + col("number")).final().write(files.Sink(out / "top"))
    behind = keyed.top(2, by=["value", "number"], descending=[False, True], offset=2, rank=None)
    behind.final().write(files.Sink(out / "behind"))
    read.distinct("key", "value").select("key", "value").write(files.Sink(out / "distinct"))
    estimates = {"different": col("number").approx_n_unique(), "p90": col("value").approx_quantile(0.9)}
    early = keyed.window(sliding("20s", "10s")).trigger(every("3s"))
    early.agg(**AGGREGATES, **estimates).final().write(files.Sink(out / "early"))


def in_order(p: Pipeline, out: Path, rate: float | None) -> None:
    """All rows in an order that no event time has."""
    by_value = p.read(source(rate)).sort(["value", "number"], descending=[True, False])
    by_value.select("value", "number", "at").write(files.Sink(out))


RISES = (
    Pattern.begin("low", col("value") < 15)
    .followed_by("more", col("value") > col("low.value"), times=(1, 2), repeated="followed_by_any")
    .not_followed_by("zero", col("value") == 0)
    .next("most", col("value") > col("more.value").max() + 10, optional=True)
    .followed_by("end", col("number") % 3 == 0)
)
OVER: OutputTag[Any] = OutputTag("over")
CLIMBS = """
SELECT * FROM events MATCH_RECOGNIZE (
    PARTITION BY key ORDER BY at
    MEASURES CLASSIFIER() AS part, SUM(UP.value) AS total, FINAL COUNT(*) AS size, MATCH_NUMBER() AS nth
    ALL ROWS PER MATCH AFTER MATCH SKIP TO NEXT ROW
    PATTERN (LOW {- DOWN*? -} (UP | TOP)+) WITHIN INTERVAL '40' SECOND
    DEFINE LOW AS LOW.value < 40, DOWN AS DOWN.value < LOW.value,
        UP AS UP.value > LAST(UP.value, 1) OR UP.value > PREV(UP.value), TOP AS TOP.value > 60
)
"""


def is_higher(row: Event, matched: dict[str, list[Event]]) -> bool:
    return row.value > matched["high"][-1].value


def matched(p: Pipeline, out: Path, rate: float | None) -> None:
    """Patterns that look back, with everything that may become of matches."""
    keyed = p.read(source(rate)).key_by("key")
    found = {"low": col("low.number"), "rows": col("more").count(), "end": col("end.number"), "sum": col("value").sum()}
    rises = keyed.match(RISES, within="40s").timed_out_to(OVER).select("key", **found).uid("rises")
    rises.write(files.Sink(out / "rises"))
    rises.side(OVER).write(files.Sink(out / "over"))
    quiet = Pattern.begin("high", col("value") > 60).not_followed_by("higher", is_higher)
    quiet_rows = keyed.match(quiet, within="15s", after_match="past_last_row").select("key", "number", "value")
    quiet_rows.uid("quiet").write(files.Sink(out / "quiet"))
    read = p.read(source(rate))
    climbs = p.sql(CLIMBS, events=read)
    climbs.write(files.Sink(out / "climbs"))
    one = read.filter(col("number") == 7).select("value")
    above = p.sql("SELECT number FROM events WHERE value > (SELECT value FROM one)", events=read, one=one)
    above.final().write(files.Sink(out / "above"))


def places(out: Path) -> Counter[str]:
    """Every row with its place."""
    return counted({"place": place, **row} for place, row in enumerate(rows(out)))


def smaller(left: Event, right: Event) -> Event:
    best = left if (left.value, left.number) <= (right.value, right.number) else right
    return Event(best.number, left.key, best.value, best.at)


def reduced(p: Pipeline, out: Path, rate: float | None) -> None:
    p.read(source(rate)).key_by("key").reduce(smaller).write(files.Sink(out))


def newest_per_key(out: Path) -> dict[Any, Any]:
    return newest(rows(out), "key")


def changed(p: Pipeline, out: Path, rate: float | None) -> None:
    """Aggregates of updates and of what they come to."""
    totals = p.read(source(rate)).key_by("key").agg(n=count(), total=col("value").sum(), at=col("at").max())
    totals.filter(col("total") % 3 > 0).write(files.Sink(out / "filtered"))
    odd, fourth = totals.filter(col("n") % 2 > 0), totals.filter(col("n") % 4 == 0)
    odd.union(fourth).write(files.Sink(out / "united"))
    of_totals = {"keys": count(), "all": aggregate(Summing(), "total"), "most": col("total").max()}
    totals.key_by(rest=col("n") % 4).agg(**of_totals).uid("of-totals").write(files.Sink(out / "again"))
    totals.with_columns(rest=col("n") % 3, odd=col("total") % 2).cube("rest", "odd").agg(
        keys=count(), most=col("n").max()
    ).uid("cube").write(files.Sink(out / "cube"))
    totals.key_by(rest=col("n") % 3).top(2, by=col("total") % 50).uid("best-totals").write(files.Sink(out / "best"))
    beside = totals.key_by(rest=col("n") % 3).over(["total", "key"], rows=2).with_columns(so_far=col("total").sum())
    beside.uid("beside").write(files.Sink(out / "beside"))
    active = totals.temporal_filter(
        valid_from="at", valid_until=when(col("n") % 2 > 0).then(col("at") + timedelta(0, 5))
    )
    active.uid("active").write(files.Sink(out / "active"))
    by_time = totals.with_event_time("at", max_out_of_orderness="1000d").key_by(rest=col("n") % 3)
    windows = by_time.window(sliding("20s", "10s")).agg(**of_totals).uid("windows-of-totals")
    windows.with_columns(retracted=False).write(files.Sink(out / "windows"))


def held(p: Pipeline, out: Path, rate: float | None) -> None:
    """Joins by key alone, of facts and of updates."""
    events = p.read(source(rate))
    totals = events.key_by("key").agg(n=count(), total=col("value").sum()).uid("totals")
    few = events.filter(col("value") < 4).select("key", "number")
    few.join(totals, on="key", how="left").uid("beside").write(files.Sink(out / "beside"))
    of_counts = totals.key_by(rest=col("n") % 4).agg(keys=count()).uid("of-counts")
    both = (
        totals.with_columns(rest=col("n") % 4)
        .join(of_counts.filter(col("keys") > 1), on="rest", how="full")
        .uid("both")
    )
    both.write(files.Sink(out / "both"))
    others = events.filter(col("value") > 90).select("key", other="number")
    none = few.join(others, on="key", how="anti", ttl="1d", where=(col("number") + col("other")) % 9 == 0)
    none.uid("none").write(files.Sink(out / "none"))
    few.join(others, on="key").uid("met-ever").with_columns(retracted=False).write(files.Sink(out / "pairs"))


UPDATE_KEYS = {
    "filtered": ("key",),
    "again": ("rest",),
    "cube": ("rest", "odd", "grouping_id"),
    "best": ("rest", "rank"),
    "both": ("rest", "key"),
    "active": ("key",),
}
"""The columns by which a row replaces another, of the sinks whose changes have such."""


def what_holds(out: Path) -> Counter[str]:
    """The rows that are not taken back again. Those of a key lie in order: at every moment one of them holds at most, and
    that is the one that is taken back."""
    found: Counter[str] = Counter()
    for folder in sorted(out.iterdir()):
        held: dict[tuple[Any, ...], str] = {}
        for row in rows(folder):
            gone = row.pop("retracted")
            key = tuple(row[name] for name in UPDATE_KEYS.get(folder.name, row))
            content = json.dumps({"sink": folder.name, **row}, sort_keys=True)
            assert held.pop(key, None) == (content if gone else None), (folder, row, gone)
            if not gone:
                held[key] = content
        found.update(held.values())
    return found


def standing(p: Pipeline, out: Path, rate: float | None) -> None:
    """Joins by key alone, and rows of two streams, that replace no others by a key, and what holds of them at the end."""
    read = p.read(source(rate))
    few, others = read.filter(col("value") < 4).select("key", "number"), read.filter(col("value") > 95)
    low = others.filter(col("number") < 200).select("key", other="number")
    few.join(low, on="key", how="semi").uid("known").write(files.Sink(out / "known"))
    begun, named = few.filter(col("number") < 200), others.select("key", other="number")
    all_others = begun.join(
        named, on="key", how="right", where=(col("number") + col("other")) % 9 == 0, nulls_equal=True
    )
    all_others.uid("all-others").final().write(files.Sink(out / "all-others"))
    high, third = (read.filter(where).select("key", "value") for where in (col("value") > 40, col("number") % 3 == 0))
    high.intersect(third, all=True).uid("common").final().write(files.Sink(out / "common"))
    high.minus(third, all=True).uid("more").final().write(files.Sink(out / "more"))


def clocked(p: Pipeline, out: Path, rate: float | None) -> None:
    """Which rows are in a window is a matter of the clock, what all of them come to is not."""
    keyed = p.read(source(rate)).with_processing_time().key_by("key")
    keyed.window(tumbling("1s")).agg(n=count(), total=col("value").sum()).uid("clocked").write(files.Sink(out))


def all_windows(out: Path) -> dict[Any, Any]:
    """The rows of all windows of a key, and their values."""
    sums: dict[Any, Any] = {}
    for row in rows(out):
        n, total = sums.get(row["key"], (0, 0))
        sums[row["key"]] = n + row["n"], total + row["total"]
    return sums


# -- process functions --------------------------------------------------------------------------------------------------


@dataclass
class Minute:
    key: str
    minute: datetime
    rows: int
    numbers: str
    nth: int


@dataclass
class Sums:
    sum: int


class Summing(Accumulator[Sums, int]):
    """A sum whose accumulator is changed in place."""

    accumulator_type = Sums

    def create(self) -> Sums:
        return Sums(0)

    def add(self, accumulator: Sums, value: int) -> Sums:
        accumulator.sum += value
        return accumulator

    def retract(self, accumulator: Sums, value: int) -> Sums:
        accumulator.sum -= value
        return accumulator

    def merge(self, left: Sums, right: Sums) -> Sums:
        return Sums(left.sum + right.sum)

    def result(self, accumulator: Sums) -> int:
        return accumulator.sum


class PerMinute(KeyedProcess[Event, Minute]):
    """Tumbling windows by hand, with every kind of keyed state."""

    counts = MapState(int, int)
    numbers = MapState(int, list[int])
    pending = ListState(int)
    totals = ReducingState(lambda left, right: left + right, int)
    summed = AggregatingState(Summing())
    fired = ValueState(int)

    def on_row(self, row: Event, ctx: KeyedContext[Minute]) -> None:
        minute = int(row.at.timestamp()) // 60 * 60
        self.counts.set(minute, self.counts.get(minute, 0) + 1)
        self.numbers.set(minute, [*self.numbers.get(minute, []), row.number])
        if minute not in self.pending.get():
            self.pending.add(minute)
        self.totals.add(row.value)
        self.summed.add(row.value)
        ctx.event_timer(datetime.fromtimestamp(minute + 60, UTC))

    def on_timer(self, at: datetime, ctx: KeyedContext[Minute]) -> None:
        minute = int(at.timestamp()) - 60
        nth = self.fired.get(0) + 1
        self.fired.set(nth)
        assert minute in self.pending.get()
        assert self.summed.get() == self.totals.get()
        self.pending.update([other for other in self.pending.get() if other != minute])
        numbers = json.dumps(sorted(self.numbers.get(minute, [])))
        ctx.emit(Minute(ctx.key, at - timedelta(seconds=60), self.counts.get(minute, 0), numbers, nth))
        self.counts.remove(minute)
        self.numbers.remove(minute)


def keyed_process(p: Pipeline, out: Path, rate: float | None) -> None:
    p.read(source(rate)).key_by("key").process(PerMinute()).write(files.Sink(out))


class Totals(KeyedProcess[Event, Minute]):
    """The same by batches, some of it for many keys at once and some of it key by key."""

    counts = MapState(int, int)
    numbers = MapState(int, list[int])
    rows = ValueState(int)
    fired = ValueState(int)

    def on_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> None:
        rows = (
            self.rows.get_many(ctx.keys, default=0)
            + frame.select(pl.int_range(1, pl.len() + 1).over("key")).to_series()
        )
        self.rows.set_many(ctx.keys, rows)
        timed = frame.with_columns(minute=pl.col("at").dt.truncate("1m"))
        for (key, minute), group in timed.group_by("key", "minute", maintain_order=True):
            ctx.set_current_key(key)
            begin = int(minute.timestamp())
            self.counts.set(begin, self.counts.get(begin, 0) + group.height)
            self.numbers.set(begin, [*self.numbers.get(begin, []), *group["number"].to_list()])
        ctx.event_timers(timed["key"], timed["minute"].dt.offset_by("1m"))

    def on_timer(self, at: datetime, ctx: KeyedContext[Minute]) -> None:
        minute = int(at.timestamp()) - 60
        nth = self.fired.get(0) + 1
        self.fired.set(nth)
        assert self.rows.get(0) >= self.counts.get(minute, 0) > 0
        numbers = json.dumps(sorted(self.numbers.get(minute, [])))
        ctx.emit(Minute(ctx.key, at - timedelta(seconds=60), self.counts.get(minute, 0), numbers, nth))
        self.counts.remove(minute)
        self.numbers.remove(minute)


class Twice(Process[Event, Event]):
    """Each row, and those of odd numbers once more to the side: batches without a key."""

    def on_batch(self, frame: pl.DataFrame, ctx: BatchContext) -> pl.DataFrame:
        odd = frame["number"] % 2 == 1
        ctx.emit_to(AGAIN, frame.filter(odd), rows=odd)
        return frame


AGAIN = OutputTag("again", Event)


def process_batches(p: Pipeline, out: Path, rate: float | None) -> None:
    twice = p.read(source(rate)).process(Twice())
    twice.key_by("key").process(Totals()).uid("minutes").write(files.Sink(out / "totals"))
    again = twice.side(AGAIN).key_by("key").window(tumbling("10s"))
    again.agg(**AGGREGATES).uid("again").write(files.Sink(out / "again"))


@dataclass
class Numbered:
    number: int


ODD = OutputTag("odd", Numbered)


class Pairs(Process[Event, Numbered]):
    """Holds rows back in operator state and lets them go in tens; odd ones go to a side output."""

    held = OperatorListState(int)

    def on_row(self, row: Event, ctx: Context[Numbered]) -> None:
        if row.number % 2:
            ctx.emit_to(ODD, Numbered(row.number))
            return
        self.held.add(row.number)
        if len(self.held.get()) >= 10:
            for number in self.held.get():
                ctx.emit(Numbered(number))
            self.held.clear()


def operator_state(p: Pipeline, out: Path, rate: float | None) -> None:
    pairs = p.read(source(rate)).process(Pairs())
    pairs.write(files.Sink(out / "even"))
    pairs.side(ODD).write(files.Sink(out / "odd"))


def held_back(out: Path) -> Counter[str]:
    """Of the even rows at most nine per subtask are still held when the input ends."""
    even = [row["number"] for row in rows(out / "even")]
    assert len(set(even)) == len(even), "an even row came twice"
    assert set(even) <= set(range(0, ROWS, 2))
    assert len(even) >= ROWS // 2 - 9 * 3, "even rows were lost"
    return counted(rows(out / "odd"))


# -- stateless verbs ----------------------------------------------------------------------------------------------------


@dataclass
class Word:
    number: int
    word: str
    at: datetime


def halve(event: Event) -> Event:
    return Event(event.number, event.key, event.value // 2, event.at)


def words(event: Event) -> Iterable[Word]:
    for word in ("a", "b")[: event.value % 3]:
        yield Word(event.number, f"{word}{event.key}", event.at)


def louder(word: str) -> str:
    return word.upper()


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    frame = pl.from_arrow(batch)
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(pl.col("value") * 2).to_arrow().combine_chunks().to_batches()[0]


def stateless(p: Pipeline, out: Path, rate: float | None) -> None:
    read = p.read(source(rate))
    halved = read.map(halve).filter(col("value") > 5)
    both = halved.map_batches(doubled).union(read.filter(col("value") < 3))
    both.write(files.Sink(out / "union"))
    exploded = read.flat_map(words).with_columns(parts=col("word").str.split("a")).explode("parts")
    loud = p.sql("SELECT number, parts, louder(word) AS upper FROM words", words=exploded, louder=louder)
    loud.write(files.Sink(out / "words"))


@dataclass
class Asked:
    number: int
    key: str
    answer: int
    at: datetime


async def asked(event: Event) -> Asked:
    """Some wait for others, some do not."""
    if event.value % 3:
        await asyncio.sleep(event.value / 50_000)
    return Asked(event.number, event.key, event.value * 2, event.at)


def waiting(p: Pipeline, out: Path, rate: float | None) -> None:
    """Calls in order and not, before windows and a process function, which look at the time."""
    read = p.read(source(rate))
    windows = read.map_async(asked, capacity=50, ordered=False).uid("calls").key_by("key").window(tumbling("10s"))
    windows.agg(n=count(), total=col("answer").sum()).write(files.Sink(out / "windows"))
    again = read.map_async(asked, capacity=20).filter(col("answer") > 50).map_async(same, ordered=False).chain(False)
    again.write(files.Sink(out / "again"))


async def same(row: Asked) -> Asked:
    return row


@dataclass
class Place:
    key: str
    place: str


class Places(Lookup[Place]):
    """Two rows for each even key, one of which is of no other, and none for odd ones; the first call never succeeds."""

    kind = "places"
    name = "the places"

    def __init__(self) -> None:
        self._declare(Place, rows_per_call=20, cache_ttl="50ms", retry_delay="1ms")

    def client(self, columns: Schema, keys: Schema) -> LookupClient:
        return PlacesClient()

    def describe(self) -> dict[str, Any]:
        return self.calls.describe()


class PlacesClient:
    """Answers after a while."""

    async def open(self) -> None:
        self._asked = 0

    async def ask(self, keys: Sequence[Key]) -> Sequence[Sequence[bytes]]:
        self._asked += 1
        if self._asked == 1:
            raise ExternalError("the places are not there yet")
        await asyncio.sleep(0.001)
        return [
            [json.dumps({"place": place}).encode() for place in (f"of {key}", "all")] if int(key) % 2 == 0 else []
            for (key,) in keys
        ]

    async def close(self) -> None:
        pass


def looked_up(p: Pipeline, out: Path, rate: float | None) -> None:
    """Rows beside what another system says, which has no row for some."""
    beside = p.read(source(rate)).join(Places(), on="key", how="left").uid("places")
    beside.select("number", "place").write(files.Sink(out))


def several_sinks(out: Path) -> Counter[str]:
    return counted({"sink": folder.name, **row} for folder in sorted(out.iterdir()) for row in rows(folder))


# -- other sources ------------------------------------------------------------------------------------------------------


def write_files(folder: Path) -> Path:
    """Five files of unlike lengths, the fifth empty; every 50th line is no row."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, size in enumerate((900, 700, 300, 20, 0)):
        lines = [
            "{broken"
            if number % 50 == 49
            else json.dumps({"number": number, "key": str(number % 7), "value": number % 13, "at": _moment(number)})
            for number in range(index * 1_000, index * 1_000 + size)
        ]
        (folder / f"{index}.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


def _moment(number: int) -> str:
    return (START + timedelta(seconds=number % 1_000 / 10)).isoformat()


def read_files(p: Pipeline, out: Path, rate: float | None) -> None:
    read = p.read(
        files.Source(out.parent / "in", schema=Event, event_time="at", bad_rows="dead_letter", rate=rate, batch_rows=50)
    )
    read.key_by("key").window(tumbling("10s")).agg(**AGGREGATES).write(files.Sink(out / "windows"))
    read.dead_letters().select("error", "where").write(files.Sink(out / "bad"))


def read_iterable(p: Pipeline, out: Path, rate: float | None) -> None:
    rows_of = [
        Event(number, str(number % 5), number % 17, START + timedelta(seconds=number / 10)) for number in range(1_500)
    ]
    read = p.read(iterables.Source(rows_of, event_time="at", rate=rate and rate / 2))
    read.key_by("key").process(PerMinute()).write(files.Sink(out, format="jsonl"))


@dataclass
class Balance:
    key: str
    price: Annotated[Decimal, DecimalType(12, 2)]
    paid: Annotated[Decimal, DecimalType(38, 4)]
    at: datetime


@dataclass
class Other:
    name: str
    number: int
    at: datetime


class Waiting(KeyedCoProcess[Event, Other, Minute]):
    """What came of both streams of a key in the same minute, at its end."""

    left = MapState(datetime, int)
    right = MapState(datetime, list[int])

    def on_left(self, row: Event, ctx: KeyedContext[Minute]) -> None:
        minute = row.at.replace(second=0, microsecond=0)
        self.left.set(minute, (self.left.get(minute) or 0) + 1)
        ctx.event_timer(minute + timedelta(minutes=1))

    def on_right(self, row: Other, ctx: KeyedContext[Minute]) -> None:
        minute = row.at.replace(second=0, microsecond=0)
        self.right.set(minute, [*(self.right.get(minute) or []), row.number])
        ctx.event_timer(minute + timedelta(minutes=1))

    def on_timer(self, at: datetime, ctx: KeyedContext[Minute]) -> None:
        minute = at - timedelta(minutes=1)
        numbers = sorted(self.right.get(minute) or [])
        ctx.emit(Minute(str(ctx.key), minute, self.left.get(minute) or 0, json.dumps(numbers), 0))
        self.left.remove(minute)
        self.right.remove(minute)


class WaitingBatches(KeyedCoProcess[Event, Other, Minute]):
    """The same, the left rows by batches and the right ones too."""

    left = MapState(datetime, int)
    right = MapState(datetime, list[int])
    on_timer = Waiting.on_timer

    def on_left_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> None:
        for (key, minute), group in self._minutes(frame, "key", ctx):
            ctx.set_current_key(key)
            self.left.set(minute, (self.left.get(minute) or 0) + group.height)

    def on_right_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> None:
        for (key, minute), group in self._minutes(frame, "name", ctx):
            ctx.set_current_key(key)
            self.right.set(minute, [*(self.right.get(minute) or []), *group["number"].to_list()])

    def _minutes(self, frame: pl.DataFrame, key: str, ctx: KeyedBatchContext) -> Any:
        timed = frame.with_columns(minute=pl.col("at").dt.truncate("1m"))
        ctx.event_timers(ctx.keys, timed["minute"].dt.offset_by("1m"))
        return timed.group_by(key, "minute", maintain_order=True)


def pair(p: Pipeline, rate: float | None) -> Any:
    """Two streams whose keys have unlike names."""
    right = p.read(source(rate, splits=3)).filter(col("value") > 30).select("number", "at", name="key").as_(Other)
    left = p.read(source(rate)).filter(col("value") < 60).key_by("key")
    return left.connect(right.key_by("name"))


def connected(p: Pipeline, out: Path, rate: float | None) -> None:
    """Functions over two streams, by rows and by batches."""
    both = pair(p, rate)
    both.process(Waiting()).uid("waiting").write(files.Sink(out / "rows"))
    both.process(WaitingBatches()).uid("waiting-batches").write(files.Sink(out / "batches"))


class Ruled(KeyedBroadcastProcess[Event, Other, Minute]):
    """What came of a key in a minute, with all rules of that minute, at its end."""

    rules = BroadcastState(datetime, list[int])
    rows = MapState(datetime, int)

    def on_row(self, row: Event, ctx: KeyedContext[Minute]) -> None:
        minute = row.at.replace(second=0, microsecond=0)
        self.rows.set(minute, (self.rows.get(minute) or 0) + 1)
        ctx.event_timer(minute + timedelta(minutes=1))

    def on_broadcast(self, row: Other, ctx: Context[Minute]) -> None:
        minute = row.at.replace(second=0, microsecond=0)
        self.rules.set(minute, [*self.rules.get(minute, default=[]), row.number])

    def on_timer(self, at: datetime, ctx: KeyedContext[Minute]) -> None:
        minute = at - timedelta(minutes=1)
        numbers = sorted(self.rules.get(minute, default=[]))
        ctx.emit(Minute(str(ctx.key), minute, self.rows.get(minute) or 0, json.dumps(numbers), 0))
        self.rows.remove(minute)


class RuledBatches(Ruled):
    """The same by batches."""

    on_row = KeyedBroadcastProcess.on_row

    def on_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> None:
        timed = frame.with_columns(minute=pl.col("at").dt.truncate("1m"))
        for (key, minute), group in timed.group_by("key", "minute", maintain_order=True):
            ctx.set_current_key(key)
            self.rows.set(minute, (self.rows.get(minute) or 0) + group.height)
        ctx.event_timers(ctx.keys, timed["minute"].dt.offset_by("1m"))


class Seeing(BroadcastProcess[Event, Other, Numbered]):
    """All rows, each beside no rule that came twice."""

    seen = BroadcastState(int, bool)

    def on_row(self, row: Event, ctx: Context[Numbered]) -> None:
        ctx.emit(Numbered(row.number))

    def on_broadcast(self, row: Other, ctx: Context[Numbered]) -> None:
        assert not self.seen.contains(row.number), f"rule {row.number} came twice"
        self.seen.set(row.number, True)


class SeeingBatches(Seeing):
    """The same by batches."""

    on_row = BroadcastProcess.on_row

    def on_batch(self, frame: pl.DataFrame, ctx: BatchContext) -> pl.DataFrame:
        return frame.select("number")


def broadcast(p: Pipeline, out: Path, rate: float | None) -> None:
    """A stream beside one that every subtask has whole, which comes from several."""
    rules = p.read(source(rate, splits=3)).filter(col("value") > 60).select("number", "at", name="key").as_(Other)
    rows = p.read(source(rate)).filter(col("value") < 60).key_by("key")
    both = rows.connect(rules.broadcast())
    both.process(Ruled()).uid("ruled").write(files.Sink(out / "ruled"))
    both.process(RuledBatches()).uid("ruled-batches").write(files.Sink(out / "ruled-batches"))
    all_rows = p.read(source(rate)).connect(rules.broadcast())
    all_rows.process(Seeing()).uid("seeing").write(files.Sink(out / "all"))
    all_rows.process(SeeingBatches()).uid("seeing-batches").write(files.Sink(out / "all-batches"))


class Paid(KeyedProcess[Balance, Balance]):
    """What was paid at a price in each minute: state of decimals beneath keys of decimals."""

    paid = MapState(datetime, Decimal)

    def on_row(self, row: Balance, ctx: KeyedContext[Balance]) -> None:
        minute = datetime.fromtimestamp(int(row.at.timestamp()) // 60 * 60 + 60, UTC)
        self.paid.set(minute, row.paid + self.paid.get(minute, Decimal(0)))
        ctx.event_timer(minute)

    def on_timer(self, at: datetime, ctx: KeyedContext[Balance]) -> None:
        ctx.emit(Balance("all", ctx.key, self.paid.get(at, Decimal(0)), at))
        self.paid.remove(at)


def balance(row: Row) -> Balance:
    return Balance(row.key, row.price, row.paid, row.at)


def decimals(p: Pipeline, out: Path, rate: float | None) -> None:
    """Decimals short and long, as keys, in state, in sums that are added in halves."""
    cents = col("value").cast(DecimalType(12, 2)) / 4
    priced = p.read(source(rate)).select(
        "key", "at", price=cents.cast(DecimalType(12, 2)), paid=(cents * Decimal("1e24")).cast(DecimalType(38, 4))
    )
    totals = {"n": count(), "total": col("paid").sum(), "mean": col("price").mean(), "most": col("price").max()}
    priced.key_by("price").window(tumbling("10s")).agg(**totals).uid("prices").write(files.Sink(out / "windows"))
    priced.map(balance).key_by("price").process(Paid()).write(files.Sink(out / "paid"))


@dataclass
class Labelled:
    key: str
    labels: dict[str, Annotated[Decimal, DecimalType(12, 2)]]
    at: datetime


def labelled(row: Event) -> Labelled:
    return Labelled(row.key, {"value": Decimal(row.value), f"of {row.value % 7}": Decimal(row.number) / 4}, row.at)


class Noted(KeyedProcess[Labelled, Labelled]):
    """Maps through state and back."""

    noted = MapState(int, dict[str, Decimal])

    def on_row(self, row: Labelled, ctx: KeyedContext[Labelled]) -> None:
        number = int(row.at.timestamp() * 1_000_000)
        self.noted.set(number, row.labels)
        ctx.emit(Labelled(row.key, {**self.noted.get(number, {}), "twice": row.labels["value"] * 2}, row.at))


def maps(p: Pipeline, out: Path, rate: float | None) -> None:
    """Maps through functions, exchanges, state and windows."""
    noted = p.read(source(rate)).map(labelled).key_by("key").process(Noted())
    noted.filter(col("labels").map.contains("of 3")).write(files.Sink(out / "rows", format="jsonl"))
    totals = {"n": count(), "total": col("labels").map.get("twice").sum(), "seen": col("labels").collect()}
    noted.key_by("key").window(tumbling("10s")).agg(**totals).uid("labels").write(files.Sink(out / "windows"))


CASES = (
    Case("tumbling", tumbling_windows, every_row),
    Case("retimed", retimed_windows, every_row),
    Case("sliding", sliding_windows, every_row),
    Case("sessions", sessions, every_row),
    Case("subtotals", subtotals, several_sinks),
    Case("joins", joins, several_sinks),
    Case("local-days", local_days, several_sinks),
    Case("two-stages", two_stages, several_sinks),
    Case("applied", applied, several_sinks),
    Case("count-windows", count_windows, every_row),
    Case("late", late_windows, accounted_for),
    Case("over", over_rows, several_sinks),
    Case("ranked", ranked, several_sinks),
    Case("running", running, newest_per_key),
    Case("reduced", reduced, newest_per_key),
    Case("changed", changed, what_holds),
    Case("held", held, what_holds),
    Case("standing", standing, several_sinks),
    Case("clocked", clocked, all_windows, on_spark=False),
    Case("keyed-process", keyed_process, every_row),
    Case("process-batches", process_batches, several_sinks),
    Case("connected", connected, several_sinks),
    Case("broadcast", broadcast, several_sinks, on_spark=False),
    Case("operator-state", operator_state, held_back),
    Case("stateless", stateless, several_sinks),
    Case("waiting", waiting, several_sinks),
    Case("looked-up", looked_up, every_row),
    Case("decimals", decimals, several_sinks),
    Case("maps", maps, several_sinks),
    Case("files", read_files, several_sinks),
    Case("matched", matched, several_sinks),
    Case("in-order", in_order, places),
    Case("iterable", read_iterable, every_row),
)


class SharingSources(Pipeline):
    """Reads a source once, however many verbs ask for it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._read = cache(super().read)

    def read(self, source: Any) -> Any:
        return self._read(source)


def together(cases: Iterable[Case], out: Path, rate: float | None) -> Pipeline:
    """Several of them as one pipeline, each in a folder of its name; what the sources read is in `out`, too."""
    p = SharingSources("together")
    for case in cases:
        case.add(p, out / case.name, rate)
    return p
