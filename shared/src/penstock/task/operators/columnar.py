"""The columnar operators without state: projections, filters, `explode` and grouping sets, one Polars call per batch.

Expressions are compiled once. The hidden event time, where a stream has it, goes along with its row. What Polars
refuses at run time (mostly a strict cast) comes out as `UserCodeError` that names the operator and the expression.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import polars as pl

from penstock.core.batches import hidden_of
from penstock.errors import UserCodeError, without_context
from penstock.expressions import columns_of, to_polars
from penstock.plan.operations.expand import GROUPING_ID
from penstock.task.operator import Operator, Output

if TYPE_CHECKING:
    from penstock.expressions import Expr
    from penstock.plan.logical import Node
    from penstock.plan.operations.check import Check
    from penstock.plan.operations.expand import Expand
    from penstock.plan.operations.explode import Explode
    from penstock.plan.operations.filter import Filter
    from penstock.plan.operations.project import Project

_ANCHOR: Final = "__anchor"


class ProjectOperator(Operator):
    """`select`, `with_columns`, `drop` and `rename`: every output column is an expression over the input.

    Columns that nobody behind needs may not have crossed the exchange in front; those that are handed on as they are
    are left out then.
    """

    def __init__(self, node: Node) -> None:
        operation = cast("Project", node.operation)
        schema = node.inputs[0].schema
        self._where = f"{operation.verb} ({node.operator_id})"
        self._written = operation.columns
        self._reads = [columns_of(expr) for _, expr in operation.columns]
        self._columns = [to_polars(expr, schema, operation.verb).alias(name) for name, expr in operation.columns]

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        """Compute the columns."""
        there = frozenset(frame.columns)
        known = [place for place, reads in enumerate(self._reads) if reads <= there]
        columns = [self._columns[place] for place in known]
        try:
            output_frame = self._project(frame, columns, constant=not any(self._reads[place] for place in known))
        except pl.exceptions.PolarsError as error:
            written = tuple(self._written[place] for place in known)
            raise expression_failure(self._where, frame, written, columns, error) from error
        output.rows(output_frame)

    @staticmethod
    def _project(frame: pl.DataFrame, columns: list[pl.Expr], *, constant: bool) -> pl.DataFrame:
        hidden = hidden_of(frame)
        if hidden:
            return frame.select(*columns, *hidden)
        if constant:  # alone they would give one row whatever the input: a column of it sets the length
            return frame.select(pl.first().alias(_ANCHOR), *columns).drop(_ANCHOR)
        found = frame.select(columns)
        if found.height != frame.height:
            raise pl.exceptions.ShapeError(f"{frame.height:,} rows became {found.height:,}, which is a bug: report it")
        return found


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
            raise expression_failure(self._where, frame, written, [self._predicate], error) from error
        if kept.height:
            output.rows(kept)


class CheckOperator(Operator):
    """Hands on rows for all of which the predicate is true."""

    def __init__(self, node: Node) -> None:
        operation = cast("Check", node.operation)
        self._otherwise = operation.otherwise
        self._predicate = to_polars(operation.predicate, node.inputs[0].schema, "check")

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        """Hand the rows on, or fail."""
        if not frame.select(self._predicate.fill_null(value=False).all()).item():
            raise UserCodeError(self._otherwise)
        output.rows(frame)


class ExplodeOperator(Operator):
    """One row per element; an empty list or null gives one null, or no row."""

    def __init__(self, node: Node) -> None:
        operation = cast("Explode", node.operation)
        self._where = f"explode ({node.operator_id})"
        self._columns = list(operation.columns)
        self._position = operation.position
        self._keep_empty = operation.keep_empty
        self._names = node.schema.names

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        """Repeat rows; elements keep the event time of their row."""
        exploded = self._exploded(frame if self._position is None else self._with_positions(frame, self._position))
        if exploded.height:
            output.rows(exploded)

    def _with_positions(self, frame: pl.DataFrame, position: str) -> pl.DataFrame:
        """With a list of the numbers of elements, which stands in front of what is hidden."""
        behind_last = pl.col(self._columns[0]).list.len().cast(pl.Int64) + 1
        numbered = frame.with_columns(pl.int_ranges(1, behind_last, dtype=pl.Int32).alias(position))
        return numbered.select(*(name for name in self._names if name in numbered.columns), *hidden_of(frame))

    def _exploded(self, frame: pl.DataFrame) -> pl.DataFrame:
        columns = self._columns if self._position is None else [*self._columns, self._position]
        try:
            return frame.explode(columns, empty_as_null=self._keep_empty, keep_nulls=self._keep_empty)
        except pl.exceptions.ShapeError as error:
            names = ", ".join(repr(name) for name in self._columns)
            raise UserCodeError(
                f"{self._where}: the lists in {names} have different lengths in a row; explode them one by one"
            ) from error


class ExpandOperator(Operator):
    """The copies of a row stay together, so that the watermarks that rows carry never go back."""

    def __init__(self, node: Node) -> None:
        operation = cast("Expand", node.operation)
        self._copies = len(operation.sets)
        ids = [operation.grouping_id(each) for each in operation.sets]
        self._grouping_ids = pl.Series(GROUPING_ID, ids, pl.Int64)
        left_out = {
            name: [number for number, each in zip(ids, operation.sets, strict=True) if name not in each]
            for name in operation.columns
        }
        self._columns = [
            pl.when(~pl.col(GROUPING_ID).is_in(numbers)).then(pl.col(name)).alias(name)
            for name, numbers in left_out.items()
            if numbers
        ]
        self._names = node.schema.names

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        """Repeat rows."""
        copies = frame[np.repeat(np.arange(frame.height), self._copies)]
        ids = self._grouping_ids.gather(np.tile(np.arange(self._copies), frame.height))
        expanded = copies.with_columns(ids).with_columns(self._columns)
        names = [name for name in self._names if name in expanded.columns]
        output.rows(expanded.select(*names, *hidden_of(frame)))


def expression_failure(
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


_ADVICE: Final = "use strict=False (in SQL: TRY_CAST) to get null instead, or filter such rows out before"


def _refusal(evaluate: Callable[[], object]) -> str | None:
    """What Polars says against an evaluation, None if nothing."""
    try:
        evaluate()
    except pl.exceptions.PolarsError as error:
        return without_context(error)
    return None
