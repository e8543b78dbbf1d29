"""From the logical plan to the job graph: which operators are chained into one vertex, and which edges cross the log.

The job graph is JSON: structure, schemas, settings and signatures, never code. A worker imports the pipeline file again
and finds the functions, sources and sinks by the operators' node ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from itertools import pairwise, product
from typing import Any, Final, Literal

import msgspec

from penstock.connectors.base import PublishedSink
from penstock.core.names import wrong_name
from penstock.errors import PipelineError
from penstock.plan.logical import LogicalPlan, Node, ancestors, sources_of
from penstock.plan.operations.as_ import As
from penstock.plan.operations.dead_letters import DeadLetters
from penstock.plan.operations.key_by import KeyBy
from penstock.plan.operations.read import Read
from penstock.plan.operations.side import Side
from penstock.plan.operations.union import Union
from penstock.plan.operations.write import Write
from penstock.plan.passes.reading import Consumers
from penstock.plan.signatures import describe_node, state_signature
from penstock.plan.traits import Mode
from penstock.types import schema_to_json

FORMAT_VERSION = 1

Ship = Literal["forward", "hash", "rebalance", "broadcast"]
"""`forward`: subtask i to subtask i only; `hash`: by key group; `rebalance`: round robin by batch, but all updates and
changes of a subtask to one, so that they stay in order; `broadcast`: every row to every subtask."""

PUBLISH: Final = "publish"
"""Verb of the operator that publishes exactly once, behind `ENCODE`: an exchange, alone in its vertex, or the splits of
the source of its vertex, at the end of the chain."""
ENCODE: Final = "encode"
SINK_VERBS: Final = ("write", PUBLISH)

DEFAULT_SLOT_GROUP = "default"
DEAD_LETTERS_TAG = "__dead_letters"


class Link(msgspec.Struct, frozen=True):
    """Rows of operator `source` (of its side output `tag`, if named) go to another operator."""

    source: str
    tag: str | None = None
    keys: tuple[str, ...] = ()
    mode: Mode = "append"
    """What the rows are. Records that an encoder has made of them are facts."""


class JobOperator(msgspec.Struct, frozen=True):
    """One operator of a chain."""

    node: str
    id: str
    verb: str
    inputs: tuple[Link, ...]
    """Chained inputs; empty at the head of a vertex."""
    schema: list[dict[str, Any]]
    event_time: bool
    settings: dict[str, Any]
    state: str
    """What its state looks like, as text that must agree on restore; empty if it keeps none."""
    guarantee: str = ""
    """Sinks: what the result promises, with the reason where it is less than exactly-once."""


class JobEdge(msgspec.Struct, frozen=True):
    """An input of a vertex: an exchange from another vertex."""

    vertex: str
    link: Link
    ship: Ship
    schema: list[dict[str, Any]]
    event_time: bool
    combined: bool = False
    """Whether rows may be aggregated in part before they cross (`penstock.task.combining`)."""
    input: int = 0
    """Which input of the vertex's first operator it belongs to: several edges are one input of a union."""


class JobVertex(msgspec.Struct, frozen=True):
    """Operators that run chained in one subtask."""

    id: str
    name: str
    parallelism: int
    max_parallelism: int
    slot_group: str
    operators: tuple[JobOperator, ...]
    inputs: tuple[JobEdge, ...] = ()

    @property
    def is_source(self) -> bool:
        """Whether the chain begins with a source."""
        return self.operators[0].verb == "read"

    @property
    def has_sink(self) -> bool:
        """Whether the chain ends in a sink somewhere."""
        return any(operator.verb in SINK_VERBS for operator in self.operators)

    @property
    def publishes(self) -> bool:
        """Whether it publishes its exchange exactly once."""
        return self.operators[0].verb == PUBLISH

    @property
    def publishes_splits(self) -> bool:
        """Whether it publishes what its source reads, by the positions of its splits."""
        return self.is_source and self.operators[-1].verb == PUBLISH

    @property
    def delivers(self) -> bool:
        """Whether it publishes exactly once, in either way: it may wait for the sink's system."""
        return self.publishes or self.publishes_splits


