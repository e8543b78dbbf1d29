"""The job graph: what is chained, what crosses the log, and what stands in the JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from penstock import (
    OperatorListState,
    OutputTag,
    Pipeline,
    PipelineError,
    Process,
    UnionListState,
    col,
    count,
    every_rows,
    lit,
    tumbling,
)
from penstock.connectors import collecting, iterables, kafka
from penstock.errors import IncompatibleStateError
from penstock.graph.executiongraph import ExecutionGraph
from penstock.graph.explain import explain_dot, explain_text
from penstock.graph.jobgraph import build_job_graph, graph_from_json
from penstock.plan.signatures import check_signature, state_signature
from penstock.protocol.frames import Channel
from penstock.protocol.messages import SubtaskId
from penstock.protocol.outputs import OutputId


@dataclass
class Bid:
    auction: int
    price: float
    at: datetime


def windowed(p: Pipeline, size: str = "10s"):
    bids = p.read(iterables.Source([], schema=Bid, event_time="at"))
    return bids.filter(col("price") > 1).key_by("auction").window(tumbling(size)).agg(bids=count())


def test_everything_chains_at_parallelism_one():
    """With one subtask a keyed edge needs no exchange."""
    p = Pipeline("one")
    windowed(p).write(collecting.Sink())
    graph = build_job_graph(p.plan, 1)
    assert [vertex.name for vertex in graph.vertices] == ["read -> filter -> window -> write"]


def test_a_keyed_edge_crosses_the_log():
    """With several subtasks rows are exchanged by key group."""
    p = Pipeline("two")
    windowed(p).write(collecting.Sink())
    graph = build_job_graph(p.plan, 2)
    assert [vertex.name for vertex in graph.vertices] == ["read -> filter", "window -> write"]
    (edge,) = graph.vertices[1].inputs
    assert (edge.ship, edge.link.keys, edge.vertex) == ("hash", ("auction",), "v0")


def test_only_what_is_read_crosses_the_log():
    """An exchange carries the keys and the columns that the consumer's aggregates read, and event time beside them."""
    p = Pipeline("narrow")
    bids = p.read(iterables.Source([], schema=Bid, event_time="at"))
    bids.key_by("auction").window(tumbling("10s")).agg(bids=count(), top=col("price").max()).write(collecting.Sink())
    bids.key_by("auction").window(tumbling("10s")).agg(bids=count()).write(collecting.Sink())
    edges = [edge for vertex in build_job_graph(p.plan, 2).vertices for edge in vertex.inputs]
    assert [[column["name"] for column in edge.schema] for edge in edges] == [["auction", "price"], ["auction"]]
    assert all(edge.event_time for edge in edges)


def test_late_rows_cross_the_log_whole():
    """Where late rows go to a side output, all their columns are needed."""
    p = Pipeline("late")
    late = OutputTag("late", Bid)
    bids = p.read(iterables.Source([], schema=Bid, event_time="at")).key_by("auction")
    bids.window(tumbling("10s")).late_to(late).agg(bids=count()).write(collecting.Sink())
    (edge,) = build_job_graph(p.plan, 2).vertices[1].inputs
    assert [column["name"] for column in edge.schema] == ["auction", "price", "at"]


def test_a_projection_of_constants_gets_a_column_to_count_by():
    """Rows without any column would have no number."""
    p = Pipeline("constant")
    bids = p.read(iterables.Source([], schema=Bid)).chain(False)
    bids.select(one=lit(1)).write(collecting.Sink())
    edge = build_job_graph(p.plan, 1).vertices[1].inputs[0]
    assert [column["name"] for column in edge.schema] == ["auction"]


def test_chaining_can_be_refused_and_parallelism_set():
    """`chain(False)` and another parallelism make a hop."""
    p = Pipeline("hops")
    bids = p.read(iterables.Source([], schema=Bid)).filter(col("price") > 1).chain(False)
    bids.filter(col("price") > 2).parallelism(3).write(collecting.Sink())
    graph = build_job_graph(p.plan, 1)
    assert [vertex.parallelism for vertex in graph.vertices] == [1, 1, 3, 1]
    assert [edge.ship for vertex in graph.vertices for edge in vertex.inputs] == ["rebalance"] * 3


