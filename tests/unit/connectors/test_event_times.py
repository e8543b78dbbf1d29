"""Event time in the forms in which data has it: read the same whatever it is, and what is none is a bad row."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from penstock import Pipeline, col, count, cumulative, every_rows, session, sliding, tumbling
from penstock.connectors import files, iterables, kafka
from penstock.connectors.base import Fetched
from penstock.core.batches import EVENT_TIME
from penstock.core.times import from_micros, to_micros
from penstock.errors import BadRecordError, PipelineError, UserCodeError
from penstock.formats.columns import MAX_MICROS, MIN_MICROS
from penstock.protocol.messages import OperatorMetrics
from penstock.task.bad_rows import RowValidator

NOON = datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC)
SECONDS = to_micros(NOON) / 1_000_000


@dataclass
class Row:
    at: datetime
    day: date
    text: str
    other: str
    s: float
    ms: int
    us: int
    ns: int
    flag: bool


ROW = Row(
    NOON, NOON.date(), "2026-01-31T13:00:00.123+01:00", "31.01.2026 13:00", SECONDS, to_micros(NOON) // 1_000,
    to_micros(NOON), to_micros(NOON) * 1_000 + 999, True,
)  # fmt: skip


def read(row: Row, bad_rows: Any = "fail", **options: Any) -> tuple[list[int], list[str]]:
    """The event times of the good rows, and why the others are none."""
    source = iterables.Source([row], schema=Row, bad_rows=bad_rows, **options)
    frame = pl.DataFrame([vars(row)], schema=source.schema.polars())
    good, dead = RowValidator(source, OperatorMetrics(), lambda: 2**52).judge(Fetched(frame), "s")
    return good[EVENT_TIME].to_list(), [] if dead is None else dead["error"].to_list()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"event_time": "at"}, NOON),
        ({"event_time": "day"}, datetime(2026, 1, 31, tzinfo=UTC)),
        ({"event_time": "text"}, NOON),
        (
            {"event_time": "other", "time_format": "%d.%m.%Y %H:%M", "timezone": "Europe/Berlin"},
            NOON.replace(microsecond=0),
        ),
        ({"event_time": "s", "time_unit": "s"}, NOON),
        ({"event_time": "ms", "time_unit": "ms"}, NOON),
        ({"event_time": "us", "time_unit": "us"}, NOON),
        ({"event_time": "ns", "time_unit": "ns"}, NOON),
        ({"event_time": col("ms") + 1, "time_unit": "ms"}, NOON.replace(microsecond=124_000)),
        ({"event_time": col("at").dt.truncate("1h")}, NOON.replace(microsecond=0)),
    ],
)
def test_every_form_is_the_same_moment(options: dict[str, Any], expected: datetime) -> None:
    """Numbers by their unit, text by its format, anything else by an expression."""
    assert read(ROW, **options) == ([to_micros(expected)], [])


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({"text": "yesterday"}, {"event_time": "text"}, "event time text: 'yesterday' is not RFC 3339 .*time_format="),
        ({"text": "2026-01-31T12:00:00"}, {"event_time": "text"}, "is not RFC 3339 .*timezone="),
        ({"other": "31/01"}, {"event_time": "other", "time_format": "%d.%m.%Y %H:%M %z"}, "is not text as %d"),
        ({"ms": to_micros(NOON)}, {"event_time": "ms", "time_unit": "s"}, "years 1 to 9999; is it time_unit='s'"),
        ({"ms": 2**63 - 1}, {"event_time": "ms", "time_unit": "ms"}, "years 1 to 9999"),
        ({"s": float("nan")}, {"event_time": "s", "time_unit": "s"}, "years 1 to 9999"),
        ({"s": None}, {"event_time": col("s"), "time_unit": "s"}, "event time s is null"),
        ({"other": "x"}, {"event_time": col("other").str.to_datetime("%d.%m.%Y %H:%M")}, "event time .*to_datetime"),
    ],
)
def test_what_is_no_time_is_a_bad_row(changes: dict[str, Any], options: dict[str, Any], reason: str) -> None:
    """By the source's policy, with the value and what to do."""
    row = Row(**{**vars(ROW), **changes})
    times, dead = read(row, "dead_letter", **options)
    assert times == []
    (said,) = dead
    assert pl.Series([said]).str.contains(reason).all(), said


