"""Questions about an `Expr` that the rest of Penstock asks: its type, name, columns, JSON form and Polars expression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PipelineError
from penstock.expressions import inference
from penstock.expressions.accumulators import can_retract
from penstock.expressions.aggregate_rules import BY_NAME
from penstock.expressions.json_form import node_from_json, node_to_json
from penstock.expressions.nodes import Aggregate, Call, implied_name, node_columns, walk, without_alias
from penstock.expressions.surface import Expr
from penstock.types import Field, Schema

if TYPE_CHECKING:
    import polars as pl

_ORDERLESS: Final = frozenset(
    {"count", "len", "sum", "mean", "var", "std", "min", "max", "any", "all", "approx_n_unique", "approx_quantile"}
)
"""Aggregates whose result does not depend on the order of rows."""
_SUMS: Final = frozenset({"count", "len", "sum", "mean", "var", "std"})
_OF_DISTINCT: Final = frozenset({"min", "max", "any", "all", "n_unique", "collect_distinct", "approx_n_unique"})
_KEEPING: Final = frozenset({"collect", "quantile"})
"""Aggregates whose partials are all the values."""


def output_field(expr: Expr, schema: Schema, where: str = "select", name: str | None = None) -> Field:
    """Name, type and nullability of an expression's column.

    The name is `name` if given, else what `output_name` says, else the expression's text.

    Raises:
        PipelineError: it does not fit the schema; the message begins with `where`.
    """
    return inference.node_field(_checked(expr, where).node, schema, where, name)


def row_field(expr: Expr, schema: Schema, where: str = "select", name: str | None = None) -> Field:
    """`output_field` of an expression that has a value for every row: an aggregate is an error."""
    inference.check_row_level(_checked(expr, where).node, where)
    return output_field(expr, schema, where, name)


def aggregate_field(
    expr: Expr, schema: Schema, where: str = "agg", name: str | None = None, *, constants: bool = False
) -> Field:
    """`output_field` of an expression that has one value for a group of rows: it must be made of aggregates, or be the
    same for all groups where there may be `constants`."""
    if not contains_aggregate(_checked(expr, where)) and (columns_of(expr) or not constants):
        raise PipelineError(f"{where}: {expr} is not an aggregate; write for example count() or col(...).sum()")
    return output_field(expr, schema, where, name)


def over_field(expr: Expr, schema: Schema, where: str = "over", name: str | None = None) -> Field:
    """`output_field` of an expression that has a value for every row, made of its columns and of aggregates over rows."""
    node = _checked(expr, where).node
    inference.check_over(node, where)
    operand = inference.Scope(node, schema, where).operand(node)
    return Field(name or output_name(expr, where), operand.type, operand.nullable)


def is_mergeable(expr: Expr) -> bool:
    """Whether its aggregates come to the same from parts of the rows, in whatever order these are merged."""
    return all(part.function in _ORDERLESS for part in walk(expr.node) if isinstance(part, Aggregate))


def is_subtractable(expr: Expr) -> bool:
    """Whether rows can be taken away from its aggregates: they are made of sums, or users' that say how."""
    return all(
        part.function in _SUMS or _is_retracting(part) for part in walk(expr.node) if isinstance(part, Aggregate)
    )


def _is_retracting(part: Aggregate) -> bool:
    return part.accumulator is not None and can_retract(part.accumulator)


def is_of_distinct(expr: Expr) -> bool:
    """Whether its aggregates come to the same however often a row is there."""
    return all(part.function in _OF_DISTINCT for part in walk(expr.node) if isinstance(part, Aggregate))


def accumulators_in(expr: Expr) -> list[str]:
    """The classes of the accumulators in it."""
    return list(dict.fromkeys(type(part.accumulator).__name__ for part in _accumulating(expr)))


def accumulators_without_retract(expr: Expr) -> list[str]:
    """The classes of the accumulators in it from which no row can be taken away."""
    parts = [part for part in _accumulating(expr) if not _is_retracting(part)]
    return list(dict.fromkeys(type(part.accumulator).__name__ for part in parts))


def _accumulating(expr: Expr) -> list[Aggregate]:
    return [part for part in walk(expr.node) if isinstance(part, Aggregate) and part.accumulator is not None]


def decided_by_arrival(expr: Expr, *, of_changes: bool = False) -> list[str]:
    """What of the results of its aggregates the order of arrival decides, one text each.

    Args:
        expr: made of aggregates.
        of_changes: whether accumulators that rows can be taken away from are none of them: they say that no order counts.
    """
    parts = [
        (BY_NAME[part.function], part)
        for part in walk(expr.node)
        if isinstance(part, Aggregate) and not (of_changes and _is_retracting(part))
    ]
    return list(dict.fromkeys(row.arrival for row, part in parts if row.arrival and row.settled_by not in part.options))


def keeps_values(expr: Expr) -> bool:
    """Whether its partials hold a value of every row, so that they are no less than the rows."""
    return any(part.function in _KEEPING for part in walk(expr.node) if isinstance(part, Aggregate))


def check_predicate(expr: Expr, schema: Schema, where: str = "filter") -> None:
    """Raise `PipelineError` unless the expression is a condition on a row."""
    inference.check_predicate(_checked(expr, where).node, schema, where)


def output_name(expr: Expr, where: str = "") -> str:
    """The alias, or the leftmost column's name.

    Raises:
        PipelineError: there is neither.
    """
    return inference.node_name(expr.node, where)


def has_name(expr: Expr) -> bool:
    """Whether `output_name` has an answer."""
    return implied_name(expr.node) is not None


def columns_of(expr: Expr) -> frozenset[str]:
    """The names of all columns that the expression reads."""
    return node_columns(expr.node)


def conditions_of(predicate: Expr) -> list[Expr]:
    """The parts of a condition that must all be true for it to be."""
    match without_alias(predicate.node):
        case Call(function="and", args=args):
            return [part for arg in args for part in conditions_of(Expr(arg))]
        case node:
            return [Expr(node)]


def contains_aggregate(expr: Expr) -> bool:
    """Whether any part is an aggregate of many rows."""
    return any(isinstance(part, Aggregate) for part in walk(expr.node))


def needs_over(expr: Expr) -> bool:
    """Whether any part is only known beside the rows before it, such as `lag`."""
    return any(isinstance(part, Aggregate) and part.function in inference.OVER for part in walk(expr.node))


def to_json(expr: Expr) -> Any:
    """The expression as a JSON value."""
    return node_to_json(expr.node)


def from_json(value: Any) -> Expr:
    """The inverse of `to_json`; a user-defined aggregate does not travel and raises `PipelineError`."""
    return Expr(node_from_json(value))


def to_polars(expr: Expr, schema: Schema, where: str = "") -> pl.Expr:
    """The Polars expression of a row-level expression: elementwise, of exactly the type that `output_field` says.

    It is named as `output_name` says, if that has an answer.
    """
    from penstock.expressions.polars_lowering import lower

    lowered = lower(expr.node, schema, where)
    name = implied_name(expr.node)
    return lowered if name is None else lowered.alias(name)


def _checked(expr: object, where: str) -> Expr:
    if isinstance(expr, Expr):
        return expr
    hint = f"; write col({expr!r}) or lit({expr!r})" if isinstance(expr, str) else ""
    raise PipelineError(f"{where}: need an expression, got {expr!r}{hint}")
