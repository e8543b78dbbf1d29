"""Running aggregates and reduces: the last result per key is that of all its rows, however they came."""

from __future__ import annotations

import math
import random
import struct
import tempfile
from pathlib import Path

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import (
    AGGREGATES,
    GROUPS,
    KEYS,
    SCHEMA,
    Batch,
    Restore,
    check_result,
    frame_of,
    histories,
    window_node,
)

from penstock.core.batches import EVENT_TIME
from penstock.core.times import MAX_WATERMARK
from penstock.errors import IncompatibleStateError, UserCodeError
from penstock.expressions import AggregatePlan, col, count
from penstock.functions.windows.definitions import SessionWindow, SlidingWindow, TumblingWindow
from penstock.plan.logical import Node
from penstock.plan.operations.running_aggregate import RunningAggregate
from penstock.plan.operations.running_reduce import RunningReduce
from penstock.state.segments import decode_segments
from penstock.task.combining import Combiner
from penstock.task.operators.partials import Partials
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import FLOAT64, INT64, Field, Schema, row_class, schema_of


class Total(msgspec.Struct):
    key: str | None
    value: int


def aggregate_node(aggregates=AGGREGATES, ttl=None):
    source = input_node(SCHEMA, row_class(SCHEMA), ("key",), event_time=True)
    plan = AggregatePlan.build(aggregates, SCHEMA)
    out = Schema((*SCHEMA.select(["key"]), *plan.output_fields))
    return Node("n1", RunningAggregate(tuple(aggregates), ttl), (source,), out, row_class(out), True, keys=("key",))


def reduce_node(function, ttl=None):
    schema = schema_of(Total)
    source = input_node(schema, Total, ("key",), event_time=True)
    return Node("n1", RunningReduce(function, ttl), (source,), schema, Total, True, keys=("key",))


def add(total, row):
    return Total(row.key, total.value + row.value)


def add_in_place(total, row):
    total.value += row.value
    return total


def play(node, steps, *, combiner=None):
    """The final row per key with its event time, and the rows that were fed, combined if there is a combiner."""
    harness = OperatorHarness(node, max_parallelism=GROUPS)
    fed = []
    for step in steps:
        if isinstance(step, Batch):
            frame = frame_of(step.rows)
            harness.frame(frame if combiner is None else combiner.combined(frame))
            fed += step.rows
        elif isinstance(step, Restore):
            write, seen = harness.freeze(), len(harness.collected.frames)
            if step.extra:
                harness.frame(frame_of(step.extra))
            snapshot = write()
            del harness.collected.frames[seen:]
            harness = harness.restored(snapshot, step.parallelism)
    return {row["key"]: row for frame in harness.collected.frames for row in frame.to_dicts()}, fed


@settings(max_examples=35, deadline=None)
@given(steps=histories(st.integers(0, 100)))
def test_the_last_aggregate_of_every_key_is_that_of_all_its_rows(steps):
    """Batches, snapshots in mid-flight and rescales change nothing but the number of updates."""
    final, fed = play(aggregate_node(), steps)
    assert final.keys() == {key for key, _, _ in fed}
    for key, row in final.items():
        mine = [(time, value) for other, time, value in fed if other == key]
        assert row["rows"] == len(mine)
        assert row["total"] == sum(value for _, value in mine)
        assert sorted(row["values"]) == sorted(value for _, value in mine)
        assert row[EVENT_TIME] == mine[-1][0]
        check_result(row)


@settings(max_examples=35, deadline=None)
@given(steps=histories(st.integers(0, 100)))
def test_rows_that_were_combined_before_come_to_the_same(steps):
    """With the event time of the newest row by arrival."""
    node = aggregate_node([("rows", count()), ("total", col("value").sum()), ("cents", (col("value") / 100).sum())])
    final, fed = play(node, steps, combiner=Combiner(node))
    assert final.keys() == {key for key, _, _ in fed}
    for key, row in final.items():
        mine = [(time, value) for other, time, value in fed if other == key]
        cents = math.fsum(value / 100 for _, value in mine)
        assert (row["rows"], row["total"], row["cents"]) == (len(mine), sum(value for _, value in mine), cents)
        assert row[EVENT_TIME] == mine[-1][0]


def test_the_last_reduction_of_every_key_is_that_of_all_its_rows(state_backend):
    """Also for a function that changes the accumulated object, while a snapshot of it is being written."""

    @settings(max_examples=35 if state_backend == "objects" else 12, deadline=None)
    @given(steps=histories(st.integers(0, 100)), function=st.sampled_from([add, add_in_place]))
    def played(steps, function):
        play_reductions(steps, function)

    played()


