"""Pipelines of their own for the tests on Spark: `--param case=NAME`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pyarrow as pa

from penstock import (
    KeyedBatchContext,
    KeyedContext,
    KeyedProcess,
    Pipeline,
    ValueState,
    col,
    count,
    lit,
    param,
    tumbling,
)
from penstock.connectors import collecting, console, files, generate, iterables, sockets

START = datetime(2026, 1, 1, tzinfo=UTC)
OUT = Path(param("out", "out"))
MARKER = Path(param("marker", "marker"))


@dataclass
class Event:
    number: int
    key: str
    at: datetime


def numbered(rows: int = 400) -> iterables.Source[Event]:
    found = [Event(number, f"k{number % 7}", START + timedelta(seconds=number)) for number in range(rows)]
    return iterables.Source(found, event_time="at")


def fail_once(event: Event) -> Event:
    if event.number == 300 and not MARKER.exists():
        MARKER.touch()
        raise OSError("the first attempt")
    return event


def fail_always(event: Event) -> Event:
    if event.number == 300:
        raise KeyError("no such flight")
    return event


def failing(function: Callable[[Event], Event]) -> Pipeline:
    """Fails in a stage that a sink and two exchanges hang on, so that it is computed once and kept."""
    made = Pipeline("failing")
    counted = made.read(numbered()).map(function)
    existing = "append" if param("appends", "") else "fail"
    counted.write(files.Sink(OUT / "rows", existing=existing))
    counted.key_by("key").window(tumbling("1m")).agg(n=count()).write(files.Sink(OUT / "windows", existing=existing))
    counted.key_by("number").agg(n=count()).write(files.Sink(OUT / "totals", existing=existing))
    return made


@dataclass
class Minute:
    key: str
    n: int
    newest: int


def fail_once_behind(minute: Minute) -> Minute:
    if minute.newest == 399 and not MARKER.exists():
        MARKER.touch()
        raise OSError("the first attempt")
    return minute


def same(event: Event) -> Event:
    return event


def same_minute(minute: Minute) -> Minute:
    return minute


def window_between(before: Callable[[Event], Event], behind: Callable[[Minute], Minute]) -> Pipeline:
    """A window with functions on both sides of it, whose stages are computed in one go."""
    made = Pipeline("window-between")
    windows = made.read(numbered()).map(before).key_by("key").window(tumbling("1m"))
    totals = windows.agg(n=count(), newest=col("number").max()).uid("windows").select("key", "n", "newest")
    totals.as_(Minute).map(behind).key_by("newest").agg(n=col("n").sum()).write(files.Sink(OUT / "rows"))
    return made


def empty_window() -> Pipeline:
    made = Pipeline("empty-window")
    nothing = made.read(numbered()).filter(col("number") < 0)
    nothing.key_by("key").window(tumbling("1m")).agg(n=count()).uid("windows").write(files.Sink(OUT / "rows"))
    return made


class FailsOnTimer(KeyedProcess[Event, Event]):
    """Fails behind the exchange, on the first attempt of a task."""

    seen = ValueState(int)

    def on_row(self, row: Event, ctx: KeyedContext[Event]) -> None:
        self.seen.set(self.seen.get(0) + 1)
        ctx.event_timer(row.at + timedelta(seconds=30))
        ctx.emit(row)

    def on_timer(self, at: datetime, ctx: KeyedContext[Event]) -> None:
        if self.seen.get(0) > 40 and not MARKER.exists():
            MARKER.touch()
            raise OSError("the first attempt")


def failing_behind_exchange() -> Pipeline:
    made = Pipeline("failing-behind-exchange")
    made.read(numbered()).key_by("key").process(FailsOnTimer()).write(files.Sink(OUT / "rows"))
    return made


class Gaps(KeyedProcess[Event, Event]):
    """Emits a row when nothing came for its key during five seconds: right only if timers fire in time."""

    newest = ValueState(int)

    def on_row(self, row: Event, ctx: KeyedContext[Event]) -> None:
        self.newest.set(row.number)
        ctx.event_timer(row.at + timedelta(seconds=5))

    def on_timer(self, at: datetime, ctx: KeyedContext[Event]) -> None:
        ctx.emit(Event(self.newest.get(0), ctx.key, at))


class GapsOfBatches(KeyedProcess[Event, Event]):
    """The same by batches."""

    newest = ValueState(int)

    def on_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> None:
        self.newest.set_many(ctx.keys, frame["number"])
        ctx.event_timers(ctx.keys, frame["at"].dt.offset_by("5s"))

    def on_timer(self, at: datetime, ctx: KeyedContext[Event]) -> None:
        ctx.emit(Event(self.newest.get(0), ctx.key, at))


class WallClock(KeyedProcess[Event, Event]):
    def on_row(self, row: Event, ctx: KeyedContext[Event]) -> None:
        getattr(ctx, "processing" + "_timer")(row.at)

    def on_timer(self, at: datetime, ctx: KeyedContext[Event]) -> None:
        raise AssertionError(at)


class OpenWallClock(KeyedProcess[Event, Event]):
    def on_row(self, row: Event, ctx: KeyedContext[Event]) -> None:
        ctx.processing_timer(row.at)

    def on_timer(self, at: datetime, ctx: KeyedContext[Event]) -> None:
        raise AssertionError(at)


def keyed(process: KeyedProcess[Event, Event]) -> Pipeline:
    made = Pipeline("keyed")
    made.read(numbered()).key_by("key").process(process).write(files.Sink(OUT))
    return made


def in_process() -> Pipeline:
    """Rows for the driver: printed, and collected by two sinks of one source."""
    made = Pipeline("in-process")
    read = made.read(numbered(30))
    read.filter(col("number") < 5).select("number").write(console.Sink(label="row"))
    read.write(collecting.Sink())
    read.key_by("key").agg(n=count()).write(collecting.Sink())
    return made


TYPES = pa.schema(
    {
        "key": pa.uint64(), "tiny": pa.uint8(), "small": pa.uint16(), "mid": pa.uint32(), "i8": pa.int8(),
        "flag": pa.bool_(), "half": pa.float32(), "text": pa.string(), "raw": pa.binary(), "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"), "took": pa.duration("us"), "list": pa.list_(pa.uint64()), "A": pa.int64(),
        "a": pa.int64(), "nested": pa.struct({"when": pa.timestamp("us", "UTC"), "many": pa.list_(pa.string())}),
    }
)  # fmt: skip


def every_type() -> Pipeline:
    """Values at the edges of their types, and nulls, across a keyed exchange; the newest row of every key."""
    made = Pipeline("types")
    rows = [
        {
            "key": 2**64 - 1 - number // 2, "tiny": 255, "small": 65_535, "mid": 2**32 - 1, "i8": -128,
            "flag": bool(number % 2), "half": 0.5, "text": "ü", "raw": b"\x00\xff", "day": date(1900, 2, 28),
            "at": START + timedelta(microseconds=number), "took": timedelta(microseconds=-1), "list": [2**64 - 1, number],
            "A": number, "a": -number, "nested": {"when": START, "many": ["x", None]},
        }
        for number in range(40)
    ]  # fmt: skip
    rows += [{**dict.fromkeys(TYPES.names), "key": 7}]
    read = made.read(iterables.Source(rows, schema=TYPES))
    read.with_columns(nothing=lit(None)).key_by("key").reduce(lambda _, row: row).write(files.Sink(OUT))
    return made


def many_keys() -> Pipeline:
    made = Pipeline("many-keys")
    source = generate.Source(
        _generated, schema=Event, rows=int(param("rows", 1_000)), splits=int(param("splits", 3)), event_time="at",
        max_out_of_orderness=param("bound", "1s"),
    )  # fmt: skip
    made.read(source).parallelism(int(param("splits", 3))).key_by("key").process(
        GapsOfBatches() if param("flavour", "rows") == "batches" else Gaps()
    ).write(files.Sink(OUT))
    return made


def _generated(numbers):
    import polars as pl

    at = pl.Series(int(START.timestamp()) * 1_000_000 + numbers * 1_000_000, dtype=pl.Int64)
    keys = pl.Series((numbers // 20) % 50).cast(pl.String)
    return pl.DataFrame({"number": numbers, "key": keys, "at": at.cast(pl.Datetime("us", "UTC"))})


def unbounded() -> Pipeline:
    made = Pipeline("unbounded")
    source = sockets.Source("127.0.0.1", 9, schema=Event, format="jsonl")
    made.read(source).write(files.Sink(OUT))
    return made


def moved_back() -> Pipeline:
    """Newest rows of keys that have an earlier time from one to the next."""
    made = Pipeline("moved-back")
    versions = [Event(number, f"k{number % 3}", START - timedelta(seconds=number)) for number in range(12)]
    newest = made.read(iterables.Source(versions)).key_by("key").deduplicate("last")
    newest.with_event_time("at", max_out_of_orderness="1h").final().write(files.Sink(OUT))
    return made


CASES: dict[str, Callable[[], Pipeline]] = {
    "fails-once": lambda: failing(fail_once),
    "fails-always": lambda: failing(fail_always),
    "fails-behind-exchange": failing_behind_exchange,
    "fails-before-window": lambda: window_between(fail_once, same_minute),
    "fails-behind-window": lambda: window_between(same, fail_once_behind),
    "empty-window": empty_window,
    "wall-clock": lambda: keyed(WallClock()),
    "open-wall-clock": lambda: keyed(OpenWallClock()),
    "gaps": lambda: keyed(Gaps()),
    "in-process": in_process,
    "types": every_type,
    "many-keys": many_keys,
    "moved-back": moved_back,
    "unbounded": unbounded,
}

p = CASES[param("case", "gaps")]()
