"""Rows by key in plain columns: what is put is found again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.state import row_store
from penstock.state.deltas import REMOVED
from penstock.state.segments import decode_segments
from penstock.task.operators import keyed_table
from penstock.task.operators.keyed_table import FrozenRows, KeyedTable
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


ROW_TYPES = {"n": pl.Int64(), "at": pl.Datetime("us", "UTC"), "some": pl.List(pl.String())}
_KEYS = st.lists(st.integers(0, 12), max_size=8, unique=True)
_STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "remove", "freeze", "maintain", "clear"]), _KEYS), max_size=30
)


def rows_of(numbers: list[int]) -> pl.DataFrame:
    at = [datetime.fromtimestamp(number, UTC) for number in numbers]
    some = [[None, str(number)][: number % 3] if number % 5 else None for number in numbers]
    return pl.DataFrame({"n": numbers, "at": at, "some": some}, schema=ROW_TYPES)


def content_of(segments: Iterable[tuple[int, bytes]]) -> dict[int, int | None]:
    """The number of each key in segments, None where a delta says that it was removed."""
    found = dict[int, int | None]()
    for _, _, rows in decode_segments(segments, "op", "test", KEYS):
        removed = rows[REMOVED] if REMOVED in rows.columns else pl.repeat(False, rows.height, eager=True)
        left = rows.filter(~removed)
        assert left.select(*ROW_TYPES).equals(rows_of(left["n"].to_list()))
        found.update(
            zip(rows["key"], (None if gone else n for n, gone in zip(rows["n"], removed, strict=True)), strict=True)
        )
    return found


@pytest.mark.parametrize("least", [1, 3, 100])
@pytest.mark.parametrize("incremental", [False, True])
@given(steps=_STEPS)
def test_rows_are_found_however_many_were_put_at_once(
    least: int, incremental: bool, steps: list[tuple[str, list[int]]]
) -> None:
    """Against a dictionary, as tuples and as columns, whatever a snapshot still reads, and in it, and in deltas."""
    context = SimpleNamespace(incremental=incremental, max_parallelism=4, local_state=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyed_table, "_LEAST_STORED", least)
        patch.setattr(row_store, "_LEAST_ROWS", 2)
        patch.setattr(keyed_table, "_LEAST_UPKEEP", 2)
        table, model, number = KeyedTable(KEYS, ROW_TYPES), dict[int, int](), 0
        table.open("op", cast("Any", context))
        frozen: list[tuple[FrozenRows, dict[int, int]]] = []
        for step, keys in steps:
            if step == "put":
                numbers = list(range(number, number + len(keys)))
                number += len(keys)
                table.put(keys, rows_of(numbers))
                model.update(zip(keys, numbers, strict=True))
            elif step == "remove":
                table.remove(keys)
                for key in keys:
                    model.pop(key, None)
            elif step == "freeze":
                frozen.append((table.freeze({"kind": "test"}, cast("Any", context)), dict(model)))
            elif step == "maintain":
                if frozen:
                    assert content_of(frozen[-1][0].segments()) == frozen[-1][1]
                    frozen.pop()
                table.maintain(0)
            else:
                table.clear()
                model.clear()
            asked = list(range(13))
            found = table.find(asked)
            assert found["__index"].to_list() == [key for key in asked if key in model]
            assert found.select(*ROW_TYPES).equals(rows_of([model[key] for key in asked if key in model]))
            assert set(table.all_keys()) == model.keys()
            stored = table._store
            assert stored is not None
            assert stored.height <= max(2, 2 * len(model))
        for rows, then in frozen:
            assert content_of(rows.segments()) == then


@pytest.mark.parametrize("least", [1, 3, 100])
@given(steps=_STEPS)
def test_deltas_add_up_however_many_were_put_at_once(least: int, steps: list[tuple[str, list[int]]]) -> None:
    """What a full run has, and deltas behind it, are what the table has; rows are tuples, or columns."""
    context = SimpleNamespace(incremental=True, max_parallelism=4, local_state=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyed_table, "_LEAST_STORED", least)
        patch.setattr(row_store, "_LEAST_ROWS", 2)
        table, written, epoch, number = KeyedTable(KEYS, ROW_TYPES), dict[int, int | None](), None, 0
        table.open("op", cast("Any", context))
        for step, keys in steps:
            if step == "put":
                table.put(keys, rows_of(list(range(number, number + len(keys)))))
                number += len(keys)
            elif step == "remove":
                table.remove(keys)
            elif step == "freeze":
                rows = table.freeze({"kind": "test"}, cast("Any", context))
                if epoch is not None and rows.knows_since(epoch):
                    written |= content_of(rows.delta(epoch))
                else:
                    written = content_of(rows.full())
                epoch = rows.epoch
                kept = {key: value for key, value in written.items() if value is not None}
                found = table.find(range(13))
                assert kept == dict(zip(found["__index"], found["n"], strict=True))
            elif step == "maintain":
                table.maintain(0)


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