def play_reductions(steps, function):
    final, fed = play(reduce_node(function), steps)
    for key in KEYS:
        mine = [(time, value) for other, time, value in fed if other == key]
        if mine:
            assert final[key]["value"] == sum(value for _, value in mine)
            assert final[key][EVENT_TIME] == mine[-1][0]


def test_touched_keys_leave_in_the_order_in_which_the_batch_touched_them():
    """One row per touched key and batch."""
    for node, name in ((aggregate_node(), "total"), (reduce_node(add), "value")):
        harness = OperatorHarness(node)
        harness.frame(frame_of([("b", 1, 1), ("a", 2, 2), ("b", 3, 4), ("c", 4, 8)]))
        harness.frame(frame_of([("c", 5, 1), ("b", 6, 1)]))
        assert [(row["key"], row[name]) for row in harness.output()] == [
            ("b", 5), ("a", 2), ("c", 8), ("c", 9), ("b", 6),
        ]  # fmt: skip


def test_a_snapshot_of_before_ties_were_broken_by_time_is_read():
    """Its `max_by` had two columns, named by their aggregate; what it held counts as the first."""
    partials = Partials(aggregate_node((("most", col("value").max_by("key")), ("rows", count()))))
    names = ["max_by", "max_by", "count"]
    kinds = ["string", "int64", "int64"]
    stored = [
        {"name": f"__p{n}", "type": kind, "of": of} for n, (kind, of) in enumerate(zip(kinds, names, strict=True))
    ]
    rows = pl.DataFrame({"key": ["a"], "__p0": ["z"], "__p1": [5], "__p2": [3]})
    restored = partials.restored("agg", stored, rows)
    fresh = partials.group([frame_of([("z", -9, 7)])], ["key"]).with_columns(key=pl.lit("a"))
    merged = partials.merge([fresh, restored.select(fresh.columns)], ["key"])
    assert partials.results(merged, ["key"], ["key", "most", "rows"]).row(0) == ("a", 5, 4)


TTL = 80
ROWS_AND_TOTAL = [("rows", count()), ("total", col("value").sum())]


