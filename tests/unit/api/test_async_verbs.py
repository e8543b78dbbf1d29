"""map_async: what is said of wrong functions and settings when the pipeline is built, and how it is cut into vertices."""

from __future__ import annotations

import functools
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock import Context, Pipeline, PipelineError, Process, col, count
from penstock.connectors import files, iterables
from penstock.graph.jobgraph import build_job_graph


@dataclass
class Row:
    n: int


@dataclass
class Out:
    n: int


async def answer(row: Row) -> Out:
    return Out(row.n)


async def answer_as(kind: str, row: Row) -> Out:
    return Out(row.n + len(kind))


def promise(row: Row) -> Awaitable[Out]:
    return answer(row)


class Service:
    async def __call__(self, row: Row) -> Out:
        return Out(row.n)

    async def ask(self, row: Row) -> Out:
        return Out(row.n)


def stream():
    return Pipeline("p").read(iterables.Source([Row(1), Row(2)], schema=Row))


@pytest.mark.parametrize(
    "function",
    [answer, promise, Service(), Service().ask, functools.partial(answer_as, "")],
    ids=["function", "promise", "object", "method", "partial"],
)
def test_whatever_can_be_awaited(function):
    """Its annotation says what comes of it."""
    assert stream().map_async(function).collect().rows() == [(1,), (2,)]


def test_what_a_lambda_returns_has_to_be_said():
    """It may give back what can be awaited."""
    assert stream().map_async(lambda row: answer(row), returns=Out).collect().rows() == [(1,), (2,)]
    with pytest.raises(PipelineError, match=r"map_async: .*lambda.* does not say what rows it returns"):
        stream().map_async(lambda row: answer(row))


def plain(row: Row) -> Out:
    return Out(row.n)


async def number(row: Row) -> int:
    return row.n


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (plain, {}, "map_async: plain is not async, and would hold up all calls; write async def, or use map"),
        (number, {}, "number returns int, which is no class of rows"),
        (answer, {"capacity": 0}, "capacity=0: at least one call"),
        (answer, {"retries": -1}, "retries=-1: give how often"),
        (answer, {"timeout": "0s"}, "map_async: timeout"),
        (answer, {"timeout": "soon"}, "map_async: timeout"),
        (answer, {"retry_delay": "-1s"}, "map_async: retry_delay"),
        (answer, {"retry_on": KeyboardInterrupt}, "retry_on"),
        (answer, {"retry_on": int}, "retry_on"),
        (answer, {"retry_on": (KeyError, "text")}, "retry_on"),
        (answer, {"ordered": "no"}, "ordered"),
        (answer, {"on_error": 7}, "on_error"),
        (answer, {"on_error": answer}, "on_error=answer is async, and nobody awaits it"),
    ],
)
def test_what_is_wrong_is_said_at_once(function, options, said):
    """By name, before a row flows."""
    with pytest.raises(PipelineError, match=said):
        stream().map_async(function, **options)


class Same(Process[Out, Out]):
    def on_row(self, row: Out, ctx: Context[Out]) -> None:
        ctx.emit(row)


def vertices(read, tmp_path: Path) -> list[list[str]]:
    read.write(files.Sink(tmp_path))
    graph = build_job_graph(read._pipeline.plan, 1)
    return [[operator.verb for operator in vertex.operators] for vertex in graph.vertices]


def test_what_looks_at_time_is_not_chained_behind_calls(tmp_path: Path):
    """The vertex has one event time, and what waits has another."""
    rows = stream().map_async(answer).filter(col("n") > 0)
    assert vertices(rows.map_async(answer, returns=Out), tmp_path) == [
        ["read", "map_async", "filter", "map_async", "write"]
    ]
    rows = stream().map_async(answer).filter(col("n") > 0)
    assert vertices(rows.key_by("n").agg(rows=count()).final(), tmp_path) == [
        ["read", "map_async", "filter"], ["agg", "final"], ["write"],
    ]  # fmt: skip
    assert vertices(stream().map_async(answer).as_(Out).process(Same()), tmp_path) == [
        ["read", "map_async"], ["process", "write"],
    ]  # fmt: skip


def test_the_plan_says_how_calls_are_made():
    """What is called, how many at once, how long, how often."""
    made = stream().map_async(answer, timeout="2s", retries=3, ordered=False, on_error=lambda row, error: Out(0))
    made.write(files.Sink("out"))
    operator = next(o for o in build_job_graph(made._pipeline.plan, 1).operators() if o.verb == "map_async")
    assert operator.settings["capacity"] == 100
    assert {name: operator.settings[name] for name in ("function", "order", "timeout", "retries", "retry_delay")} == {
        "function": "answer", "order": "by completion", "timeout": "2s", "retries": 3, "retry_delay": "100ms",
    }  # fmt: skip
