"""Two-phase aggregation: rows to partials, partials to partials (any number of times), partials to results.

Windows keep and ship partials only, so a partial is one row of plain columns `__p0`, `__p1`, ..., and merging is an
ordinary Polars group-by. Aggregates share partials where they can (`mean` is made of the `sum` and `count` beside it).
How each aggregate is computed stands in `aggregate_partials`, the glue of users' own accumulators in `accumulator_calls`,
types and meanings of the aggregates in `aggregate_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import polars as pl

from penstock.errors import PipelineError
from penstock.expressions.accumulator_calls import AccumulatorCalls
from penstock.expressions.aggregate_partials import COMPUTED, rows
from penstock.expressions.exact_sums import carried
from penstock.expressions.inference import Scope, check_aggregation
from penstock.expressions.nodes import Aggregate, Node, walk
from penstock.expressions.partial_columns import TIES_BY_ARRIVAL, WRAPPED_MEANS, WRAPPED_SUMS, Argument, PartialColumns
from penstock.expressions.polars_lowering import lower
from penstock.expressions.queries import aggregate_field
from penstock.expressions.rendering import render
from penstock.expressions.surface import Expr
from penstock.types import BINARY, Field, Schema


@dataclass(frozen=True, slots=True)
class Fold:
    """A user's accumulator among the partials."""

    partial: str
    """The column."""
    calls: AccumulatorCalls
    args: tuple[pl.Expr, ...]
    """What of a row it is given."""


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    """How a set of aggregates is computed in two phases. Made by `build`.

    The order of rows and of partials matters only to aggregates that keep values of rows, such as `first`, `max_by` and
    `collect`, and there only between equal event times (or everywhere without event time): concatenate in order of
    arrival and results do not depend on batches.
    """

    partial_fields: tuple[Field, ...]
    """The columns of a partial frame, beside keys."""
    partials_of: tuple[str, ...]
    """The aggregate that each of them belongs to, by its name in the catalogue."""
    init: list[pl.Expr]
    """Elementwise over rows: one partial per row (use beside a key column, so that constants have the rows' length)."""
    init_grouped: list[pl.Expr]
    """In `rows.group_by(keys).agg(...)`: one partial per group; equal to `init` followed by `merge`, but faster."""
    merge: list[pl.Expr]
    """In `partials.group_by(keys).agg(...)`: one partial per group. Associative."""
    finish: list[pl.Expr]
    """Elementwise over partials: the named results in exactly the types of `output_fields`."""
    output_fields: tuple[Field, ...]
    needs_event_time: bool
    """Whether `init` and `init_grouped` read the column `EVENT_TIME`."""
    carry: list[pl.Expr]
    """Elementwise over partials: the columns that grew with the number of rows, to be replaced after every grouping."""
    limbs: tuple[tuple[str, ...], ...]
    """The names of columns that are limbs and rest of one number (see `exact_sums`)."""
    formers: Callable[[], Iterator[Former]]
    """What snapshots of former versions hold instead of these partials, newest first."""
    narrower: Callable[[Collection[str]], Former | None]
    """What snapshots hold instead that were written when these columns were never null."""
    folds: tuple[Fold, ...]
    """The partials that are users' accumulators."""

    @classmethod
    def build(
        cls,
        aggregates: Sequence[tuple[str, Expr]],
        schema: Schema,
        where: str = "agg",
        *,
        event_time: bool = True,
        constants: bool = False,
    ) -> Self:
        """The plan of these named aggregates over rows of `schema`.

        Args:
            aggregates: Result name and expression: arithmetic over aggregates of row-level expressions.
            schema: Columns of the rows.
            where: The verb, for error messages.
            event_time: Whether rows have an event time; without one `first`, `last` and `collect` go by arrival.
            constants: Whether an expression may be of no aggregate and no column. `finish` has one value for all rows
                then, so that it stands beside a column in `with_columns`.

        Raises:
            PipelineError: an expression does not fit the schema or is not made of aggregates.
        """
        if not aggregates:
            raise PipelineError(f"{where}: name at least one aggregate, such as n=count()")
        fields = tuple(aggregate_field(expr, schema, where, name, constants=constants) for name, expr in aggregates)
        columns = PartialColumns(event_time=event_time)
        builder = _PlanBuilder(schema, where, columns)
        finish = [builder.finish(expr.node).alias(name) for name, expr in aggregates]
        partials = columns.in_order().values()
        return cls(
            partial_fields=tuple(partial.field for partial in partials),
            partials_of=tuple(partial.of for partial in partials),
            init=[partial.init.alias(partial.field.name) for partial in partials],
            init_grouped=[partial.init_grouped.alias(partial.field.name) for partial in partials],
            merge=[partial.merge.alias(partial.field.name) for partial in partials],
            finish=finish,
            output_fields=fields,
            needs_event_time=columns.needs_event_time,
            carry=[
                expr.alias(name) for names in columns.limbs for name, expr in zip(names, carried(names), strict=True)
            ],
            limbs=tuple(columns.limbs),
            formers=lambda: _formers(aggregates, schema, where, columns),
            narrower=lambda never_null: _narrower(aggregates, schema, where, columns, never_null),
            folds=tuple(builder.folds),
        )


