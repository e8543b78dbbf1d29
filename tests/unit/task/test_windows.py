"""Tumbling and sliding windows against the brute-force model, and what users see of them."""

from __future__ import annotations

import math
import statistics
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from brute_force import Groups, WindowModel
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import (
    AGGREGATES,
    GROUPS,
    KEYS,
    LATE,
    Restore,
    comparable,
    emitted,
    frame_of,
    group_of,
    histories,
    late_rows,
    run,
    window_node,
)

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK, to_micros
from penstock.errors import IncompatibleStateError
from penstock.expressions import col, count
from penstock.functions.windows.definitions import CumulativeWindow, SlidingWindow, TumblingWindow
from penstock.task.operators import levels, window_aggregate, window_panes
from penstock.testing.harness import OperatorHarness
from penstock.types import FLOAT64, INT64, Field, Schema

TIMES = st.integers(-50, 120)
SHAPES = st.sampled_from(
    [
        TumblingWindow(10),
        TumblingWindow(7, 3),
        SlidingWindow(10, 5),
        SlidingWindow(12, 5, 1),
        SlidingWindow(20, 4),
        CumulativeWindow(20, 5),
        CumulativeWindow(21, 3, 4),
        CumulativeWindow(8, 8, 1),
    ]
)


def windows_of(window, time):
    """The windows that a moment belongs to, by trying them all."""
    size, offset = window.size_us, window.offset_us
    if isinstance(window, CumulativeWindow):
        start = (time - offset) // size * size + offset
        ends = range(start + window.step_us, start + size + 1, window.step_us)
        return [(start, end) for end in ends if end > time]
    slide = window.slide_us if isinstance(window, SlidingWindow) else size
    starts = range((time - size - offset) // slide * slide + offset, time + 1, slide)
    return [(start, start + size) for start in starts if start <= time < start + size]


def model_of(window, lateness):
    return WindowModel(partial(windows_of, window), lateness, Groups(group_of))


@settings(max_examples=60, deadline=None)
@given(window=SHAPES, steps=histories(TIMES), parallelism=st.integers(1, 4), together=st.booleans())
def test_any_batching_watermarks_and_restores_give_what_row_by_row_gives(window, steps, parallelism, together):
    """Without lateness every window is sent exactly once, with exactly the rows of the model."""
    model = model_of(window, 0)
    with pytest.MonkeyPatch.context() as patch:
        if together:
            patch.setattr(window_aggregate, "_FEW_WINDOWS", 0)
        else:
            patch.setattr(window_aggregate, "_ROWS_FOR_ITS_OWN", -1)
        harness = run(window_node(window, late=LATE), steps, model, parallelism)
    assert comparable(emitted(harness)) == comparable(model.emitted)
    assert comparable(late_rows(harness)) == comparable(model.late)


@settings(max_examples=50, deadline=None)
@given(
    window=SHAPES, steps=histories(TIMES), parallelism=st.integers(1, 4), lateness=st.sampled_from([1, 5, 12, 40]),
    dealt=st.sampled_from([4, 10_000]),
)  # fmt: skip
def test_with_lateness_the_last_result_of_every_window_is_the_models(window, steps, parallelism, lateness, dealt):
    """How many corrections are sent depends on batches; the last one of each key and window does not."""
    model = model_of(window, lateness)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "_DEALT_ROWS", dealt)
        harness = run(window_node(window, lateness=lateness, late=LATE), steps, model, parallelism)
    final = {row[:3]: row for row in emitted(harness)}
    expected = {row[:3]: row for row in model.emitted}
    assert comparable(list(final.values())) == comparable(list(expected.values()))
    assert comparable(late_rows(harness)) == comparable(model.late)


@settings(max_examples=40, deadline=None)
@given(
    window=st.sampled_from([TumblingWindow(20), SlidingWindow(40, 20)]), steps=histories(st.integers(0, 18), rows=40),
    parallelism=st.integers(1, 2), last=st.integers(1, 2),
)  # fmt: skip
def test_what_came_before_and_behind_checkpoints_is_one_result_per_key(window, steps, parallelism, last):
    """Keys come again and again in one pane, and no row comes between the last restore and the end."""
    model = model_of(window, 0)
    harness = run(window_node(window), [*steps, Restore(last, [])], model, parallelism)
    assert comparable(emitted(harness)) == comparable(model.emitted)


MERGEABLE = [
    ("rows", count()), ("total", col("value").sum()), ("cents", (col("value") / 100).sum()),
    ("mean", col("value").mean()), ("least", col("value").min()), ("even", count(filter=col("value") % 2 == 0)),
    ("about", (col("value") % 7).approx_n_unique()), ("middle", col("value").approx_quantile(0.5)),
]  # fmt: skip