def is_over(written, now):
    """A key is forgotten as a whole eighth of the time to live, and no earlier than that time behind its last row."""
    return (written // (TTL // 8) + 1) * (TTL // 8) + TTL < now


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "rocksdb"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**9), many=st.booleans())
def test_a_key_without_rows_for_its_time_to_live_begins_anew(on_disk, seed, many):
    """Whatever the batches, the backend, restores and rescales; a clock that goes back forgets nothing."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) if on_disk else None
        harness = OperatorHarness(aggregate_node(ROWS_AND_TOTAL, TTL), max_parallelism=GROUPS, local_state=place)
        held, reached = {}, 0
        for _ in range(chance.randrange(1, 25)):
            rows = [(chance.choice(KEYS), 1, chance.randrange(9)) for _ in range(chance.choice([1, 4]))]
            rows += [(f"{number}", 1, 1) for number in range(600)] if many and chance.random() < 0.2 else []
            harness.now_us += chance.choice([0, 1, 9, 35, 200, -3])
            reached = max(reached, harness.now_us)
            touched = {}
            for key, _, value in rows:
                written, n, total = held.get(key, (None, 0, 0))
                if written is not None and is_over(written, reached):
                    n, total = 0, 0
                held[key] = touched[key] = (reached, n + 1, total + value)
            seen = len(harness.collected.frames)
            harness.frame(frame_of(rows))
            sent = {r["key"]: (r["rows"], r["total"]) for f in harness.collected.frames[seen:] for r in f.to_dicts()}
            assert sent == {key: (n, total) for key, (_, n, total) in touched.items()}
            if chance.random() < 0.2 and harness.now_us == reached:
                harness = harness.restored(harness.freeze()(), 1 if on_disk else chance.randrange(1, 4))


def test_a_key_is_forgotten_though_no_row_of_it_comes():
    """Nothing is sent for it, and its state is gone from snapshots."""
    harness = OperatorHarness(aggregate_node(ROWS_AND_TOTAL, TTL), max_parallelism=GROUPS)
    harness.frame(frame_of([("a", 1, 1), ("b", 1, 2)]))
    harness.now_us = 50
    harness.frame(frame_of([("b", 1, 2)]))
    harness.now_us = 60
    harness.frame(frame_of([("a", 1, 1), ("b", 1, 2)]))
    harness.now_us = 72
    harness.frame(frame_of([("b", 1, 2)]))
    harness.now_us = 155
    harness.frame(frame_of([("c", 1, 2)]))
    assert [row["key"] for row in harness.output()][-1] == "c"
    assert harness.metrics[0].forgotten_keys == 1
    segments = decode_segments(harness.snapshot().keyed, "n1", "running", SCHEMA.select(["key"]))
    assert sorted(key for *_, rows in segments for key in rows["key"]) == ["b", "c"]


def test_a_reduction_of_a_key_without_rows_for_its_time_to_live_begins_anew(state_backend):
    """Also behind a snapshot without a time to live, and back to none."""
    former = OperatorHarness(reduce_node(add), max_parallelism=GROUPS)
    former.frame(frame_of([("a", 1, 1)]))
    harness = OperatorHarness(reduce_node(add, TTL), max_parallelism=GROUPS, restored=former.snapshot())
    harness.frame(frame_of([("b", 1, 1)]))
    for now, values in ((TTL // 2, [("a", 2)]), (TTL, [("a", 3), ("b", 1)]), (3 * TTL, [("a", 1), ("b", 1)])):
        harness.now_us = now
        harness.frame(frame_of([(key, 1, 1) for key, _ in values]))
        assert harness.collected.frames[-1].select("key", "value").rows() == values
        harness = harness.restored(harness.snapshot())
    undated = OperatorHarness(reduce_node(add), max_parallelism=GROUPS, now_us=9 * TTL, restored=harness.snapshot())
    undated.frame(frame_of([("a", 1, 1)]))
    assert undated.collected.frames[-1]["value"].to_list() == [2]


@pytest.mark.parametrize("many", [1, 600])
def test_a_time_to_live_may_come_to_a_snapshot_and_go_from_it(many):
    """What was written without one was written when it is restored; without one nothing is forgotten."""
    rows = frame_of([(f"k{number}", 1, 1) for number in range(many)])
    harness = OperatorHarness(aggregate_node(ROWS_AND_TOTAL), max_parallelism=GROUPS, now_us=1_000)
    harness.frame(rows)
    dated = OperatorHarness(
        aggregate_node(ROWS_AND_TOTAL, TTL), max_parallelism=GROUPS, now_us=1_000, restored=harness.snapshot()
    )
    dated.now_us += TTL
    dated.frame(rows)
    assert set(dated.collected.frames[-1]["rows"]) == {2}
    undated = OperatorHarness(
        aggregate_node(ROWS_AND_TOTAL), max_parallelism=GROUPS, now_us=9_000, restored=dated.snapshot()
    )
    undated.frame(rows)
    assert set(undated.collected.frames[-1]["rows"]) == {3}
    dated.now_us += 2 * TTL
    dated.frame(rows)
    assert set(dated.collected.frames[-1]["rows"]) == {1}


def test_a_sum_that_does_not_fit_is_told_in_words_of_the_pipeline():
    """Without the expressions that Polars evaluates, which are none of the user's."""
    harness = OperatorHarness(aggregate_node((("total", col("value").sum()),)))
    with pytest.raises(UserCodeError) as caught:
        harness.frame(frame_of([("a", 1, 2**62), ("a", 1, 2**62)]))
    assert str(caught.value).endswith(
        'the sum of col("value") does not fit into int64; add floats instead: .cast(float).sum()'
    )


def test_what_a_reduce_function_raises_or_returns_wrongly_is_told_with_the_row():
    """The message has the function's name and the row; the cause is kept."""

    def broken(total, row):
        raise KeyError(row.value)

    harness = OperatorHarness(reduce_node(broken))
    with pytest.raises(UserCodeError, match=r"broken raised KeyError.*Total\(key='a', value=2\)") as caught:
        harness.frame(frame_of([("a", 1, 1), ("a", 1, 2)]))
    assert isinstance(caught.value.__cause__, KeyError)
    harness = OperatorHarness(reduce_node(lambda total, row: None))
    with pytest.raises(UserCodeError, match="was given None"):
        harness.frame(frame_of([("a", 1, 1), ("a", 1, 2)]))


def test_a_snapshot_of_other_aggregates_is_refused():
    """Partials of other aggregates cannot be continued."""
    harness = OperatorHarness(aggregate_node(), max_parallelism=GROUPS)
    harness.frame(frame_of([("a", 1, 1)]))
    other = aggregate_node([("least", col("value").min()), ("most", col("value").max())])
    with pytest.raises(IncompatibleStateError, match="partial aggregates of"):
        OperatorHarness(other, max_parallelism=GROUPS, restored=harness.snapshot())