def test_union_and_side_outputs_become_edges():
    """Nodes that are only structure vanish; their meaning is in the edges."""
    p = Pipeline("structure")
    late = OutputTag("late", Bid)
    left = p.read(iterables.Source([], schema=Bid, event_time="at"))
    right = p.read(iterables.Source([], schema=Bid, event_time="at"))
    result = left.union(right).key_by("auction").window(tumbling("10s")).late_to(late).agg(bids=count())
    result.write(collecting.Sink())
    result.side(late).write(collecting.Sink())
    graph = build_job_graph(p.plan, 1)
    window = next(vertex for vertex in graph.vertices if vertex.inputs)
    assert [edge.vertex for edge in window.inputs] == ["v0", "v1"]
    assert [link.tag for operator in window.operators for link in operator.inputs] == [None, "late"]


def test_the_graph_is_json():
    """A graph survives the way through JSON."""
    p = Pipeline("json")
    windowed(p).write(collecting.Sink())
    graph = build_job_graph(p.plan, 2)
    assert graph_from_json(json.loads(json.dumps(graph.to_json()))) == graph


def test_a_pipeline_must_write_something():
    """A stream without an end is a mistake."""
    p = Pipeline("nothing")
    windowed(p)
    with pytest.raises(PipelineError, match="writes nothing"):
        build_job_graph(p.plan, 1)


def test_parallelism_is_bounded_by_key_groups():
    """More subtasks than key groups cannot share the keys."""
    p = Pipeline("wide")
    windowed(p).write(collecting.Sink())
    with pytest.raises(PipelineError, match="exceeds the 240 key groups"):
        build_job_graph(p.plan, 241)


def test_the_number_of_key_groups_is_the_job_s():
    """The pipeline says it."""
    p = Pipeline("groups", max_parallelism=60)
    windowed(p).write(collecting.Sink())
    graph = build_job_graph(p.plan, 2)
    assert {graph.max_parallelism, *(vertex.max_parallelism for vertex in graph.vertices)} == {60}
    for wrong in (0, 32_769):
        with pytest.raises(PipelineError, match="max_parallelism must be between 1 and 32768"):
            Pipeline("groups", max_parallelism=wrong)


def test_slots_are_shared_within_a_group():
    """Subtask i of every vertex shares slot i; groups have slots of their own."""
    p = Pipeline("slots")
    bids = p.read(iterables.Source([], schema=Bid, event_time="at"))
    bids.key_by("auction").window(tumbling("10s")).agg(bids=count()).slot_group("heavy").write(collecting.Sink())
    execution = ExecutionGraph(build_job_graph(p.plan, 2))
    assert execution.topology().slot_count == 4
    slots = {str(subtask): slot for subtask, slot in execution.slots().items()}
    assert slots == {"v0[0]": 0, "v0[1]": 1, "v1[0]": 2, "v1[1]": 3}


def test_key_groups_cover_everything_once():
    """The ranges of the subtasks of a vertex are contiguous and complete."""
    p = Pipeline("ranges")
    windowed(p).write(collecting.Sink())
    execution = ExecutionGraph(build_job_graph(p.plan, 7))
    ranges = [execution.key_groups(s) for s in sorted(execution.subtasks()) if s.vertex == "v1"]
    assert [bounds.start for bounds in ranges[1:]] == [bounds.end for bounds in ranges[:-1]]
    assert (ranges[0].start, ranges[-1].end) == (0, 240)


def test_the_plan_is_readable():
    """Text and Graphviz name chains, exchanges, key groups, state and guarantee."""
    p = Pipeline("readable")
    windowed(p).write(collecting.Sink())
    graph = build_job_graph(p.plan, 2)
    text = explain_text(graph)
    for part in ("hash by auction", "240 key groups", "tumbling('10s')", "keyed by auction", "guarantee: exactly-once"):
        assert part in text
    assert explain_dot(graph).startswith("digraph {")