def of_values(row):
    key, start, end, values = row
    cents, even = math.fsum(value / 100 for value in values), sum(value % 2 == 0 for value in values)
    distinct, median = len({value % 7 for value in values}), statistics.median(values)
    return (
        key,
        start,
        end,
        len(values),
        sum(values),
        cents,
        sum(values) / len(values),
        min(values),
        even,
        distinct,
        median,
    )


@settings(max_examples=80, deadline=None)
@given(
    window=SHAPES, steps=histories(TIMES), parallelism=st.integers(1, 4), lateness=st.sampled_from([0, 0, 5, 40]),
    raw=st.sampled_from([3, 10_000]),
)  # fmt: skip
def test_rows_that_were_combined_before_come_to_the_same(window, steps, parallelism, lateness, raw):
    """Every result, and how many rows were late, however partials and watermarks stand in batches."""
    model = model_of(window, lateness)
    node = window_node(window, aggregates=MERGEABLE, lateness=lateness)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_panes, "_RAW_ROWS", raw)
        patch.setattr(window_panes, "_MOST_RAW_ROWS", 2 * raw)
        patch.setattr(levels, "_DEALT_ROWS", raw)
        harness = run(node, steps, model, parallelism, combined=True)
    found = {}
    for frame in harness.collected.frames:
        for row in frame.to_dicts():
            bounds = [to_micros(row[name]) for name in ("window_start", "window_end")]
            result = (row["key"], *bounds, *(row[name] for name, _ in MERGEABLE))
            assert lateness or result[:3] not in found
            found[result[:3]] = result
    expected = {row[:3]: of_values(row) for row in model.emitted}
    assert found == expected
    if not any(isinstance(step, Restore) for step in steps):  # metrics are those of the last attempt
        assert sum(metrics.late_rows for metrics in harness.metrics) == len(model.late)


@settings(max_examples=25, deadline=None)
@given(window=SHAPES, steps=histories(TIMES), dealt=st.sampled_from([2, 4, 10_000]))
def test_folding_rows_early_changes_nothing(window, steps, dealt):
    """However small the thresholds at which rows become partials, and these are merged in parts, results are the same."""
    model = model_of(window, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_panes, "_RAW_ROWS", 3)
        patch.setattr(window_panes, "_MOST_RAW_ROWS", 6)
        patch.setattr(window_panes, "_ALL_RAW_ROWS", 10)
        patch.setattr(levels, "_DEALT_ROWS", dealt)
        harness = run(window_node(window, late=LATE), steps, model, 2)
    assert comparable(emitted(harness)) == comparable(model.emitted)


@settings(max_examples=40, deadline=None)
@given(
    window=SHAPES, steps=histories(TIMES), parallelism=st.integers(1, 4), lateness=st.sampled_from([0, 0, 12]),
    dealt=st.sampled_from([2, 6, 10_000]), held=st.sampled_from([0, 300, 10_000]),
)  # fmt: skip
def test_windows_on_the_local_disk_are_those_in_memory(window, steps, parallelism, lateness, dealt, held):
    """Whatever lies there: large levels, and of the others what is too much for memory; nothing is left in the folder."""
    model = model_of(window, lateness)
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(window_panes, "_RAW_ROWS", 3)
        patch.setattr(window_panes, "_MOST_RAW_ROWS", 6)
        patch.setattr(window_panes, "_RAW_ROWS_BESIDE_DISK", 10)
        patch.setattr(window_panes, "_HELD_BYTES", held)
        patch.setattr(levels, "_DEALT_ROWS", dealt)
        node = window_node(window, lateness=lateness, late=LATE)
        harness = run(node, steps, model, parallelism, local_state=Path(folder))
        assert not list(Path(folder).iterdir())
    final = {row[:3]: row for row in emitted(harness)}
    expected = {row[:3]: row for row in model.emitted}
    assert comparable(list(final.values())) == comparable(list(expected.values()))
    assert comparable(late_rows(harness)) == comparable(model.late)


def test_results_leave_in_order_of_window_end_with_the_declared_columns():
    """Windows fire in order; the event time of a result is the last moment of its window."""
    harness = OperatorHarness(window_node(TumblingWindow(10), aggregates=AGGREGATES[:3]))
    harness.frame(frame_of([("a", 25, 1), ("a", 5, 2), ("b", 12, 3)]))
    harness.watermark(40)
    assert [frame["window_end"].to_physical().to_list() for frame in harness.collected.frames] == [[10], [20], [30]]
    first = harness.collected.frames[0]
    assert first.columns == ["key", "window_start", "window_end", "rows", "total", "values", EVENT_TIME]
    assert first["window_start"].to_list() == [datetime(1970, 1, 1, tzinfo=UTC)]
    assert first.schema["window_start"] == pl.Datetime("us", "UTC")
    assert harness.collected.watermarks == [40]