class JobGraph(msgspec.Struct, frozen=True):
    """A job at one parallelism."""

    name: str
    parallelism: int
    max_parallelism: int
    vertices: tuple[JobVertex, ...]
    version: int = FORMAT_VERSION

    @property
    def shows_what_is_covered(self) -> bool:
        """Whether no sink shows a row before a checkpoint covers it."""
        if any(vertex.publishes_splits for vertex in self.vertices):
            return False
        said = {operator.guarantee for vertex in self.vertices for operator in vertex.operators if operator.guarantee}
        return said == {"exactly-once"}

    def vertex(self, vertex_id: str) -> JobVertex:
        """The vertex with that id."""
        return next(vertex for vertex in self.vertices if vertex.id == vertex_id)

    def consumers(self, vertex_id: str) -> Iterator[tuple[JobVertex, int, JobEdge]]:
        """Vertices that read from this one, with the number of the input."""
        for vertex in self.vertices:
            for index, edge in enumerate(vertex.inputs):
                if edge.vertex == vertex_id:
                    yield vertex, index, edge

    def operators(self) -> Iterator[JobOperator]:
        """All operators."""
        for vertex in self.vertices:
            yield from vertex.operators

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return msgspec.to_builtins(self)


def published_by_splits(graph: Mapping[str, Any]) -> frozenset[str]:
    """The sink operators of a graph in JSON that publish by the positions of their source's splits.

    Of the JSON, because what a former version has left is asked for them, too.
    """
    chains = [vertex["operators"] for vertex in graph.get("vertices", ())]
    return frozenset(chain[-1]["id"] for chain in chains if chain[0]["verb"] == "read" and chain[-1]["verb"] == PUBLISH)


def graph_from_json(value: Any) -> JobGraph:
    """The inverse of `JobGraph.to_json`."""
    return msgspec.convert(value, JobGraph)


def wrong_names(name: str, graph: JobGraph) -> str:
    """Which name of a job, its vertices or operators is none, and why; empty if all are some."""
    names = [("name", name), ("graph name", graph.name)]
    for vertex in graph.vertices:
        names += [("vertex", vertex.id), *(("operator", operator.id) for operator in vertex.operators)]
    found = next(((what, each, why) for what, each in names if (why := wrong_name(each))), None)
    return "" if found is None else f"{found[0]} {found[1]!a} is no name: {found[2]}"


def build_job_graph(
    plan: LogicalPlan,
    parallelism: int,
    *,
    at_least_once: bool = False,
    chain_state: bool = True,
    publish: bool = True,
    combine: bool = True,
    by_splits: bool = False,
) -> JobGraph:
    """Cut the plan into vertices.

    Args:
        plan: what the user wrote.
        parallelism: subtasks of operators that do not say how many they want.
        at_least_once: whether barriers are not aligned.
        chain_state: whether operators that keep state may be chained. If not, each is the head of its vertex and every
            keyed edge is an exchange, also at parallelism 1: what a batch engine needs to sort its input.
        publish: whether exactly-once sinks publish from an exchange of their own. If not, they are written like any
            other sink: a batch engine publishes what its tasks staged when all of them have ended.
        combine: whether rows are aggregated in part before a keyed exchange, where that changes nothing.
        by_splits: whether an exactly-once sink that asks for it publishes by the positions of its source's splits,
            without exchange and checkpoint. Not for a job whose graph may change while it goes on.

    Raises:
        PipelineError: nothing is written, a sink cannot publish directly, an operator's parallelism exceeds its key
            groups, or nothing can come of it.
    """
    return _Builder(plan, parallelism, at_least_once, chain_state, publish, combine, by_splits).build()


