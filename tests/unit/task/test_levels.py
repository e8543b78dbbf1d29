"""Levels of partials that are merged in parts, beside the same merged at once."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from window_cases import window_node

from penstock.expressions import col, count
from penstock.functions.windows.definitions import TumblingWindow
from penstock.task.operators import levels
from penstock.task.operators.levels import Part, merged, merged_parts
from penstock.task.operators.partials import Partials

AGGREGATES = [("rows", count()), ("first", col("value").first()), ("all", col("value").collect())]
NODE = window_node(TumblingWindow(10), aggregates=AGGREGATES)
BY = ["key"]
KEYS = st.sampled_from([None, "", "a", "b", "\u00e9", *(f"key {n}" for n in range(40))])


def level_of(partials, rows, epoch):
    columns = {"key": pl.String, "value": pl.Int64, "__event_time": pl.Int64}
    frame = pl.DataFrame(rows, schema=columns, orient="row")
    return Part(partials.group([frame.select(partials.columns)], BY), epoch)


def whole(work):
    """What a generator returns."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return stop.value


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(KEYS, st.integers(0, 99), st.integers(0, 9)), min_size=1), min_size=2, max_size=5))
def test_in_parts_is_the_same_as_at_once(batches):
    """The same partials, each once, those of a key in the order of the levels; dealt levels are merged again."""
    partials = Partials(NODE)
    given_levels = [level_of(partials, rows, epoch) for epoch, rows in enumerate(batches)]
    at_once = partials.merge([level.frame for level in given_levels], BY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "_DEALT_ROWS", 0)
        first = whole(merged(partials, BY, given_levels[:2]))
        again = whole(merged(partials, BY, [first, *given_levels[2:]]))
        in_parts = [part for part in merged_parts(partials, BY, given_levels) if part is not None]
    assert first.begins is not None
    assert len(in_parts) == levels._PARTS
    assert again.epoch == len(batches) - 1
    for found in (again.frame, pl.concat(in_parts)):
        assert_frame_equal(found, at_once, check_row_order=False)


def test_few_rows_are_merged_at_once():
    """No more calls than there were."""
    partials = Partials(NODE)
    some = [level_of(partials, [("a", 1, 0), ("b", 2, 0)], 0), level_of(partials, [("a", 3, 1)], 1)]
    (one,) = merged_parts(partials, BY, some)
    assert sorted(one["key"].to_list()) == ["a", "b"]
    assert whole(merged(partials, BY, some)).begins is None
    assert whole(merged(partials, BY, some[:1])) is some[0]


def test_a_large_level_by_itself_is_handed_on_in_slices():
    """What is made of it is never there as a whole."""
    partials = Partials(NODE)
    level = level_of(partials, [(f"key {n}", n, 0) for n in range(10)], 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "_DEALT_ROWS", 4)
        parts = [part for part in merged_parts(partials, BY, [level]) if part is not None]
    assert [part.height for part in parts] == [4, 4, 2]
    assert pl.concat(parts).equals(level.frame)
