"""The columnar operators without state: projections, filters and `explode`, each one Polars call per batch.

Expressions are compiled once. The hidden event time, where a stream has it, goes along with its row. What Polars
refuses at run time (mostly a strict cast) comes out as `UserCodeError` that names the operator and the expression.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import polars as pl

from penstock.batches import hidden_of
from penstock.errors import UserCodeError, without_context
from penstock.expressions import columns_of, to_polars
from penstock.task.operator import Operator, Output

if TYPE_CHECKING:
    from penstock.expressions import Expr
    from penstock.graph.logical import Explode, Filter, Node, Project

_ANCHOR: Final = "__anchor"


class ProjectOperator(Operator):
    """`select`, `with_columns`, `drop` and `rename`: every output column is an expression over the input."""

    def __init__(self, node: Node) -> None:
        operation = cast("Project", node.operation)
        schema = node.inputs[0].schema
        self._where = f"{operation.verb} ({node.operator_id})"
        self._written = operation.columns
        self._columns = [to_polars(expr, schema, operation.verb).alias(name) for name, expr in operation.columns]
        # A projection of constants only would give one row whatever the input: a column of the input sets the length.
        self._constant = not any(columns_of(expr) for _, expr in operation.columns)

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        """Compute the columns."""
        try:
            output_frame = self._project(frame)
        except pl.exceptions.PolarsError as error:
            raise _failure(self._where, frame, self._written, self._columns, error) from error
        output.rows(output_frame)

    def _project(self, frame: pl.DataFrame) -> pl.DataFrame:
        hidden = hidden_of(frame)
        if hidden:
            return frame.select(*self._columns, *hidden)
        if self._constant:
            return frame.select(pl.first().alias(_ANCHOR), *self._columns).drop(_ANCHOR)
        return frame.select(self._columns)


class FilterOperator(Operator):
    """Keeps the rows for which the predicate is true; false and null go."""

    def __init__(self, node: Node) -> None:
        operation = cast("Filter", node.operation)
        self._where = f"filter ({node.operator_id})"
        self._written = operation.predicate
        self._predicate = to_polars(operation.predicate, node.inputs[0].schema, "filter")

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        """Drop rows; a batch of which nothing is left is not handed on."""
        try:
            kept = frame.filter(self._predicate)
        except pl.exceptions.PolarsError as error:
            written = (("", self._written),)
            raise _failure(self._where, frame, written, [self._predicate], error) from error
        if kept.height:
            output.rows(kept)


class ExplodeOperator(Operator):
    """One row per element; an empty list or null gives one null."""

    def __init__(self, node: Node) -> None:
        operation = cast("Explode", node.operation)
        self._where = f"explode ({node.operator_id})"
        self._columns = list(operation.columns)

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        """Repeat rows; elements keep the event time of their row."""
        try:
            exploded = frame.explode(self._columns, empty_as_null=True, keep_nulls=True)
        except pl.exceptions.ShapeError as error:
            names = ", ".join(repr(name) for name in self._columns)
            raise UserCodeError(
                f"{self._where}: the lists in {names} have different lengths in a row; explode them one by one"
            ) from error
        output.rows(exploded)


def _failure(
    where: str,
    frame: pl.DataFrame,
    written: tuple[tuple[str, Expr], ...],
    columns: list[pl.Expr],
    error: pl.exceptions.PolarsError,
) -> UserCodeError:
    """The error that names the expression, found by evaluating each by itself."""
    for (name, expr), column in zip(written, columns, strict=True):
        reason = _refusal(lambda column=column: frame.select(column))
        if reason is not None:
            label = f"{name} = " if name else ""
            # "conversion from ..." and "strict ... parsing failed" are how Polars speaks of strict casts and parses.
            advice = f"; {_ADVICE}" if "conversion" in reason or "strict" in reason else ""
            return UserCodeError(f"{where}: {label}{expr}: {reason}{advice}")
    return UserCodeError(f"{where}: {without_context(error)}")


_ADVICE: Final = "use strict=False to get null instead, or filter such rows out before"


def _refusal(evaluate: Callable[[], object]) -> str | None:
    """What Polars says against an evaluation, None if nothing."""
    try:
        evaluate()
    except pl.exceptions.PolarsError as error:
        return without_context(error)
    return None
