"""A function over two streams: state and timers are those of one key, whichever stream a row is of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest
from brute_force import Groups
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import GROUPS, Batch, frame_of, group_of, histories, run

from penstock import KeyedContext, KeyedCoProcess, ListState, Pipeline, PipelineError
from penstock.connectors import iterables
from penstock.core.times import from_micros
from penstock.errors import UserCodeError
from penstock.plan.logical import Node
from penstock.plan.operations.process_rows import ProcessRows
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import schema_of


@dataclass
class Left:
    key: str | None
    value: int


@dataclass
class Right:
    other: int
    name: str | None


@dataclass
class Seen:
    key: str | None
    at: int
    rows: str


class Gathers(KeyedCoProcess[Left, Right, Seen]):
    """What came of either stream since the last timer, which each row sets five microseconds behind it or behind time."""

    rows = ListState(str)

    def on_left(self, row: Left, ctx: KeyedContext[Seen]) -> None:
        self._take(f"left {row.value}", ctx)

    def on_right(self, row: Right, ctx: KeyedContext[Seen]) -> None:
        self._take(f"right {row.other}", ctx)

    def _take(self, text: str, ctx: KeyedContext[Seen]) -> None:
        assert ctx.timestamp is not None
        self.rows.add(text)
        reached = ctx.timestamp if ctx.watermark is None else max(ctx.timestamp, ctx.watermark)
        ctx.event_timer(reached + timedelta(microseconds=5))

    def on_timer(self, at: datetime, ctx: KeyedContext[Seen]) -> None:
        rows = sorted(self.rows.get())
        self.rows.clear()
        ctx.emit(Seen(ctx.key, (at - from_micros(0)) // timedelta(microseconds=1), ", ".join(rows)))


def node_of(process: Any = None) -> Node:
    left = input_node(schema_of(Left, "left"), Left, ("key",), event_time=True)
    right = input_node(schema_of(Right, "right"), Right, ("name",), event_time=True)
    return Node("n2", ProcessRows(process or Gathers()), (left, right), schema_of(Seen, "seen"), Seen, True)


class TwoInputs(OperatorHarness):
    """Gives the rows of the right input their own columns."""

    def frame(self, frame: pl.DataFrame, number: int = 0) -> None:
        names = {"value": "other", "key": "name"}
        super().frame(frame.rename(names).select("other", "name", *frame.columns[2:]) if number else frame, number)


@pytest.fixture(autouse=True)
def two_inputs(monkeypatch):
    """Histories are played to harnesses of this kind."""
    monkeypatch.setattr("window_cases.OperatorHarness", TwoInputs)
    monkeypatch.setattr("penstock.testing.harness.OperatorHarness", TwoInputs)


@dataclass
class Model:
    """One key after the other, one row after the other: what `Gathers` does, with timers in order of their time."""

    groups: Groups = field(default_factory=lambda: Groups(group_of))
    rows: dict[Any, list[str]] = field(default_factory=dict)
    timers: set[tuple[int, Any]] = field(default_factory=set)
    seen: list[tuple[Any, int, str]] = field(default_factory=list)

    def row(self, key: Any, time: int, value: int, number: int) -> None:
        self.rows.setdefault(key, []).append(f"{('left', 'right')[number]} {value}")
        self.timers.add((max(time, self.groups.of(key)) + 5, key))

    def watermark(self, groups: Any, watermark: int) -> None:
        before = {group: self.groups.marks.get(group) for group in groups}
        self.groups.advance(groups, watermark)
        for at, key in sorted(self.timers, key=lambda timer: timer[0]):
            group = group_of(key)
            if group in before and before[group] != self.groups.of(key) and at <= self.groups.of(key):
                self.timers.remove((at, key))
                self.seen.append((key, at, ", ".join(sorted(self.rows.pop(key, [])))))


@settings(max_examples=60, deadline=None)
@given(steps=histories(st.integers(0, 60), inputs=2), parallelism=st.integers(1, 3))
def test_both_streams_share_state_and_timers(steps, parallelism):
    """Batches of either stream, watermarks between rows and subtasks, restores, rescales, keys of other names."""
    steps = [replace(step, every_row=True) if isinstance(step, Batch) else step for step in steps]
    model = Model()
    harness = run(node_of(), steps, model, parallelism)
    assert sorted(map(repr, ((row["key"], row["at"], row["rows"]) for row in harness.output()))) == sorted(
        map(repr, model.seen)
    )


def test_what_the_function_raises_is_said_of_its_stream():
    class Fails(Gathers):
        def on_right(self, row: Right, ctx: KeyedContext[Seen]) -> None:
            raise ValueError(row.other)

    harness = TwoInputs(node_of(Fails()), max_parallelism=GROUPS)
    harness.frame(frame_of([("a", 1, 7)]))
    with pytest.raises(UserCodeError, match="on_right"):
        harness.frame(frame_of([("a", 1, 7)]), 1)


class Swapped(KeyedCoProcess[Left, Right, Seen]):
    """Sets no timers."""

    def on_left(self, row: Left, ctx: KeyedContext[Seen]) -> None: ...

    def on_right(self, row: Right, ctx: KeyedContext[Seen]) -> None: ...


class Nothing(KeyedCoProcess[Left, Right, Seen]):
    """Has no method for the right stream."""

    def on_left(self, row: Left, ctx: KeyedContext[Seen]) -> None: ...


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (
            lambda left, right: left.key_by("key").connect(right.key_by("other")),
            "this stream is keyed by key: string, ",
        ),
        (lambda left, right: left.key_by("key").connect(right), "takes a stream behind .key_by"),
        (
            lambda left, right: left.key_by("key").connect(right.key_by("name")).process(Nothing()),
            r"class Nothing has no on_right\(self, row, ctx\)",
        ),
        (
            lambda left, right: right.key_by("name").connect(left.key_by("key")).process(Swapped()),
            "on_left of Swapped takes Left, but",
        ),
        (lambda left, right: left.key_by("key").process(Gathers()), "a KeyedCoProcess needs .connect"),
        (
            lambda left, right: left.key_by("key").connect(right.key_by("name")).process(Gathers()),
            "Gathers._take sets an event timer, and the stream has no event time",
        ),
    ],
)
def test_it_is_said_when_streams_do_not_go_together(declare, said):
    p = Pipeline("pair")
    left, right = (p.read(iterables.Source([], schema=each)) for each in (Left, Right))
    with pytest.raises(PipelineError, match=said):
        declare(left, right)
