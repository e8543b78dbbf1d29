"""Frames of `over` are merged from few partials, and are those that a plain loop finds."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_over import VALUE, Product, over_node
from window_cases import GROUPS, frame_of

from penstock.batches import EVENT_TIME
from penstock.expressions import aggregate
from penstock.task.operators.over_frames import distinct_in_frames, frames_of, merged_frames
from penstock.task.operators.partial_scan import PartialScan
from penstock.testing.harness import OperatorHarness

JOINING = PartialScan([pl.col("text").str.join("")], [])
RUNS = st.lists(st.lists(st.tuples(st.integers(0, 12), st.sampled_from("abc")), min_size=1, max_size=12), max_size=4)
FRAMES = st.sampled_from([(None, None), (0, None), (3, None), (50, None), (None, 1), (None, 3), (None, 50)])


def in_frame(mine, place, within, rows):
    """What a loop finds: the places of the frame of a row among those of its key."""
    if rows is not None:
        return list(range(max(0, place - rows + 1), place + 1))
    time = mine[place][0]
    oldest = time - within if within is not None else -1
    return [other for other, (at, _) in enumerate(mine) if oldest <= at <= time]


@given(runs=RUNS, frame=FRAMES, data=st.data())
def test_frames_hold_what_a_loop_finds(runs, frame, data):
    """In order, of the rows that are asked for, with lists of values of which some are empty."""
    within, rows = frame
    runs = [sorted(run, key=lambda row: row[0]) for run in runs]
    flat = [(key, *row) for key, run in enumerate(runs) for row in run]
    keys, times = (np.array([row[place] for row in flat], dtype=np.int64) for place in (0, 1))
    frames = frames_of(keys, times, within, rows)
    wanted = sorted(data.draw(st.sets(st.sampled_from(range(len(flat)))))) if flat else []
    found = [in_frame(run, place, within, rows) for run in runs for place in range(len(run))]
    texts = ["".join(run[place][1] for place in places) for run, places in _with_runs(runs, found)]
    letters = pl.Series("text", [text for _, _, text in flat], pl.String)
    merged = merged_frames(JOINING, letters.to_frame(), frames, np.array(wanted, dtype=np.int64))
    assert merged["text"].to_list() == [texts[place] for place in wanted]
    lists = pl.Series([[] if letter == "c" else [letter, "d"] for letter in letters], dtype=pl.List(pl.String))
    counts = distinct_in_frames(lists, pl.Series(keys), frames)
    held = [{each for letter in text if letter != "c" for each in (letter, "d")} for text in texts]
    assert counts.tolist() == list(map(len, held))


def _with_runs(runs, found):
    """Beside the places of each frame the rows of its key."""
    return zip((run for run in runs for _ in run), found, strict=True)


class Folds(Product):
    """Counts how often partials were merged."""

    merges = 0

    def merge(self, left: int, right: int) -> int:
        Folds.merges += 1
        return super().merge(left, right)


@pytest.mark.parametrize("frame", [{"within": 200}, {"rows": 200}], ids=str)
def test_rows_of_a_hot_key_do_not_all_look_at_their_frames(monkeypatch, frame):
    """A merge or two per row in each direction, however long frames are."""
    monkeypatch.setattr(Folds, "merges", 0)
    harness = OperatorHarness(over_node({"product": aggregate(Folds(), "value")}, **frame), max_parallelism=GROUPS)
    for begin in range(0, 1_000, 500):
        harness.frame(frame_of([("a", place, place) for place in range(begin, begin + 500)]))
        harness.watermark(begin + 499)
    assert Folds.merges < 1_000 * 8
    reach = frame.get("within", 199)
    model = Product()
    expected = []
    for place in range(1_000):
        product = model.create()
        for value in range(max(0, place - reach), place + 1):
            product = model.add(product, value)
        expected.append(product)
    assert [row["product"] for row in harness.output()] == expected


def test_distinct_values_of_floats_are_those_that_differ():
    """0.0 and -0.0 are one value, as are all NaN."""
    harness = OperatorHarness(over_node({"kinds": (VALUE * 0.0 / (VALUE % 2)).n_unique()}, within=9))
    harness.frame(frame_of([("a", 1, -1), ("a", 2, 1), ("a", 3, 2), ("a", 4, 4)]))
    harness.watermark(9)
    assert [row["kinds"] for frame in harness.collected.frames for row in frame.sort(EVENT_TIME).to_dicts()] == [
        1,
        1,
        2,
        2,
    ]
