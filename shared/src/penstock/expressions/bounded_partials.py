"""Aggregates whose partials are lists of bounded length: the best rows of a group, and sketches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from penstock.expressions.distinct_sketch import distinct_estimate, least_hashes, sketch_hashes
from penstock.expressions.partial_columns import Argument, Options, PartialColumns, ordered_by
from penstock.expressions.quantile_sketch import merged_sketch, sketch_of_each, sketch_of_group, sketched_quantile
from penstock.types import INT64, UINT64, Field, ListType, StructType, polars_type


def top_k_by(columns: PartialColumns, args: list[Argument], options: Options) -> pl.Expr:
    """The values of the rows with the greatest second argument."""
    return _best(columns, "top_k_by", args, options["k"])


def bottom_k_by(columns: PartialColumns, args: list[Argument], options: Options) -> pl.Expr:
    """The values of the rows with the least second argument."""
    return _best(columns, "bottom_k_by", args, options["k"])


def _best(columns: PartialColumns, name: str, args: list[Argument], k: int) -> pl.Expr:
    """The values of the first rows in an order, of equal ones in order of event time, then arrival."""
    arg, by = args[0], ordered_by(args[1])
    # Not by arrival alone: windows merge panes in order of event time.
    timed = {"time": (columns.time(), Field("time", INT64))} if columns.event_time else {}
    parts = {
        "by": (by.expr, Field("by", by.type, nullable=True)), **timed,
        "value": (arg.expr, Field("value", arg.type, arg.nullable)),
    }  # fmt: skip
    kind = ListType(StructType(tuple(field for _, field in parts.values())))
    row = pl.struct(expr.alias(part) for part, (expr, _) in parts.items())
    one, many = pl.concat_list(row), row
    if len(args) > 2:
        kept = args[2].expr.fill_null(False)
        one, many = pl.when(kept).then(one).otherwise(pl.lit([], dtype=polars_type(kind))), row.filter(kept)
    first = _first(k, ("by", *timed), descending=name == "top_k_by")
    best = columns.add(
        name, (name, k, *(each.node for each in args)), kind, one, first(many),
        lambda partial: first(partial.explode(empty_as_null=False)),
    )  # fmt: skip
    return best.list.eval(pl.element().struct.field("value"))


def _first(k: int, by: Sequence[str], *, descending: bool) -> Callable[[pl.Expr], pl.Expr]:
    """In a group: the list of the first rows in the order of these fields; the first field may fall."""
    fields = [pl.element().struct.field(name) for name in by]
    falls = [descending, *(False for _ in by[1:])]
    ordered = pl.element().sort_by(fields, descending=falls, nulls_last=True, maintain_order=True)
    # In lists, because Polars mistakes the fields of what is exploded within a group for those of other groups.
    return lambda rows: rows.implode().list.eval(ordered.head(k))


def approx_n_unique(columns: PartialColumns, args: list[Argument], _: Options) -> pl.Expr:
    """The number of different values, by a sketch."""
    hashes = sketch_hashes(args[0].expr)
    sketch = columns.add(
        "approx_n_unique", ("hashes", args[0].node), ListType(UINT64), pl.concat_list(hashes).list.drop_nulls(),
        least_hashes(hashes), lambda partial: least_hashes(partial.explode()),
    )  # fmt: skip
    return distinct_estimate(sketch)


def approx_quantile(columns: PartialColumns, args: list[Argument], options: Options) -> pl.Expr:
    """A quantile, by a sketch."""
    value = args[0].expr.cast(pl.Float64())
    sketch = columns.add(
        "approx_quantile", ("buckets", args[0].node), ListType(INT64), sketch_of_each(value),
        sketch_of_group(value), merged_sketch,
    )  # fmt: skip
    return sketched_quantile(sketch, options["quantile"])