def test_a_window_fires_at_its_last_moment_and_not_before():
    """A watermark of end - 2 keeps the window open, end - 1 closes it: no row below end can come any more."""
    harness = OperatorHarness(window_node(TumblingWindow(10)))
    harness.frame(frame_of([("a", 5, 1)]))
    harness.watermark(8)
    assert harness.output() == []
    harness.watermark(9)
    assert len(harness.output()) == 1


def test_late_rows_are_counted_if_nobody_asks_for_them():
    """Without a tag late rows are dropped and the metric says how many."""
    harness = OperatorHarness(window_node(TumblingWindow(10)))
    harness.watermark(30)
    harness.frame(frame_of([("a", 5, 1), ("a", 35, 2), ("b", 29, 3), ("c", 19, 4)]))
    harness.watermark(MAX_WATERMARK)
    assert harness.metrics[0].late_rows == 2 + 1
    assert [row["total"] for row in harness.output()] == [2]


def test_late_rows_keep_columns_and_event_time_on_the_side_output():
    """The side output of late rows has the schema of the input, and their event time."""
    harness = OperatorHarness(window_node(TumblingWindow(10), late=LATE))
    harness.watermark(30)
    harness.frame(frame_of([("a", 5, 1)]))
    (late,) = harness.collected.sides["late"]
    assert late.columns == ["key", "value", EVENT_TIME]
    assert harness.metrics[0].late_rows == 0


def test_a_row_within_lateness_corrects_only_the_keys_it_touched():
    """A correction is sent at the end of the batch, for the touched key alone."""
    harness = OperatorHarness(window_node(TumblingWindow(10), lateness=20))
    harness.frame(frame_of([("a", 5, 1), ("b", 6, 2)]))
    harness.watermark(15)
    harness.frame(frame_of([("a", 7, 10)]))
    assert [(row["key"], row["total"]) for row in harness.output()][2:] == [("a", 11)]
    harness.watermark(28)
    harness.frame(frame_of([("a", 8, 100)]))
    assert harness.output()[-1]["total"] == 111
    harness.watermark(29)
    harness.frame(frame_of([("a", 9, 1000)]))
    assert harness.output()[-1]["total"] == 111
    assert harness.metrics[0].late_rows == 1


def test_a_snapshot_of_other_windows_is_refused_by_name():
    """Restoring a ten-microsecond window into another one says what both are."""
    harness = OperatorHarness(window_node(TumblingWindow(10)))
    harness.frame(frame_of([("a", 5, 1)]))
    snapshot = harness.snapshot()
    with pytest.raises(IncompatibleStateError, match=r"windows of 10us every 10us.*windows of 20us every 20us"):
        OperatorHarness(window_node(TumblingWindow(20)), restored=snapshot)
    with pytest.raises(IncompatibleStateError, match="partial aggregates"):
        OperatorHarness(window_node(TumblingWindow(10), aggregates=[("n", count())]), restored=snapshot)


def test_keys_of_several_columns_with_null_and_nan_are_one_key_each():
    """NaN equals NaN, -0.0 equals 0.0 and null is a key, before and after a restore."""
    schema = Schema((Field("x", FLOAT64, nullable=True), Field("y", INT64), Field("v", INT64)))
    node = window_node(TumblingWindow(10), aggregates=[("total", col("v").sum())], schema=schema, keys=("x", "y"))
    frame = pl.DataFrame(
        {
            "x": [float("nan"), float("nan"), 0.0, -0.0, None, None],
            "y": [1] * 6,
            "v": [1, 2, 4, 8, 16, 32],
            EVENT_TIME: [1] * 6,
        }
    )
    harness = OperatorHarness(node, parallelism=3, max_parallelism=GROUPS)
    harness.frame(frame)
    harness = harness.restored(harness.snapshot(), 2)
    harness.frame(frame)
    harness.watermark(MAX_WATERMARK)
    assert sorted(row["total"] for row in harness.output()) == [6, 24, 96]