class _Builder:
    def __init__(
        self,
        plan: LogicalPlan,
        parallelism: int,
        at_least_once: bool,
        chain_state: bool,
        publish: bool,
        combine: bool,
        by_splits: bool,
    ) -> None:
        self._by_splits = by_splits
        self._plan = plan
        self._consumers = Consumers(plan)
        self._parallelism = parallelism
        self._at_least_once = at_least_once
        self._chain_state = chain_state
        self._publish = publish
        self._combine = combine
        self._needed = _needed_nodes(plan)
        self._physical = [n for n in plan if n in self._needed and n.traits.role != "structure"]
        self._max_parallelism = plan.max_parallelism
        self._inputs = {node: tuple(_links(node)) for node in self._physical}
        self._links = {node: tuple(link for _, link in inputs) for node, inputs in self._inputs.items()}
        self._vertex_of: dict[Node, Node] = {}
        """Operator to the head of its chain."""
        self._direct = frozenset[Node]()
        """Sinks that publish the splits of the source at the head of their chain."""

    def build(self) -> JobGraph:
        for node in self._physical:
            self._vertex_of[node] = self._head(node)
        self._direct = frozenset(node for node in self._physical if self._is_direct(node))
        heads = [node for node in self._physical if self._vertex_of[node] is node]
        names = {head: f"v{index}" for index, head in enumerate(heads)}
        vertices = [self._vertex(head, names) for head in heads]
        for node in self._physical:
            if self._is_published(node) and node not in self._direct:
                vertices.append(self._publishing(node, vertices, names))
        return JobGraph(self._plan.name, self._parallelism, self._max_parallelism, tuple(vertices))

    def _head(self, node: Node) -> Node:
        links = self._links[node]
        if len(links) != 1:
            return node
        producer, link = links[0]
        chained = (
            node.chainable
            and producer.chainable
            # Its watermarks are not those of the vertex, which a snapshot keeps for the state of all its operators.
            and producer.traits.watermarks != "own"
            and self._parallelism_of(producer) == self._parallelism_of(node)
            and self._slot_group(producer) == self._slot_group(node)
            and (not link.keys or (self._chain_state and self._parallelism_of(node) == 1))
            and (self._chain_state or not node.traits.keeps_state)
            and not (node.traits.knows_time and self._holds_time_back(producer))
        )
        return self._vertex_of[producer] if chained else node

    def _holds_time_back(self, producer: Node) -> bool:
        """Whether event time is held back somewhere on the way from the head of the producer's vertex to behind it."""
        while producer.traits.watermarks != "held_back":
            if self._vertex_of[producer] is producer:
                return False
            producer = self._links[producer][0][0]
        return True

    def _parallelism_of(self, node: Node) -> int:
        return node.parallelism or self._parallelism

    def _slot_group(self, node: Node) -> str:
        """An operator shares slots with its first input unless it says otherwise, as in Flink."""
        while node.slot_group is None and self._links[node]:
            node = self._links[node][0][0]
        return DEFAULT_SLOT_GROUP if node.slot_group is None else node.slot_group

    def _vertex(self, head: Node, names: dict[Node, str]) -> JobVertex:
        chain = [node for node in self._physical if self._vertex_of[node] is head]
        parallelism = self._parallelism_of(head)
        max_parallelism = self._max_parallelism
        if parallelism > max_parallelism:
            raise PipelineError(
                f"parallelism {parallelism} of {chain[0].verb} exceeds the {max_parallelism} key groups; "
                "raise max_parallelism or lower the parallelism"
            )
        edges = tuple(
            self._edge(number, link, producer, head, names) for number, (producer, link) in self._inputs[head]
        )
        operators = tuple(self._operator(node, chained=node is not head) for node in chain)
        if chain[-1] in self._direct:
            operators += (self._publisher(chain[-1], (Link(chain[-1].id),)),)
        name = " -> ".join(node.uid or self._verb(node) for node in chain)
        return JobVertex(names[head], name, parallelism, max_parallelism, self._slot_group(head), operators, edges)

    def _verb(self, node: Node) -> str:
        if node in self._direct:
            return PUBLISH
        return ENCODE if self._is_published(node) else node.verb

    def _is_published(self, node: Node) -> bool:
        operation = node.operation
        return (
            isinstance(operation, Write)
            and isinstance(operation.sink, PublishedSink)
            and operation.sink.guarantee == "exactly-once"
            and self._publish
            and not self._at_least_once
        )

    def _is_direct(self, node: Node) -> bool:
        """Whether a sink publishes by the positions of its source's splits.

        Raises:
            PipelineError: it is to, and cannot.
        """
        if not (self._by_splits and self._is_published(node) and _wants_direct(node)):
            return False
        if not self._is_straight(node):
            raise PipelineError(
                f"sink {node.operator_id!r} is to publish directly, and has to wait for checkpoints: rows must come from "
                "one kafka.Source that nothing else reads, through filters, columns and functions without state, all "
                "with the parallelism of the job; leave publish= out, or give it a source of its own"
            )
        return True

    def _is_straight(self, node: Node) -> bool:
        """Whether rows come straight from a source that can be read again, split by split, and what becomes of a row
        depends on no other one and waits for nothing."""
        way = [other for other in self._physical if self._vertex_of[other] is self._vertex_of[node]]
        read, *between = way[:-1] or way
        return (
            node is way[-1]
            and isinstance(read.operation, Read)
            and read.operation.source.has_numbered_splits
            and read.operation.source.replayable
            and all([producer for producer, _ in self._links[after]] == [before] for before, after in pairwise(way))
            and all(link.tag is None for other in way for _, link in self._links[other])
            and not any(other.traits.keeps_state or other.traits.knows_time for other in between)
            and not any(
                producer in way and other not in way for other in self._physical for producer, _ in self._links[other]
            )
        )

    def _publisher(self, node: Node, inputs: tuple[Link, ...] = ()) -> JobOperator:
        operation = node.operation
        assert isinstance(operation, Write)
        assert isinstance(operation.sink, PublishedSink)
        return JobOperator(
            node=node.id,
            id=node.operator_id,
            verb=PUBLISH,
            inputs=inputs,
            schema=schema_to_json(operation.sink.encoded_schema(node.schema)),
            event_time=False,
            settings=describe_node(node),
            state=state_signature(node),
            guarantee=self._guarantee(node),
        )

    def _publishing(self, node: Node, vertices: list[JobVertex], names: dict[Node, str]) -> JobVertex:
        """The vertex behind the encoded rows: its exchange has one writer per partition and is the write-ahead log."""
        operation = node.operation
        assert isinstance(operation, Write)
        assert isinstance(operation.sink, PublishedSink)
        name = names[self._vertex_of[node]]
        encoding = next(vertex for vertex in vertices if vertex.id == name)
        operator = self._publisher(node)
        edge = JobEdge(name, Link(node.id), "forward", operator.schema, event_time=False)
        return msgspec.structs.replace(
            encoding,
            id=f"v{len(vertices)}",
            name=f"{PUBLISH} {node.uid or operation.sink.kind}",
            operators=(operator,),
            inputs=(edge,),
        )

    def _edge(self, number: int, link: Link, producer: Node, consumer: Node, names: dict[Node, str]) -> JobEdge:
        """Only what the consumer reads crosses the log: bytes are most of what an exchange costs."""
        schema, event_time = _link_schema(producer, link, self._plan)
        read = self._consumers.read_by(consumer)
        if read is not None:
            schema = [column for column in schema if column["name"] in read]
        ship: Ship = "broadcast" if number in consumer.traits.broadcast_inputs else "hash" if link.keys else "rebalance"
        combined = bool(link.keys) and self._combine and consumer.traits.combinable
        return JobEdge(names[self._vertex_of[producer]], link, ship, schema, event_time, combined, number)

    def _operator(self, node: Node, *, chained: bool) -> JobOperator:
        if self._is_published(node):
            return self._encoding(node, chained=chained)
        return JobOperator(
            node=node.id,
            id=node.operator_id,
            verb=node.verb,
            inputs=tuple(link for _, link in self._links[node]) if chained else (),
            schema=schema_to_json(node.schema),
            event_time=node.event_time,
            settings=describe_node(node),
            state=state_signature(node),
            guarantee=self._guarantee(node) if isinstance(node.operation, Write) else "",
        )

    def _encoding(self, node: Node, *, chained: bool) -> JobOperator:
        operation = node.operation
        assert isinstance(operation, Write)
        assert isinstance(operation.sink, PublishedSink)
        return JobOperator(
            node=node.id,
            id=f"{node.operator_id}-{ENCODE}",
            verb=ENCODE,
            inputs=tuple(link for _, link in self._links[node]) if chained else (),
            schema=schema_to_json(operation.sink.encoded_schema(node.schema)),
            event_time=False,
            settings={"sink": operation.sink.kind, **_dead_letters(operation.sink)},
            state="",
        )

    def _guarantee(self, node: Node) -> str:
        operation = node.operation
        assert isinstance(operation, Write)
        sink = operation.sink
        unreplayable = next((source for _, source in sources_of(node) if not source.replayable), None)
        if sink.guarantee != "exactly-once":
            return f"{sink.guarantee}: the {sink.kind} sink cannot do better"
        if unreplayable is not None:
            return (
                f"at-least-once: the {unreplayable.kind} source cannot be read again after a failure (rows may be lost)"
            )
        if self._at_least_once:
            return "at-least-once: barriers are not aligned in this mode"
        return "exactly-once"


