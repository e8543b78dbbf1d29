"""Pipelines whose plans are kept as text in `golden/`: one expression each, which gives the streams that are written.

A new one is a line `# expression` in one of these files. `python tests/unit/plan/golden_plans.py` writes the plans anew;
read their difference before committing it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import penstock
from penstock import (
    BroadcastProcess,
    Context,
    KeyedBroadcastProcess,
    KeyedContext,
    KeyedCoProcess,
    KeyedProcess,
    ListState,
    OperatorListState,
    OutputTag,
    Pipeline,
    Process,
    TimeWindow,
    ValueState,
)
from penstock.connectors import collecting, files, http, kafka
from penstock.graph.explain import rows_of
from penstock.graph.jobgraph import PUBLISH, JobEdge, JobOperator, build_job_graph
from penstock.plan.building.changes import known_keys
from penstock.plan.logical import LogicalPlan, Node
from penstock.plan.operations.write import Write
from penstock.plan.passes.reading import said_of_reading
from penstock.plan.traits import Traits, structure

GOLDEN: Final = Path(__file__).parent / "golden"
TRAITS: Final = Path(__file__).parent / "golden_traits.txt"
LATE: Final = OutputTag[Any]("late")


@dataclass
class Bid:
    auction: int
    bidder: int
    price: float
    at: datetime
    tags: list[str]


@dataclass
class Auction:
    id: int
    seller: int
    category: str
    opened: datetime


@dataclass
class Customer:
    id: int
    town: str | None
    limit: float


@dataclass
class Total:
    auction: int
    price: float


class Plain(Process[Bid, Total]):
    def on_row(self, row: Bid, ctx: Context[Total]) -> None:
        ctx.emit(Total(row.auction, row.price))


class Stateful(Process[Bid, Total]):
    seen = OperatorListState(int)

    def on_row(self, row: Bid, ctx: Context[Total]) -> None:
        self.seen.add(row.auction)


class Keyed(KeyedProcess[Bid, Total]):
    last = ValueState(float)
    prices = ListState(float)

    def on_row(self, row: Bid, ctx: KeyedContext[Total]) -> None:
        self.last.set(row.price)


class Both(KeyedCoProcess[Bid, Auction, Total]):
    last = ValueState(float)

    def on_left(self, row: Bid, ctx: KeyedContext[Total]) -> None:
        self.last.set(row.price)

    def on_right(self, row: Auction, ctx: KeyedContext[Total]) -> None:
        ctx.emit(Total(row.id, 0.0))


class Rules(BroadcastProcess[Bid, Auction, Total]):
    def on_row(self, row: Bid, ctx: Any) -> None:
        ctx.emit(Total(row.auction, row.price))

    def on_broadcast(self, row: Auction, ctx: Any) -> None:
        pass


class KeyedRules(KeyedBroadcastProcess[Bid, Auction, Total]):
    def on_row(self, row: Bid, ctx: Any) -> None:
        ctx.emit(Total(row.auction, row.price))

    def on_broadcast(self, row: Auction, ctx: Any) -> None:
        pass


def total(bid: Bid) -> Total:
    return Total(bid.auction, bid.price)


def totals(bid: Bid) -> Iterable[Total]:
    yield Total(bid.auction, bid.price)


async def fetched(bid: Bid) -> Total:
    return Total(bid.auction, bid.price)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def dearer(one: Bid, other: Bid) -> Bid:
    return max(one, other, key=lambda bid: bid.price)


def of_window(key: tuple[int], window: TimeWindow, rows: list[Bid]) -> Iterable[Total]:
    yield Total(key[0], float(len(rows)))


GROUPS: Final = tuple(sorted(GOLDEN.glob("*.txt")))
"""One file per group of expressions, which have the names of `Names`."""


def expressions(group: Path) -> list[str]:
    """The expressions whose plans a file holds: a new one is a line behind `# `."""
    return [line.removeprefix("# ") for line in group.read_text().splitlines() if line.startswith("# ")]


class Names(dict[str, Any]):
    """What expressions find: what `penstock` exports, functions, and streams that are read when one names them."""

    def __init__(self, p: Pipeline) -> None:
        super().__init__({name: getattr(penstock, name) for name in penstock.__all__})
        self.update(globals())
        self.update(late=lambda stream: [stream.side(LATE), stream])
        self._p = p

    def __missing__(self, name: str) -> Any:
        if name not in SOURCES:
            raise KeyError(name)
        source = SOURCES[name]()
        self[name] = source if name == "asked" else self._p.read(source)
        return self[name]


def _bids(**options: Any) -> files.Source[Bid]:
    return files.Source("bids.jsonl", schema=Bid, bad_rows="dead_letter", **options)


def _customers(**options: Any) -> kafka.ChangeSource[Any]:
    return kafka.ChangeSource("customers", key="id", schema=Customer, brokers="kafka:9092", **options)


SOURCES: Final[dict[str, Any]] = {
    "bids": lambda: _bids(event_time="at", max_out_of_orderness="10s"),
    "timeless": _bids,
    "ordered": lambda: _bids(event_time="at"),
    "idle": lambda: _bids(event_time="at", max_out_of_orderness="0s", idle_after="1m"),
    "auctions": lambda: files.Source("auctions.jsonl", schema=Auction, event_time="opened"),
    "topic": lambda: kafka.Source("bids", schema=Bid, brokers="kafka:9092"),
    "customers": lambda: _customers(format="debezium"),
    "complete": lambda: _customers(format="debezium", before_images=True),
    "upserts": _customers,
    "asked": lambda: http.Lookup("http://names/{id}", schema=Customer),
}


def plan_of(expression: str) -> LogicalPlan:
    """What an expression declares, written to `collecting` sinks where it names none."""
    p = Pipeline("golden")
    found = eval(expression, {"__builtins__": {}}, Names(p))
    for stream in found if isinstance(found, list) else [found]:
        if not isinstance(stream._node.operation, Write):
            stream.write(collecting.Sink())
    return p.plan


def rendered(expression: str) -> str:
    """The plan of an expression: its nodes with their modes and keys, and the job graph made of them."""
    plan = plan_of(expression)
    graph = build_job_graph(plan, 2, by_splits=True)
    lines = [f"# {expression}", *map(_node, plan)]
    for vertex in graph.vertices:
        lines.append(f"{vertex.id}: {vertex.name} x {vertex.parallelism}")
        lines += (f"  <- {_edge(edge)}" for edge in vertex.inputs)
        for operator in vertex.operators:
            read = plan.node(operator.node) if operator.verb == "read" else None
            settings = operator.settings | (said_of_reading(plan, read) if read is not None else {})
            lines.append(f"  {operator.id}: {json.dumps(settings, ensure_ascii=False)}")
            lines += (f"    {line}" for line in plan.node(operator.node).operation.drawing())
            lines += (f"    {said}" for said in (_state(operator), operator.guarantee) if said)
    return "\n".join(lines) + "\n"


def _edge(edge: JobEdge) -> str:
    by = f" by {', '.join(edge.link.keys)}" if edge.link.keys else ""
    crossing = ", ".join(column["name"] for column in edge.schema)
    return f"{edge.vertex} {edge.ship}{by}{rows_of(edge.link)}: {crossing}{' (combined)' if edge.combined else ''}"


def _state(operator: JobOperator) -> str:
    """What must agree on restore; rows of state by the names of their columns, whose types the schema tells."""
    if not operator.state or operator.verb in ("read", "write", PUBLISH):
        return ""

    def short(value: Any) -> Any:
        if isinstance(value, list) and value and all(isinstance(each, dict) and "name" in each for each in value):
            return ", ".join(each["name"] for each in value)
        return [short(each) for each in value] if isinstance(value, list) else value

    return "state " + json.dumps({name: short(value) for name, value in json.loads(operator.state).items()})


def _node(node: Node) -> str:
    inputs = ", ".join(each.id for each in node.inputs)
    same = bool(node.inputs) and node.schema == node.inputs[0].schema
    said = [f"{node.operator_id}({inputs}): {'its columns' if same else node.schema}", node.mode]
    if node.keys:
        said.append(f"keyed by {', '.join(node.keys)}")
    if node.updates and (keys := known_keys(node)) is not None:
        said.append(f"replaces by {', '.join(keys)}")
    if node.event_time:
        said.append("event time")
    if node.traits.arrival:
        said.append(f"arrival decides {node.traits.arrival}")
    return "; ".join(said)


def written(group: Path) -> str:
    """The text of a group, as its file holds it."""
    return "\n".join(map(rendered, expressions(group)))


def traits() -> str:
    """The traits of all operations in these plans that are not those of mere structure, each kind once."""
    every = (node for group in GROUPS for expression in expressions(group) for node in plan_of(expression))
    return "\n".join(sorted({f"{node.verb}: {_traits(node.traits)}" for node in every})) + "\n"


def _traits(traits: Traits) -> str:
    plain = structure()
    shown = [each.name for each in fields(Traits) if each.name != "arrival"]  # which stands in the plans
    return ", ".join(
        f"{name}={sorted(value) if isinstance(value, frozenset) else value!r}"
        for name in shown
        if (value := getattr(traits, name)) != getattr(plain, name)
    )


if __name__ == "__main__":
    for group in GROUPS:
        group.write_text(written(group))
    TRAITS.write_text(traits())
