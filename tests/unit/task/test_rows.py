"""Row objects: every type there and back exactly, and the messages when something does not fit."""

from __future__ import annotations

import dataclasses
import enum
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Annotated, Any

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.batches import EVENT_TIME
from penstock.errors import PipelineError, UserCodeError
from penstock.task.rows import RowReader, RowWriter
from penstock.types import FLOAT32, INT8, Field, Schema, StructType, row_class, schema_of


@dataclasses.dataclass
class Point:
    x: int
    label: str | None


class Leg(msgspec.Struct, frozen=True):
    points: list[Point]
    at: datetime


@dataclasses.dataclass
class Everything:
    flag: bool
    number: int
    ratio: float
    text: str
    raw: bytes
    day: date
    at: datetime
    took: timedelta
    maybe: int | None
    maybe_at: Annotated[datetime | None, "when"]
    numbers: list[int]
    moments: list[datetime] | None
    point: Point
    maybe_point: Point | None
    legs: list[Leg]
    nested: list[list[str]]


MOMENTS = st.datetimes(timezones=st.just(UTC))
POINTS = st.builds(Point, st.integers(-(2**63), 2**63 - 1), st.none() | st.text())
ROWS = st.builds(
    Everything,
    flag=st.booleans(),
    number=st.integers(-(2**63), 2**63 - 1),
    ratio=st.floats(allow_nan=False),
    text=st.text(),
    raw=st.binary(),
    day=st.dates(),
    at=MOMENTS,
    took=st.timedeltas(timedelta(days=-9999), timedelta(days=9999)),
    maybe=st.none() | st.integers(0, 9),
    maybe_at=st.none() | MOMENTS,
    numbers=st.lists(st.integers(0, 9), max_size=3),
    moments=st.none() | st.lists(MOMENTS, max_size=3),
    point=POINTS,
    maybe_point=st.none() | POINTS,
    legs=st.lists(st.builds(Leg, st.lists(POINTS, max_size=2), MOMENTS), max_size=2),
    nested=st.lists(st.lists(st.text(max_size=2), max_size=2), max_size=2),
)


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(ROWS, max_size=5))
def test_rows_of_every_type_come_back_equal(rows):
    """Nested classes, lists of them, nulls, and the exact Polars types in between."""
    schema = schema_of(Everything)
    frame = RowWriter(schema, Everything).frame(rows)
    assert dict(frame.schema) == schema.polars()
    assert RowReader(schema, Everything).rows(frame) == rows


def test_rows_of_a_made_class_have_nested_made_classes():
    """A stream that was declared by a schema has a class as well."""
    schema = schema_of(Leg)
    made = row_class(schema)
    frame = RowWriter(schema).frame([Leg([Point(1, None)], datetime(2026, 1, 1, tzinfo=UTC))])
    (row,) = RowReader(schema, made).rows(frame)
    assert row.points[0].x == 1
    assert RowWriter(schema, made).frame([row]).equals(frame)


def test_event_times_become_the_hidden_column():
    """Given as numbers, kept as Int64."""
    frame = RowWriter(schema_of(Point)).frame([Point(1, "a"), Point(2, None)], [7, 8])
    assert frame.columns == ["x", "label", EVENT_TIME]
    assert frame[EVENT_TIME].to_list() == [7, 8]
    assert RowWriter(schema_of(Point)).frame([], []).schema[EVENT_TIME] == pl.Int64


def test_keyword_only_classes_and_other_orders_of_fields():
    """A class may take its fields by keyword, and in another order than the columns."""

    class Keywords(msgspec.Struct, kw_only=True):
        label: str | None
        x: int

    @dataclasses.dataclass
    class Turned:
        label: str | None
        x: int

    frame = RowWriter(schema_of(Point)).frame([Point(1, "a")])
    assert RowReader(schema_of(Point), Keywords).rows(frame) == [Keywords(label="a", x=1)]
    assert RowReader(schema_of(Point), Turned).rows(frame) == [Turned("a", 1)]


def test_a_class_that_does_not_fit_the_columns_is_refused():
    """When the pipeline is built."""

    @dataclasses.dataclass
    class Other:
        x: int
        y: int

    with pytest.raises(PipelineError, match="rows of class Other cannot be made from the columns x, label: missing y"):
        RowReader(schema_of(Point), Other)


class Colour(enum.StrEnum):
    RED = "red"


class Loose(msgspec.Struct):
    number: Any = 1
    ratio: Any = 1.0
    text: Any = ""
    flag: Any = True


LOOSE = Schema(tuple(field for field in schema_of(Everything) if field.name in ("number", "ratio", "text", "flag")))


def test_what_may_stand_for_a_value():
    """An int for a float, numpy's scalars, subclasses: as the plain values they are."""
    rows = [Loose(), Loose(np.int32(2), 3, Colour.RED, np.bool_(False)), Loose(5, np.float32(0.5), "x", True)]
    frame = RowWriter(LOOSE).frame(rows)
    assert dict(frame.schema) == LOOSE.polars()
    assert frame["number"].to_list() == [1, 2, 5]
    assert frame["ratio"].to_list() == [1.0, 3.0, 0.5]
    assert frame["text"].to_list() == ["", "red", "x"]
    assert frame["flag"].to_list() == [True, False, True]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Loose(number="1"), "map: double: column 'number' is int64, got '1'"),
        (Loose(number=1.0), "column 'number' is int64, got 1.0"),
        (Loose(number=True), "column 'number' is int64, got True"),
        (Loose(number=2**63), "column 'number' is int64, got 9223372036854775808, which does not fit"),
        (Loose(ratio="x"), "column 'ratio' is float64, got 'x'"),
        (Loose(text=b"x"), "column 'text' is string, got b'x'"),
        (Loose(flag=1), "column 'flag' is boolean, got 1"),
        (Loose(text=None), r"got None; declare it as '\.\.\. \| None' if text may be missing"),
    ],
)
def test_a_wrong_value_names_function_column_and_value(row, message):
    """Nothing is converted silently."""
    with pytest.raises(UserCodeError, match=message):
        RowWriter(LOOSE, where="map: double").frame([Loose(), row])


