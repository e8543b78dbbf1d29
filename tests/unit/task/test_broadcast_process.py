"""Functions beside a broadcast stream: every row of it reaches every subtask, and writes state there."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    BroadcastProcess,
    BroadcastState,
    Context,
    KeyedBroadcastProcess,
    KeyedContext,
    KeyedCoProcess,
    KeyedProcess,
    MapState,
    OpenContext,
    OperatorListState,
    OutputTag,
    Pipeline,
    PipelineError,
    Process,
    ValueState,
    count,
)
from penstock.connectors import collecting, iterables
from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK, from_micros
from penstock.errors import IncompatibleStateError, UsageError, UserCodeError
from penstock.graph.explain import explain_text
from penstock.graph.jobgraph import build_job_graph
from penstock.plan.logical import Node
from penstock.plan.operations.process_rows import ProcessRows
from penstock.spark.refusing import refusals
from penstock.task.keyed_states import keyed_backend
from penstock.task.operators import process as process_operators
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import schema_of


@dataclass
class Payment:
    account: str
    amount: int


@dataclass
class Rule:
    name: str
    limit: int | None


@dataclass
class Alert:
    account: str
    text: str


SIDE = OutputTag("side", Alert)


class Limits(KeyedBroadcastProcess[Payment, Rule, Alert]):
    """Alerts of what an account paid altogether, by every rule that it exceeds; a rule without limit is taken back."""

    limits = BroadcastState(str, int)
    total = ValueState(int)

    def on_row(self, row: Payment, ctx: KeyedContext[Alert]) -> None:
        self.total.set(self.total.get(default=0) + row.amount)
        for name, limit in sorted(self.limits.items()):
            if self.total.get(default=0) > limit:
                ctx.emit(Alert(ctx.key, f"{name}: {self.total.get()} > {limit}"))

    def on_broadcast(self, row: Rule, ctx: Context[Alert]) -> None:
        if row.limit is None:
            self.limits.remove(row.name)
        else:
            self.limits.set(row.name, row.limit)


class Unkeyed(BroadcastProcess[Payment, Rule, Alert]):
    """The same per payment, counted in a list."""

    limits = BroadcastState(str, int)
    seen = OperatorListState(int)

    def on_row(self, row: Payment, ctx: Context[Alert]) -> None:
        self.seen.add(row.amount)
        for name, limit in sorted(self.limits.items()):
            if row.amount > limit:
                ctx.emit(Alert(row.account, f"{name}: {row.amount} > {limit}"))

    def on_broadcast(self, row: Rule, ctx: Context[Alert]) -> None:
        if row.limit is None:
            self.limits.remove(row.name)
        else:
            self.limits.set(row.name, row.limit)


def node_of(process: Any, *, event_time: bool = False) -> Node:
    keys = () if isinstance(process, BroadcastProcess) else ("account",)
    left = input_node(schema_of(Payment, "left"), Payment, keys, event_time=event_time)
    right = input_node(schema_of(Rule, "right"), Rule, event_time=event_time)
    sides = {SIDE.name: schema_of(Alert, "side")}
    operation = ProcessRows(process)
    return Node("n2", operation, (left, right), schema_of(Alert, "out"), Alert, event_time, sides=sides)


def payments(*rows: tuple[str, int], times: list[int] | None = None, marks: list[int | None] | None = None) -> Any:
    return _frame({"account": pl.String, "amount": pl.Int64}, rows, times, marks)


def rules(*rows: tuple[str, int | None], times: list[int] | None = None, marks: list[int | None] | None = None) -> Any:
    return _frame({"name": pl.String, "limit": pl.Int64}, rows, times, marks)


def _frame(schema: Any, rows: Any, times: Any, marks: Any) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema, orient="row")
    if times is not None:
        frame = frame.with_columns(pl.Series(EVENT_TIME, times, pl.Int64))
    return frame if marks is None else frame.with_columns(pl.Series(WATERMARK, marks, pl.Int64))


def texts(harness: OperatorHarness) -> list[tuple[str, str]]:
    return [(row["account"], row["text"]) for row in harness.output()]


# -- what it does -------------------------------------------------------------------------------------------------------

PAY = st.tuples(st.sampled_from("abcde"), st.integers(0, 9))
RULE = st.tuples(st.sampled_from("xyz"), st.one_of(st.none(), st.integers(0, 30)))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pay"), st.lists(PAY, min_size=1, max_size=6)),
        st.tuples(st.just("rule"), st.lists(RULE, min_size=1, max_size=4)),
        st.tuples(st.just("restore"), st.integers(1, 4)),
    ),
    max_size=12,
)


def modelled(steps: list[Any], *, keyed: bool) -> list[tuple[str, str]]:
    """One row after the other, one dictionary."""
    limits: dict[str, int] = {}
    totals: dict[str, int] = {}
    found: list[tuple[str, str]] = []
    for kind, rows in steps:
        for row in rows if kind != "restore" else ():
            if kind == "rule":
                limits.pop(row[0], None)
                limits |= {} if row[1] is None else {row[0]: row[1]}
                continue
            totals[row[0]] = (totals.get(row[0], 0) if keyed else 0) + row[1]
            found += [
                (row[0], f"{name}: {totals[row[0]]} > {limit}")
                for name, limit in sorted(limits.items())
                if totals[row[0]] > limit
            ]
    return found


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, parallelism=st.integers(1, 4), cut=st.integers(1, 6), keyed=st.booleans())
def test_every_subtask_has_every_rule_whatever_the_batches_and_rescales(steps, parallelism, cut, keyed):
    """Rows of either stream in batches of any size, snapshots that are restored at other parallelisms."""
    harness = OperatorHarness(node_of(Limits() if keyed else Unkeyed()), parallelism=parallelism)
    for kind, rows in steps:
        if kind == "restore":
            write = harness.freeze()
            before = len(harness.collected.frames)
            harness.frame(rules(("lost", 0)), 1)  # behind the barrier: in no snapshot, though it is written later
            harness.frame(payments(("a", 9)))
            snapshot = write()
            del harness.collected.frames[before:]
            harness = harness.restored(snapshot, rows)
            continue
        frame = payments(*rows) if kind == "pay" else rules(*rows)
        for part in frame.iter_slices(cut):
            harness.frame(part, int(kind == "rule"))
    expected = modelled(steps, keyed=keyed)
    found = texts(harness)
    assert sorted(found) == sorted(expected)
    for account in "abcde":
        mine = [each for each in expected if each[0] == account]
        assert not keyed or [each for each in found if each[0] == account] == mine


def test_what_a_broadcast_row_makes_the_function_emit_comes_from_every_subtask():
    class Echo(Limits):
        def on_broadcast(self, row: Rule, ctx: Context[Alert]) -> None:
            ctx.emit(Alert(row.name, "main"))
            ctx.emit_to(SIDE, Alert(row.name, "side"))

    harness = OperatorHarness(node_of(Echo()), parallelism=3)
    harness.frame(rules(("x", 1)), 1)
    assert texts(harness) == [("x", "main")] * 3
    assert [row["text"] for row in harness.side(SIDE)] == ["side"] * 3


class Timed(KeyedBroadcastProcess[Payment, Rule, Alert]):
    """Says at a timer which rules there are, and at a rule how far time has come."""

    names = BroadcastState(str, int)

    def on_row(self, row: Payment, ctx: KeyedContext[Alert]) -> None:
        ctx.event_timer(from_micros(row.amount))

    def on_broadcast(self, row: Rule, ctx: Context[Alert]) -> None:
        self.names.set(row.name, 0)
        reached = None if ctx.watermark is None else (ctx.watermark - from_micros(0)) // timedelta(microseconds=1)
        assert ctx.timestamp is not None
        ctx.emit(Alert(row.name, f"watermark {reached}"))

    def on_timer(self, at: datetime, ctx: KeyedContext[Alert]) -> None:
        ctx.emit(Alert(ctx.key, "".join(sorted(self.names.keys()))))


def test_timers_fire_between_the_broadcast_rows_that_they_lie_between():
    """Event time that rules carry is that of the function; however they are cut."""
    for cut in (1, 2, 3):
        harness = OperatorHarness(node_of(Timed(), event_time=True))
        harness.frame(payments(("a", 10), ("b", 20), ("c", 30), times=[1, 1, 1]))
        frame = rules(("x", 1), ("y", 1), ("z", 1), times=[5, 15, 25], marks=[4, 14, 24])
        for part in frame.iter_slices(cut):
            harness.frame(part, 1)
        harness.watermark(MAX_WATERMARK)
        assert texts(harness) == [
            ("x", "watermark 4"), ("a", "x"), ("y", "watermark 14"), ("b", "xy"), ("z", "watermark 24"), ("c", "xyz"),
        ]  # fmt: skip


def test_key_groups_that_are_ahead_after_a_rescale_do_not_fire_twice():
    """Two subtasks that had come unlike far become one."""
    harness = OperatorHarness(node_of(Timed(), event_time=True), parallelism=2, max_parallelism=8)
    keys = [chr(each) for each in range(ord("a"), ord("i"))]
    harness.frame(payments(*((key, 10) for key in keys), times=[1] * 8))
    harness.frame(rules(("x", 1), times=[2]), 1)
    harness.watermark(12, 0)
    fired = len(texts(harness)) - 2
    assert 0 < fired < 8
    harness = harness.restored(harness.snapshot(), 1)
    harness.frame(rules(("y", 1), ("z", 1), times=[11, 13], marks=[11, 12]), 1)
    assert texts(harness)[-1] == ("z", "watermark 12")
    harness.watermark(MAX_WATERMARK)
    assert sorted(account for account, text in texts(harness) if not text.startswith("water")) == keys
    assert [text for account, text in texts(harness) if account == "y"] in ([["watermark 11"]], ["watermark 11"])


def test_processing_time_timers_and_open_read_the_state(tmp_path):
    class Opened(Limits):
        def open(self, context: OpenContext) -> None:
            self.known = sorted(self.limits.items())

        def on_row(self, row: Payment, ctx: KeyedContext[Alert]) -> None:
            ctx.processing_timer(from_micros(10))

        def on_timer(self, at: datetime, ctx: KeyedContext[Alert]) -> None:
            ctx.emit(Alert(ctx.key, f"{self.known} {self.limits.contains('x')} {list(self.limits.values())}"))

    harness = OperatorHarness(node_of(Opened()))
    harness.frame(rules(("x", 1)), 1)
    harness = harness.restored(harness.snapshot())
    harness.frame(payments(("a", 1)))
    harness.processing_time(10)
    assert texts(harness) == [("a", "[('x', 1)] True [1]")]


def test_state_of_another_type_is_refused_and_a_new_state_begins_empty():
    class Wider(Limits):
        more = BroadcastState(str, str)

    class Other(Limits):
        limits = BroadcastState(str, str)  # pyright: ignore[reportAssignmentType]

    harness = OperatorHarness(node_of(Limits()))
    harness.frame(rules(("x", 1)), 1)
    snapshot = harness.snapshot()
    successor = OperatorHarness(node_of(Wider()), restored=snapshot)
    successor.frame(payments(("a", 2)))
    assert texts(successor) == [("a", "x: 2 > 1")]
    with pytest.raises(IncompatibleStateError, match="state 'limits'"):
        OperatorHarness(node_of(Other()), restored=snapshot)


def test_a_snapshot_writes_what_has_changed_since_the_last_one_and_nothing_else():
    """Also what was changed in place, by the method that may."""

    class Noting(KeyedBroadcastProcess[Payment, Rule, Alert]):
        notes = BroadcastState(str, list[int])

        def on_row(self, row: Payment, ctx: KeyedContext[Alert]) -> None: ...

        def on_broadcast(self, row: Rule, ctx: Context[Alert]) -> None:
            self.notes.get(row.name, default=[]).append(row.limit or 0)
            if not self.notes.contains(row.name):
                self.notes.set(row.name, [])

    harness = OperatorHarness(node_of(Noting()))
    kept: list[bytes] = []
    for row in (("x", 1), ("x", 2), None):
        if row is not None:
            harness.frame(rules(row), 1)
        harness.frame(payments(("a", 1)))
        kept.append(harness.snapshot().broadcast["notes"])
    assert len(set(kept)) == 2
    assert kept[1] is kept[2]


# -- who may touch what -------------------------------------------------------------------------------------------------


class Helped(Limits):
    """Hides from the reader of its code what it does."""

    entries = MapState(str, int)

    def on_row(self, row: Payment, ctx: KeyedContext[Alert]) -> None:
        self.total.set(1)
        self.entries.set("a", 1)
        if row.amount:
            self._write(row.account)

    def on_broadcast(self, row: Rule, ctx: Context[Alert]) -> None:
        getattr(self, row.name)(ctx)

    def on_timer(self, at: datetime, ctx: KeyedContext[Alert]) -> None:
        self._write("timer")

    def _write(self, name: str) -> None:
        self.limits.set(name, 1)

    def reads(self, ctx: Any) -> None:
        self.total.get()

    def sets(self, ctx: Any) -> None:
        self.total.set(1)

    def maps(self, ctx: Any) -> None:
        self.entries.set("a", 1)

    def clears(self, ctx: Any) -> None:
        self.entries.clear()

    def asks(self, ctx: Any) -> None:
        ctx.emit(Alert(ctx.key, ""))

    def waits(self, ctx: Any) -> None:
        ctx.processing_timer(from_micros(1))


@pytest.mark.parametrize("backend", ["objects", "rocksdb"])
@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ("reads", "keyed state was used where there is no key .*on_broadcast"),
        ("sets", "keyed state was used where there is no key"),
        ("maps", "keyed state was used where there is no key"),
        ("clears", "keyed state was used where there is no key"),
        ("asks", "on_broadcast has no ctx.key"),
        ("waits", "on_broadcast has no ctx.processing_timer"),
        ("", "state 'limits' is broadcast state, which only on_broadcast may write"),
    ],
)
def test_what_no_check_of_the_code_finds_is_refused_when_it_runs(monkeypatch, tmp_path, backend, calls, said):
    if backend == "rocksdb":
        on_disk: Callable[..., Any] = lambda operator, keys, cursor, context: keyed_backend(  # noqa: E731
            operator, keys, cursor, replace(context, local_state=tmp_path)
        )
        monkeypatch.setattr(process_operators, "keyed_backend", on_disk)
    harness = OperatorHarness(node_of(Helped()))
    harness.frame(payments(("a", 0)))  # whose key must not be that of the broadcast row behind it
    with pytest.raises(UserCodeError, match=said):
        harness.frame(rules((calls, 1)), 1) if calls else harness.frame(payments(("a", 1)))
    harness.close()


class Writes(Limits):
    def on_row(self, row: Payment, ctx: KeyedContext[Alert]) -> None:
        self.limits.set(row.account, row.amount)


class WritesLater(Limits):
    def on_timer(self, at: datetime, ctx: KeyedContext[Alert]) -> None:
        self.limits.clear()


class Reads(Limits):
    def on_broadcast(self, row: Rule, ctx: Context[Alert]) -> None:
        if self.total.get():
            self.limits.set(row.name, 1)


class Keys(Limits):
    def on_broadcast(self, row: Rule, ctx: Context[Alert]) -> None:
        ctx.emit(Alert(ctx.key, row.name))  # pyright: ignore[reportAttributeAccessIssue]


class Waits(Limits):
    def on_broadcast(self, row: Rule, ctx: Context[Alert]) -> None:
        ctx.processing_timer(from_micros(1))  # pyright: ignore[reportAttributeAccessIssue]

    def on_timer(self, at: datetime, ctx: KeyedContext[Alert]) -> None: ...


class Returns(Limits):
    def on_broadcast(self, row: Rule, ctx: Context[Alert]) -> Any:
        return row


class Nothing(KeyedBroadcastProcess[Payment, Rule, Alert]):
    def on_row(self, row: Payment, ctx: KeyedContext[Alert]) -> None: ...


class Swapped(KeyedBroadcastProcess[Rule, Payment, Alert]):
    def on_row(self, row: Rule, ctx: KeyedContext[Alert]) -> None: ...
    def on_broadcast(self, row: Payment, ctx: Context[Alert]) -> None: ...


class KeyedStateWithoutKey(Unkeyed):
    total = ValueState(int)


class ListBesideKey(Limits):
    seen = OperatorListState(int)


class Alone(KeyedProcess[Payment, Alert]):
    limits = BroadcastState(str, int)

    def on_row(self, row: Payment, ctx: KeyedContext[Alert]) -> None: ...


class Plain(Process[Payment, Alert]):
    def on_row(self, row: Payment, ctx: Context[Alert]) -> None: ...


class Pair(KeyedCoProcess[Payment, Rule, Alert]):
    def on_left(self, row: Payment, ctx: KeyedContext[Alert]) -> None: ...
    def on_right(self, row: Rule, ctx: KeyedContext[Alert]) -> None: ...


class Silent(KeyedBroadcastProcess):  # pyright: ignore[reportMissingTypeArgument]
    def on_row(self, row: Any, ctx: Any) -> None: ...
    def on_broadcast(self, row: Any, ctx: Any) -> None: ...


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda pay, rule: keyed(pay, rule, Writes()), r"Writes.on_row writes the broadcast .* \(.set\)"),
        (lambda pay, rule: keyed(pay, rule, WritesLater()), "WritesLater.on_timer writes the broadcast state"),
        (lambda pay, rule: keyed(pay, rule, Reads()), "Reads.on_broadcast uses the state 'total', which belongs to"),
        (lambda pay, rule: keyed(pay, rule, Keys()), "Keys.on_broadcast uses ctx.key"),
        (lambda pay, rule: keyed(pay, rule, Waits()), "Waits.on_broadcast uses ctx.processing_timer"),
        (lambda pay, rule: keyed(pay, rule, Returns()), "Returns.on_broadcast returns row"),
        (lambda pay, rule: keyed(pay, rule, Nothing()), r"class Nothing has no on_broadcast\(self, row, ctx\)"),
        (lambda pay, rule: keyed(pay, rule, Swapped()), "on_row of Swapped takes Rule, but"),
        (lambda pay, rule: keyed(pay, rule, Silent()), r"class Silent\(KeyedBroadcastProcess\[Payment, Rule, Alert\]\)"),
        (lambda pay, rule: keyed(pay, rule, ListBesideKey()), "belongs to a BroadcastProcess; in a Keyed"),
        (lambda pay, rule: keyed(pay, rule, Unkeyed()), "after key_by only a KeyedBroadcastProcess runs"),
        (lambda pay, rule: keyed(pay, rule, Pair()), "KeyedBroadcastProcess sees rows"),
        (lambda pay, rule: pay.connect(rule.broadcast()).process(Limits()), "needs .key_by"),
        (lambda pay, rule: pay.connect(rule.broadcast()).process(KeyedStateWithoutKey()), "which needs a key; make"),
        (lambda pay, rule: pay.connect(rule), "write .broadcast.. behind it"),
        (lambda pay, rule: pay.key_by("account").connect(rule), "write .broadcast.. behind it"),
        (lambda pay, rule: pay.key_by("account").process(Alone()), "make Alone a KeyedBroadcastProcess"),
        (lambda pay, rule: pay.process(Unkeyed()), "a BroadcastProcess needs .connect"),
        (lambda pay, rule: pay.key_by("account").process(Limits()), "a KeyedBroadcastProcess needs .connect"),
        (lambda pay, rule: pay.connect(rule.broadcast()).process(Plain()), "a subclass of BroadcastProcess, got"),
        (lambda pay, rule: rule.key_by("name").broadcast(), "do it before key_by"),
        (lambda pay, rule: rule.broadcast().filter(True), "do it before broadcast"),
        (lambda pay, rule: rule.broadcast().connect(pay), "the other way round"),
        (lambda pay, rule: rule.key_by("name").agg(n=count()).broadcast(), "this is a stream of updates"),
        (lambda pay, rule: pay.connect(rule.key_by("name").agg(n=count())), "updates are not broadcast"),
        (lambda pay, rule: pay.connect(read(Pipeline("other"))[1].broadcast()), "is of another pipeline"),
        (
            lambda pay, rule: pay.with_processing_time().connect(rule.broadcast()),
            "one stream has event time and the other has none",
        ),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_where_it_is_written(declare, said):
    with pytest.raises(PipelineError, match=said):
        declare(*read(Pipeline("pair")))


def read(p: Pipeline) -> tuple[Any, Any]:
    made = (p.read(iterables.Source([], schema=each)) for each in (Payment, Rule))
    pay, rule = made
    return pay, rule


def keyed(pay: Any, rule: Any, process: Any) -> Any:
    return pay.key_by("account").connect(rule.broadcast()).process(process)


# -- the plan -----------------------------------------------------------------------------------------------------------


def test_the_edge_is_a_broadcast_one_at_every_parallelism_and_spark_refuses_it():
    p = Pipeline("plan")
    pay, rule = read(p)
    more = p.read(iterables.Source([], schema=Rule))
    keyed(pay, rule.union(more), Limits()).write(collecting.Sink())
    pay.connect(rule.broadcast()).process(Unkeyed()).write(collecting.Sink())
    for parallelism in (1, 3):
        graph = build_job_graph(p.plan, parallelism)
        ships = [[edge.ship for edge in v.inputs] for v in graph.vertices if len(v.inputs) > 1]
        assert ships == [["hash", "broadcast", "broadcast"], ["rebalance", "broadcast"]]
        assert f" broadcast through the log, {parallelism} channels" in explain_text(graph, p.plan)
    reasons = refusals(build_job_graph(p.plan, 2, chain_state=False, publish=False), p.plan)
    assert [reason.split()[1] for reason in reasons] == ["Limits", "Unkeyed"]
    assert all("run it embedded or on the cluster" in reason for reason in reasons)


def test_the_example_of_the_docs_runs(monkeypatch, tmp_path):
    text = (Path(__file__).parents[3] / "docs/state.md").read_text()
    [code] = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class OverLimit(" in block]
    (tmp_path / "limits_of_the_docs.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    alerts = importlib.import_module("limits_of_the_docs").alerts
    assert sorted(alerts.collect().rows()) == [("a", 120.0), ("b", 40.0)]


def test_the_harness_of_one_stream_says_what_to_do_with_two():
    function: Any = Limits()
    with pytest.raises(UsageError, match="Limits takes rows of two streams"):
        OperatorHarness.of_process(function, Payment, keys=["account"])
