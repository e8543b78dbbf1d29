"""Batches in functions of two streams: each input comes by rows or by batches, and what comes of it is the same."""

from __future__ import annotations

import importlib
import random
import re
from pathlib import Path

import polars as pl
import pytest
from batch_cases import THIRD, Other, Row, Seen, Timers, history, node_of, played, reached
from hypothesis import given, note, settings
from hypothesis import strategies as st
from window_cases import frame_of

from penstock import Pipeline
from penstock.connectors import iterables
from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.errors import PipelineError, UserCodeError
from penstock.functions.process_functions import (
    BroadcastProcess,
    BroadcastState,
    KeyedBroadcastProcess,
    KeyedCoProcess,
    OperatorListState,
    ValueState,
)
from penstock.testing.harness import OperatorHarness

EXAMPLES = 20
EXAMPLES_ON_DISK = 3


class Pair(Timers, KeyedCoProcess[Row, Other, Seen]):
    """State and timers that both streams share."""


class Rows(Pair):
    def on_left(self, row, ctx):
        self.take_row(row.value, ctx, "left")

    def on_right(self, row, ctx):
        self.take_row(row.number, ctx, "right")


class Batches(Pair):
    def on_left_batch(self, frame, ctx):
        self.take_batch(frame, ctx, "left")

    def on_right_batch(self, frame, ctx):
        assert ctx.keys.name == "name"
        self.take_batch(frame.select(key="name", value="number"), ctx, "right")


class LeftBatches(Pair):
    on_left_batch = Batches.on_left_batch
    on_right = Rows.on_right


class RightBatches(Pair):
    on_left = Rows.on_left
    on_right_batch = Batches.on_right_batch


class Rules:
    """What a broadcast stream says."""

    rules = BroadcastState(str, int)

    def on_broadcast(self, row, ctx):
        self.rules.set(str(row.name), row.number)
        if row.number % 3 == 0:
            self.rules.remove(str(row.name))
        ctx.emit(Seen(row.name, f"rule {ctx.timestamp} {reached(ctx)}", row.number))

    def ruled(self):
        return "".join(f" {name}={number}" for name, number in self.rules.items())


class RuledRows(Rules, Timers, KeyedBroadcastProcess[Row, Other, Seen]):
    def on_row(self, row, ctx):
        self.take_row(row.value, ctx)


class RuledBatches(Rules, Timers, KeyedBroadcastProcess[Row, Other, Seen]):
    def on_batch(self, frame, ctx):
        self.take_batch(frame, ctx)


class AllRows(Rules, BroadcastProcess[Row, Other, Seen]):
    values = OperatorListState(int)

    def on_row(self, row, ctx):
        self.values.add(row.value)
        made = Seen(row.key, f"row {reached(ctx)}{self.ruled()}", row.value)
        if row.value % 3:
            ctx.emit(made)
        else:
            ctx.emit_to(THIRD, made)


class AllBatches(Rules, BroadcastProcess[Row, Other, Seen]):
    values = OperatorListState(int)

    def on_batch(self, frame, ctx):
        for value in frame["value"]:
            self.values.add(value)
        watermarks = ctx.watermarks.to_physical().fill_null(-1_000)
        said = pl.format("row {}{}", watermarks, pl.lit(self.ruled()))
        made = frame.select("key", what=said, number="value")
        third = frame["value"] % 3 == 0
        ctx.emit_to(THIRD, made.filter(third), rows=third)
        ctx.emit(made.filter(~third), rows=~third)


KEYED = (("key",), ("name",))
RULED = (("key",), ())
WITHOUT_KEYS = ((), ())


@pytest.mark.parametrize(
    ("keys", "by_row", "by_batch"),
    [
        (KEYED, Rows, [[Batches], [LeftBatches, RightBatches], [Batches, Rows, LeftBatches]]),
        (RULED, RuledRows, [[RuledBatches], [RuledBatches, RuledRows]]),
        (WITHOUT_KEYS, AllRows, [[AllBatches], [AllBatches, AllRows]]),
    ],
    ids=["two streams", "broadcast", "broadcast without keys"],
)
@pytest.mark.parametrize("carries", [False, True])
def test_all_flavours_answer_alike(state_backend, carries, keys, by_row, by_batch):
    """Rows, their event times and lateness, side outputs, state and timers: over any batches, watermarks and rescales.

    Also if a job changes its flavour at a savepoint.
    """

    @settings(max_examples=EXAMPLES if state_backend == "objects" else EXAMPLES_ON_DISK, deadline=None)
    @given(seed=st.integers(0, 2**32 - 1))
    def check(seed):
        rng = random.Random(seed)
        steps, parallelism = history(rng, inputs=2), rng.randint(1, 2)
        note(f"{steps} at parallelism {parallelism}")
        expected = played(steps, parallelism, [by_row], carries=carries, keys=keys)
        for flavours in by_batch:
            assert played(steps, parallelism, flavours, carries=carries, keys=keys) == expected, flavours

    check()


