"""Frames of `over` are merged from few partials, and are those that a plain loop finds."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_over import VALUE, Product, over_node
from window_cases import GROUPS, frame_of

from penstock.core.batches import EVENT_TIME
from penstock.errors import UserCodeError
from penstock.expressions import aggregate
from penstock.task.operators.over_frames import distinct_in_frames, frames_of, merged_frames
from penstock.task.operators.partial_scan import PartialScan
from penstock.testing.harness import OperatorHarness
from penstock.types import FLOAT64, INT64, STRING, Field, Schema, polars_type

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


FLOATS_OF_ALL_SIZES = st.sampled_from(
    [0.1, -0.0, 1e-30, 3e17, -3e17, 1e200, -1e200, 1.7e308, 1.7e308, -1.7e308, math.inf, -math.inf, math.nan]
)
INTEGERS_AT_THE_LIMIT = st.sampled_from([1, -1, 2**63 - 1, 2**62, 2**62, -(2**62), -(2**63)])
SUMS_IN_FRAMES = [{}, {"within": 3}, {"rows": 2}]


def outcome(rows, kind, columns, frame, cuts):
    """The results in order, as text, or the failure; rows come in batches that end at `cuts`."""
    schema = Schema((Field("key", STRING), Field("value", kind)))
    node = over_node(columns, schema=schema, **frame)
    harness = OperatorHarness(node)
    try:
        for begin, end in pairwise([0, *cuts, len(rows)]):
            times = list(range(begin, end))
            values = pl.Series("value", rows[begin:end], polars_type(kind))
            harness.frame(pl.DataFrame({"key": ["a"] * len(times), "value": values, EVENT_TIME: times}))
            harness.watermark(end - 1)
    except UserCodeError as error:
        return str(error).partition(":")[0]
    return [str(row) for row in harness.output()]


@pytest.mark.parametrize("frame", SUMS_IN_FRAMES, ids=str)
@given(rows=st.lists(FLOATS_OF_ALL_SIZES, min_size=1, max_size=10), data=st.data())
def test_sums_of_floats_do_not_depend_on_batches(frame, rows, data):
    """Behind an overflow too, and those of frames that it has left are those of the rest."""
    cuts = sorted(data.draw(st.sets(st.integers(1, len(rows) - 1)))) if len(rows) > 1 else []
    columns = {"total": VALUE.sum(), "mean": VALUE.mean(), "spread": VALUE.var()}
    whole = outcome(rows, FLOAT64, columns, frame, [])
    assert outcome(rows, FLOAT64, columns, frame, cuts) == whole
    if frame:
        reach = frame.get("within", 1)
        for place in range(len(rows)):
            held = rows[max(0, place - reach) : place + 1]
            assert repr(exact_sum(held)) in whole[place].replace("-0.0", "0.0")


def exact_sum(values):
    """The sum, rounded once."""
    odd = {value for value in values if math.isinf(value)}
    if any(map(math.isnan, values)) or len(odd) == 2:
        return math.nan
    if odd:
        return odd.pop()
    exact = sum(map(Fraction, values))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


@pytest.mark.parametrize("frame", SUMS_IN_FRAMES, ids=str)
@given(rows=st.lists(INTEGERS_AT_THE_LIMIT, min_size=1, max_size=10), data=st.data())
def test_whether_sums_of_integers_fit_does_not_depend_on_batches(frame, rows, data):
    """They fail where the frame of a row has no sum, also if later rows would bring it back; and not where none is so."""
    cuts = sorted(data.draw(st.sets(st.integers(1, len(rows) - 1)))) if len(rows) > 1 else []
    reach = frame.get("within", 1) if frame else len(rows)
    sums = [sum(rows[max(0, place - reach) : place + 1]) for place in range(len(rows))]
    found = outcome(rows, INT64, {"total": VALUE.sum()}, frame, cuts)
    if all(-(2**63) <= each < 2**63 for each in sums):
        assert found == [str({"key": "a", "value": rows[place], "total": each}) for place, each in enumerate(sums)]
    else:
        assert isinstance(found, str)