def _wants_direct(node: Node) -> bool:
    """Whether a sink says that it is not to wait for checkpoints."""
    operation = node.operation
    return (
        isinstance(operation, Write) and isinstance(operation.sink, PublishedSink) and operation.sink.publishes_directly
    )


def _needed_nodes(plan: LogicalPlan) -> set[Node]:
    writes = [node for node in plan if isinstance(node.operation, Write)]
    if not writes:
        raise PipelineError(f"pipeline {plan.name!r} writes nothing; end a stream with .write(sink)")
    needed: set[Node] = set(writes)
    for node in writes:
        needed.update(ancestors(node))
    _check_conflicts(needed)
    return needed


def _check_conflicts(nodes: Set[Node]) -> None:
    sources = [node.operation.source for node in nodes if isinstance(node.operation, Read)]
    sinks = [node.operation.sink for node in nodes if isinstance(node.operation, Write)]
    for source, sink in product(sources, sinks):
        if conflict := source.conflict(sink):
            raise PipelineError(conflict)


def _dead_letters(sink: PublishedSink) -> Mapping[str, Any]:
    """Where rows go that the encoder does not take, if anywhere: it counts them, so it says that."""
    return {name: value for name, value in sink.describe().items() if name == "dead_letters"}


def _links(node: Node) -> Iterator[tuple[int, tuple[Node, Link]]]:
    """By number of the input: the operators whose rows reach this one, seen through nodes that are only structure."""
    for number, upstream in enumerate(node.inputs):
        for link in _resolve(upstream):
            yield number, link