def test_the_plan_shows_the_mode_of_every_edge():
    """Facts, updates, and changes as far as a sink with another key, in front of which `materialize` stands."""
    p = Pipeline("modes")
    latest = p.read(iterables.Source([], schema=Bid)).key_by("auction").deduplicate("last")
    prices = latest.key_by("price").agg(auctions=count())
    prices.write(kafka.Sink("of-prices", key="price", delivery="upsert"))
    prices.write(kafka.Sink("of-counts", key="auctions", delivery="upsert"))
    graph = build_job_graph(p.plan, 2)
    assert [line.strip() for line in explain_text(graph).splitlines() if "<-" in line] == [
        "<- v0 hash by auction through the log, 2 channels",
        "<- v1 hash by auction (upsert) through the log, 2 channels",
        "<- v2 hash by price (retract) through the log, 2 channels",
        "<- v3 hash by auctions (retract) through the log, 2 channels",
        "<- v3 forward through the log, 2 channels",
        "<- v4 forward through the log, 2 channels",
    ]
    vertices = graph.to_json()["vertices"]
    within = [link["mode"] for v in vertices for operator in v["operators"] for link in operator["inputs"]]
    between = [edge["link"]["mode"] for v in vertices for edge in v["inputs"]]
    assert within == ["retract", "retract"]
    assert between == ["append", "upsert", "retract", "retract", "append", "append"]
    of_encoding = [line for line in explain_dot(graph).splitlines() if "->" in line and "dashed" not in line]
    assert [line.partition(" [")[2] for line in of_encoding] == ['label="(retract)"];'] * 2
    assert [node.verb for node in p.plan].count("materialize") == 1


def test_late_rows_of_a_stream_of_updates_are_facts():
    """As all rows of side outputs; the plan names the output."""
    p = Pipeline("late")
    late = OutputTag("late", Bid)
    keyed = p.read(iterables.Source([], schema=Bid, event_time="at")).key_by("auction")
    windows = keyed.window(tumbling("10s")).allowed_lateness("1m").late_to(late).agg(bids=count())
    windows.chain(False).write(collecting.Sink())
    windows.side(late).write(collecting.Sink())
    graph = build_job_graph(p.plan, 1)
    shown = [line.strip() for line in explain_text(graph).splitlines() if "<-" in line]
    assert shown == [
        "<- v0 hash by auction through the log, 1 channels",
        "<- v1 rebalance (upsert) through the log, 1 channels",
        "<- v1 rebalance [late] through the log, 1 channels",
    ]


def test_a_graph_that_says_nothing_of_modes_is_read():
    """One that an older version has written."""
    p = Pipeline("older")
    windowed(p).write(collecting.Sink())
    graph = build_job_graph(p.plan, 2)
    former = graph.to_json()
    for vertex in former["vertices"]:
        for link in [edge["link"] for edge in vertex["inputs"]] + [
            link for operator in vertex["operators"] for link in operator["inputs"]
        ]:
            del link["mode"]
    assert graph_from_json(former) == graph


def test_a_changed_window_cannot_take_over_state():
    """A signature names the operator and what changed."""
    before, after = Pipeline("a"), Pipeline("b")
    old = state_signature(windowed(before, "10s")._node)
    new = state_signature(windowed(after, "20s")._node)
    with pytest.raises(IncompatibleStateError, match=r"operator 'hot': its window changed from tumbling\('10s'\)"):
        check_signature("hot", old, new)
    check_signature("hot", old, old)


def test_lists_without_key_are_compared_like_keyed_state():
    """A list that becomes a union, or has another type, would be empty or something else; others come and go."""

    def signed(declared: Any, name: str = "seen") -> str:
        class Made(Process[Bid, Bid]):
            def on_row(self, row: Bid, ctx: Any) -> None: ...

        setattr(Made, name, declared)
        declared.__set_name__(Made, name)
        bids = Pipeline("a").read(iterables.Source([], schema=Bid, event_time="at"))
        return state_signature(bids.process(Made())._node)

    numbers = signed(OperatorListState(int))
    with pytest.raises(IncompatibleStateError, match=r"'hot', state 'seen': the snapshot holds operator_list state"):
        check_signature("hot", numbers, signed(UnionListState(int)))
    with pytest.raises(IncompatibleStateError, match=r"'hot', state 'seen': the snapshot holds int, .* declares str"):
        check_signature("hot", numbers, signed(OperatorListState(str)))
    check_signature("hot", numbers, signed(OperatorListState(int | None)))
    check_signature("hot", numbers, signed(OperatorListState(str), "another"))


