"""The checks of what is computed over the rows of a key, and of their ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.errors import PipelineError
from penstock.expressions import Expr, contains_aggregate, over_field, row_field
from penstock.expressions.nodes import Aggregate, walk
from penstock.expressions.typing_rules import ORDERED
from penstock.graph.logical import RANK, window_bounds
from penstock.types import INT64, Field, MapType, Schema, family, parts_of

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


def top_schema(n: int, by: Expr, schema: Schema, keys: Sequence[str]) -> Schema:
    """The keys, the rank, and the other columns.

    Raises:
        PipelineError: there are to be none, such rows have no order, or `rank` is a column already.
    """
    if n < 1:
        raise PipelineError(f"top: n must be 1 or more, got {n}")
    if RANK in schema:
        raise PipelineError(f"top: there is a column {RANK!r} already; rename it before")
    kind = row_field(by, schema, "top", "by").type
    if family(kind) not in ORDERED:
        raise PipelineError(f"top: {by} is {kind}, which has no order; order by a number, a text or a time")
    return Schema((*schema.select(keys), Field(RANK, INT64), *others_than(keys, schema)))


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