def _resolve(node: Node) -> Iterator[tuple[Node, Link]]:
    match node.operation:
        case As():
            yield from _resolve(node.inputs[0])
        case Union():
            for upstream in node.inputs:
                yield from _resolve(upstream)
        case KeyBy():
            for producer, link in _resolve(node.inputs[0]):
                yield producer, msgspec.structs.replace(link, keys=node.keys)
        case Side(tag=tag):
            yield _producer_of(node.inputs[0]), Link(_producer_of(node.inputs[0]).id, tag.name)
        case DeadLetters():
            yield node.inputs[0], Link(node.inputs[0].id, DEAD_LETTERS_TAG)
        case _:
            yield node, Link(node.id, mode=node.mode)


def _producer_of(node: Node) -> Node:
    """The operator behind a stream whose side output is read (`as_` in between changes nothing)."""
    return _producer_of(node.inputs[0]) if isinstance(node.operation, As) else node


def _link_schema(producer: Node, link: Link, plan: LogicalPlan) -> tuple[list[dict[str, Any]], bool]:
    """Schema and event time of the rows of a link."""
    if link.tag is None:
        return schema_to_json(producer.schema), producer.event_time
    if link.tag == DEAD_LETTERS_TAG:
        node = next(n for n in plan if isinstance(n.operation, DeadLetters) and n.inputs[0] is producer)
        return schema_to_json(node.schema), False
    return schema_to_json(producer.sides[link.tag]), producer.event_time


def fingerprint(graph: JobGraph) -> str:
    """Text that differs exactly when two graphs differ."""
    return json.dumps(graph.to_json(), sort_keys=True)