@dataclasses.dataclass
class Open:
    at: time
    days: list[time]
    by_name: dict[str, time]


@pytest.mark.parametrize("place", range(3))
def test_an_offset_of_a_time_of_day_is_refused(place: int) -> None:
    """However deep it stands: a column of times has none, and 12:00+02:00 is not 12:00."""
    noon, there = time(12), time(12, tzinfo=timezone(timedelta(hours=2)))
    at, day, named = (there if number == place else noon for number in range(3))
    with pytest.raises(UserCodeError, match=r"is time, got .*, which has an offset, and a time of day has none"):
        RowWriter(schema_of(Open)).frame([Open(noon, [noon], {}), Open(at, [noon, day], {"k": named})])
    assert RowWriter(schema_of(Open)).frame([Open(noon, [noon], {"k": noon})]).row(0) == (noon, [noon], {"k": noon})


def test_naive_moments_and_small_numbers_are_refused():
    """A datetime without zone is an error, as is 300 in an int8."""
    schema = schema_of(Leg)
    with pytest.raises(UserCodeError, match=r"column 'at' is timestamp, got .* without a time zone"):
        RowWriter(schema).frame([Leg([], datetime(2026, 1, 1))])  # noqa: DTZ001 (what is tested)
    zone = timezone(timedelta(hours=2))
    frame = RowWriter(schema).frame([Leg([], datetime(2026, 1, 1, tzinfo=zone))])
    assert frame["at"].item() == datetime(2025, 12, 31, 22, tzinfo=UTC)
    small = Schema((Field("a", INT8), Field("b", FLOAT32)))
    with pytest.raises(UserCodeError, match="column 'a' is int8, got 300, which does not fit"):
        RowWriter(small).frame([{"a": 1, "b": 0.5}, {"a": 300, "b": 0.5}])


_ODD = ["a-b", "a_b", "class", "1x", "two words", "x.y", "é", "a b", "self"]


def test_columns_whose_names_are_no_identifiers_have_attributes_of_their_own():
    """There and back, whole or part of a struct, by the attribute or by the name."""
    inner = StructType((Field("in-ner", INT8), Field("if", INT8, True)))
    schema = Schema((*(Field(name, INT8) for name in _ODD), Field("nested-one", inner)))
    made = row_class(schema)
    nested = {"in-ner": 1, "if": None}
    frame = pl.DataFrame([{name: n for n, name in enumerate(_ODD)} | {"nested-one": nested}], schema.polars())
    (row,) = RowReader(schema, made).rows(frame)
    assert [getattr(row, name) for name in _ODD] == list(range(len(_ODD)))
    assert (row.a_b_, row.a_b, row.class_, row._1x, row.two_words, row.a_b__) == (0, 1, 2, 3, 4, 7)
    assert (row.nested_one.in_ner, row.nested_one.if_) == (1, None)
    with pytest.raises(AttributeError, match="'Row' object has no attribute 'a-c'"):
        getattr(row, "a-c")
    whole = frame.row(0, named=True)
    for writer, written in [(RowWriter(schema, made), row), (RowWriter(schema), row), (RowWriter(schema), whole)]:
        assert writer.frame([written]).rows(named=True) == frame.rows(named=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(row), type=made) == row


def test_dicts_are_rows_if_they_have_exactly_the_columns():
    """For streams that were declared by a schema."""
    schema = schema_of(Point)
    made = row_class(schema)
    assert RowWriter(schema, made).frame([{"x": 1, "label": None}]).rows() == [(1, None)]
    with pytest.raises(UserCodeError, match="a dict has labell, which is no column"):
        RowWriter(schema, made).frame([{"x": 1, "label": None, "labell": None}])


def test_a_missing_return_is_named():
    """The commonest mistake in a map function."""
    with pytest.raises(UserCodeError, match="map: f: must return a Point, got None; a return is missing"):
        RowWriter(schema_of(Point), Point, "map: f").frame([Point(1, None), None])
    with pytest.raises(UserCodeError, match="must return a Point, got 5"):
        RowWriter(schema_of(Point), Point, "map: f").frame([5])


def test_wrong_nested_values_are_named():
    """Inside lists and structs too."""
    schema = schema_of(Leg)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(UserCodeError, match=r"column 'points' is list.*got 5"):
        RowWriter(schema).frame([Leg(5, moment)])
    with pytest.raises(UserCodeError, match="column 'x' is int64, got 'one'"):
        RowWriter(schema).frame([Leg([Point("one", None)], moment)])
    with pytest.raises(UserCodeError, match="which has no 'x'"):
        RowWriter(schema).frame([Leg([{"label": "a"}], moment)])
