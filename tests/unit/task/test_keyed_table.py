"""Rows by key in plain columns: what is put is found again."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.task.operators.keyed_table import KeyedTable
from penstock.types import INT64, Field, Schema

KEYS = Schema((Field("key", INT64),))
_MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))  # noqa: DTZ001
_STRUCTS = st.fixed_dictionaries({"x": st.integers(0, 9), "y": st.none() | st.just("y")})
VALUES: list[tuple[pl.DataType, st.SearchStrategy[Any]]] = [
    (pl.Int64(), st.integers(-(2**63), 2**63 - 1)),
    (pl.Float64(), st.floats(allow_nan=False)),
    (pl.String(), st.text(st.characters(codec="utf-8"), max_size=20)),
    (pl.Binary(), st.binary(max_size=20)),
    (pl.Datetime("us", "UTC"), _MOMENTS),
    (pl.Decimal(20, 2), st.integers(-(10**9), 10**9).map(lambda cents: Decimal(cents) / 100)),
    (pl.List(pl.Int64()), st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3)),
    (pl.Struct({"x": pl.Int64(), "y": pl.String()}), _STRUCTS),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(VALUES)), ids=lambda number: str(VALUES[number][0]))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_lists_are_found_as_they_were_put(number: int, data: st.DataObject) -> None:
    """Columns of lists keep their type, nulls in them and instead of them, and empty lists, whatever stands in them."""
    inner, some = VALUES[number]
    lists = data.draw(st.lists(st.none() | st.lists(st.none() | some, max_size=4), max_size=8))
    table = KeyedTable(KEYS, {"all": pl.List(inner)})
    rows = pl.DataFrame({"all": pl.Series(lists, dtype=pl.List(inner))})
    table.put(range(len(lists)), rows)
    assert table.find(range(len(lists))).select("all").equals(rows)


def test_a_column_of_lists_loads_no_pandas() -> None:
    """Where pandas is installed, but not used, it costs neither time nor memory of a task."""
    program = """
import sys, polars as pl
from penstock.task.operators.keyed_table import KeyedTable
from penstock.types import INT64, Field, Schema
table = KeyedTable(Schema((Field("key", INT64),)), {"all": pl.List(pl.Int64())})
table.put([1], pl.DataFrame({"all": [[1, 2]]}))
assert table.find([1])["all"].to_list() == [[1, 2]]
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