def test_a_mean_goes_on_from_a_snapshot_that_holds_only_sum_and_count():
    """That is what versions kept of it whose mean wrapped around with the sum."""
    # Of one row the greatest value is the sum, and its partial is of the type that those versions kept of a sum.
    former = OperatorHarness(aggregate_node([("total", col("value").max()), ("rows", count())]), max_parallelism=GROUPS)
    former.frame(frame_of([("a", 0, 2**62), ("b", 0, -5)]))
    mean = aggregate_node([("mean", col("value").mean())])
    harness = OperatorHarness(mean, max_parallelism=GROUPS, restored=without_names(former))
    harness.frame(frame_of([("a", 1, 2**62), ("a", 1, 2**62), ("b", 1, 0)]))
    assert sorted(harness.collected.frames[-1].select("key", "mean").rows()) == [("a", 2.0**62), ("b", -2.5)]


def without_names(harness):
    """A snapshot of a version that did not say whose a partial is."""
    partials = harness.operators[0]._partials
    described = [{"name": field.name, "type": str(field.type)} for field in partials.plan.partial_fields]
    partials.describe = lambda: described
    return harness.snapshot()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([("x", col("value").min())], [("x", col("value").max())]),
        ([("x", col("value").sum()), ("n", count())], [("x", col("value").sum())]),
    ],
)
def test_a_snapshot_of_other_aggregates_of_the_same_types_is_refused(before, after):
    """A partial says whose it is: a minimum is no maximum, the number of rows no half of a sum."""
    former = OperatorHarness(aggregate_node(before), max_parallelism=GROUPS)
    former.frame(frame_of([("a", 1, 5)]))
    with pytest.raises(IncompatibleStateError, match="restore it with the same aggregates"):
        OperatorHarness(aggregate_node(after), max_parallelism=GROUPS, restored=former.snapshot())


_FLOATS = Schema((Field("key", FLOAT64, nullable=True), Field("value", INT64)))
_OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
_SPELLINGS = [0.0, -0.0, math.nan, _OTHER_NAN, -math.nan, 1.5, None]


def _running_by_floats():
    source = input_node(_FLOATS, row_class(_FLOATS), ("key",), event_time=True)
    aggregates = [("rows", count()), ("total", col("value").sum()), ("values", col("value").collect())]
    out = Schema((*_FLOATS.select(["key"]), *AggregatePlan.build(aggregates, _FLOATS).output_fields))
    return Node("n1", RunningAggregate(tuple(aggregates)), (source,), out, row_class(out), True, keys=("key",))


def _window_by_floats(window, lateness=0):
    return window_node(window, schema=_FLOATS, lateness=lateness)


@pytest.mark.parametrize(
    "node",
    [
        _running_by_floats(),
        _window_by_floats(TumblingWindow(1_000)),
        _window_by_floats(SlidingWindow(1_000, 500)),
        _window_by_floats(SessionWindow(1_000)),
        _window_by_floats(TumblingWindow(10), lateness=1_000),
        _window_by_floats(SessionWindow(10), lateness=1_000),
    ],
    ids=["running", "tumbling", "sliding", "session", "tumbling, late", "session, late"],
)
@settings(max_examples=30, deadline=None)
@given(batches=st.lists(st.lists(st.sampled_from(_SPELLINGS), min_size=1, max_size=6), min_size=1, max_size=4))
def test_equal_float_keys_are_one_key_with_one_spelling(node, batches):
    """0.0 for -0.0 and one NaN, whichever came first, in whatever batches, across restores."""
    harness = OperatorHarness(node, max_parallelism=GROUPS)
    for keys in batches:
        frame = frame_of([(None, 5, 1)] * len(keys)).with_columns(key=pl.Series(keys, dtype=pl.Float64))
        harness.frame(frame)
        harness.watermark(100)
        harness = harness.restored(harness.snapshot())
    harness.watermark(MAX_WATERMARK)
    sent = pl.concat(harness.collected.frames)
    keys = sent["key"].to_list()
    assert {repr(key) for key in keys} == {repr(0.0 if key == 0 else key) for batch in batches for key in batch}
    assert all(math.copysign(1, key) == 1 for key in keys if key is not None)
    newest = sent.group_by("key", maintain_order=True).last()
    assert newest["rows"].sum() == sum(map(len, batches))
