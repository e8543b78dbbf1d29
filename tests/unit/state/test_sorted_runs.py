"""Rows in sorted runs beside a list of them, whatever is left of merging them when something is asked."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.times import MAX_WATERMARK
from penstock.state import sorted_runs
from penstock.state.sorted_runs import FrozenRun, SortedRuns, TimedRows, merged, merged_pieces

FAR = 1_000


@dataclass
class Kept:
    key: int
    number: int
    moment: int
    until: int
    marked: bool = False


def timed(rows: list[Kept]) -> TimedRows:
    frame = pl.DataFrame({"key": [row.key for row in rows], "number": [row.number for row in rows]})
    moments, until = (np.array([getattr(row, name) for row in rows], np.int64) for name in ("moment", "until"))
    return TimedRows(frame, moments, until, np.zeros(len(rows), np.bool_))


def add(runs: SortedRuns, rows: list[Kept]) -> None:
    kept = timed(rows)
    runs.add(kept, runs.hashes(kept.frame))


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20), st.integers(0, 9)), max_size=9)
        ),
        st.tuples(st.just("mark"), st.integers(0, 5)),
        st.tuples(st.just("find"), st.tuples(st.integers(0, 5), st.integers(0, 20), st.integers(0, 20))),
        st.tuples(st.just("pass"), st.integers(0, 5)),
        st.tuples(st.just("run_background_slice"), st.integers(1, 5)),
        st.tuples(st.just("take"), st.tuples(st.integers(0, 5), st.integers(0, 20), st.integers(0, 20))),
        st.tuples(st.just("freeze"), st.none()),
    ),
    max_size=25,
)


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is large."""
    small = {"_PIECE_ROWS": 2, "_LEAST_ROWS": 2, "_ON_DISK_ROWS": 3, "_LOOKED_THROUGH_ROWS": 4, "_TOGETHER_BYTES": 40}
    for name, value in small.items():
        monkeypatch.setattr(sorted_runs, name, value)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.booleans())
def test_rows_are_found_marked_taken_out_and_forgotten_like_those_of_a_list(
    steps: list[tuple[str, object]], on_disk: bool
) -> None:
    """Each is told to be of no use once, with its mark, whatever is left of a merge when something else is asked."""
    with TemporaryDirectory() as folder:
        runs, model, reached, number = SortedRuns(["key"]), list[Kept](), -1, 0
        frozen = list[tuple[list[FrozenRun], list[tuple[int, bool]]]]()
        runs.folder = Path(folder) if on_disk else None
        for what, given_value in steps:
            match what, given_value:
                case "add", list(some):
                    rows = [
                        Kept(key, number + place, moment, moment + more)
                        for place, (key, moment, more) in enumerate(some)
                    ]
                    number += len(rows)
                    add(runs, rows)
                    model += rows
                case "mark", int(key):
                    runs.finish()
                    asked = pl.DataFrame({"key": [key]})
                    all_times = np.array([-FAR]), np.array([FAR])
                    for found in runs.matches(asked, runs.hashes(asked), *all_times):
                        found.run.rows.marked[found.found] = True
                    for row in model:
                        row.marked |= row.key == key
                case "find", (int(key), int(first), int(last)):
                    asked = pl.DataFrame({"key": [key]})
                    met = [
                        each
                        for found in runs.matches(asked, runs.hashes(asked), np.array([first]), np.array([last]))
                        for each in found.run.rows.found()["number"][found.found[found.run.of_use(found.found)]]
                    ]
                    wanted = [row.number for row in model if row.key == key and first <= row.moment <= last]
                    assert sorted(met) == wanted
                case "take", (int(key), int(first), int(last)):
                    runs.finish()
                    asked = pl.DataFrame({"key": [key]})
                    for found in runs.matches(asked, runs.hashes(asked), np.array([first]), np.array([last])):
                        found.run.take_out(found.found[found.run.of_use(found.found)])
                    model = [row for row in model if not (row.key == key and first <= row.moment <= last)]
                case "pass", int(more):
                    reached += more
                    due = sorted(
                        pair
                        for run, places in runs.pass_by(reached)
                        for pair in zip(
                            run.rows.picked(places).frame["number"], run.rows.picked(places).marked, strict=True
                        )
                    )
                    assert due == sorted((row.number, row.marked) for row in model if row.until <= reached)
                    model = [row for row in model if row.until > reached]
                case "run_background_slice", int(times):
                    for _ in range(times):
                        runs.run_background_slice()
                case _:
                    frozen.append((runs.freeze(), sorted((row.number, row.marked) for row in model)))
            assert runs.next_end <= min((row.until for row in model), default=MAX_WATERMARK)
            assert sum(run.left for run in runs.runs) == len(model)
        for kept, wanted_then in frozen:  # snapshots are written later
            pieces = [piece for run in kept for piece in run.pieces()]
            pairs = (zip(piece.frame["number"], piece.marked.tolist(), strict=True) for piece in pieces)
            assert sorted(chain.from_iterable(pairs)) == wanted_then
        assert not list(Path(folder).iterdir())


