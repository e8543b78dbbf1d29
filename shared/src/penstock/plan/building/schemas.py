"""The checks of what is computed over the rows of a key, and of their ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.errors import PipelineError
from penstock.expressions import Expr, contains_aggregate, over_field, row_field
from penstock.expressions.nodes import Aggregate, walk
from penstock.expressions.typing_rules import ORDERED
from penstock.functions.windows.definitions import RANK, RETRACTED, window_bounds
from penstock.plan.logical import Node
from penstock.plan.order import Order
from penstock.types import BOOLEAN, INT64, Field, MapType, Schema, family, parts_of

_ONE_ROW: Final = frozenset({"max_by", "min_by", "first", "last"})
"""Aggregates that give the value of one of the rows."""


def over_schema(columns: Sequence[tuple[str, Expr]], schema: Schema) -> Schema:
    """The columns of the rows and these, of which one that exists stands in its place.

    Raises:
        PipelineError: there is none, one of them looks at no other row, or it does not fit.
    """
    if not columns:
        raise PipelineError("over: name at least one column, such as total=col('price').sum() or n=row_number()")
    fields: dict[str, Field] = {field.name: field for field in schema}
    for name, expr in columns:
        fields[name] = over_field(expr, schema, "over", name)
        _refuse_maps(expr, schema)
        if not contains_aggregate(expr):
            raise PipelineError(f"over: {name}={expr} looks at no other row; write .with_columns(...) before key_by")
    return Schema(tuple(fields.values()))


def _refuse_maps(expr: Expr, schema: Schema) -> None:
    """Polars 2.1 cannot bring maps that are all null into another order, which finding one row of a frame takes."""
    for node in walk(expr.node):
        if isinstance(node, Aggregate) and node.function in _ONE_ROW:
            kind = row_field(Expr(node.args[0]), schema, "over").type
            if any(isinstance(part, MapType) for part in parts_of(kind)):
                raise PipelineError(
                    f"over: {node.function} of {kind} is not possible in over; take what is needed of it before, such "
                    'as col("labels").map.get("env")'
                )


def top_schema(
    n: int | None, by: Sequence[Order], node: Node, *, offset: int = 0, rank: str | None = RANK, changes: bool = False
) -> Schema:
    """The keys, the rank, and the other columns; without a rank the columns as they are. `changes` adds what tells these.

    Raises:
        PipelineError: there are to be none or all, such rows have no order, or a column is called as a new one.
    """
    if n is not None and n < 1:
        raise PipelineError(f"top: n must be 1 or more, got {n}")
    if offset < 0:
        raise PipelineError(f"top: offset is how many of the first rows are left out, 0 or more; got {offset}")
    if n is None and offset == 0 and rank is None:
        raise PipelineError("top: without n=, offset= and rank= it would send every row as it is; give one of them")
    new = [name for name in (rank, RETRACTED if changes and node.mode == "append" else None) if name is not None]
    for name in new:
        if name in node.schema:
            other = ", or call that of ranks by another name: rank=..." if name == rank else ""
            raise PipelineError(f"top: there is a column {name!r} already; rename it before{other}")
    check_orders("top", by, node.schema)
    retracted = [Field(RETRACTED, BOOLEAN)] if RETRACTED in new else []
    if rank is None:
        return Schema((*node.schema, *retracted))
    others = others_than(node.keys, node.schema)
    return Schema((*node.schema.select(node.keys), Field(rank, INT64), *others, *retracted))


def check_orders(verb: str, by: Sequence[Order], schema: Schema) -> None:
    """Raise `PipelineError` if rows have no such order, or none is given."""
    if not by:
        raise PipelineError(f"{verb}: by= names no column; give one or more by which rows are ordered")
    for order in by:
        kind = row_field(order.expr, schema, verb, "by").type
        if family(kind) not in ORDERED:
            raise PipelineError(
                f"{verb}: {order.expr} is {kind}, which has no order; order by a number, a text or a time"
            )


def others_than(keys: Sequence[str], schema: Schema) -> list[Field]:
    """The columns that are no keys."""
    return [field for field in schema if field.name not in keys]


def aggregates_schema(keys: Iterable[Field], bounds: Iterable[Field], aggregates: Iterable[Field]) -> Schema:
    """The keys, the window, if there is one, and the aggregates.

    Raises:
        PipelineError: an aggregate is called as a column that the results have anyway.
    """
    whose = {field.name: "a key" for field in keys} | {field.name: "a column of windows" for field in bounds}
    for field in aggregates:
        if field.name in whose:
            raise PipelineError(
                f"agg: {field.name!r} would be there twice: the results have {whose[field.name]} of that name; give the "
                "aggregate another one"
            )
    return Schema((*keys, *bounds, *aggregates))


def window_rows_schema(verb: str, rows: Schema, keys: Sequence[str]) -> Schema:
    """The keys, the window, and the other columns.

    Raises:
        PipelineError: a column is called as the bounds of windows are.
    """
    bounds = window_bounds(retracts=False)
    for taken in bounds:
        if taken.name in rows:
            raise PipelineError(f"{verb}: there is a column {taken.name!r} already; rename it before key_by")
    return Schema((*rows.select(keys), *bounds, *others_than(keys, rows)))