@pytest.mark.parametrize("together", [False, True])
def test_groups_that_had_gone_ahead_do_not_fire_twice_after_a_rescale(together, monkeypatch):
    """Mutant 20: taking the minimum of restored watermarks would send windows of the faster subtask again."""
    if together:
        monkeypatch.setattr(window_aggregate, "_FEW_WINDOWS", 0)
    model = model_of(SlidingWindow(20, 10), 0)
    harness = OperatorHarness(window_node(SlidingWindow(20, 10), late=LATE), parallelism=2, max_parallelism=GROUPS)
    rows = [(key, time, time) for key in "abcde" for time in (1, 11, 21, 31)]
    harness.frame(frame_of(rows))
    for row in rows:
        model.row(*row)
    for subtask, watermark in ((0, 30), (1, 12)):
        harness.watermark(watermark, subtask)
        model.watermark(range(4 * subtask, 4 * subtask + 4), watermark)
    harness = harness.restored(harness.snapshot(), 1)
    for watermark in (19, 29, 35, MAX_WATERMARK):
        harness.watermark(watermark)
        model.watermark(range(GROUPS), watermark)
    assert comparable(emitted(harness)) == comparable(model.emitted)


def test_a_key_group_that_is_ahead_does_not_take_the_others_along():
    """A row is judged by its own group; what it carries, and not what its group has seen, brings all of them on."""
    ahead = next(key for key in KEYS if group_of(key) >= GROUPS // 2)
    behind = next(key for key in KEYS if group_of(key) < GROUPS // 2)
    harness = OperatorHarness(window_node(SlidingWindow(20, 10), late=LATE), parallelism=2, max_parallelism=GROUPS)
    harness.watermark(100, 1)
    harness.watermark(20, 0)
    harness = harness.restored(harness.snapshot(), 1)
    rows = [(ahead, 95, 1), (behind, 40, 2), (behind, 31, 3)]
    harness.frame(frame_of(rows).with_columns(pl.Series(WATERMARK, [30, 30, 35], pl.Int64)))
    assert late_rows(harness) == []


def test_rows_that_come_before_a_large_merge_is_done_are_kept(monkeypatch):
    """Whoever does not ask for what is left, too: one batch may fold a pane more than once."""
    monkeypatch.setattr(levels, "_DEALT_ROWS", 4)
    monkeypatch.setattr(window_panes, "_RAW_ROWS", 5)
    monkeypatch.setattr(window_panes, "_MOST_RAW_ROWS", 5)
    node = window_node(TumblingWindow(1_000), aggregates=[("rows", count()), ("total", col("value").sum())])
    harness = OperatorHarness(node)
    for batch in range(9):
        rows = [(f"k{n}", 10 * batch + n, batch + n) for n in range(8)]
        harness.operators[0].process(frame_of(rows), harness.collected)
        if batch % 3:
            harness.operators[0].run_background_slice()
    found = harness.restored(harness.snapshot())
    for each in (harness, found):
        each.collected.frames.clear()
        each.watermark(MAX_WATERMARK)
        rows = pl.concat(each.collected.frames).select("key", "rows", "total").rows()
        assert sorted(rows) == [(f"k{n}", 9, 36 + 9 * n) for n in range(8)]


def test_a_window_of_many_keys_fires_in_parts_and_large_merges_are_done_between_batches(monkeypatch):
    """Nothing takes long: a part is done when it is asked for, and what is stored is whole at any time."""
    monkeypatch.setattr(levels, "_DEALT_ROWS", 100)
    monkeypatch.setattr(window_panes, "_RAW_ROWS", 60)
    monkeypatch.setattr(window_panes, "_MOST_RAW_ROWS", 60)
    monkeypatch.setattr(window_aggregate, "_ROWS_AT_ONCE", 1)
    node = window_node(TumblingWindow(1_000), aggregates=[("rows", count()), ("total", col("value").sum())])
    harness = OperatorHarness(node)
    (operator,) = harness.operators
    left, snapshots = 0, []
    for batch in range(6):
        rows = [(f"k{n}", 10 * batch + n % 10, batch + n) for n in range(60)]
        operator.process(frame_of(rows), harness.collected)
        while operator.run_background_slice():
            left += 1
            snapshots.append(harness.freeze())
    assert left > levels._PARTS
    operator.process(frame_of([(f"k{n}", 99, 1_000) for n in range(50)]), harness.collected)
    parts = 0
    while operator.fire_due(MAX_WATERMARK, harness.collected):
        parts += 1
    assert parts >= levels._PARTS // 2
    sums = [sum(batch + n for batch in range(6)) for n in range(60)]
    expected = sorted((f"k{n}", 7, sums[n] + 1_000) if n < 50 else (f"k{n}", 6, sums[n]) for n in range(60))
    assert sorted(pl.concat(harness.collected.frames).select("key", "rows", "total").rows()) == expected
    for at, freeze in enumerate(snapshots[:: len(snapshots) // 5]):
        restored = harness.restored(freeze(), parallelism=2)
        restored.collected.frames.clear()
        restored.watermark(MAX_WATERMARK)
        found = pl.concat(restored.collected.frames)
        assert found.height == 60, at
        assert found["rows"].n_unique() == 1
