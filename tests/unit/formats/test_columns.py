"""Python values to columns: whole columns and row by row take the same values."""

# ruff: noqa: DTZ001 (naive datetimes are what is tested, and the bounds that hypothesis wants)

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from penstock.formats.columns import FrameBuilder
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT32,
    FLOAT64,
    INT8,
    INT64,
    STRING,
    TIMESTAMP,
    UINT64,
    DataType,
    Field,
    ListType,
    Schema,
    StructType,
)

KINDS: list[DataType] = [
    BOOLEAN,
    INT8,
    INT64,
    UINT64,
    FLOAT32,
    FLOAT64,
    STRING,
    BINARY,
    DATE,
    TIMESTAMP,
    DURATION,
    ListType(INT8),
    StructType((Field("a", INT64), Field("b", STRING, nullable=True))),
]
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-300, 300),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.text(max_size=3),
    st.text(st.characters(categories=["Cs"]), max_size=2),
    st.binary(max_size=3),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.datetimes(timezones=st.just(timezone(timedelta(hours=-9)))),
    st.timedeltas(),
    st.lists(st.one_of(st.none(), st.integers(-200, 200)), max_size=3),
    st.fixed_dictionaries(
        {"a": st.integers(-5, 5)}, optional={"b": st.one_of(st.none(), st.text(max_size=2), st.integers())}
    ),
)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("nullable", [True, False])
def test_whole_columns_and_rows_agree(kind: DataType, nullable: bool) -> None:
    """A column is accepted as a whole exactly if every value of it is, and then holds the same."""
    schema = Schema((Field("x", kind, nullable),))

    @settings(max_examples=60, deadline=None)
    @given(st.lists(values, min_size=1, max_size=4))
    def check(column: list[Any]) -> None:
        builder = FrameBuilder(schema)
        frame, bad = builder.frame([column])
        single = [builder._row_by_row([[value]]) for value in column]
        assert [index for index, _ in bad] == [index for index, (_, wrong) in enumerate(single) if wrong]
        if not bad:
            by_row, wrong = builder._row_by_row([column])
            assert not wrong
            assert_frame_equal(frame, by_row)

    check()


def test_objects_are_nested_values() -> None:
    """A member of a struct column may be a mapping or an object."""

    @dataclass
    class Inner:
        a: int
        b: str | None

    schema = Schema((Field("x", KINDS[-1]),))
    frame, bad = FrameBuilder(schema).frame([[Inner(1, None), {"a": 2}, 3, Inner("x", None)]])  # type: ignore[arg-type]
    assert frame["x"].to_list() == [{"a": 1, "b": None}, {"a": 2, "b": None}]
    assert [index for index, _ in bad] == [2, 3]
    assert bad[1][1] == "x.a: expected int64, got 'x'"


def test_reasons_name_the_place() -> None:
    """The reason says which column, which element, and what would fit."""
    schema = Schema((Field("l", ListType(TIMESTAMP)), Field("d", DATE)))
    _, bad = FrameBuilder(schema).frame(
        [[[datetime(2001, 1, 1)], [1], []], [date(2001, 1, 1)] * 2 + [datetime(2001, 1, 1)]]
    )
    assert [reason.split(":")[0] for _, reason in bad] == ["l[0]", "l[0]", "d"]
    assert "timezone=" in bad[0][1]


def test_numbers_of_numpy_stay_good_beside_a_bad_row() -> None:
    """Rows are looked at one by one then, and take what whole columns take."""
    schema = Schema((Field("n", INT64), Field("x", FLOAT64), Field("ok", BOOLEAN)))
    builder = FrameBuilder(schema)
    good = (np.int64(3), Decimal("1.5"), np.True_), (4, np.float32(0.5), False)
    wrong = ("oops", 1.0, True), (1, 10**400, True), (np.True_, 1.0, True), (1, "1", True), (1, 1.0, np.int64(1))
    whole, none = builder.frame(list(zip(*good, strict=True)))
    frame, bad = builder.frame(list(zip(*good, *wrong, strict=True)))
    assert not none
    assert_frame_equal(frame, whole)
    assert [index for index, _ in bad] == [2, 3, 4, 5, 6]
