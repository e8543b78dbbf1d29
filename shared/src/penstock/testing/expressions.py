"""An expression tried on a few values, without a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import PipelineError, UserCodeError, without_context
from penstock.expressions import AggregatePlan, Expr, contains_aggregate, output_name, row_field, to_polars
from penstock.expressions.queries import has_name
from penstock.types import Field, Schema, of_arrow

if TYPE_CHECKING:
    import polars as pl


def evaluate(expr: Expr, columns: Mapping[str, Sequence[Any]] | None = None, **more: Sequence[Any]) -> Any:
    """What an expression gives: a list with a value for every row, or the one value of an aggregate.

    Args:
        expr: the expression.
        columns: the values of each column that it reads, all of one length.
        more: the same, for columns whose names are Python's.

    Raises:
        PipelineError: the expression does not fit the types of the values, or columns differ in length.
        UserCodeError: it fails on a value, as it would fail the job.

    Example:
        >>> evaluate(col("price") * 2, price=[1, None, 3])
        [2, None, 6]
        >>> evaluate(col("price").sum(), price=[1, None, 3])
        4
    """
    import polars as pl

    frame, schema = _frame({**(columns or {}), **more})
    try:
        if contains_aggregate(expr):
            return _aggregated(expr, frame, schema)
        row_field(expr, schema, "evaluate")
        return frame.with_columns(to_polars(expr, schema, "evaluate").alias("__result"))["__result"].to_list()
    except pl.exceptions.PolarsError as error:
        raise UserCodeError(f"evaluate: {expr}: {without_context(error)}") from error


def _frame(columns: Mapping[str, Sequence[Any]]) -> tuple[pl.DataFrame, Schema]:
    import polars as pl

    for name, values in columns.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise PipelineError(f"evaluate: {name}= takes a list of values, one for every row, got {values!r:.100}")
    if len({len(list(values)) for values in columns.values()}) > 1:
        counts = ", ".join(f"{name}: {len(list(values))}" for name, values in columns.items())
        raise PipelineError(f"evaluate: columns are of one length, a value for every row; these are not: {counts}")
    frame = pl.DataFrame({name: pl.Series(name, list(values), strict=False) for name, values in columns.items()})
    schema = Schema(
        tuple(
            Field(column.name, of_arrow(column.to_arrow().type, f"evaluate: {column.name}"), column.null_count() > 0)
            for column in frame
        )
    )
    return frame.with_columns(pl.col(name).cast(kind) for name, kind in schema.polars().items()), schema


def _aggregated(expr: Expr, frame: pl.DataFrame, schema: Schema) -> Any:
    import polars as pl

    name = output_name(expr) if has_name(expr) else "result"
    plan = AggregatePlan.build([(name, expr)], schema, "evaluate", event_time=False)
    partials = frame.with_columns(pl.lit(0).alias("__key")).group_by("__key").agg(plan.init_grouped)
    return partials.select(plan.finish)[name].to_list()[0] if partials.height else None
