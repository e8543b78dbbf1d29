"""The logical plan: what the user wrote, checked and typed, before it is cut into vertices.

A `Node` is an operation applied to the rows of its inputs, with the settings that users give it. Nodes are made by
`penstock.plan.building`, read by `penstock.graph.jobgraph` (structure) and `penstock.task.operators` (behaviour).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.errors import PipelineError
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.operation import Operation, UpsertKey
from penstock.plan.operations.read import Read
from penstock.plan.operations.write import Write
from penstock.plan.traits import Mode, Traits
from penstock.protocol.keygroups import DEFAULT_MAX_PARALLELISM
from penstock.types import Schema

if TYPE_CHECKING:
    from penstock.connectors.base import Source


@dataclass(eq=False, repr=False)
class Node:
    """One verb of a pipeline. `id` numbers the nodes in the order in which the file made them (`n0`, `n1`, ...)."""

    id: str
    operation: Operation
    inputs: tuple[Node, ...]
    schema: Schema
    """Columns of the output."""
    row_type: type[Any]
    """The class whose instances Python functions get for rows of the output; the user's, or one that was made."""
    event_time: bool
    """Whether output rows have an event time."""
    keys: tuple[str, ...] = ()
    """Key columns if the output is keyed."""
    mode: Mode = "append"
    uid: str | None = None
    parallelism: int | None = None
    slot_group: str | None = None
    chainable: bool = True
    sides: Mapping[str, Schema] = field(default_factory=dict[str, Schema])
    """Schema per side output tag that this node may emit to."""

    def __repr__(self) -> str:
        inputs = f" <- {', '.join(each.id for each in self.inputs)}" if self.inputs else ""
        return f"{self.id} {self.verb}{inputs}: {self.schema}"

    @property
    def row_schema(self) -> Schema:
        """The columns of rows, without the one that says of changes what they do."""
        return Schema(tuple(field for field in self.schema if self.mode != "retract" or field.name != RETRACTED))

    @property
    def updates(self) -> bool:
        """Whether a row may make an earlier one no longer true."""
        return self.mode != "append"

    @cached_property
    def traits(self) -> Traits:
        """What passes and engines rely on."""
        return self.operation.traits(self)

    @property
    def verb(self) -> str:
        """The verb as the user knows it."""
        return self.operation.verb

    def upsert_key(self, verb: str) -> UpsertKey:
        """By which columns its rows replace earlier ones; see `Operation.upsert_key`."""
        return self.operation.upsert_key(self, verb)

    @property
    def operator_id(self) -> str:
        """What identifies the operator's state: the user's uid, else a name derived from structure."""
        return self.uid or f"{self.id}-{self.verb}"


def ancestors(node: Node) -> Iterator[Node]:
    """All that the node is made from, each once, in the order in which the paths from the node come to them."""
    yield from reached(node.inputs, lambda each: each.inputs)


def sources_of(node: Node) -> Iterator[tuple[Node, Source[Any]]]:
    """The sources of which a node's rows are made, each with the node that reads it; that may be the node itself."""
    for each in (node, *ancestors(node)):
        if isinstance(each.operation, Read):
            yield each, each.operation.source


def reached(nodes: Sequence[Node], further: Callable[[Node], Sequence[Node]]) -> Iterator[Node]:
    """These nodes and all to which `further` leads from them, each once, as the paths come to them.

    Without recursion: plans may have thousands of nodes, and paths without number.
    """
    seen = set[Node]()
    waiting = [*reversed(nodes)]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting += reversed(further(node))


@dataclass(eq=False, repr=False)
class LogicalPlan:
    """All nodes of a pipeline in the order they were made; every `Write` is an end."""

    name: str
    nodes: list[Node] = field(default_factory=list[Node])
    max_parallelism: int = DEFAULT_MAX_PARALLELISM
    """The number of key groups."""
    watermark_interval_us: int = 0
    """How much time a subtask leaves at least between two watermarks that it sends while rows flow."""
    state_ttl_us: int | None = None
    """How long state is kept after it was last written, by operations whose verb does not say it; None: for ever."""
    looking: frozenset[str] = frozenset()
    """Ids of nodes, beside process functions, in front of which every row is to tell how far event time has come."""

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __repr__(self) -> str:
        return "\n".join([f"plan of {self.name!r}", *(f"  {node!r}" for node in self.nodes)])

    if not TYPE_CHECKING:

        def __call__(self) -> NoReturn:
            """Others have a method `plan()`."""
            raise PipelineError("plan: is no method; penstock plan FILE shows what a pipeline becomes")

    def add(
        self,
        operation: Operation,
        inputs: tuple[Node, ...],
        schema: Schema,
        row_type: type[Any],
        *,
        event_time: bool,
        keys: tuple[str, ...] = (),
        mode: Mode = "append",
    ) -> Node:
        """A new node, whose arguments are the fields of `Node`."""
        node = Node(f"n{len(self.nodes)}", operation, inputs, schema, row_type, event_time, keys, mode)
        self.nodes.append(node)
        return node

    def node(self, node_id: str) -> Node:
        """The node with that id."""
        return next(node for node in self.nodes if node.id == node_id)

    @property
    def is_bounded(self) -> bool:
        """Whether all its sources come to an end."""
        return all(node.operation.source.bounded for node in self if isinstance(node.operation, Read))

    def carries_watermarks(self, node: Node) -> bool:
        """Whether every row that this node hands on tells how far event time has come: a function behind it looks.

        Windows, running aggregates and the like have rows of their own, with their own times: what is before them need
        not know.
        """
        return node.id in self.leading_to(lambda each: each.traits.reads_watermarks or each.id in self.looking)

    def leading_to(self, wanted: Callable[[Node], bool]) -> set[str]:
        """Ids of the nodes whose rows, in their own event time, come to a node that is wanted."""
        leading: set[str] = set()
        for consumer in reversed(self.nodes):
            if wanted(consumer) or (consumer.id in leading and consumer.traits.row_times != "new"):
                leading.update(each.id for each in consumer.inputs if each.event_time)
        return leading

    @property
    def window_reach_us(self) -> int:
        """How far the bounds of windows may be from a row of them, of all windows of the plan one behind the other."""
        return sum(node.traits.reach_us for node in self.nodes)

    def watermark_lag_us(self, node: Node) -> int:
        """How far event time stays behind the newest row that this node hands on; windows hand on what is over."""
        own = reached([node], lambda each: each.inputs if each.traits.watermark_lag_us is None else ())
        return max((each.traits.watermark_lag_us or 0 for each in own), default=0)

    def comes_in_order(self, node: Node) -> bool:
        """Whether the sources of these rows say that they come in order of event time, split by split."""
        own = reached([node], lambda each: each.inputs if each.traits.in_order is None else ())
        return all(each.traits.in_order is not False for each in own)

    def ending_in(self, node: Node, write: Write, *, chainable: bool = True) -> LogicalPlan:
        """What a node is made by, with a sink behind it."""
        above = {node, *ancestors(node)}
        end = Node(
            id="collected", operation=write, inputs=(node,), schema=node.schema, row_type=node.row_type,
            event_time=node.event_time, keys=node.keys, mode=node.mode, chainable=chainable,
        )  # fmt: skip
        return replace(self, nodes=[*(each for each in self if each in above), end])

    def by_operator(self, operator_id: str) -> Node | None:
        """The node whose operator has this id, whatever else of the pipeline has changed; None if there is none."""
        return next((node for node in self.nodes if node.operator_id == operator_id), None)
