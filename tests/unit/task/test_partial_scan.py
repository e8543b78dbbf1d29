"""Partials along runs are those of a plain loop, in order, for aggregates that look at the order too."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from penstock.task.operators.partial_scan import PartialScan, places_in_runs

SCAN = PartialScan([pl.col("text").str.join(""), pl.col("sum").sum()], [])


def joined(run: list[str]) -> list[str]:
    return list(accumulate(run))


@given(runs=st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=20), max_size=6))
def test_every_place_has_what_a_loop_over_its_run_finds(runs):
    flat = [letter for run in runs for letter in run]
    starts = np.array([place == 0 for run in runs for place in range(len(run))], dtype=bool)
    ends = np.array([place == len(run) - 1 for run in runs for place in range(len(run))], dtype=bool)
    frame = pl.DataFrame({"text": flat, "sum": [1] * len(flat)}, schema={"text": pl.String, "sum": pl.Int64})
    up_to = SCAN.up_to(frame, starts)
    assert up_to["text"].to_list() == [text for run in runs for text in joined(run)]
    assert up_to["sum"].to_list() == [place + 1 for run in runs for place in range(len(run))]
    onward = SCAN.onward(frame, ends)
    assert onward["text"].to_list() == ["".join(run[place:]) for run in runs for place in range(len(run))]


def test_places_count_from_where_a_run_starts():
    """The first place begins a run also where nothing says so."""
    assert places_in_runs(np.array([False, False, True, False, True])).tolist() == [0, 1, 0, 1, 0]