LEFT = frame_of([("a", 5, 1), ("b", 6, 2), ("a", 7, 3)])
RIGHT = LEFT.select(pl.col("value").alias("number"), pl.col("key").alias("name"), EVENT_TIME)


class Sums(KeyedCoProcess[Row, Other, Seen]):
    """A sum of the left rows, in batches; a right row or batch reads it."""

    sum = ValueState(int)

    def on_left_batch(self, frame, ctx):
        before = self.sum.get_many(ctx.keys, default=0)
        self.sum.set_many(ctx.keys, before + frame.select(pl.col("value").cum_sum().over("key")).to_series())


def made_of(frame, key="name"):
    return frame.select(key=key, what=pl.lit("x"), number=1)


def sums(body):
    """An instance of `Sums` whose `on_right_batch` is this function of self, frame and context."""

    class Tested(Sums):
        on_right_batch = body

    return Tested()


def fed(process, **options):
    """The harness of a process that has taken a batch of each input."""
    harness = OperatorHarness(node_of(process, sides=(), **options))
    harness.frame(LEFT)
    harness.frame(RIGHT, 1)
    return harness


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            lambda self, frame, ctx: frame["value"],
            r"raised ColumnNotFoundError: .*a batch of 3 rows, the first: Other\(",
        ),
        (lambda self, frame, ctx: made_of(frame).drop("what"), "gave a frame without what; Seen has key, what, number"),
        (lambda self, frame, ctx: made_of(frame).head(2), "gave 2 rows for 3, and each needs the event time of one"),
        (lambda self, frame, ctx: [], "gave list, wanted is a polars.DataFrame"),
    ],
)
def test_what_goes_wrong_is_said_of_its_input(body, words):
    with pytest.raises(UserCodeError, match=rf"Tested.on_right_batch {words}"):
        fed(sums(body))


@pytest.mark.usefixtures("state_backend")
def test_keys_are_those_of_the_input():
    """One of the other stream that the batch has not may be another subtask's; several columns are a struct."""
    with pytest.raises(UserCodeError, match="key 'z' is of no row of this batch"):
        fed(sums(lambda self, frame, ctx: ctx.set_current_key("z")))

    def both(self, frame, ctx):
        assert ctx.keys.to_list() == frame.select("name", "number").to_dicts()
        return made_of(frame).with_columns(number=self.sum.get_many(ctx.keys))

    harness = fed(sums(both), keys=(("key", "value"), ("name", "number")))
    assert [row["number"] for row in harness.output()] == [1, 2, 4]


def test_batches_are_whole_where_no_timer_looks_and_cut_where_one_might():
    """The same for each input."""
    sizes = []

    class Sized(KeyedCoProcess[Row, Other, Seen]):
        def on_left_batch(self, frame, ctx):
            sizes.append(frame.height)

        on_right_batch = on_left_batch

    class Timed(Sized):
        def on_timer(self, at, ctx): ...

    for process in (Sized(), Timed()):
        harness = OperatorHarness(node_of(process))
        for number, frame in enumerate((LEFT, RIGHT)):
            marks = pl.Series(WATERMARK, [3 * number + n for n in (1, 2, 3)], pl.Int64)
            harness.frame(frame.with_columns(marks), number)
    assert sizes == [3, 3, 2, 1, 2, 1]


def test_keys_that_are_ahead_after_a_rescale_see_their_own_watermark():
    """Two subtasks that had come unlike far become one; the key of the right stream has a name of its own."""

    def seen(process):
        harness = OperatorHarness(node_of(process), parallelism=2, max_parallelism=8)
        harness.watermark(12, 0)
        harness = harness.restored(harness.snapshot(), 1)
        harness.frame(pl.DataFrame({"number": 1, "name": list("abcdefgh"), EVENT_TIME: 20}), 1)
        return [row["what"] for row in harness.output()]

    assert seen(Batches()) == seen(Rows())
    assert set(seen(Batches())) == {"right -1 12", "right -1 -1000"}


@pytest.mark.parametrize("process", [AllBatches(), RuledBatches()])
def test_a_batch_comes_behind_the_broadcast_rows_before_it(process):
    """A subtask lets others run between many of them; whatever comes next finishes them first."""
    keyed = isinstance(process, RuledBatches)
    harness = OperatorHarness(node_of(process, RULED if keyed else WITHOUT_KEYS))
    (operator,) = harness.operators
    rules = pl.DataFrame({"number": range(1, 6_001), "name": map(str, range(6_000)), EVENT_TIME: 0})
    operator.process_input(1, rules, harness.collected)
    assert operator.run_background_slice()
    operator.process_input(0, frame_of([("a", 5, 1)]), harness.collected)
    what = next(row["what"] for row in harness.output() if row["key"] == "a")
    assert what.count("=") == 4_000


