"""Columns over the current rows of a key, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Final

from penstock.core.times import Duration, duration_us
from penstock.errors import PipelineError
from penstock.expressions import Expr, coalesce, contains_aggregate, over_field, row_field
from penstock.expressions.nodes import Aggregate, without_alias
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.building.grouping_sets import check_grouped
from penstock.plan.building.rows import Rows
from penstock.plan.building.schemas import check_orders
from penstock.plan.logical import Node
from penstock.plan.operations.over_current import OF_NO_ROWS, Frame, OverColumn, OverCurrent, sign
from penstock.types import (
    BOOLEAN,
    DATE,
    DECIMAL,
    DURATION,
    FLOAT64,
    FLOATS,
    INT64,
    INTEGERS,
    TIMESTAMP,
    DataType,
    Field,
    Schema,
    family,
)

_ARGUMENTS: Final = {
    "row_number": 0, "rank": 0, "dense_rank": 0, "ntile": 0, "percent_rank": 0, "cume_dist": 0,
    "lag": 2, "lead": 2, "first_value": 1, "last_value": 1, "nth_value": 1,
}  # fmt: skip
"""How many there may be at most; where there is any, the first one must be there."""


def frame_up_to(within: Duration | float | Decimal | None, rows: int | None) -> Frame | None:
    """The frame of the rows up to each one: those within a distance in the order, so many, or None where neither is said.

    Raises:
        PipelineError: both are given, or one is less than it may be.
    """
    if within is not None and rows is not None:
        raise PipelineError("over: give within= or rows=, not both")
    if rows is not None:
        if rows < 1:
            raise PipelineError(f"over: rows must be 1 or more, this one included; got {rows}")
        return Frame("rows", 1 - rows, 0)
    if within is None:
        return None
    if isinstance(within, str | timedelta):
        within = timedelta(microseconds=duration_us(within, "over: within"))
    if sign(within) < 0:
        raise PipelineError(f"over: within is how far rows may be in front of this one, 0 or more; got {within}")
    return Frame("range", -within, 0)


def over_current(keyed: Rows, columns: Sequence[OverColumn], ttl: Duration | None = None) -> Rows:
    """The current rows of a key with columns that are computed from all of them, as changes.

    Args:
        keyed: facts or changes by key.
        columns: what is computed, each in an order and over a frame of its own.
        ttl: how long the rows of a key are kept after its last change.

    Raises:
        PipelineError: there is no column, one does not fit the columns or is called as one, or a frame does not fit the
            order.
    """
    node = keyed.node
    if not columns:
        raise PipelineError("over: name at least one column")
    fields = [*node.row_schema]
    for column in columns:
        read = [column.function] if isinstance(column.function, Expr) else list(column.args)
        for expr in (*read, *(order.expr for order in column.order)):
            keyed.check_unread("over", {f"{column.name} = {expr}": expr})
            check_grouped(node, "over", {column.name: expr})
        fields.append(_field(column, node))
    names = [field.name for field in fields] + [RETRACTED]
    for column in columns:
        if names.count(column.name) > 1:
            raise PipelineError(f"over: there is a column {column.name!r} already; give the new one another name")
    if names.count(RETRACTED) > 1:
        raise PipelineError(f"over: there is a column {RETRACTED!r} already; rename it before")
    operation = OverCurrent(tuple(columns), keyed.ttl_us(ttl, "over"))
    return keyed.derive(operation, Schema((*fields, Field(RETRACTED, BOOLEAN))), keys=node.keys, mode="retract")


def _field(column: OverColumn, node: Node) -> Field:
    where, schema = f"over: {column.name}", node.row_schema
    if column.order:
        check_orders("over", column.order, schema)
    _check_frame(where, column, schema)
    if isinstance(column.function, Expr):
        if not contains_aggregate(column.function):
            raise PipelineError(f"{where} = {column.function} looks at no other row; write .with_columns(...) before")
        field = over_field(column.function, schema, "over", column.name)
        root = without_alias(column.function.node)
        counts = isinstance(root, Aggregate) and root.function in OF_NO_ROWS
        return Field(field.name, field.type, field.nullable or not (column.rows.has_row or counts))
    _check_arguments(where, column)
    if column.function in ("percent_rank", "cume_dist"):
        return Field(column.name, FLOAT64)
    if not column.args:
        return Field(column.name, INT64)
    value = row_field(column.args[0], schema, "over", column.name)
    if len(column.args) == 1:
        return Field(column.name, value.type, nullable=True)
    other = row_field(column.args[1], schema, "over", column.name)
    both = row_field(coalesce(*column.args), schema, "over", column.name)
    return Field(column.name, both.type, value.nullable or other.nullable)


def _check_arguments(where: str, column: OverColumn) -> None:
    most, least = _ARGUMENTS[str(column.function)], 0 if column.function in ("lag", "lead") else 1
    if len(column.args) > most or (most and not column.args):
        takes = {0: "no arguments", 1: "one argument", 2: "a value, and perhaps what stands where there is no such row"}
        raise PipelineError(f"{where}: {column.function} takes {takes[most]}; got {len(column.args)}")
    if column.number < least:
        raise PipelineError(f"{where}: {column.text} needs a number of {least} or more")


def _check_frame(where: str, column: OverColumn, schema: Schema) -> None:
    frame = column.rows
    offsets = [offset for offset in (frame.start, frame.end) if offset]
    if frame.unit != "range":
        if any(not isinstance(offset, int) for offset in offsets):
            raise PipelineError(f"{where}: {frame} needs whole numbers")
        if frame.unit == "groups" and not column.order:
            raise PipelineError(f"{where}: {frame} needs an order, whose equal rows are a group")
    elif offsets:
        _check_range(where, column, frame, schema)
    start, end = frame.start, frame.end
    if start is not None and end is not None and (start or type(end)()) > (end or type(start)()):  # pyright: ignore[reportOperatorIssue]
        raise PipelineError(f"{where}: {frame} begins behind its end")


def _check_range(where: str, column: OverColumn, frame: Frame, schema: Schema) -> None:
    if len(column.order) != 1:
        raise PipelineError(f"{where}: {frame} is a distance of values, so rows must be in order of exactly one column")
    by = column.order[0].expr
    kind = row_field(by, schema, "over", column.name).type
    fitting = _distances(kind)
    for offset in (frame.start, frame.end):
        if offset and not (isinstance(offset, fitting) and not isinstance(offset, bool)):
            needs = " or ".join(sorted(each.__name__ for each in fitting)) or "another order: it has no distances"
            raise PipelineError(f"{where}: {frame}: rows are in order of {by}, which is {kind} and needs {needs}")


def _distances(kind: DataType) -> tuple[type, ...]:
    """What tells how far values of a type are from each other."""
    if kind in INTEGERS:
        return (int,)
    if kind in FLOATS:
        return (int, float)
    if family(kind) == DECIMAL:
        return (int, Decimal)
    return (timedelta,) if kind in (TIMESTAMP, DATE, DURATION) else ()