@dataclass(frozen=True, slots=True)
class Former:
    """The partials of former versions, or of another schema."""

    fields: tuple[Field, ...]
    """The columns of a partial frame."""
    partials_of: tuple[str, ...] | None
    """The aggregate that each of them belongs to; None of versions that did not say it."""
    to_current: list[pl.Expr]
    """Elementwise over such a frame: the columns of `partial_fields`."""


def _formers(
    aggregates: Sequence[tuple[str, Expr]], schema: Schema, where: str, current: PartialColumns
) -> Iterator[Former]:
    for form in (TIES_BY_ARRIVAL, WRAPPED_SUMS, WRAPPED_MEANS):
        columns = PartialColumns(event_time=current.event_time, form=form)
        builder = _PlanBuilder(schema, where, columns)
        for _, expr in aggregates:
            builder.finish(expr.node)
        if form == TIES_BY_ARRIVAL and columns.by_key.keys() == current.by_key.keys():
            continue  # it kept the same
        to_current = current.from_former(columns.by_key)
        if to_current is not None:
            kept = columns.by_key.values()
            names = tuple(column.of for column in kept) if form >= TIES_BY_ARRIVAL else None
            yield Former(tuple(column.field for column in kept), names, to_current)


def _narrower(
    aggregates: Sequence[tuple[str, Expr]],
    schema: Schema,
    where: str,
    current: PartialColumns,
    never_null: Collection[str],
) -> Former | None:
    fields = (replace(field, nullable=field.nullable and field.name not in never_null) for field in schema)
    columns = PartialColumns(event_time=current.event_time)
    builder = _PlanBuilder(Schema(tuple(fields)), where, columns)
    for _, expr in aggregates:
        builder.finish(expr.node)
    to_current = current.from_former(columns.by_key)
    if to_current is None:
        return None
    kept = columns.in_order().values()
    return Former(tuple(column.field for column in kept), tuple(column.of for column in kept), to_current)


class _PlanBuilder:
    """Gathers the partials of all aggregates of expressions over one schema."""

    def __init__(self, schema: Schema, where: str, columns: PartialColumns) -> None:
        self._schema = schema
        self._where = where
        self._columns = columns
        self.folds: list[Fold] = []

    def finish(self, root: Node) -> pl.Expr:
        """The expression over partials that computes a whole result."""
        check_aggregation(root, self._where)
        found = dict.fromkeys(part for part in walk(root) if isinstance(part, Aggregate))
        results = {node: self._aggregate(node) for node in found}
        return lower(root, self._schema, self._where, results)

    def _aggregate(self, node: Aggregate) -> pl.Expr:
        args = [self._argument(arg) for arg in node.args]
        if node.function == "aggregate":
            return self._accumulator(node, args)
        if not args:
            return rows(self._columns)
        return COMPUTED[node.function](self._columns, args, dict(node.options))

    def _argument(self, node: Node) -> Argument:
        operand = Scope(node, self._schema, self._where).operand(node)
        return Argument(node, lower(node, self._schema, self._where), operand.type, operand.nullable)

    def _accumulator(self, node: Aggregate, args: Sequence[Argument]) -> pl.Expr:
        result = Scope(node, self._schema, self._where).operand(node).type
        where = f"{self._where}: {render(node)}"
        calls = AccumulatorCalls(node.accumulator, result, where, filtered=bool(node.options))
        values = [arg.expr for arg in args]
        partial = self._columns.add(
            "aggregate", node, BINARY, calls.init(values), calls.init_grouped(values), calls.merge
        )
        name = partial.meta.output_name()
        if all(fold.partial != name for fold in self.folds):
            self.folds.append(Fold(name, calls, tuple(values)))
        return calls.finish(partial)
