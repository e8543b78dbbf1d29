"""Functions of users: which rows they take and give, and the nodes that call them."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from penstock.errors import PipelineError
from penstock.functions.process_functions import (
    BroadcastProcess,
    KeyedBroadcastProcess,
    KeyedCoProcess,
    KeyedProcess,
    OutputTag,
    Process,
    check_process,
    input_methods,
    process_types,
)
from penstock.observability.user_frames import place_of
from penstock.plan.building.process_checks import check_methods
from penstock.plan.building.rows import Rows
from penstock.plan.logical import Node
from penstock.plan.operations.process_rows import ProcessRows
from penstock.plan.operations.side import Side
from penstock.plan.operations.window_rows import WindowRows
from penstock.types import is_row_class, row_class, schema_of


def process(rows: Rows, process: Process[Any, Any] | KeyedProcess[Any, Any]) -> Rows:
    """A process function of one stream, with a key or without.

    Raises:
        PipelineError: it does not fit the rows, or a method of it cannot work.
    """
    check_process(process)
    check_methods(process, event_time=rows.node.event_time)
    taken, given = process_types(process)
    check_row_type(rows.node, taken, f"process: {type(process).__name__}")
    return rows.derive(ProcessRows(process), schema_of(given, "process"), given)


def process_two(
    left: Rows,
    right: Rows,
    process: KeyedCoProcess[Any, Any, Any] | BroadcastProcess[Any, Any, Any] | KeyedBroadcastProcess[Any, Any, Any],
) -> Rows:
    """A process function of two connected streams.

    Raises:
        PipelineError: it does not fit the rows, or a method of it cannot work.
    """
    check_process(process)
    check_methods(process, event_time=left.node.event_time)
    *taken, given = process_types(process)
    for rows, row_type, method in zip((left, right), taken, input_methods(process), strict=True):
        check_row_type(rows.node, row_type, f"process: {method} of {type(process).__name__}")
    made = left.plan.add(
        ProcessRows(process), (left.node, right.node), schema_of(given, "process"), given,
        event_time=left.node.event_time,
    )  # fmt: skip
    return left.of(made)


def side(rows: Rows, tag: OutputTag[Any], instead: Callable[[], str]) -> Rows:
    """The side output `tag` of the operator behind these rows; `instead` says what to write if it has none."""
    node = rows.node
    declared = node.sides.get(tag.name)
    if declared is None and not isinstance(node.operation, ProcessRows | WindowRows):
        raise PipelineError(f"side: {node.verb} has no side output {tag.name!r}; {instead()}")
    if declared is None:
        if tag.row_type is None:
            raise PipelineError(f"side: say what rows {tag.name!r} carries: OutputTag({tag.name!r}, MyRow)")
        declared = schema_of(tag.row_type, f"OutputTag({tag.name!r})")
        node.sides = {**node.sides, tag.name: declared}
    return rows.derive(Side(tag), declared, tag.row_type or row_class(declared))


def check_connected(left: Rows, right: Rows) -> None:
    """Two streams with a key can be connected.

    Raises:
        PipelineError: they are of different pipelines, their keys are of unlike types, or one only has event time.
    """
    check_together(left, right)
    kinds = [[rows.node.schema.field(key).type for key in rows.node.keys] for rows in (left, right)]
    if kinds[0] != kinds[1]:
        shown = [
            ", ".join(f"{key}: {kind}" for key, kind in zip(rows.node.keys, of, strict=True))
            for rows, of in zip((left, right), kinds, strict=True)
        ]
        raise PipelineError(
            f"connect: this stream is keyed by {shown[0]}, the other one by {shown[1]}; keys must have the same types in "
            "the same order"
        )


def check_together(left: Rows, right: Rows) -> None:
    """A function can see the rows of both streams.

    Raises:
        PipelineError: they are of different pipelines, or one only has event time.
    """
    if left.plan is not right.plan:
        raise PipelineError("connect: the other stream is of another pipeline; read both in one")
    if left.node.event_time != right.node.event_time:
        raise PipelineError(
            "connect: one stream has event time and the other has none; say event_time='column' at its source, or "
            "with_event_time(...) or with_processing_time() before key_by or broadcast"
        )


def check_row_type(node: Node, taken: type[Any], what: str) -> None:
    """The stream has the columns of the rows that the class `what` takes."""
    for field in schema_of(taken, what):
        have = node.schema.field(field.name, f"{what} takes {taken.__name__}, but")
        if have.type != field.type:
            raise PipelineError(
                f"{what} takes {taken.__name__}.{field.name} as {field.type}, the stream has {have.type}"
            )


def returned_class(function: Callable[..., Any], returns: type[Any] | None, verb: str, *, many: bool) -> type[Any]:
    """The row class a function returns: `returns`, or its annotation."""
    row_type: Any = returns
    name = getattr(function, "__qualname__", repr(function))
    where = f" ({place})" if (place := place_of(function)) else ""
    if row_type is None:
        target = function if hasattr(function, "__annotations__") else type(function).__call__
        try:
            row_type = typing.get_type_hints(target).get("return")
        except NameError as error:
            raise PipelineError(f"{verb}: the annotation of {name} cannot be resolved: {error}{where}") from error
        if many and row_type is not None:
            arguments = typing.get_args(row_type)
            row_type = arguments[0] if arguments else None
    if isinstance(row_type, type) and row_type is not type(None) and not is_row_class(row_type):
        raise PipelineError(
            f"{verb}: {name} returns {row_type.__name__}, which is no class of rows; return a dataclass or Struct "
            f"that has a field for it{where}"
        )
    if row_type is None or not is_row_class(row_type):
        shape = "Iterable[Output]" if many else "Output"
        raise PipelineError(
            f"{verb}: {name} does not say what rows it returns; annotate it '-> {shape}' with a dataclass or Struct, "
            f"or pass returns=Output{where}"
        )
    return row_type