def test_other_aggregates_under_a_trigger_cannot_take_over_the_partials_of_a_window():
    """But the rows that versions before kept can be aggregated anew, whatever is asked of them."""

    def signed(**aggregates: Any) -> str:
        bids = Pipeline("a").read(iterables.Source([], schema=Bid, event_time="at")).key_by("auction")
        return state_signature(bids.window(tumbling("10s")).trigger(every_rows(2)).agg(**aggregates)._node)

    totals, counts = signed(total=col("price").sum()), signed(rows=count())
    with pytest.raises(IncompatibleStateError, match=r"operator 'hot': its aggregates changed from \{'total'"):
        check_signature("hot", totals, counts)
    check_signature("hot", totals, totals)
    former = {name: part for name, part in json.loads(totals).items() if name != "aggregates"}
    check_signature("hot", json.dumps(former), counts)


def test_an_exactly_once_kafka_sink_becomes_two_operators():
    """Encoded where the rows are, published behind an exchange with one writer per partition."""
    p = Pipeline("kafka")
    p.read(iterables.Source([], schema=Bid)).filter(col("price") > 1).write(kafka.Sink("t", key="auction")).uid("out")
    graph = build_job_graph(p.plan, 3)
    first, last = graph.vertices
    assert [operator.verb for operator in first.operators] == ["read", "filter", "encode"]
    assert [(operator.verb, operator.id) for operator in last.operators] == [("publish", "out")]
    assert [(edge.vertex, edge.ship) for edge in last.inputs] == [("v0", "forward")]
    assert [column["name"] for column in last.inputs[0].schema] == ["value", "key", "hash"]
    execution = ExecutionGraph(graph)
    topology = execution.topology()
    assert topology.publishers == {"v1"}
    assert topology.sinks == {SubtaskId("v1", index) for index in range(3)}
    assert execution.channels(SubtaskId("v1", 2)) == (Channel(0, 2),)
    [(_, outputs)] = execution.outputs(SubtaskId("v0", 1))
    assert outputs == (OutputId("v1", 0, 1),)
    assert topology.slots[SubtaskId("v1", 2)] == topology.slots[SubtaskId("v0", 2)]
    assert last.operators[0].guarantee == "exactly-once"
    assert "committed together with the rows" in explain_text(graph)
    assert "n2_publish" in explain_dot(graph)
    assert graph_from_json(json.loads(json.dumps(graph.to_json()))) == graph


def test_behind_a_union_rows_are_encoded_in_a_vertex_of_their_own():
    """Its exchange has several writers; the publisher's has one."""
    p = Pipeline("union")
    left, right = (p.read(iterables.Source([], schema=Bid)) for _ in range(2))
    left.union(right).write(kafka.Sink("t"))
    vertices = build_job_graph(p.plan, 2).vertices
    assert [[operator.verb for operator in vertex.operators] for vertex in vertices] == [
        ["read"], ["read"], ["encode"], ["publish"],
    ]  # fmt: skip


def test_where_less_is_promised_the_sink_is_one_operator():
    """At-least-once by declaration or by the job's mode: written in place, and the plan says so."""
    p = Pipeline("less")
    rows = p.read(iterables.Source([], schema=Bid))
    rows.write(kafka.Sink("t", delivery="at-least-once"))
    [operator] = [o for o in build_job_graph(p.plan, 1).operators() if o.verb == "write"]
    assert operator.guarantee.startswith("at-least-once")
    q = Pipeline("mode")
    q.read(iterables.Source([], schema=Bid)).write(kafka.Sink("t"))
    graph = build_job_graph(q.plan, 1, at_least_once=True)
    assert [o.verb for o in graph.operators()] == ["read", "write"]
    assert "barriers are not aligned" in list(graph.operators())[-1].guarantee


def test_state_stands_at_the_head_where_it_may_not_be_chained():
    """A batch engine gets every keyed edge as an exchange and every stateful operator first in its vertex."""
    p = Pipeline("apart")
    windowed(p).filter(col("bids") > 1).write(collecting.Sink())
    graph = build_job_graph(p.plan, 1, chain_state=False)
    assert [vertex.name for vertex in graph.vertices] == ["read -> filter", "window -> filter -> write"]
