"""Which stages Spark's own plan computes, and why the others replay the streaming operators.

A window aggregate falls into three parts. Its producers make partials of their rows, as streaming does; Spark merges the
partials of a key and window (`groupBy`); and the results of merged partials are made by the streaming expressions again.
So what must be proven equal is the merging alone, and the catalogue of aggregates says for which types it is; expressions
within and around aggregates, filters and projections may be any. All of it needs what every window of bounded, sorted
input has: no late rows, unless the pipeline reads them, so that no result is sent again; and nothing to restore or keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.expressions.aggregate_rules import BY_NAME
from penstock.functions.windows.definitions import CumulativeWindow, SessionWindow
from penstock.functions.windows.shape import WindowShape
from penstock.graph.jobgraph import JobGraph, JobVertex
from penstock.plan.logical import LogicalPlan, Node
from penstock.plan.operations.window_aggregate import WindowAggregate
from penstock.spark.late_rows import late_rows_read
from penstock.task.operators.partials import Partials
from penstock.types import (
    BOOLEAN,
    DATE,
    DECIMAL,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    TIMESTAMP,
    UINT8,
    UINT16,
    UINT32,
    DataType,
    Field,
    Schema,
    family,
)

KEYS: Final[frozenset[DataType]] = frozenset(
    {STRING, BOOLEAN, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, TIMESTAMP, DATE, DECIMAL}
)
"""Families of types of keys that Spark groups as streaming does: null is a key like any other, equal is what is
identical."""


@dataclass(frozen=True)
class NativeWindow:
    """A window aggregate at the head of a stage that Spark computes; plain values, because it travels in closures."""

    node: str
    operator: str
    """Id of the node's operator."""
    keys: int
    """How many of the columns are keys."""
    shape: WindowShape
    schema: Schema
    """The columns of a partial as they travel, by number: the keys, the start of the pane or window, the partials."""
    merges: tuple[str, ...]
    """Of every partial: the Spark expression that merges it, `{}` being the column."""


@dataclass(frozen=True)
class Replayed:
    """A stage that runs the streaming operators."""

    reason: str


Way = NativeWindow | Replayed


def ways(graph: JobGraph, plan: LogicalPlan, *, native: bool, stateful: bool = False) -> dict[str, Way]:
    """Vertex to how it is computed.

    Args:
        graph: in the form that Spark runs.
        plan: what it was built from.
        native: whether Spark's own plan is wanted where it can be.
        stateful: whether the run starts from a savepoint or leaves one.
    """
    return {vertex.id: _way(graph, vertex, plan, native, stateful) for vertex in graph.vertices}


def native_windows(found: dict[str, Way]) -> dict[str, NativeWindow]:
    """The vertices among them that Spark computes."""
    return {vertex: way for vertex, way in found.items() if isinstance(way, NativeWindow)}


def _way(graph: JobGraph, vertex: JobVertex, plan: LogicalPlan, native: bool, stateful: bool) -> Way:
    if vertex.is_source and not any(graph.consumers(vertex.id)):
        return Replayed(
            "its source is read by Penstock's reader, and no row leaves its task: there is nothing to merge"
        )
    if vertex.is_source:
        return Replayed("its source is read by Penstock's reader, row for row as in streaming")
    head = plan.node(vertex.operators[0].node)
    operation = head.operation
    if not isinstance(operation, WindowAggregate):
        return Replayed("its operators run as they do in streaming; only window aggregates have a native plan")
    if not native:
        return Replayed("Spark's own plan was not wanted (--native off)")
    if stateful:
        return Replayed("the run starts from a savepoint or leaves one, and only the streaming operator has state")
    if isinstance(operation.window, SessionWindow):
        return Replayed("Spark's own plan of a session window is slower")
    if isinstance(operation.window, CumulativeWindow) or operation.window.timezone is not None:
        return Replayed("Spark's own plan knows tumbling and sliding windows in UTC")
    if head.id in late_rows_read(graph, plan):
        return Replayed("the pipeline reads its late rows, which Spark's own plan does not know")
    partials = Partials(head)
    reasons = dict.fromkeys([*_unproven_keys(partials), *_unproven_partials(partials)])
    if reasons:
        return Replayed(f"not proven equal on Spark: {', '.join(reasons)}")
    if any(graph.consumers(vertex.id)) and _adds_floats(partials):
        # Partials arrive in any order. Were a task run again, another stage might find a row under another key.
        return Replayed(
            "it adds up floats, which may differ in the last bit when a task is run again, for another stage"
        )
    return _native(head, WindowShape.of(operation.window), partials)


def _unproven_keys(partials: Partials) -> Iterator[str]:
    for field in partials.keys:
        if family(field.type) not in KEYS:
            yield f"the key {field.name} of {field.type}"


def _unproven_partials(partials: Partials) -> Iterator[str]:
    for name, field in zip(partials.plan.partials_of, partials.plan.partial_fields, strict=True):
        if family(field.type) not in BY_NAME[name].spark:
            kind = f" of {field.type}" if BY_NAME[name].spark else ""
            yield f"{name}{kind}"


def _adds_floats(partials: Partials) -> bool:
    found = zip(partials.plan.partials_of, partials.plan.partial_fields, strict=True)
    return any(name == "sum" and field.type == FLOAT64 for name, field in found)


def _native(node: Node, shape: WindowShape, partials: Partials) -> NativeWindow:
    fields, names = partials.plan.partial_fields, partials.plan.partials_of
    kinds = [*(key.type for key in partials.keys), INT64, *(field.type for field in fields)]
    return NativeWindow(
        node=node.id,
        operator=node.operator_id,
        keys=len(partials.keys.fields),
        shape=shape,
        schema=Schema(tuple(Field(f"c{number}", kind, nullable=True) for number, kind in enumerate(kinds))),
        merges=tuple(BY_NAME[name].spark[family(field.type)] for name, field in zip(names, fields, strict=True)),
    )
