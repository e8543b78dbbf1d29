"""Stored values as columns: any declared type there and back, through Polars."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptDataError
from penstock.savepoint.shapes import UnstorableError, shape_of, values_column
from penstock.state.declarations import describe_type


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 20


@dataclass
class Inner:
    name: str
    count: int | None = None


@dataclass
class Outer:
    inner: Inner
    inners: list[Inner]
    by_name: dict[str, Inner]
    pair: tuple[int, str]
    at: datetime


class Compact(msgspec.Struct, array_like=True):
    first: int
    second: str = "x"


class Tagged(msgspec.Struct, tag=True):
    size: int


@dataclass
class Tree:
    value: int
    children: list[Tree]


INT64 = st.integers(-(2**63), 2**63 - 1)
MOMENTS = st.datetimes(timezones=st.just(UTC))
INNER = st.builds(Inner, st.text(), st.none() | INT64)
TYPES: list[tuple[Any, st.SearchStrategy[Any], pl.DataType | None]] = [
    (bool, st.booleans(), pl.Boolean()),
    (int, INT64, pl.Int64()),
    (float, st.floats(allow_nan=False), pl.Float64()),
    (str, st.text(), pl.String()),
    (bytes, st.binary(), pl.Binary()),
    (datetime, MOMENTS, pl.Datetime("us", "UTC")),
    (date, st.dates(), pl.Date()),
    (time, st.times(), pl.Time()),
    (timedelta, st.timedeltas(timedelta(-9999), timedelta(9999)), pl.Duration("us")),
    (UUID, st.uuids(), pl.String()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False), pl.String()),
    (int | None, st.none() | INT64, pl.Int64()),
    (int | float, st.integers(-1000, 1000) | st.floats(allow_nan=False), pl.Float64()),
    (Colour, st.sampled_from(Colour), pl.String()),
    (Level, st.sampled_from(Level), pl.Int64()),
    (Literal["a", "b"], st.sampled_from(["a", "b"]), pl.String()),
    (list[int], st.lists(INT64), pl.List(pl.Int64())),
    (set[str], st.sets(st.text()), pl.List(pl.String())),
    (tuple[int, str], st.tuples(INT64, st.text()), None),
    (dict[str, list[int]], st.dictionaries(st.text(), st.lists(INT64)), None),
    (Inner, INNER, pl.Struct({"name": pl.String(), "count": pl.Int64()})),
    (
        Outer,
        st.builds(
            Outer,
            INNER,
            st.lists(INNER, max_size=3),
            st.dictionaries(st.text(), INNER, max_size=3),
            st.tuples(INT64, st.text()),
            MOMENTS,
        ),
        None,
    ),
    (Compact, st.builds(Compact, INT64, st.text()), pl.Struct({"first": pl.Int64(), "second": pl.String()})),
    (Tagged, st.builds(Tagged, INT64), pl.String()),
    (Tree, st.just(Tree(1, [Tree(2, [])])), None),
    (int | str, INT64 | st.text(), pl.String()),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "values", "dtype"), TYPES, ids=lambda part: getattr(part, "__name__", str(part))[:30])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_declared_type_is_a_column_and_comes_back(hint, values, dtype, data):
    """msgpack to a typed column, through Polars, to msgpack that decodes to an equal value."""
    described = describe_type(hint, "test")
    drawn = data.draw(st.lists(values, max_size=5))
    column = values_column("value", described, [msgspec.msgpack.encode(value) for value in drawn], "test")
    shape = shape_of(described)
    assert column.dtype == (shape.dtype if dtype is None else dtype)
    written = [msgspec.msgpack.encode(shape.write(value)) for value in column.to_list()]
    assert [msgspec.msgpack.decode(value, type=hint) for value in written] == drawn


def test_integers_beyond_64_bits_widen_their_column():
    """msgpack's unsigned integers reach 2**64; nothing wraps around."""
    described = describe_type(list[int], "test")
    column = values_column("value", described, [msgspec.msgpack.encode([2**64 - 1, -5])], "test")
    assert column.dtype == pl.List(pl.Int128())
    assert column.to_list() == [[2**64 - 1, -5]]
    shape = shape_of(described, wide=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(shape.write(column.to_list()[0]))) == [2**64 - 1, -5]


def test_a_field_that_was_left_out_is_left_out_again():
    """Its default holds, as it would without the detour; a required one must not be null."""
    described = describe_type(Compact, "test")
    column = values_column("value", described, [msgspec.msgpack.encode([7])], "test")
    shape = shape_of(described)
    assert shape.write(column.to_list()[0]) == [7]
    with pytest.raises(UnstorableError, match="in field 'first' is null"):
        shape.write({"first": None, "second": "x"})
    with pytest.raises(UnstorableError, match="has the same key twice"):
        shape_of(describe_type(dict[str, int], "test")).write([{"key": "a", "value": 1}, {"key": "a", "value": 2}])
    with pytest.raises(UnstorableError, match="and there are: blue, red"):
        shape_of(describe_type(Colour, "test")).write("green")
    with pytest.raises(UnstorableError, match="is not JSON"):
        shape_of(describe_type(int | str, "test")).write("{")


@pytest.mark.parametrize(("hint", "stored"), [(int, b"\xc1"), (int, b""), (datetime, b"\xa1x"), (Inner, b"\x07")])
def test_damaged_values_are_an_error_that_says_where(hint, stored):
    """Not msgpack, or not of the type."""
    with pytest.raises(CorruptDataError, match="here: a stored value is not readable"):
        values_column("value", describe_type(hint, "test"), [stored], "here")
