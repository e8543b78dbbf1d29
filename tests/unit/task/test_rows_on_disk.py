"""Rows by key in plain columns: the same as a dictionary, in memory and on the local disk."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.keygroups import KeyGroupRange
from penstock.state import row_store
from penstock.state.columns import NAN, key_values
from penstock.state.deltas import REMOVED
from penstock.state.hashing import key_groups
from penstock.state.rocks import table
from penstock.state.segments import decode_segments
from penstock.task.operator import OperatorContext
from penstock.task.operators import keyed_table
from penstock.task.operators.keyed_table import INDEX, FrozenRows, KeyedTable
from penstock.types import FLOAT64, INT64, NULL, STRING, TIMESTAMP, Field, Schema

MAX_PARALLELISM = 16
KEY_SCHEMAS = {
    "integers": (Schema((Field("key", INT64),)), st.integers(-3, 8)),
    "texts": (Schema((Field("key", STRING),)), st.sampled_from(["", "a", "b", "ab", "ß", "\0"])),
    "floats": (Schema((Field("key", FLOAT64),)), st.sampled_from([0.0, 1.5, -2.0, math.inf, NAN])),
    "moments": (
        Schema((Field("key", TIMESTAMP),)),
        st.integers(0, 5).map(lambda n: datetime(2026, 1, 1 + n, tzinfo=UTC)),
    ),
    "nothing": (Schema((Field("key", NULL, nullable=True),)), st.none()),
    "both": (
        Schema((Field("key", INT64, nullable=True), Field("town", STRING))),
        st.tuples(st.none() | st.integers(0, 3), st.sampled_from("ab")),
    ),
}
TYPES = {"number": pl.Int64(), "at": pl.Datetime("us", "UTC"), "days": pl.List(pl.Date())}


def rows_of(numbers: list[int]) -> pl.DataFrame:
    """A row of each number, with a column of each kind."""
    at = [
        None if number % 3 == 0 else datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number) for number in numbers
    ]
    days = [None if number % 4 == 0 else [date(2026, 1, 1), None][: number % 3] for number in numbers]
    return pl.DataFrame({"number": numbers, "at": at, "days": days}, schema=TYPES)


def read(segments: Iterable[tuple[int, bytes]], keys: Schema) -> tuple[dict[Any, int], set[Any]]:
    """Number by key, and the keys that were removed."""
    rows: dict[Any, int] = {}
    removed: set[Any] = set()
    groups: list[int] = []
    for group, _, frame in decode_segments(segments, "op", "tested", keys):
        groups.append(group)
        assert key_groups(frame, keys.names, MAX_PARALLELISM).unique().to_list() == [group]
        gone = frame[REMOVED].to_list() if REMOVED in frame.columns else [False] * frame.height
        there = frame.filter(~pl.Series(gone, dtype=pl.Boolean)).select(*TYPES)
        assert there.equals(rows_of(there["number"].to_list()))
        for key, number, is_gone in zip(key_values(frame, keys), frame["number"].to_list(), gone, strict=True):
            assert key not in rows
            assert key not in removed
            if is_gone:
                removed.add(key)
            else:
                rows[key] = number
    assert groups == sorted(groups)
    return rows, removed


class Tried:
    """A table beside a dictionary; whatever is asked of both, the answers must be the same."""

    def __init__(self, keys: Schema, folder: Path | None) -> None:
        self._keys = keys
        groups = KeyGroupRange(0, MAX_PARALLELISM)
        self._context = OperatorContext(
            "op", 0, 1, MAX_PARALLELISM, groups, lambda: 0, local_state=folder, incremental=True
        )
        self.table = KeyedTable(keys, TYPES)
        self.table.open("op", self._context)
        self._expected: dict[Any, int] = {}
        self._at_freezes: list[dict[Any, int]] = []
        self._unread: dict[int, FrozenRows] = {}
        self._asked_since = 0

    def batch(self, keys: list[Any], first: int) -> None:
        found = self.table.find(keys)
        numbers = {keys[index]: number for index, number in zip(found[INDEX], found["number"], strict=True)}
        assert numbers == {key: self._expected[key] for key in keys if key in self._expected}
        assert found.drop(INDEX).equals(rows_of(found["number"].to_list()))
        written = range(first, first + len(keys))
        self.table.put(keys, rows_of([*written]))
        self._expected.update(zip(keys, written, strict=True))
        self.table.maintain(len(keys))

    def remove(self, keys: list[Any]) -> None:
        self.table.remove(keys)
        for key in keys:
            self._expected.pop(key, None)

    def freeze(self) -> None:
        self._at_freezes.append(dict(self._expected))
        frozen = self.table.freeze({"kind": "tested"}, self._context)
        self._unread[len(self._at_freezes)] = frozen
        assert frozen.epoch == len(self._at_freezes)

    def read(self, number: int, since: int) -> bool:
        """Whether it was a delta."""
        frozen, expected = self._unread.pop(number), self._at_freezes[number - 1]
        if since < max(1, self._asked_since) or not frozen.knows_since(since):
            assert read(frozen.segments(), self._keys) == (expected, set())
            return False
        self._asked_since = since
        rows, removed = read(frozen.delta(since), self._keys)
        rows = {**self._at_freezes[since - 1], **rows}
        assert {key: value for key, value in rows.items() if key not in removed} == expected
        return True

    @property
    def unread(self) -> list[int]:
        return list(self._unread)

    def clear(self) -> None:
        self.table.clear()
        self._expected.clear()
        assert self.table.all_keys() == []

    def look(self) -> None:
        assert sorted(map(repr, self.table.all_keys())) == sorted(map(repr, self._expected))


@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize("kind", KEY_SCHEMAS)
def test_a_table_is_a_dictionary_wherever_its_rows_are(kind: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are found as they were written, and a snapshot has what was there at its freeze: all, or what came since."""
    keys, some = KEY_SCHEMAS[kind]
    steps = st.lists(st.sampled_from("bbbrfffdddlkc"), min_size=1, max_size=25)
    deltas = 0

    @settings(max_examples=20)
    @given(data=st.data(), steps=steps, most_held=st.sampled_from([0, 1_000, 1 << 20]))
    def histories(data: st.DataObject, steps: list[str], most_held: int) -> None:
        nonlocal deltas
        monkeypatch.setattr(table, "MOST_HELD_BYTES", most_held)
        monkeypatch.setattr(keyed_table, "_ROWS_PER_FRAME", 3)
        monkeypatch.setattr(keyed_table, "_LEAST_STORED", 2)
        monkeypatch.setattr(row_store, "_LEAST_ROWS", 2)
        with tempfile.TemporaryDirectory() as folder:
            tried = Tried(keys, Path(folder) if place == "disk" else None)
            for number, step in enumerate(steps):
                match step:
                    case "b":
                        tried.batch(data.draw(st.lists(some, unique=True, max_size=5)), 100 * number)
                    case "r":
                        tried.remove(data.draw(st.lists(some, unique=True, max_size=3)))
                    case "f":
                        tried.freeze()
                    case "d" if tried.unread:
                        number = data.draw(st.sampled_from(tried.unread))
                        deltas += tried.read(number, data.draw(st.integers(1, number)))
                    case "k":
                        tried.look()
                    case "c":
                        tried.clear()
                    case _:
                        tried.table.maintain(1)
            for number in tried.unread:
                tried.read(number, 0)
            tried.table.close()
            assert not list(Path(folder).iterdir())

    histories()
    assert deltas
