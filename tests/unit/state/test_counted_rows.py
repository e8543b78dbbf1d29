"""Rows that are added and taken back: what is found, and all there is, is what a counter has."""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state import sorted_runs
from penstock.state.counted_rows import COUNT, INDEX, CountedRows

Row = tuple[str | None, int | None]

_TYPES = {"key": pl.String(), "value": pl.Int64()}
_ROWS = st.tuples(st.sampled_from(["a", "b", "c", None]), st.sampled_from([0, 1, None]))
_BATCHES = st.lists(
    st.lists(st.tuples(_ROWS, st.integers(-2, 2), st.integers(1, 99)), min_size=1, max_size=8), min_size=1, max_size=12
)


def frame_of(batch: list[tuple[Row, int, int]]) -> pl.DataFrame:
    columns = {
        "key": [row[0] for row, _, _ in batch],
        "value": [row[1] for row, _, _ in batch],
        COUNT: [count for _, count, _ in batch],
        "newest": [newest for _, _, newest in batch],
    }
    return pl.DataFrame(columns, schema={**_TYPES, COUNT: pl.Int64(), "newest": pl.Int64()})


def counts_of(frame: pl.DataFrame) -> Counter[Row]:
    """Each row stands in the frame once, and counts."""
    found = {(row["key"], row["value"]): row[COUNT] for row in frame.iter_rows(named=True)}
    assert len(found) == frame.height
    assert 0 not in found.values()
    return Counter(found)


@pytest.mark.parametrize("keys", [["key"], ["key", "value"]], ids=["one key", "all columns"])
@given(batches=_BATCHES, frozen=st.integers(0, 12))
def test_rows_count_as_often_as_they_were_added_less_those_taken_back(
    keys: list[str], batches: list[list[tuple[Row, int, int]]], frozen: int
) -> None:
    """In one run or in many, several rows of a key among them, and behind a border that runs are not merged across."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "_LEAST_ROWS", 2)
        rows, model = CountedRows(keys, _TYPES, newest="newest"), Counter[Row]()
        newest = dict[Row, int]()
        for number, batch in enumerate(batches):
            rows.add(frame_of(batch))
            for row, count, came in batch:
                model[row] += count
                newest[row] = max(came, newest.get(row, 0))
            if number == frozen:
                rows.freezes.next(incremental=True)
            there = Counter({row: count for row, count in model.items() if count})
            assert counts_of(rows.all()) == there
            asked = pl.DataFrame([(*row,) for row in model], schema=_TYPES, orient="row").select(keys).unique()
            found = rows.of(asked)
            assert counts_of(found) == there
            assert found.select(keys).equals(asked[found[INDEX]])
            assert rows.numbers(asked).sum() == sum(there.values())
            for row in found.iter_rows(named=True):
                assert row["newest"] <= newest[row["key"], row["value"]]


@given(batches=_BATCHES)
def test_the_newest_of_equal_rows_is_kept(batches: list[list[tuple[Row, int, int]]]) -> None:
    """In each run and over all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "_LEAST_ROWS", 2)
        rows, newest = CountedRows(["key"], _TYPES, newest="newest"), dict[Row, int]()
        for batch in batches:
            rows.add(frame_of([(row, 1, came) for row, _, came in batch]))
            for row, _, came in batch:
                newest[row] = max(came, newest.get(row, 0))
            found = rows.all()
            assert dict(zip(zip(found["key"], found["value"], strict=True), found["newest"], strict=True)) == newest


def test_rows_that_came_to_nothing_take_no_room() -> None:
    """They are forgotten with the merge that brings both together, or within their batch."""
    rows = CountedRows(["key"], _TYPES, newest="newest")
    rows.add(frame_of([(("a", 1), 1, 1), (("a", 1), -1, 2)]))
    assert not rows.freeze()
    rows.add(frame_of([(("a", 1), 1, 1)]))
    rows.add(frame_of([(("a", 1), -1, 2), (("b", 1), 1, 3)]))
    assert [run.rows().frame["key"].to_list() for run in rows.freeze()] == [["b"]]
    rows.add(frame_of([(("b", 1), -1, 4)]))
    assert not rows.freeze()


@pytest.mark.parametrize("at_once", [True, False])
def test_a_known_row_that_was_taken_back_and_came_again_is_newer(at_once: bool) -> None:
    """However its changes stand in batches."""
    rows = CountedRows(["key"], _TYPES, newest="newest")
    rows.add(frame_of([(("a", 1), 1, 1), (("a", 0), 1, 2)]))
    again = [(("a", 1), -1, 0), (("a", 1), 1, 9)]
    for batch in [again] if at_once else [[change] for change in again]:
        rows.add(frame_of(batch))
    for found in (rows.of(pl.DataFrame({"key": ["a"]})), rows.all()):
        assert dict(zip(found["value"], found["newest"], strict=True)) == {1: 9, 0: 2}
