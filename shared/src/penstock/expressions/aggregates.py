"""Two-phase aggregation: rows to partials, partials to partials (any number of times), partials to results.

Windows keep and ship partials only, so a partial is one row of plain columns `__p0`, `__p1`, ..., and merging is an
ordinary Polars group-by. Aggregates share partials where they can (`mean` is made of the `sum` and `count` beside it).
All of it is native Polars but for the user's own accumulators. Their glue stands in `accumulator_calls`, types and
meanings of the aggregates in `aggregate_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import polars as pl

from penstock.batches import EVENT_TIME
from penstock.expressions.accumulator_calls import AccumulatorCalls
from penstock.expressions.exact_means import floored_mean, high_half, mean_of_integers
from penstock.expressions.functions_nested import sum_type
from penstock.expressions.functions_numeric import divided
from penstock.expressions.inference import Scope, check_aggregation
from penstock.expressions.nodes import Aggregate, Node, walk
from penstock.expressions.polars_lowering import lower
from penstock.expressions.queries import aggregate_field
from penstock.expressions.rendering import render
from penstock.expressions.surface import Expr
from penstock.types import (
    BINARY,
    DURATION,
    FLOAT64,
    FLOATS,
    INT64,
    UINT64,
    DataType,
    Field,
    ListType,
    Schema,
    StructType,
    polars_type,
)

_INT64: Final = pl.Int64()
_FLOAT64: Final = pl.Float64()
_WRAPPING: Final = frozenset({INT64, UINT64, DURATION})
"""Types of which a few values have a sum that is too large for it."""


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    """How a set of aggregates is computed in two phases. Made by `build`.

    The order of rows and of partials matters only to `first`, `last` and `collect`, and there only between equal event
    times (or everywhere without event time): concatenate in order of arrival and results do not depend on batches.
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
    former_fields: tuple[Field, ...]
    """The columns of a partial frame in snapshots of versions whose means of integers wrapped around with their sums."""
    from_former: list[pl.Expr]
    """Elementwise over such a frame: the columns of `partial_fields`."""

    @classmethod
    def build(
        cls, aggregates: Sequence[tuple[str, Expr]], schema: Schema, where: str = "agg", *, event_time: bool = True
    ) -> Self:
        """The plan of these named aggregates over rows of `schema`.

        Args:
            aggregates: Result name and expression: arithmetic over aggregates of row-level expressions.
            schema: Columns of the rows.
            where: The verb, for error messages.
            event_time: Whether rows have an event time; without one `first`, `last` and `collect` go by arrival.

        Raises:
            PipelineError: an expression does not fit the schema or is not made of aggregates.
        """
        builder = _PlanBuilder(schema, where, event_time)
        fields = tuple(aggregate_field(expr, schema, where, name) for name, expr in aggregates)
        finish = [builder.finish(expr.node).alias(name) for name, expr in aggregates]
        partials = builder.partials
        former, from_former = _former(partials)
        return cls(
            partial_fields=tuple(partial.field for partial in partials),
            partials_of=tuple(partial.of for partial in partials),
            init=[partial.init.alias(partial.field.name) for partial in partials],
            init_grouped=[partial.init_grouped.alias(partial.field.name) for partial in partials],
            merge=[partial.merge.alias(partial.field.name) for partial in partials],
            finish=finish,
            output_fields=fields,
            needs_event_time=builder.needs_event_time,
            former_fields=former,
            from_former=from_former,
        )


@dataclass(frozen=True, slots=True)
class _Partial:
    """A column of a partial frame and the three expressions that fill it."""

    field: Field
    of: str
    init: pl.Expr
    init_grouped: pl.Expr
    merge: pl.Expr
    high_of: str = ""
    """Of high halves: the column of the sum beside which they stand."""


def _former(partials: Sequence[_Partial]) -> tuple[tuple[Field, ...], list[pl.Expr]]:
    """The partials without the high halves, and how these follow from a sum, which is all that is known of it."""
    kept = [partial.field for partial in partials if not partial.high_of]
    names = {field.name: f"__p{number}" for number, field in enumerate(kept)}
    fields = tuple(replace(field, name=names[field.name]) for field in kept)
    return fields, [
        (
            high_half(pl.col(names[partial.high_of]).cast(_INT64))
            if partial.high_of
            else pl.col(names[partial.field.name])
        ).alias(partial.field.name)
        for partial in partials
    ]


