"""Plans of many nodes and of many paths: what is asked of a plan costs its nodes, not its paths."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from golden_plans import SOURCES, Bid

from penstock import Pipeline, col, count, tumbling
from penstock.api.stream import Stream
from penstock.connectors import collecting
from penstock.graph.jobgraph import build_job_graph
from penstock.plan.former_nulls import null_by_now
from penstock.plan.logical import Node, ancestors
from penstock.plan.passes.reading import scan_request_of


def united(p: Pipeline, times: int) -> Stream[Bid]:
    """A stream that 2 to the power of `times` paths lead to."""
    stream: Stream[Bid] = p.read(SOURCES["bids"]())
    for number in range(times):
        stream = stream.filter(col("price") > number).union(stream.filter(col("bidder") > number))
    return stream


def by_paths(node: Node) -> Iterator[Node]:
    for upstream in node.inputs:
        yield upstream
        yield from by_paths(upstream)


def test_ancestors_come_once_in_the_order_of_the_paths():
    stream = united(Pipeline("few"), 6)
    assert [*ancestors(stream._node)] == [*dict.fromkeys(by_paths(stream._node))]


@pytest.mark.timeout(60)
def test_what_many_paths_lead_to_is_asked_once():
    """A visit per path would be a thousand million of them."""
    p = Pipeline("many")
    united(p, 30).select("price").write(collecting.Sink())
    graph = build_job_graph(p.plan, 2)
    assert len(graph.vertices) == 60
    read, end = p.plan.nodes[0], p.plan.nodes[-1]
    wanted = scan_request_of(p.plan, read)
    assert wanted.columns == {"price", "bidder", "at"}
    assert wanted.predicate is None
    assert p.plan.watermark_lag_us(end) == 10_000_000
    assert not p.plan.comes_in_order(end)


def test_plans_are_deeper_than_the_stack_of_python():
    p = Pipeline("deep")
    stream = p.read(SOURCES["ordered"]())
    for _ in range(1_200):
        stream = stream.filter(col("price") > 1)
    stream.select("price").write(collecting.Sink())
    graph = build_job_graph(p.plan, 2)
    assert [vertex.slot_group for vertex in graph.vertices] == ["default"]
    read, end = p.plan.nodes[0], p.plan.nodes[-1]
    assert scan_request_of(p.plan, read).columns == {"price", "at"}
    assert p.plan.watermark_lag_us(end) == 0
    assert p.plan.comes_in_order(end)


@pytest.mark.timeout(60)
def test_updates_that_many_paths_lead_to_are_asked_once():
    p = Pipeline("many-updates")
    bids = p.read(SOURCES["bids"]())
    updates = bids.key_by("auction").agg(n=count(), at=col("at").max()).with_event_time("at")
    for number in range(30):
        updates = updates.union(updates.filter(col("n") > number))
    windows = updates.key_by("n").window(tumbling("1h")).agg(auctions=count())
    assert windows.schema.names == ("n", "window_start", "window_end", "auctions")
    assert null_by_now(windows._node) == frozenset()