def test_broadcast_state_is_written_by_broadcast_rows_only():
    """A batch that writes it is told so; a broadcast row has no keys, though batches have."""

    class Writes(RuledBatches):
        def on_batch(self, frame, ctx):
            getattr(self, "rules").set("a", 1)  # noqa: B009

    class Asks(RuledBatches):
        def on_broadcast(self, row, ctx):
            getattr(ctx, row.name)

    with pytest.raises(UserCodeError, match="state 'rules' is broadcast state, which only on_broadcast may write"):
        OperatorHarness(node_of(Writes(), RULED)).frame(LEFT)
    for name in ("keys", "event_timers", "key"):
        rule = RIGHT.head(1).with_columns(name=pl.lit(name))
        with pytest.raises(UserCodeError, match=rf"on_broadcast has no ctx.{name}: .*use it in on_batch or on_timer"):
            OperatorHarness(node_of(Asks(), RULED)).frame(rule, 1)


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        (
            ("on_left", "on_left_batch", "on_right"),
            "has both on_left and on_left_batch; keep one: on_left_batch is called",
        ),
        (("on_left", "on_right", "on_right_batch"), "has both on_right and on_right_batch; keep one"),
        (("on_batch",), "has on_batch, which nobody calls: .*write on_left_batch and on_right_batch"),
        (("on_left",), r"no on_right\(self, row, ctx\), .* and no on_right_batch\(self, frame, ctx\)"),
        (
            ("on_left_batches", "on_right"),
            r"no on_left_batch\(self, frame, ctx\); 'on_left_batches' is called by nobody",
        ),
    ],
)
def test_methods_that_do_not_go_together_are_refused_where_they_are_written(methods, said):
    class Wrong(KeyedCoProcess[Row, Other, Seen]): ...

    for name in methods:
        setattr(Wrong, name, lambda self, rows, ctx: None)
    with pytest.raises(PipelineError, match=f"class Wrong .*{said}"):
        keyed(Wrong())


def keyed(process, then=lambda right: right.key_by("name")):
    """Two streams with this function behind them."""
    p = Pipeline("pair")
    left, right = (p.read(iterables.Source([], schema=each)) for each in (Row, Other))
    return left.key_by("key").connect(then(right)).process(process)


class Yields(Rows):
    on_left = KeyedCoProcess.on_left

    def on_left_batch(self, frame, ctx):
        yield frame


class Returns(Sums):
    def on_right(self, row, ctx):
        return row


class BothOfBroadcast(RuledBatches):
    def on_row(self, row, ctx): ...


class WritesInBatches(RuledBatches):
    on_broadcast = Rules.on_broadcast

    def on_batch(self, frame, ctx):
        self.rules.set("a", 1)


class ReadsKeys(RuledBatches):
    def on_broadcast(self, row, ctx):
        self.rules.set(str(ctx.keys[0]), 1)


class ReadsKeyedState(RuledBatches):
    def on_broadcast(self, row, ctx):
        self.rules.set("a", self.count.get(0))


@pytest.mark.parametrize(
    ("process", "said"),
    [
        (Yields(), r"Yields.on_left_batch yields, and nobody takes .* ctx.emit\(frame\)"),
        (Returns(), r"Returns.on_right returns row .* ctx.emit\(row\)"),
        (BothOfBroadcast(), "class BothOfBroadcast has both on_row and on_batch; keep one"),
        (WritesInBatches(), "WritesInBatches.on_batch writes the broadcast state 'rules'"),
        (ReadsKeys(), "ReadsKeys.on_broadcast uses ctx.keys, .*use it in on_batch or on_timer"),
        (ReadsKeyedState(), "ReadsKeyedState.on_broadcast uses the state 'count', .*use it in on_batch"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_written(process, said):
    broadcast = isinstance(process, RuledBatches)
    with pytest.raises(PipelineError, match=said):
        keyed(process, (lambda right: right.broadcast()) if broadcast else (lambda right: right.key_by("name")))


def test_the_example_of_the_docs_runs(monkeypatch, tmp_path):
    text = (Path(__file__).parents[3] / "docs/state.md").read_text()
    [code] = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class Net(" in block]
    (tmp_path / "net_of_the_docs.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    balances = importlib.import_module("net_of_the_docs").balances
    assert sorted(balances.collect().rows()) == [("a", 20.0), ("b", 25.0)]