def test_rows_beside_a_bad_one_stay() -> None:
    """Also where the user's own expression fails for the whole batch."""
    rows = [{"other": "31.01.2026 12:00"}, {"other": "x"}, {"other": "31.01.2026 13:00"}]
    event_time = col("other").str.to_datetime("%d.%m.%Y %H:%M")
    schema = iterables.Source([ROW]).schema.select(["other"])
    source = iterables.Source(rows, schema=schema, event_time=event_time, bad_rows="skip")
    metrics = OperatorMetrics()
    good, _ = RowValidator(source, metrics, lambda: 2**52).judge(Fetched(pl.DataFrame(rows)), "s")
    assert good["other"].to_list() == ["31.01.2026 12:00", "31.01.2026 13:00"]
    assert (metrics.rows_in, metrics.bad_rows) == (3, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"event_time": "ms"}, "event_time ms is int64: say what it counts since 1970 with time_unit='s', 'ms'"),
        ({"event_time": "s"}, "event_time s is float64: say what"),
        ({"event_time": "ms", "time_unit": "millis"}, "no time_unit=.millis.; "),
        ({"event_time": "flag"}, "event_time flag is boolean; it must be a timestamp, a date, text or a number"),
        ({"event_time": "at", "time_unit": "ms"}, "time_unit= is for numbers; event_time at is timestamp"),
        ({"event_time": "at", "time_format": "%H"}, "time_format= is for text"),
        ({"event_time": "other", "time_format": "%d.%m.%Y"}, "has no offset from UTC; name the zone .* timezone="),
        ({"event_time": 5}, "event_time= takes .*, got 5"),
        ({"event_time": col("nowhere")}, "there is no column 'nowhere'"),
        ({"time_unit": "ms"}, "time_unit= needs event_time="),
        ({"evnt_time": "at"}, r"no argument evnt_time=; did you mean .event_time"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_declared(options: dict[str, Any], message: str) -> None:
    """At every source, by the name of the option."""
    for make in (
        lambda: iterables.Source([ROW], **options),
        lambda: files.Source("x.jsonl", schema=Row, **options),
        lambda: kafka.Source("topic", schema=Row, **options),
    ):
        with pytest.raises(PipelineError, match=message):
            make()


def test_the_column_stays_what_it_is_and_windows_go_by_the_time() -> None:
    """What was read as a number is written as one."""
    p = Pipeline("numbers")
    rows = [{"user": "a", "ms": to_micros(NOON) // 1_000 + n * 400} for n in range(5)]
    schema = iterables.Source([ROW]).schema.select(["ms"])
    source = iterables.Source(rows, schema=schema, event_time="ms", time_unit="ms")
    read = p.read(source)
    assert [row["ms"] for row in read.collect().to_dicts()] == [row["ms"] for row in rows]
    windows = read.with_columns(key=1).key_by("key").window(tumbling("1s")).agg(rows=count())
    assert windows.collect()["rows"].to_list() == [3, 2]


def test_the_plan_says_how_it_is_read() -> None:
    """For whoever looks at `penstock plan`."""
    source = iterables.Source([ROW], event_time="other", time_format="%d.%m.%Y %H:%M", timezone="Europe/Berlin")
    assert source.event_time is not None
    assert source.event_time.form.describe() == "other as %d.%m.%Y %H:%M in Europe/Berlin"
    by_record = kafka.Source("topic", schema=Row, event_time=kafka.RECORD_TIMESTAMP)
    assert by_record.event_time is not None
    assert by_record.event_time.form.describe() == "record_timestamp"


@pytest.mark.parametrize(
    ("kind", "unit", "value", "expected"),
    [
        (pa.int32(), "s", 1_769_860_800, "2026-01-31T12:00:00+00:00"),
        (pa.uint32(), "s", 1_769_860_800, "2026-01-31T12:00:00+00:00"),
        (pa.int16(), "s", 32_000, "1970-01-01T08:53:20+00:00"),
        (pa.int8(), "ms", 100, "1970-01-01T00:00:00.100000+00:00"),
        (pa.float32(), "s", 1_000.5, "1970-01-01T00:16:40.500000+00:00"),
    ],
)
def test_narrow_numbers_do_not_wrap(kind: Any, unit: Any, value: float, expected: str) -> None:
    """They are counted in 64 bits, whatever the column is."""
    source = iterables.Source([], schema=pa.schema([("ts", kind)]), event_time="ts", time_unit=unit)
    frame = pl.DataFrame([{"ts": value}], schema=source.schema.polars())
    good, _ = RowValidator(source, OperatorMetrics(), lambda: 2**52).judge(Fetched(frame), "s")
    assert from_micros(good[EVENT_TIME][0]).isoformat() == expected


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.uint64()])
@pytest.mark.parametrize(("unit", "per_micro"), [("s", 1e-6), ("ms", 1e-3), ("us", 1), ("ns", 1e3)])
def test_no_number_of_a_unit_wraps(kind: Any, unit: Any, per_micro: float) -> None:
    """Any number is its moment, or none where a timestamp cannot be it."""
    rng, bits = random.Random(str(kind) + unit), kind.bit_width - (not str(kind).startswith("u"))
    least = 0 if str(kind).startswith("u") else -(2**bits)
    numbers = [
        least,
        2**bits - 1,
        *(rng.randrange(least >> rng.randrange(bits), 2 ** rng.randrange(1, bits)) for _ in range(300)),
    ]
    source = iterables.Source([], schema=pa.schema([("ts", kind)]), event_time="ts", time_unit=unit)
    assert source.event_time is not None
    micros = pl.DataFrame({"ts": numbers}, schema=source.schema.polars()).select(source.event_time.form.micros())
    for number, found in zip(numbers, micros.to_series(), strict=True):
        expected = number // 1_000 if unit == "ns" else number * round(1 / per_micro)
        within = (
            MIN_MICROS <= expected <= MAX_MICROS and number < 2**63
        )  # more nanoseconds than that are a bad row, too
        assert found == (expected if within else None)


def test_a_stream_refuses_what_a_source_refuses() -> None:
    """With the verb's name."""
    read = Pipeline("wrong").read(iterables.Source([ROW]))
    for options, message in [
        ({"event_time": "text", "timezone": "Mars"}, "with_event_time: there is no time zone 'Mars'"),
        ({"event_time": "ms"}, "with_event_time: event_time ms is int64: say what it counts"),
        ({"event_time": "other", "time_format": "nonsense", "timezone": "UTC"}, "time_format='nonsense' cannot read"),
        ({"event_time": "at", "watermarks": 5}, "with_event_time: watermarks= takes"),
    ]:
        with pytest.raises(PipelineError, match=message):
            read.with_event_time(**options)


FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
MINUTE = timedelta(minutes=1)
WINDOWED = {
    "tumbling": lambda keyed: keyed.window(tumbling("1m")).agg(rows=count()),
    "sliding": lambda keyed: keyed.window(sliding("1m", "20s")).agg(rows=count()),
    "cumulative": lambda keyed: keyed.window(cumulative("1m", every="20s")).agg(rows=count()),
    "session": lambda keyed: keyed.window(session("1m")).agg(rows=count()),
    "triggered": lambda keyed: keyed.window(tumbling("1m")).trigger(every_rows(1)).agg(rows=count()),
    "top": lambda keyed: keyed.window(tumbling("1m")).top(1, by="s"),
    "local": lambda keyed: keyed.window(tumbling("1d", timezone="Europe/Berlin")).agg(rows=count()),
}


def windowed(make: Any, times: list[datetime], **options: Any) -> Any:
    rows = [Row(**{**vars(ROW), "at": time}) for time in times]
    source = iterables.Source(rows, schema=Row, event_time="at", **options)
    return make(Pipeline("far").read(source).key_by("flag")).collect()


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("time", [FIRST, LAST])
def test_a_row_whose_windows_are_no_dates_is_a_bad_row(name: str, time: datetime) -> None:
    """By the source's policy, with the value; a row a few windows away from the ends of the calendar is a good one."""
    with pytest.raises(BadRecordError, match=r"event time at: datetime.*so near to an end of the calendar.*bad_rows="):
        windowed(WINDOWED[name], [time])
    assert windowed(WINDOWED[name], [time], bad_rows="skip").height == 0
    inwards = 1 if time == FIRST else -1
    assert windowed(WINDOWED[name], [time + inwards * timedelta(days=3)]).height >= 1


def test_windows_behind_windows_reach_further() -> None:
    """The second one's end is a date too."""

    def twice(keyed: Any) -> Any:
        inner = keyed.window(tumbling("1d")).agg(rows=count()).select("flag", "rows")
        return inner.key_by("flag").window(session("7d")).agg(rows=count())

    assert windowed(twice, [LAST - timedelta(days=5)], bad_rows="skip").height == 0
    assert windowed(twice, [LAST - timedelta(days=8)], bad_rows="fail").height == 1


@pytest.mark.parametrize("time", [FIRST, LAST])
def test_without_windows_any_date_is_a_time(time: datetime) -> None:
    """Nothing is computed from it that might be none."""
    assert windowed(lambda keyed: keyed.over(within="1h").with_columns(rows=count()), [time]).height == 1
    assert windowed(lambda keyed: keyed.agg(rows=count()), [time]).height == 1


def test_with_event_time_says_which_row_is_too_near_to_the_end() -> None:
    """It has no policy: what is no time fails the job."""
    source = iterables.Source([Row(**{**vars(ROW), "at": LAST})], schema=Row)
    stream = Pipeline("far").read(source).with_event_time("at", max_out_of_orderness="0s")
    with pytest.raises(UserCodeError, match=r"so near to an end of the calendar.*filter such rows out before"):
        stream.key_by("flag").window(tumbling("1m")).agg(rows=count()).collect()
