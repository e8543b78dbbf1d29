"""What the order of arrival decides, said of every operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from penstock import (
    KeyedProcess,
    OutputTag,
    Pipeline,
    at_watermark,
    col,
    count,
    every,
    every_rows,
    lag,
    purging,
    session,
    tumbling,
)
from penstock.connectors import collecting, iterables
from penstock.expressions.aggregate_rules import AGGREGATES
from penstock.graph.jobgraph import build_job_graph
from penstock.spark.arrival_order import ArrivalOrderAnalysis
from penstock.spark.engine import batch_graph


@dataclass
class Bid:
    key: str
    price: int
    at: datetime


class Function(KeyedProcess[Bid, Bid]):
    """Never called."""

    def on_row(self, row: Any, ctx: Any) -> None:
        raise AssertionError(row)


LATE = OutputTag[Bid]("late", Bid)
MINUTE = tumbling("1m")


def read(p: Pipeline, bound: str = "0s") -> Any:
    return p.read(iterables.Source([], schema=Bid, event_time="at", max_out_of_orderness=bound))


CASES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "rows": (lambda s: s.filter(col("price") > 1), ""),
    "batches": (lambda s: s.map_batches(lambda batch: batch), "the batches"),
    "window": (lambda s: s.key_by("key").window(MINUTE).agg(n=count(), total=col("price").sum()), ""),
    "session": (lambda s: s.key_by("key").window(session("1m")).agg(n=count()), ""),
    "mode": (lambda s: s.key_by("key").window(MINUTE).agg(usual=col("price").mode()), "usual: which of several most"),
    "mode-least": (lambda s: s.key_by("key").window(MINUTE).agg(usual=col("price").mode("least")), ""),
    "collect": (lambda s: s.key_by("key").window(MINUTE).agg(all=col("price").collect()), "all: the places of rows"),
    "best": (lambda s: s.key_by("key").window(MINUTE).agg(b=col("price").max_by("price")), "b: which of several best"),
    "agg": (lambda s: s.key_by("key").agg(n=count()), "the rows of a key before its last"),
    "intersect": (lambda s: s.intersect(s.filter(col("price") > 1)), "the changes of a key before its last"),
    "distinct": (lambda s: s.key_by("key").agg(n=count()).distinct("n"), "the changes of a key before its last"),
    "reduce": (lambda s: s.key_by("key").reduce(lambda left, _: left), "the rows that its function gets"),
    "over": (lambda s: s.key_by("key").over().with_columns(n=count()), ""),
    "over-rows": (lambda s: s.key_by("key").over(rows=3).with_columns(n=count()), "which of a key's rows with equal"),
    "lag": (lambda s: s.key_by("key").over().with_columns(n=lag("price")), "which of a key's rows with equal"),
    "first": (lambda s: s.key_by("key").deduplicate("first"), "which row of a key is its first"),
    "last": (lambda s: s.key_by("key").deduplicate("last"), "the rows of a key before its last"),
    "top": (lambda s: s.key_by("key").top(3, by="price"), "the ranks before the last ones"),
    "join": (lambda s: s.join(s.filter(col("price") > 1), on="key", within="1m", how="full"), ""),
    "as-of": (lambda s: s.join(s.filter(col("price") > 1), on="key", as_of=True), "which of a key's right rows"),
    "process": (lambda s: s.key_by("key").process(Function()), "the rows that its function gets"),
    "apply": (
        lambda s: s.key_by("key").window(MINUTE).apply(lambda k, w, rows: rows, returns=Bid),
        "in which order",
    ),
    "count": (lambda s: s.key_by("key").count_window(3).agg(n=count()), "which rows are in a window"),
    "at-end": (lambda s: s.key_by("key").window(MINUTE).trigger(at_watermark()).agg(n=count()), ""),
    "every": (
        lambda s: s.key_by("key").window(MINUTE).trigger(every("10s")).agg(n=count()),
        "what windows give before",
    ),
    "parts": (
        lambda s: s.key_by("key").window(MINUTE).trigger(purging(every("10s"))).agg(n=count()),
        "which rows are in a",
    ),
    "by-rows": (lambda s: s.key_by("key").window(MINUTE).trigger(every_rows(3)).agg(n=count()), "which rows are in a"),
}


@pytest.mark.parametrize("case", CASES)
def test_every_operator_says_what_arrival_decides(case: str) -> None:
    """Nothing, or what."""
    p = Pipeline("ordering")
    declare, expected = CASES[case]
    said = declare(read(p))._node.traits.arrival
    assert said.startswith(expected)
    assert bool(said) == bool(expected)


def test_every_aggregate_whose_partials_cannot_be_merged_in_any_order_says_why() -> None:
    """But for those that sort their values."""
    silent = {row.name for row in AGGREGATES if not row.arrival}
    assert silent == {
        "count", "sum", "mean", "min", "max", "std", "var", "any", "all", "n_unique", "collect_distinct", "quantile",
        "approx_n_unique", "approx_quantile",
    }  # fmt: skip


def notes(p: Pipeline) -> list[str]:
    graph = batch_graph(p.plan, 2)
    arrival = ArrivalOrderAnalysis(graph, p.plan)
    return [
        f"{operator.verb}: {note}"
        for vertex in graph.vertices
        for operator in vertex.operators
        for note in (arrival.said_of_order(vertex, operator), arrival.said_of_late_rows(vertex, operator))
        if note
    ]


def test_a_plan_says_in_which_order_rows_come_on_spark() -> None:
    """By event time, which may be that of the source; or as they came, where late rows are read behind."""
    for bound, order in (("0s", "by event time, as its sources say they do"), ("1s", "by event time")):
        p = Pipeline("sorted")
        read(p, bound).key_by("key").process(Function()).write(collecting.Sink())
        [note] = notes(p)
        assert note.endswith(f"; rows come here {order}")
    p = Pipeline("late")
    windows = read(p).key_by("key").process(Function()).key_by("key").window(MINUTE).late_to(LATE).agg(n=count())
    windows.write(collecting.Sink())
    assert [note.split("; ")[-1] for note in notes(p)] == [
        "rows come here by event time, as its sources say they do",
        "window: late rows take part, counted",
    ]
    windows.side(LATE).write(collecting.Sink())
    assert [note.split("; ")[-1] for note in notes(p)] == [
        "rows come here as in their split",
        "window: late rows go aside, as in a stream",
    ]


def test_a_stream_carries_no_more_than_before() -> None:
    """What Spark has to know of arrival costs the streaming engine nothing."""
    p = Pipeline("late")
    bids = read(p)
    windows = bids.key_by("key").window(MINUTE).late_to(LATE).agg(n=count())
    windows.side(LATE).write(collecting.Sink())
    assert build_job_graph(p.plan, 2).vertices
    assert not p.plan.carries_watermarks(bids._node)
    assert ArrivalOrderAnalysis(batch_graph(p.plan, 2), p.plan).plan.carries_watermarks(bids._node)
