"""Session windows against the brute-force model, and the corners of Flink's merging windows."""

from __future__ import annotations

import pytest
from brute_force import Groups, SessionModel
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import (
    GROUPS,
    LATE,
    PLACES,
    comparable,
    emitted,
    frame_of,
    group_of,
    histories,
    kept_in,
    late_rows,
    run,
    window_node,
)

from penstock.core.times import MAX_WATERMARK
from penstock.errors import IncompatibleStateError, UserCodeError
from penstock.expressions import col, when
from penstock.functions.windows.definitions import RETRACTED, SessionWindow
from penstock.state.sorted_runs import SortedRuns
from penstock.task.operators import session_window
from penstock.testing.harness import OperatorHarness

TIMES = st.integers(-50, 150)
GAPS = st.sampled_from([1, 5, 12, 30])


def standing(harness):
    """What a table by key and window holds at the end: a later result replaces an earlier one or retracts it."""
    table = {}
    for frame in harness.collected.frames:
        bounds = [frame[name].to_physical().to_list() for name in ("window_start", "window_end")]
        values = [tuple(value) for value in frame["values"].to_list()]
        rows = zip(zip(frame["key"].to_list(), *bounds, strict=True), frame[RETRACTED].to_list(), values, strict=True)
        for window, retracted, held in rows:
            if retracted:
                assert table.pop(window) == held
            else:
                table[window] = held
    return [(*window, held) for window, held in table.items()]


@settings(max_examples=60, deadline=None)
@given(
    gap=GAPS, steps=histories(TIMES), parallelism=st.integers(1, 4), pending=st.sampled_from([1, 10_000]), place=PLACES
)
def test_any_batching_watermarks_and_restores_give_what_row_by_row_gives(gap, steps, parallelism, pending, place):
    """Without lateness every session is sent once, and late are exactly the rows that Flink calls late."""
    model = SessionModel(lambda _: gap, 0, Groups(group_of))
    with pytest.MonkeyPatch.context() as patch, kept_in(place) as folder:
        patch.setattr(session_window, "_PENDING_ROWS", pending)
        harness = run(window_node(SessionWindow(gap), late=LATE), steps, model, parallelism, local_state=folder)
    assert comparable(emitted(harness, before_end=0)) == comparable(model.emitted)
    assert comparable(late_rows(harness)) == comparable(model.late)


@settings(max_examples=50, deadline=None)
@given(
    gap=GAPS, steps=histories(TIMES), parallelism=st.integers(1, 4), lateness=st.sampled_from([1, 7, 40]), place=PLACES
)
def test_with_lateness_the_last_result_of_every_session_is_the_models(gap, steps, parallelism, lateness, place):
    """Corrections depend on batches; what stands at the end does not, and has every row that was not late once."""
    model = SessionModel(lambda _: gap, lateness, Groups(group_of))
    node = window_node(SessionWindow(gap), lateness=lateness, late=LATE)
    with kept_in(place) as folder:
        harness = run(node, steps, model, parallelism, local_state=folder)
    assert comparable(standing(harness)) == comparable([(*window, held) for window, held in model.standing.items()])
    assert comparable(late_rows(harness)) == comparable(model.late)


@settings(max_examples=60, deadline=None)
@given(
    steps=histories(TIMES),
    parallelism=st.integers(1, 4),
    lateness=st.sampled_from([0, 1, 7, 40]),
    pending=st.sampled_from([1, 10_000]),
    place=PLACES,
)
def test_the_gap_may_be_each_rows_own(steps, parallelism, lateness, pending, place):
    """Flink's dynamic gaps: a session ends where the furthest of its rows' windows does."""
    model = SessionModel(lambda value: value % 17 + 1, lateness, Groups(group_of))
    window = SessionWindow(0, col("value") % 17 + 1)
    with pytest.MonkeyPatch.context() as patch, kept_in(place) as folder:
        patch.setattr(session_window, "_PENDING_ROWS", pending)
        node = window_node(window, lateness=lateness, late=LATE)
        harness = run(node, steps, model, parallelism, local_state=folder)
    if lateness:
        assert comparable(standing(harness)) == comparable([(*window, held) for window, held in model.standing.items()])
    else:
        assert comparable(emitted(harness, before_end=0)) == comparable(model.emitted)
    assert comparable(late_rows(harness)) == comparable(model.late)


@pytest.mark.parametrize("gap", [col("value") * 0, -col("value"), when(col("value") > 100).then(5).otherwise(None)])
def test_a_gap_that_is_none_fails_with_the_row(gap):
    """Flink: dynamic session gaps must be positive."""
    harness = OperatorHarness(window_node(SessionWindow(0, gap)))
    with pytest.raises(UserCodeError, match=r"must be positive.*|.*'value': 7"):
        harness.frame(frame_of([("a", 0, 7)]))


def test_a_late_row_that_joins_two_results_retracts_both():
    """Three rows came and three are counted: the sessions that were sent first are not beside the merged one."""
    harness = OperatorHarness(window_node(SessionWindow(10), lateness=100), max_parallelism=GROUPS)
    harness.frame(frame_of([("a", 0, 1), ("a", 18, 2)]))
    harness.watermark(50)
    harness = harness.restored(harness.snapshot())
    harness.frame(frame_of([("a", 9, 3)]))
    sent = [row for frame in harness.collected.frames for row in frame.select("rows", RETRACTED).rows()]
    assert sent == [(1, False), (1, False), (1, True), (1, True), (3, False)]
    assert standing(harness) == [("a", 0, 28, (1, 3, 2))]


