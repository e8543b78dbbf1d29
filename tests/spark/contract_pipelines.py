"""One pipeline with every kind of operator, and one with every way of being late: `--param case=NAME`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock import (
    Accumulator,
    KeyedContext,
    KeyedProcess,
    OutputTag,
    Pipeline,
    TimeWindow,
    ValueState,
    aggregate,
    col,
    count,
    cumulative,
    every,
    every_rows,
    param,
    row_number,
    session,
    sliding,
    tumbling,
)
from penstock.connectors import files, iterables, lookups

START = datetime(2026, 1, 1, tzinfo=UTC)
OUT = Path(param("out", "out"))
SEED = param("seed", "0")
ORDER = param("order", "mixed")


@dataclass
class Event:
    number: int
    key: str
    value: int
    at: datetime


@dataclass
class Seen:
    key: str
    numbers: list[int]


def events(rows: int = 400) -> list[Event]:
    """About ten rows a second, up to four seconds out of order, several at one time; or the same in order."""
    rng = random.Random(SEED)
    found: list[Event] = []
    for number in range(rows):
        tenths = number + 100 * (number // 150) - rng.randrange(40)
        at = START + timedelta(milliseconds=tenths // 2 * 200)
        found.append(Event(number, f"k{rng.randrange(3)}", rng.randrange(20), at))
    return sorted(found, key=lambda event: event.at) if ORDER == "sorted" else found


def source(bound: str) -> iterables.Source[Event]:
    return iterables.Source(events(), schema=Event, event_time="at", max_out_of_orderness=bound)


# -- every kind of operator ---------------------------------------------------------------------------------------------


class Follows(KeyedProcess[Event, Seen]):
    """What came for a key since its last timer, in the order in which it came."""

    seen = ValueState(list[int])

    def on_row(self, row: Event, ctx: KeyedContext[Seen]) -> None:
        self.seen.set([*(self.seen.get() or []), row.number])
        ctx.event_timer(row.at + timedelta(seconds=7))

    def on_timer(self, at: datetime, ctx: KeyedContext[Seen]) -> None:
        ctx.emit(Seen(ctx.key, self.seen.get() or []))
        self.seen.set([])


class Joined(Accumulator[str, str]):
    """The numbers in the order in which they came."""

    accumulator_type = str

    def create(self) -> str:
        return ""

    def add(self, state: str, number: int) -> str:
        return f"{state} {number}"

    def merge(self, left: str, right: str) -> str:
        return left + right

    def result(self, state: str) -> str:
        return state


@dataclass
class Named:
    key: str
    label: str


class Labels(lookups.Lookup[Named]):
    """Of some keys none, of others one, of others two; in memory."""

    kind = "labels"
    name = "labels"

    def __init__(self) -> None:
        self._declare(Named, rows_per_call=2, cache_ttl="1m")

    def client(self, columns: Any, keys: Any) -> Any:
        return self

    def describe(self) -> dict[str, Any]:
        return {}

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def ask(self, keys: Sequence[lookups.Key]) -> list[list[bytes]]:
        return [[json.dumps({"label": f"{key} {n}"}).encode() for n in range(int(key[1:]))] for (key,) in keys]


def later(left: Event, right: Event) -> Event:
    return Event(left.number * 31 % 1_000_003 + right.number, left.key, right.value, right.at)


def listed(key: str, window: TimeWindow, rows: list[Event]) -> Iterator[Seen]:
    yield Seen(key, [row.number for row in rows])


def doubled(batch: Any) -> Any:
    import pyarrow.compute as pc

    return batch.set_column(2, "value", pc.multiply(batch.column(2), 2))


SUMS = {"n": count(), "total": col("value").sum(), "top": col("value").max(), "half": col("value").quantile(0.5)}


def kinds() -> Pipeline:
    p = Pipeline("kinds")
    read = p.read(source("5s"))
    keyed = read.key_by("key")

    def written(stream: Any, name: str) -> None:
        stream.write(files.Sink(OUT / name))

    written(read.filter(col("value") > 4).with_columns(twice=col("value") * 2).drop("at"), "rowwise")
    written(read.map_batches(doubled), "batches")
    written(keyed.window(tumbling("3s")).agg(**SUMS), "tumbling")
    written(keyed.window(sliding("4s", every="1s")).agg(n=count(), total=col("value").sum()), "sliding")
    written(keyed.window(cumulative("6s", every="2s")).agg(**SUMS), "cumulative")
    written(keyed.window(session("700ms")).agg(**SUMS), "sessions")
    ties = {"first": col("at").first(), "last": col("at").last(), "best": col("value").max_by("value")}
    written(keyed.window(tumbling("3s")).agg(**ties, all=col("value").collect()), "ties")
    written(keyed.window(tumbling("3s")).trigger(every("1s")).agg(**SUMS), "early")
    written(keyed.window(tumbling("3s")).allowed_lateness("1s").agg(**SUMS), "patient")
    written(keyed.agg(n=count(), total=col("value").sum()), "running")
    totals = keyed.agg(n=count(), total=col("value").sum())
    written(totals.filter(col("total") > 40), "filtered-updates")
    of_totals = {"keys": count(), "most": col("total").max(), "all": col("total").sum()}
    written(totals.key_by(rest=col("n") % 3).agg(**of_totals), "aggregated-updates")
    written(totals.distinct("n"), "distinct-updates")
    without_time = p.read(iterables.Source([Seen("k1", [])], schema=Seen))
    written(totals.select("key").minus(without_time.select("key")), "rows-of-one")
    written(read.select("key").minus(totals.changes().select("key"), all=True), "copies-of-rows")
    written(keyed.top(3, by="value").final(), "top")
    written(keyed.deduplicate("last"), "newest")
    written(keyed.over().with_columns(n=count(), total=col("value").sum()), "over")
    written(keyed.over(rows=3).with_columns(number_of_row=row_number(), total=col("value").sum()), "over-rows")
    written(keyed.process(Follows()), "process")
    other = p.read(source("5s")).select("key", "at", other="number")
    written(read.join(other, on="key", within="300ms", how="full"), "joined")
    written(read.join(other, on="key", as_of=True, how="left"), "as-of")
    few = read.filter(col("value") < 5).select("key", "number")
    written(few.join(totals, on="key", how="full"), "regular")
    written(few.join(other, on="key", how="anti", where=col("number") * 2 < col("other")).final(), "unmet")
    written(read.join(Labels(), on="key", how="left"), "looked-up")
    written(keyed.reduce(later), "reduce")
    written(keyed.deduplicate("first"), "first")
    written(keyed.window(tumbling("3s")).apply(listed), "apply")
    written(keyed.count_window(5).apply(listed), "count-windows")
    written(keyed.window(tumbling("3s")).agg(joined=aggregate(Joined(), "number")), "accumulated")
    written(keyed.window(tumbling("3s")).trigger(every_rows(3)).agg(n=count(), total=col("value").sum()), "by-rows")
    return p


def timeless() -> Pipeline:
    p = Pipeline("timeless")
    read = p.read(iterables.Source(events(), schema=Event))
    read.key_by("key").reduce(later).write(files.Sink(OUT / "reduce"))
    return p


# -- late rows ----------------------------------------------------------------------------------------------------------

LATE = OutputTag("late", Event)


class PassOn(KeyedProcess[Event, Event]):
    """A function between the source and a window: what it emits is as late as what it got."""

    def on_row(self, row: Event, ctx: KeyedContext[Event]) -> None:
        ctx.emit(row)


def late() -> Pipeline:
    """Windows of an impatient source: late rows that nobody reads, and late rows that somebody does."""
    p = Pipeline("late")
    read = p.read(source("1s"))
    keyed = read.key_by("key")

    def aside(stream: Any, name: str) -> None:
        stream.write(files.Sink(OUT / name))
        stream.side(LATE).write(files.Sink(OUT / f"{name}-late"))

    keyed.window(tumbling("1s")).agg(n=count()).uid("kept").write(files.Sink(OUT / "kept"))
    keyed.window(tumbling("1s")).agg(n=col("value").quantile(0.5)).uid("replayed").write(files.Sink(OUT / "replayed"))
    patient = keyed.window(tumbling("1s")).allowed_lateness("1s").agg(n=count()).uid("patient")
    patient.write(files.Sink(OUT / "patient"))
    unread = keyed.window(sliding("2s", every="1s")).late_to(OutputTag("unread")).allowed_lateness("500ms")
    unread.agg(n=count(), least=col("number").min()).uid("unread").write(files.Sink(OUT / "unread"))
    listed_too = keyed.window(sliding("2s", every="1s")).allowed_lateness("500ms")
    listed_too.agg(n=count(), least=col("number").min(), all=col("number").collect_distinct()).uid(
        "unread-replayed"
    ).write(files.Sink(OUT / "unread-replayed"))
    keyed.over().with_columns(n=count()).uid("over").write(files.Sink(OUT / "over"))
    keyed.window(session("200ms")).agg(n=count()).uid("sessions").write(files.Sink(OUT / "sessions"))
    keyed.window(tumbling("1s")).apply(listed).uid("applied").write(files.Sink(OUT / "applied"))

    aside(keyed.window(tumbling("1s")).late_to(LATE).agg(n=count()), "aside")
    aside(keyed.window(sliding("2s", every="500ms")).late_to(LATE).agg(n=count()), "aside-sliding")
    aside(keyed.window(session("200ms")).late_to(LATE).agg(n=count()), "aside-sessions")
    aside(keyed.window(tumbling("1s")).late_to(LATE).apply(listed), "aside-applied")
    aside(keyed.over().late_to(LATE).with_columns(n=count()), "aside-over")
    between = keyed.process(PassOn()).key_by("key").window(tumbling("1s")).late_to(LATE)
    aside(between.agg(n=count()), "aside-process")
    corrected = keyed.window(tumbling("1s")).late_to(LATE).allowed_lateness("500ms").agg(n=count())
    aside(corrected, "corrected")
    return p


def retimed() -> Pipeline:
    """Event time on the way: where a stage reads its source, and behind an exchange."""
    p = Pipeline("retimed")
    plain = p.read(iterables.Source(events(), schema=Event))
    timed = plain.with_event_time("at", max_out_of_orderness="1s")
    near = timed.filter(col("value") >= 0).key_by("key").window(tumbling("1s"))
    near.agg(n=count()).uid("near").write(files.Sink(OUT / "near"))
    aside = near.late_to(LATE).agg(n=count())
    aside.write(files.Sink(OUT / "aside"))
    aside.side(LATE).write(files.Sink(OUT / "aside-late"))
    far = plain.key_by("key").process(PassOn()).with_event_time("at", max_out_of_orderness="1s").key_by("key")
    behind = far.window(tumbling("1s")).late_to(LATE).agg(n=count()).uid("far")
    behind.write(files.Sink(OUT / "far"))
    behind.side(LATE).write(files.Sink(OUT / "far-late"))
    return p


def split() -> Pipeline:
    """Two files, of which one is far ahead."""
    p = Pipeline("split")
    read = p.read(files.Source(OUT.parent / "in", schema=Event, event_time="at", max_out_of_orderness="1s"))
    read.key_by("key").window(tumbling("1s")).agg(n=count()).uid("kept").write(files.Sink(OUT))
    return p


CASES = {"kinds": kinds, "timeless": timeless, "late": late, "retimed": retimed, "split": split}
p = CASES[param("case", "kinds")]()
