"""Process functions with `on_batch`: they answer what the same function answers row by row."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import polars as pl
import pytest
from batch_cases import THIRD, ByBatch, ByRow, Row, Seen, history, node_of, played, results, stored
from hypothesis import given, note, settings
from hypothesis import strategies as st
from window_cases import frame_of

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import to_micros
from penstock.errors import PipelineError, UserCodeError
from penstock.functions.process_functions import KeyedProcess, OperatorListState, Process, ValueState
from penstock.testing.harness import OperatorHarness, process_node

EXAMPLES = 60
EXAMPLES_ON_DISK = 8
pytestmark = pytest.mark.usefixtures("state_backend")


@pytest.mark.parametrize("carries", [False, True])
def test_both_flavours_answer_alike(state_backend, carries):
    """Rows, their event times and lateness, side outputs, state and timers: over any batches, watermarks and rescales.

    Also if a job changes its flavour at a savepoint.
    """

    # Every history opens several databases.
    @settings(max_examples=EXAMPLES if state_backend == "objects" else EXAMPLES_ON_DISK, deadline=None)
    @given(seed=st.integers(0, 2**32 - 1))
    def check(seed):
        rng = random.Random(seed)
        steps, parallelism = history(rng), rng.randint(1, 2)
        note(f"{steps} at parallelism {parallelism}")
        expected = played(steps, parallelism, [ByRow], carries=carries)
        assert played(steps, parallelism, [ByBatch], carries=carries) == expected
        assert played(steps, parallelism, [ByBatch, ByRow], carries=carries) == expected

    check()


NODE_ROWS = frame_of([("a", 5, 1), ("b", 6, 2), ("a", 7, 3)])


def run(process, frame=NODE_ROWS, sides=(), keys=("key",)):
    """The harness of a process that has taken a batch."""
    node = process_node(process, Row, keys=keys, sides=sides)
    node.inputs[0].event_time = node.event_time = True
    harness = OperatorHarness(node)
    harness.frame(frame)
    return harness


def keyed(body, **attributes):
    """An instance of a keyed class whose `on_batch` is this function of self, frame and context."""

    class Tested(KeyedProcess[Row, Seen]):
        sum = ValueState(int)
        on_batch = body

    for name, value in attributes.items():
        setattr(Tested, name, value)
    return Tested()


def test_an_unkeyed_class_takes_batches_with_operator_state_and_side_outputs():
    """Results have the event times of the rows they come from, in the order of these, whatever was emitted first."""

    class Split(Process[Row, Seen]):
        seen = OperatorListState(int)

        def on_batch(self, frame, ctx):
            self.seen.add(frame.height)
            made = frame.select("key", what=pl.lit("row"), number="value")
            odd = frame["value"] % 2 == 1
            ctx.emit_to(THIRD, made.filter(~odd), rows=~odd)
            ctx.emit(made.filter(odd).reverse(), rows=odd.arg_true().reverse())
            return made.with_columns(what=pl.lit("all"), number=-pl.col("number"))

    harness = run(Split(), sides=(THIRD,), keys=())
    (main,), (side,) = harness.collected.frames, harness.collected.sides["third"]
    assert main["number"].to_list() == [1, -1, -2, 3, -3]
    assert main[EVENT_TIME].to_list() == [5, 5, 6, 7, 7]
    assert side.rows() == [("b", "row", 2, 6)]
    assert harness.snapshot().lists["seen"] == [b"\x03"]


def test_small_integers_are_widened_and_columns_come_in_any_order():
    """Literals of Polars are 32 bits wide; nobody has to cast them."""
    process = keyed(lambda self, frame, ctx: frame.select(number=pl.lit(1, pl.Int32), what=pl.lit("x"), key="key"))
    assert run(process).output()[0] == {"key": "a", "what": "x", "number": 1}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda frame: frame.select("key"), "gave a frame without what, number; Seen has key, what, number"),
        (lambda frame: frame.select("key", "value", what=pl.lit(""), number=1), "with value, which it has not"),
        (
            lambda frame: frame.select("key", what=1, number=1),
            "column 'what' as Int32, Seen has string; cast it to String",
        ),
        (lambda frame: frame.select("key", what=pl.lit("x"), number=0.5), "'number' as Float64, Seen has int64"),
        (lambda frame: frame.select("key", what=pl.lit(None, pl.String), number=1), "3 nulls in column 'what'"),
        (lambda frame: frame.select("key", what=pl.lit(""), number=1).head(2), "gave 2 rows for 3, and each needs the"),
        (lambda frame: frame.lazy(), "gave LazyFrame, wanted is a polars.DataFrame; collect.. it"),
        (lambda frame: [frame], "gave list, wanted is a polars.DataFrame"),
        (
            lambda frame: frame["nothing"],
            r"on_batch raised ColumnNotFoundError: .*on a batch of 3 rows, the first: Row",
        ),
    ],
)
def test_a_wrong_result_is_named_with_what_was_expected(made, words):
    """The class, the column, what it is and what was declared."""
    with pytest.raises(UserCodeError, match=words) as raised:
        run(keyed(lambda self, frame, ctx: made(frame)))
    assert "process (" in str(raised.value)
    assert "Tested.on_batch" in str(raised.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda self, ctx: self.sum.get(), "used where there is no key .*in batches by get_many"),
        (lambda self, ctx: self.sum.get_many(pl.Series(["a", "z"])), "key 'z' is of no row of this batch"),
        (lambda self, ctx: self.sum.get_many(pl.Series([1])), "keys are String as ctx.keys, got a series of Int64"),
        (lambda self, ctx: self.sum.get_many(["a"]), "keys are given as a series such as ctx.keys, got list"),
        (lambda self, ctx: self.sum.set_many(ctx.keys, pl.Series([1])), "given 1 values for 3 keys"),
        (lambda self, ctx: self.sum.set_many(ctx.keys, pl.Series(["1"] * 3)), "'sum': holds int64, and .* of String"),
        (lambda self, ctx: self.sum.set_many(ctx.keys, pl.Series([1, None, 2])), "given 1 nulls; use clear_many"),
        (lambda self, ctx: self.sum.set_many(ctx.keys, [1, 2, 3]), "takes a series of Int64, got list"),
        (lambda self, ctx: self.row.get_many(ctx.keys), "'row': .*are no column of scalars; call ctx.set_current_key"),
        (lambda self, ctx: ctx.set_current_key("z"), "key 'z' is of no row of this batch"),
        (
            lambda self, ctx: ctx.event_timers(ctx.keys, pl.Series([1, 2, 3])),
            "times are a datetime or a series of Datetime",
        ),
        (lambda self, ctx: ctx.event_timers(ctx.keys, ctx.timestamps.head(1)), "1 times were given for 3 keys"),
        (lambda self, ctx: ctx.emit(made_of(1), rows=pl.Series([9])), "names a row that is not in 0 to 2"),
        (lambda self, ctx: ctx.emit(made_of(2), rows=pl.Series([True, False, False])), "and the frame 2 rows of 3"),
    ],
)
def test_a_wrong_use_of_state_timers_and_rows_is_named(call, words):
    """What was given, what was expected, and what to call instead."""
    row = ValueState(Row)
    row.name = "row"
    with pytest.raises(UserCodeError, match=words):
        run(keyed(lambda self, frame, ctx: call(self, ctx) and None, row=row))


def made_of(rows):
    return pl.DataFrame({"key": ["a"] * rows, "what": ["x"] * rows, "number": [1] * rows})


def test_state_for_many_keys_is_for_batches():
    """A row method is told what to call."""

    class Wrong(KeyedProcess[Row, Seen]):
        sum = ValueState(int)

        def on_row(self, row, ctx):
            self.sum.get_many(pl.Series([row.key]))

    with pytest.raises(UserCodeError, match="get_many, set_many and clear_many are for batches; here use get"):
        run(Wrong())


def test_a_key_of_several_columns_is_a_struct():
    """`ctx.keys` has its parts by name, `set_current_key` takes a tuple, on_timer sees one."""

    class Both(KeyedProcess[Row, Seen]):
        sum = ValueState(int)

        def on_batch(self, frame, ctx):
            assert ctx.keys.to_list() == frame.select("key", "value").to_dicts()
            self.sum.set_many(frame.select("key", "value").to_struct(), frame["value"] * 2)
            ctx.set_current_key(("b", 2))
            ctx.event_timers(ctx.keys.slice(1, 1), datetime(1970, 1, 1, tzinfo=UTC))
            assert self.sum.get() == 4
            assert self.sum.get_many(ctx.keys).to_list() == [2, 4, 6]

        def on_timer(self, at, ctx):
            ctx.emit(Seen(ctx.key[0], "timer", self.sum.get()))

    harness = run(Both(), keys=("key", "value"))
    harness.watermark(1)
    assert harness.output() == [{"key": "b", "what": "timer", "number": 4}]


def test_processing_timers_are_set_and_taken_back_for_many_keys_and_null_sets_none():
    """They fire by the clock, as those of rows."""

    def on_batch(self, frame, ctx):
        at = pl.Series([10, None, 20]).cast(pl.Datetime("us", "UTC"))
        ctx.processing_timers(ctx.keys, at)
        ctx.delete_processing_timers(ctx.keys.head(1), at.head(1))
        assert to_micros(ctx.processing_time) == 0

    harness = run(
        keyed(on_batch, on_timer=lambda self, at, ctx: ctx.emit(Seen(ctx.key, ctx.time_domain, to_micros(at))))
    )
    harness.processing_time(100)
    assert harness.output() == [{"key": "a", "what": "processing", "number": 20}]


@pytest.mark.parametrize("base", [Process[Row, Seen], KeyedProcess[Row, Seen]])
def test_a_class_with_both_methods_is_refused(base):
    """By name, before a row flows; also if one of them is inherited."""

    class First(base):
        def on_row(self, row, ctx): ...

    class Both(First):
        def on_batch(self, frame, ctx): ...

    with pytest.raises(PipelineError, match="class Both has both on_row and on_batch; keep one"):
        process_and_build(Both())


def process_and_build(process):
    OperatorHarness(process_node(process, Row, keys=["key"]))


def test_batches_are_whole_where_no_timer_looks_and_cut_where_one_might():
    """Without on_timer one call has all rows; with it a key comes again only while event time stands still."""
    sizes = []
    marked = NODE_ROWS.with_columns(pl.Series(WATERMARK, [1, 2, 3], pl.Int64))
    run(keyed(lambda self, frame, ctx: sizes.append(frame.height)), marked)
    run(keyed(lambda self, frame, ctx: sizes.append(frame.height), on_timer=lambda self, at, ctx: None), marked)
    assert sizes == [3, 2, 1]


def test_batches_that_make_many_timers_due_leave_something_to_go_on_with():
    """A subtask lets others run meanwhile; whatever comes next finishes it first."""
    rows = frame_of([(str(number), number, 1) for number in range(2_500)])
    marked = rows.with_columns(pl.Series(WATERMARK, range(-1, 2_499), pl.Int64))
    for finish in ("run_background_slice", "snapshot", "process"):
        (harness,) = [OperatorHarness(node_of(ByBatch()))]
        (operator,) = harness.operators
        operator.process(marked, harness.collected)
        assert harness.collected.frames == []
        if finish == "run_background_slice":
            assert operator.run_background_slice()
        while finish == "run_background_slice" and operator.run_background_slice():
            pass
        if finish == "snapshot":
            assert sum(name == "count" for name, _ in stored(harness.snapshot())) == 2_500
        if finish == "process":
            operator.process(frame_of([("z", 2_500, 1)]), harness.collected)
        by_row = OperatorHarness(node_of(ByRow()))
        by_row.frame(marked)
        found, expected = (sorted(map(repr, results(each.collected.frames))) for each in (harness, by_row))
        assert [row for row in found if "'z'" not in row] == expected


def test_a_result_without_event_time_may_have_any_number_of_rows():
    """There is nothing that it would have to take from a row."""

    def on_batch(self, frame, ctx):
        assert ctx.timestamps.null_count() == ctx.watermarks.null_count() == 3
        return made_of(5)

    node = process_node(keyed(on_batch), Row, keys=["key"])
    harness = OperatorHarness(node)
    harness.frame(NODE_ROWS.drop(EVENT_TIME))
    assert len(harness.output()) == 5


def test_values_expire_for_many_keys_as_for_one():
    """A value that is past its time to live is the default, and null without one."""
    found = []
    brief = ValueState(int, ttl="1s")
    brief.name = "brief"

    def on_batch(self, frame, ctx):
        found.append(self.brief.get_many(ctx.keys, default=-1).to_list() + self.brief.get_many(ctx.keys).to_list())
        self.brief.set_many(ctx.keys, frame["value"])

    harness = run(keyed(on_batch, brief=brief))
    harness.frame(NODE_ROWS)
    harness.now_us = 1_000_000
    harness.frame(NODE_ROWS)
    assert found == [[-1] * 3 + [None] * 3, [3, 2, 3] * 2, [-1] * 3 + [None] * 3]


@pytest.mark.parametrize(("renew", "last"), [("write", [None] * 3), ("read", [3, 2, 3])])
def test_reading_many_keys_renews_what_says_so(renew, last):
    """All that are read; here they are written once."""
    found = []
    kept = ValueState(int, ttl="1s", renew=renew)
    kept.name = "kept"

    def on_batch(self, frame, ctx):
        found.append(self.kept.get_many(ctx.keys).to_list())
        if len(found) == 1:
            self.kept.set_many(ctx.keys, frame["value"])

    harness = run(keyed(on_batch, kept=kept))
    for now_us in (0, 900_000, 1_800_000):
        harness.now_us = now_us
        harness.frame(NODE_ROWS)
    assert found[-1] == last