def test_a_result_is_retracted_at_once_when_a_row_in_time_carries_its_session_on():
    """The longer session is sent when it is over; until then nothing stands, also across a restore."""
    harness = OperatorHarness(window_node(SessionWindow(10), lateness=100), max_parallelism=GROUPS)
    harness.frame(frame_of([("a", 0, 1)]))
    harness.watermark(9)
    assert standing(harness) == []  # a row at 10 would belong to it
    harness.watermark(10)
    assert standing(harness) == [("a", 0, 10, (1,))]
    harness.frame(frame_of([("a", 10, 2)]))
    assert standing(harness) == []
    harness = harness.restored(harness.snapshot())
    harness.watermark(MAX_WATERMARK)
    assert standing(harness) == [("a", 0, 20, (1, 2))]


def test_rows_exactly_one_gap_apart_share_a_session():
    """Flink's TimeWindow.intersects counts windows that only touch; one microsecond more parts them."""
    harness = OperatorHarness(window_node(SessionWindow(10)))
    harness.frame(frame_of([("a", 0, 1), ("a", 10, 2), ("a", 21, 3)]))
    harness.watermark(MAX_WATERMARK)
    assert [row[:3] for row in emitted(harness, before_end=0)] == [("a", 0, 20), ("a", 21, 31)]


def test_a_row_between_two_sessions_joins_them():
    """Three parts that arrived apart become one session."""
    harness = OperatorHarness(window_node(SessionWindow(10)))
    for row in [("a", 0, 1), ("a", 18, 2), ("a", 9, 3)]:
        harness.frame(frame_of([row]))
        harness = harness.restored(harness.snapshot())
    harness.watermark(MAX_WATERMARK)
    assert emitted(harness, before_end=0) == [("a", 0, 28, (1, 3, 2))]


def test_short_sessions_inside_a_long_one_belong_to_it():
    """What counts is the furthest row before, not the last: two parts far from each other lie in the same session."""
    harness = OperatorHarness(window_node(SessionWindow(10)))
    harness.frame(frame_of([("a", time, time) for time in range(0, 101, 10)]))
    harness = harness.restored(harness.snapshot())
    harness.frame(frame_of([("a", 15, 1), ("a", 55, 2), ("b", 12, 3)]))
    harness.watermark(MAX_WATERMARK)
    assert [row[:3] for row in emitted(harness, before_end=0)] == [("b", 12, 22), ("a", 0, 110)]


def test_an_old_row_is_saved_by_an_open_session_it_touches_but_only_if_that_came_first():
    """The order of arrival decides, as it does in Flink, and not how rows were batched."""
    rows = [("a", 85, 1), ("a", 92, 2)]
    for batches in ([rows], [rows[:1], rows[1:]]):
        harness = OperatorHarness(window_node(SessionWindow(10), late=LATE))
        harness.watermark(100)
        for batch in batches:
            harness.frame(frame_of(batch))
        harness.watermark(MAX_WATERMARK)
        assert late_rows(harness) == [("a", 85, 1)]
    harness = OperatorHarness(window_node(SessionWindow(10), late=LATE))
    harness.watermark(100)
    harness.frame(frame_of(rows[::-1]))
    harness.watermark(MAX_WATERMARK)
    assert late_rows(harness) == []
    assert emitted(harness, before_end=0) == [("a", 85, 102, (1, 2))]


@pytest.mark.parametrize("lateness", [0, 100_000])
def test_a_batch_meets_few_of_the_many_sessions_of_its_key(monkeypatch, lateness):
    """Each of its sessions meets those that it touches, not all that began before it: 400 look at 2,000, not 400,000."""
    harness = OperatorHarness(window_node(SessionWindow(10), lateness=lateness), max_parallelism=GROUPS)
    harness.frame(frame_of([("a", 100 * number, number) for number in range(1_000)]))
    harness.watermark(50_000)
    compare, compared = SortedRuns._same_keys, []
    monkeypatch.setattr(SortedRuns, "_same_keys", lambda *args: compared.append(len(args[2])) or compare(*args))
    harness.frame(frame_of([("a", 60_005 + 100 * number, number) for number in range(400)]))
    harness.frame(frame_of([("a", 99_000 + 100 * number, number) for number in range(400)]))
    harness.watermark(MAX_WATERMARK)
    assert sum(compared) <= 5 * 800
    held = standing(harness) if lateness else emitted(harness, before_end=0)
    assert sum(len(values) for *_, values in held) == 1_800


def test_a_snapshot_with_another_gap_is_refused():
    """Stored sessions were cut with one gap and cannot be continued with another."""
    harness = OperatorHarness(window_node(SessionWindow(10)), max_parallelism=GROUPS)
    harness.frame(frame_of([("a", 0, 1)]))
    with pytest.raises(IncompatibleStateError, match="a gap of 10us, the pipeline has 20us"):
        OperatorHarness(window_node(SessionWindow(20)), max_parallelism=GROUPS, restored=harness.snapshot())