def test_a_large_merge_is_done_in_parts() -> None:
    """Rows are found meanwhile; there is one run in the end."""
    runs = SortedRuns(["key"])
    add(runs, [Kept(key, key, 0, FAR) for key in range(20)])
    add(runs, [Kept(key, 20 + key, 0, FAR) for key in range(20)])
    assert len(runs.runs) == 2
    asked = pl.DataFrame({"key": [7]})
    turns = 0
    while runs.run_background_slice():
        turns += 1
        met = list(runs.matches(asked, runs.hashes(asked), np.array([0]), np.array([0])))
        assert sorted(each for found in met for each in found.run.rows.frame["number"][found.found]) == [7, 27]
    assert turns == 10
    (run,) = runs.runs
    assert run.rows.height == 40
    assert (run.hashes[1:] >= run.hashes[:-1]).all()


def test_rows_of_one_hash_are_in_one_piece() -> None:
    """So that equal ones meet, however many there are, and in whichever runs."""
    runs = [SortedRuns(["key"]) for _ in range(3)]
    for one in runs:
        add(one, [Kept(key, number, 0, FAR) for number, key in enumerate([*range(12), 5, 5, 5])])
    pieces = list(merged_pieces([one.runs[0] for one in runs]))
    assert len(pieces) >= 6
    found = [set(piece.rows.frame["key"]) for piece in pieces]
    assert sum(map(len, found)) == 12
    assert sum(piece.rows.height for piece in pieces) == 3 * 15


@pytest.mark.parametrize("passes", [False, True])
def test_there_are_few_runs_though_nobody_asks_for_more_to_be_done(passes: bool) -> None:
    """As on Spark."""
    runs = SortedRuns(["key"])
    for number in range(64):
        add(runs, [Kept(number * 4 + place, 0, 0, FAR) for place in range(4)])
        if passes:
            assert not list(runs.pass_by(number))
    assert len(runs.runs) <= 8


def test_what_is_kept_of_each_piece_is_what_there_is(tmp_path: Path) -> None:
    """Also where nothing is, in memory and on disk."""
    for folder in (None, tmp_path):
        for wanted in ([], [3, 5]):
            runs = SortedRuns(["key"])
            kept = timed([Kept(key, key, key, FAR) for key in range(9)])
            runs.add(kept, runs.hashes(kept.frame))

            def thinned(run: sorted_runs.Run, wanted: list[int] = wanted) -> sorted_runs.Run:
                left = run.rows.frame["key"].is_in(wanted).to_numpy()
                return sorted_runs.Run(run.rows.take(left), run.hashes[left], run.epoch)

            work = merged(runs.runs, thinned, folder)
            while True:
                try:
                    next(work)
                except StopIteration as stop:
                    run = stop.value
                    break
            assert sorted(run.rows.frame["key"]) == wanted
            assert sorted(run.rows.moments.tolist()) == wanted
            assert len(run.hashes) == len(wanted)
            assert (run.rows.at_random is None) == (folder is None)
