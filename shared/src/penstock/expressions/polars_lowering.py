"""From an expression to a Polars expression of exactly the type that inference found.

A function's lowering comes from the catalogue; here are the nodes themselves, the conversions of operands and the
places where Polars' own result type differs. The result is elementwise, except where the caller supplies expressions
for aggregates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

import polars as pl

from penstock.errors import PipelineError
from penstock.expressions.casts import cast_polars
from penstock.expressions.catalogue import function
from penstock.expressions.functions import Lowering
from penstock.expressions.inference import Scope
from penstock.expressions.nodes import Aggregate, Alias, Call, Case, Cast, Column, Literal, Node, node_columns
from penstock.expressions.rendering import render
from penstock.types import FLOATS, NULL, DataType, DecimalType, Schema, polars_type


def lower(
    node: Node, schema: Schema, where: str = "", aggregates: Mapping[Aggregate, pl.Expr] | None = None
) -> pl.Expr:
    """The Polars expression of a node; `aggregates` are the expressions that stand for its aggregates.

    Raises:
        PipelineError: the node does not fit the schema, or holds an aggregate that none was given for.
    """
    return _PolarsLowering(Scope(node, schema, where), aggregates or {}).lower(node)


class _PolarsLowering:
    def __init__(self, scope: Scope, aggregates: Mapping[Aggregate, pl.Expr]) -> None:
        self._scope = scope
        self._aggregates = aggregates

    def lower(self, node: Node) -> pl.Expr:
        """The expression in the node's own type."""
        match node:
            case Column(name=name):
                return pl.col(name)
            case Literal():
                return _literal(node, node.type)
            case Alias(operand=operand):
                return self.lower(operand)
            case Cast(operand=operand, to=to, strict=strict):
                return cast_polars(self.lower(operand), self._scope.operand(operand).type, to, strict=strict)
            case Case():
                return self._case(node)
            case Call():
                return self._call(node)
            case Aggregate():
                if node not in self._aggregates:
                    raise PipelineError(f"{render(node)} is an aggregate of many rows; use it in .agg()")
                return self._aggregates[node]

    def lower_as(self, node: Node, kind: DataType) -> pl.Expr:
        """The expression in another type, to which the node's own may be promoted."""
        while isinstance(node, Alias):
            node = node.operand
        if isinstance(node, Literal):
            return _literal(node, kind)
        own = self._scope.operand(node).type
        expression = self.lower(node)
        return expression if own == kind else expression.cast(polars_type(kind))

    def _call(self, node: Call) -> pl.Expr:
        node = _constant_behind(node)
        typing = self._scope.typing(node)
        row = function(node.function)
        args = [self.lower_as(arg, kind) for arg, kind in zip(node.args, typing.operands, strict=True)]
        constants = [arg.value if isinstance(arg, Literal) else None for arg in node.args]
        expression = row.lower(Lowering(args, constants, dict(node.options), typing.operands, typing.type))
        return expression if row.exact else expression.cast(polars_type(typing.type))

    def _case(self, node: Case) -> pl.Expr:
        kind = self._scope.operand(node).type
        (condition, value), *others = node.branches
        chain = pl.when(self.lower(condition)).then(self.lower_as(value, kind))
        for condition, value in others:
            chain = chain.when(self.lower(condition)).then(self.lower_as(value, kind))
        last = pl.lit(None, dtype=polars_type(kind)) if node.otherwise is None else self.lower_as(node.otherwise, kind)
        return chain.otherwise(last)


_MIRRORED: Final = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _constant_behind(node: Call) -> Call:
    """A comparison with its constant side on the right.

    Where the other side is a case whose branches are constants, and every row of a batch takes the same branch, Polars
    gives one row for the whole batch if the constant is on the left.
    """
    if node.function not in _MIRRORED or node_columns(node.args[0]) or not node_columns(node.args[1]):
        return node
    left, right = node.args
    return replace(node, function=_MIRRORED[node.function], args=(right, left))


def _literal(node: Literal, kind: DataType) -> pl.Expr:
    value = node.value
    if kind in FLOATS and isinstance(value, (int, Decimal)):
        value = float(value)
    if isinstance(kind, DecimalType) and isinstance(value, int):
        value = Decimal(value)
    if isinstance(value, datetime):
        value = value.astimezone(UTC)
    return pl.lit(value) if kind == NULL else pl.lit(value, dtype=polars_type(kind))