@dataclass(frozen=True, slots=True)
class _Argument:
    """What is aggregated: a row-level expression."""

    node: Node
    expr: pl.Expr
    type: DataType
    nullable: bool


class _PlanBuilder:
    """Gathers the partials of all aggregates, each once."""

    def __init__(self, schema: Schema, where: str, event_time: bool) -> None:
        self.needs_event_time = False
        self._schema = schema
        self._where = where
        self._event_time = event_time
        self._partials: dict[Any, _Partial] = {}

    @property
    def partials(self) -> list[_Partial]:
        """The partials in the order of their names."""
        return list(self._partials.values())

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
            return self._rows()
        return _AGGREGATES[node.function](self, args[0], dict(node.options))

    def _argument(self, node: Node) -> _Argument:
        operand = Scope(node, self._schema, self._where).operand(node)
        return _Argument(node, lower(node, self._schema, self._where), operand.type, operand.nullable)

    def _partial(
        self,
        of: str,
        key: Any,
        kind: DataType,
        init: pl.Expr,
        init_grouped: pl.Expr,
        merge: Callable[[pl.Expr], pl.Expr],
        *,
        nullable: bool = False,
        high_of: str = "",
    ) -> pl.Expr:
        """The column of the partial of that key, which is made if it is not there yet; `of` names the aggregate."""
        partial = self._partials.get(key)
        if partial is None:
            name = f"__p{len(self._partials)}"
            partial = _Partial(Field(name, kind, nullable), of, init, init_grouped, merge(pl.col(name)), high_of)
            self._partials[key] = partial
        return pl.col(partial.field.name)

    def _rows(self) -> pl.Expr:
        return self._partial(
            "count", "rows", INT64, pl.lit(1, dtype=_INT64), pl.len().cast(_INT64), lambda partial: partial.sum()
        )

    # -- native aggregates ----------------------------------------------------------------------------------------------

    def count(self, arg: _Argument, _: dict[str, Any]) -> pl.Expr:
        if not arg.nullable:
            return self._rows()
        init, grouped = arg.expr.is_not_null().cast(_INT64), arg.expr.count().cast(_INT64)
        return self._partial("count", ("count", arg.node), INT64, init, grouped, lambda partial: partial.sum())

    def sum(self, arg: _Argument, _: dict[str, Any]) -> pl.Expr:
        total = self._total(arg)
        return pl.when(self.count(arg, {}) > 0).then(total) if arg.nullable else total

    def _total(self, arg: _Argument) -> pl.Expr:
        """The sum with nothing for nulls: a group of nulls has 0."""
        kind = sum_type(arg.type)
        value = arg.expr if arg.type == kind else arg.expr.cast(polars_type(kind))
        return self._partial(
            "sum", ("sum", arg.node), kind, value, value.sum(), lambda partial: partial.sum(), nullable=arg.nullable
        )

    def mean(self, arg: _Argument, _: dict[str, Any]) -> pl.Expr:
        total, rows = self._total(arg), self.count(arg, {})
        if arg.type in FLOATS:
            mean = divided(total, rows.cast(_FLOAT64))
        elif arg.type == DURATION:
            mean = floored_mean(total.cast(_INT64), self._high(arg, total), rows).cast(polars_type(DURATION))
        else:
            mean = mean_of_integers(total, self._high(arg, total), rows)
        return pl.when(rows > 0).then(mean) if arg.nullable else mean

    def _high(self, arg: _Argument, total: pl.Expr) -> pl.Expr:
        """The sum of the high halves; one partial more only for types whose sum can wrap around."""
        if arg.type not in _WRAPPING:
            return high_half(total.cast(_INT64))
        value = arg.expr.cast(_INT64) if arg.type == DURATION else arg.expr
        high = high_half(value)
        return self._partial(
            "mean", ("high", arg.node), INT64, high, high.sum(), lambda partial: partial.sum(),
            nullable=arg.nullable, high_of=total.meta.output_name(),
        )  # fmt: skip

    def min(self, arg: _Argument, _: dict[str, Any]) -> pl.Expr:
        init, grouped = arg.expr, arg.expr.min()
        return self._partial(
            "min", ("min", arg.node), arg.type, init, grouped, lambda partial: partial.min(), nullable=arg.nullable
        )

    def max(self, arg: _Argument, _: dict[str, Any]) -> pl.Expr:
        init, grouped = arg.expr, arg.expr.max()
        return self._partial(
            "max", ("max", arg.node), arg.type, init, grouped, lambda partial: partial.max(), nullable=arg.nullable
        )

    # -- aggregates by event time ---------------------------------------------------------------------------------------

    def _time(self) -> pl.Expr:
        self.needs_event_time = True
        return pl.col(EVENT_TIME)

    def first(self, arg: _Argument, _: dict[str, Any]) -> pl.Expr:
        if not self._event_time:
            return self._value("first", arg, arg.expr.first(), lambda partial: partial.first())
        time = self._time()
        earliest = self._partial("first", "earliest", INT64, time, time.min(), lambda partial: partial.min())
        return self._value("first", arg, arg.expr.get(time.arg_min()), lambda partial: partial.get(earliest.arg_min()))

    def last(self, arg: _Argument, _: dict[str, Any]) -> pl.Expr:
        if not self._event_time:
            return self._value("last", arg, arg.expr.last(), lambda partial: partial.last())
        time = self._time()
        latest = self._partial("last", "latest", INT64, time, time.max(), lambda partial: partial.max())
        return self._value("last", arg, arg.expr.get(time.arg_max()), lambda partial: partial.get(latest.arg_max()))

    def _value(self, name: str, arg: _Argument, grouped: pl.Expr, merge: Callable[[pl.Expr], pl.Expr]) -> pl.Expr:
        return self._partial(name, (name, arg.node), arg.type, arg.expr, grouped, merge, nullable=arg.nullable)

    def collect(self, arg: _Argument, _: dict[str, Any]) -> pl.Expr:
        key = ("collect", arg.node)
        if not self._event_time:
            kind = ListType(arg.type)
            return self._partial(
                "collect", key, kind, pl.concat_list(arg.expr), arg.expr.implode(), lambda partial: partial.explode()
            )
        kind = ListType(StructType((Field("time", INT64), Field("value", arg.type, arg.nullable))))
        pair = pl.struct(self._time().alias("time"), arg.expr.alias("value"))
        pairs = self._partial(
            "collect", key, kind, pl.concat_list(pair), pair.implode(), lambda partial: partial.explode()
        )
        element = pl.element().struct
        return pairs.list.eval(pl.element().sort_by(element.field("time"), maintain_order=True).struct.field("value"))

    # -- aggregates that keep all values ---------------------------------------------------------------------------------

    def n_unique(self, arg: _Argument, _: dict[str, Any]) -> pl.Expr:
        values = self._partial(
            "n_unique",
            ("unique", arg.node),
            ListType(arg.type),
            pl.concat_list(arg.expr).list.drop_nulls(),
            arg.expr.drop_nulls().unique(),
            lambda partial: partial.explode().drop_nulls().unique(),
        )
        return values.list.len().cast(_INT64)

    def quantile(self, arg: _Argument, options: dict[str, Any]) -> pl.Expr:
        value = arg.expr.cast(_FLOAT64)
        values = self._partial(
            "quantile",
            ("values", arg.node),
            ListType(FLOAT64),
            pl.concat_list(value).list.drop_nulls(),
            value.drop_nulls(),
            lambda partial: partial.explode().drop_nulls(),
        )
        at = options["quantile"]
        return values.list.eval(pl.element().quantile(at, interpolation="linear")).list.first()

    # -- the user's own -------------------------------------------------------------------------------------------------

    def _accumulator(self, node: Aggregate, args: Sequence[_Argument]) -> pl.Expr:
        result = Scope(node, self._schema, self._where).operand(node).type
        calls = AccumulatorCalls(node.accumulator, result, f"{self._where}: {render(node)}")
        values = [arg.expr for arg in args]
        partial = self._partial("aggregate", node, BINARY, calls.init(values), calls.init_grouped(values), calls.merge)
        return calls.finish(partial)


_AGGREGATES: Final[dict[str, Callable[[_PlanBuilder, _Argument, dict[str, Any]], pl.Expr]]] = {
    "count": _PlanBuilder.count,
    "sum": _PlanBuilder.sum,
    "mean": _PlanBuilder.mean,
    "min": _PlanBuilder.min,
    "max": _PlanBuilder.max,
    "first": _PlanBuilder.first,
    "last": _PlanBuilder.last,
    "collect": _PlanBuilder.collect,
    "n_unique": _PlanBuilder.n_unique,
    "quantile": _PlanBuilder.quantile,
}
