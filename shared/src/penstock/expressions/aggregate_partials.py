"""How each aggregate of the catalogue is computed: the partial columns it asks for, and its result made of them.

All of it is native Polars. Users' own accumulators stand in `accumulator_calls`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import polars as pl

from penstock.core.times import MIN_WATERMARK
from penstock.expressions.bounded_partials import approx_n_unique, approx_quantile, bottom_k_by, top_k_by
from penstock.expressions.decimal_rules import sum_of_decimals
from penstock.expressions.decimal_sums import UNHALVED_DIGITS, halves_of, mean_of_parts, total_of_halves
from penstock.expressions.exact_means import floored_mean, high_half, mean_of_integers
from penstock.expressions.exact_sums import fitting, limbs_of, squares_of, total_of, variance_of
from penstock.expressions.functions_nested import sum_type
from penstock.expressions.functions_numeric import divided
from penstock.expressions.partial_columns import (
    TIES_BY_ARRIVAL,
    WRAPPED_SUMS,
    Argument,
    Options,
    PartialColumns,
    ordered_by,
)
from penstock.expressions.rendering import render
from penstock.types import (
    BOOLEAN,
    DECIMAL,
    DURATION,
    FLOAT64,
    FLOATS,
    INT64,
    UINT64,
    DataType,
    DecimalType,
    Field,
    ListType,
    StructType,
    polars_type,
)

_INT64: Final = pl.Int64()
_FLOAT64: Final = pl.Float64()
_WRAPPING: Final = frozenset({INT64, UINT64, DURATION})
"""Types of which a few values have a sum that is too large for it."""


def rows(columns: PartialColumns) -> pl.Expr:
    """Number of rows."""
    return columns.add(
        "count", "rows", INT64, pl.lit(1, dtype=_INT64), pl.len().cast(_INT64), lambda partial: partial.sum()
    )


def _count(columns: PartialColumns, args: list[Argument], _: Options) -> pl.Expr:
    return _present(columns, args[0])


def _present(columns: PartialColumns, arg: Argument) -> pl.Expr:
    """Number of rows in which it is not null."""
    if not arg.nullable:
        return rows(columns)
    init, grouped = arg.expr.is_not_null().cast(_INT64), arg.expr.count().cast(_INT64)
    return columns.add(
        "count", ("count", arg.node), INT64, init, grouped, lambda partial: partial.sum(),
        former=("rows", lambda partial: partial),
    )  # fmt: skip


def _sum(columns: PartialColumns, args: list[Argument], _: Options) -> pl.Expr:
    (arg,) = args
    if isinstance(arg.type, DecimalType):
        return _sum_of_decimals(columns, arg, arg.type)
    total = _total(columns, arg)
    if arg.nullable:
        total = pl.when(_present(columns, arg) > 0).then(total)
    if arg.type not in _WRAPPING or columns.form <= WRAPPED_SUMS:
        return total
    kind = sum_type(arg.type)
    what = f"the sum of {render(arg.node)} does not fit into {kind}"
    if arg.type != DURATION:
        what += "; add floats instead: .cast(float).sum()"
    return fitting(total, _high(columns, arg, total), kind, what)


def _sum_of_decimals(columns: PartialColumns, arg: Argument, kind: DecimalType) -> pl.Expr:
    parts = _decimal_parts(columns, arg, kind)
    total = parts[0] if len(parts) == 1 else total_of_halves(parts, sum_of_decimals(kind), render(arg.node))
    return pl.when(_present(columns, arg) > 0).then(total) if arg.nullable else total


def _decimal_parts(columns: PartialColumns, arg: Argument, kind: DecimalType) -> list[pl.Expr]:
    """The sum, or of decimals of which a few have a sum too large for 128 bits, those of their halves."""
    if kind.precision <= UNHALVED_DIGITS:
        wide = sum_of_decimals(kind)
        value = arg.expr.cast(polars_type(wide))
        return [_added(columns, ("sum", arg.node), arg, wide, value)]
    halves = halves_of(arg.expr)
    return [_added(columns, ("half", place, arg.node), arg, DECIMAL, half) for place, half in enumerate(halves)]


def _added(columns: PartialColumns, key: Any, arg: Argument, kind: DecimalType, value: pl.Expr) -> pl.Expr:
    return columns.add("sum", key, kind, value, value.sum(), lambda partial: partial.sum(), nullable=arg.nullable)


def _total(columns: PartialColumns, arg: Argument) -> pl.Expr:
    """The sum with nothing for nulls: a group of nulls has 0; integers of 64 bits modulo 2**64."""
    if arg.type in FLOATS and columns.form > WRAPPED_SUMS:
        *limbs, rest = _limbs(columns, "sum", arg, limbs_of(arg.expr.cast(_FLOAT64)))
        return total_of(limbs, rest)
    kind = sum_type(arg.type)
    value = arg.expr if arg.type == kind else arg.expr.cast(polars_type(kind))
    return columns.add(
        "sum", ("sum", arg.node), kind, value, value.sum(), lambda partial: partial.sum(), nullable=arg.nullable
    )


def _limbs(columns: PartialColumns, of: str, arg: Argument, parts: list[pl.Expr]) -> list[pl.Expr]:
    """The columns of the sums of limbs and rest."""
    found: list[pl.Expr] = []
    for place, part in enumerate(parts):
        kind = FLOAT64 if place == len(parts) - 1 else INT64
        found.append(
            columns.add(
                of, (of, place, arg.node), kind, part, part.sum(), lambda partial: partial.sum(),
                nullable=arg.nullable, former=(("sum", arg.node), _part(place)),
            )
        )  # fmt: skip
    columns.limbs[tuple(column.meta.output_name() for column in found)] = None
    return found


def _part(place: int) -> Callable[[pl.Expr], pl.Expr]:
    return lambda total: limbs_of(total)[place]


def _high(columns: PartialColumns, arg: Argument, total: pl.Expr) -> pl.Expr:
    """The sum of the high halves; one partial more only for types whose sum can wrap around."""
    if arg.type not in _WRAPPING:
        return high_half(total.cast(_INT64))
    value = arg.expr.cast(_INT64) if arg.type == DURATION else arg.expr
    high = high_half(value)
    return columns.add(
        "mean", ("high", arg.node), INT64, high, high.sum(), lambda partial: partial.sum(),
        nullable=arg.nullable, former=(("sum", arg.node), lambda partial: high_half(partial.cast(_INT64))),
    )  # fmt: skip


def _mean(columns: PartialColumns, args: list[Argument], _: Options) -> pl.Expr:
    (arg,) = args
    if isinstance(arg.type, DecimalType):
        present = _present(columns, arg)
        mean = mean_of_parts(_decimal_parts(columns, arg, arg.type), present, arg.type, render(arg.node))
        return pl.when(present > 0).then(mean) if arg.nullable else mean
    total, present = _total(columns, arg), _present(columns, arg)
    if arg.type in FLOATS:
        mean = divided(total, present.cast(_FLOAT64))
    elif columns.form < WRAPPED_SUMS:
        mean = total
    elif arg.type == DURATION:
        high = _high(columns, arg, total)
        mean = floored_mean(total.cast(_INT64), high, present).cast(polars_type(DURATION))
    else:
        mean = mean_of_integers(total, _high(columns, arg, total), present)
    return pl.when(present > 0).then(mean) if arg.nullable else mean


def _var(columns: PartialColumns, args: list[Argument], options: Options) -> pl.Expr:
    (arg,) = args
    value = arg.expr.cast(_FLOAT64)
    sums = _limbs(columns, "sum", arg, limbs_of(value))
    squares = _limbs(columns, "var", arg, squares_of(value))
    return variance_of(sums, squares, _present(columns, arg), options["ddof"])


def _std(columns: PartialColumns, args: list[Argument], options: Options) -> pl.Expr:
    return _var(columns, args, options).sqrt()


def _min(columns: PartialColumns, args: list[Argument], _: Options) -> pl.Expr:
    (arg,) = args
    found = columns.add(
        "min", ("min", arg.node), arg.type, arg.expr, arg.expr.min(), lambda partial: partial.min(),
        nullable=arg.nullable,
    )  # fmt: skip
    return _unsigned_zero(found, arg)


def _max(columns: PartialColumns, args: list[Argument], _: Options) -> pl.Expr:
    (arg,) = args
    found = columns.add(
        "max", ("max", arg.node), arg.type, arg.expr, arg.expr.max(), lambda partial: partial.max(),
        nullable=arg.nullable,
    )  # fmt: skip
    return _unsigned_zero(found, arg)


def _unsigned_zero(found: pl.Expr, arg: Argument) -> pl.Expr:
    """Of -0.0 and 0.0, which are equal, any may have been found: 0.0 it is."""
    # Not by adding 0.0: Polars leaves columns as they are to which zero is added.
    return (
        pl.when(found == 0).then(pl.lit(0.0, polars_type(arg.type))).otherwise(found) if arg.type in FLOATS else found
    )


def _any(columns: PartialColumns, args: list[Argument], _: Options) -> pl.Expr:
    value = args[0].expr.fill_null(False)
    key = ("any", args[0].node)
    return columns.add("max", key, BOOLEAN, value, value.max(), lambda partial: partial.max())


def _all(columns: PartialColumns, args: list[Argument], _: Options) -> pl.Expr:
    value = args[0].expr.fill_null(True)
    key = ("all", args[0].node)
    return columns.add("min", key, BOOLEAN, value, value.min(), lambda partial: partial.min())


# -- the value of one row -----------------------------------------------------------------------------------------------


def _first(columns: PartialColumns, args: list[Argument], _: Options) -> pl.Expr:
    if len(args) > 1:
        return _chosen(columns, "first", args)
    arg = args[0]
    if not columns.event_time:
        return _value(columns, "first", arg, arg.expr.first(), lambda partial: partial.first())
    time = columns.time()
    earliest = columns.add("first", "earliest", INT64, time, time.min(), lambda partial: partial.min())
    grouped = arg.expr.get(_first_where(time == time.min()))
    return _value(columns, "first", arg, grouped, lambda partial: partial.get(_first_where(earliest == earliest.min())))


def _last(columns: PartialColumns, args: list[Argument], _: Options) -> pl.Expr:
    if len(args) > 1:
        return _chosen(columns, "last", args)
    arg = args[0]
    if not columns.event_time:
        return _value(columns, "last", arg, arg.expr.last(), lambda partial: partial.last())
    time = columns.time()
    latest = columns.add("last", "latest", INT64, time, time.max(), lambda partial: partial.max())
    grouped = arg.expr.get(_last_where(time == time.max()))
    return _value(columns, "last", arg, grouped, lambda partial: partial.get(_last_where(latest == latest.max())))


# Of numbers Polars' arg_min and arg_max give the first of equals or the last, by what it knows of their order.


def _first_where(condition: pl.Expr) -> pl.Expr:
    """The place of the first row of a group for which it holds."""
    return condition.fill_null(False).arg_max()


def _last_where(condition: pl.Expr) -> pl.Expr:
    """The place of the last row of a group for which it holds."""
    return pl.len() - 1 - condition.fill_null(False).reverse().arg_max()


def _value(
    columns: PartialColumns, name: str, arg: Argument, grouped: pl.Expr, merge: Callable[[pl.Expr], pl.Expr]
) -> pl.Expr:
    # ("first", node) is another column: what rows are chosen by.
    return columns.add(name, ("row", name, arg.node), arg.type, arg.expr, grouped, merge, nullable=arg.nullable)


def _chosen(columns: PartialColumns, name: str, args: list[Argument]) -> pl.Expr:
    """The first or last row for which a condition holds, by event time or else by arrival."""
    arg, condition = args
    chosen = condition.expr.fill_null(False)
    if columns.event_time:
        by = Argument(condition.node, pl.when(chosen).then(columns.time()), INT64, True)
        return _timed_row(columns, name, arg, by, last=name == "last")

    def one(values: pl.Expr, among: pl.Expr) -> pl.Expr:
        kept = values.filter(among)
        return kept.first() if name == "first" else kept.last()

    key = (name, condition.node)
    there = columns.add(name, key, BOOLEAN, chosen, chosen.max(), lambda partial: partial.max())
    return columns.add(
        name, (*key, arg.node), arg.type, pl.when(chosen).then(arg.expr), one(arg.expr, chosen),
        lambda partial: one(partial, there), nullable=True,
    )  # fmt: skip


def _timed_row(columns: PartialColumns, name: str, arg: Argument, time: Argument, *, last: bool) -> pl.Expr:
    """The value of the row with the least or greatest of these times; rows without one do not count."""
    best = _best_of(columns, name, time, greatest=last)

    def place(times: pl.Expr) -> pl.Expr:
        return _last_where(times == times.max()) if last else _first_where(times == times.min())

    value = columns.add(
        name, (name, time.node, arg.node), arg.type, arg.expr, _at(arg.expr, time.expr, place(time.expr)),
        lambda partial: _at(partial, best, place(best)), nullable=True,
    )  # fmt: skip
    return pl.when(best.is_not_null()).then(value)


def _max_by(columns: PartialColumns, args: list[Argument], _: Options) -> pl.Expr:
    return _by(columns, "max_by", args[0], ordered_by(args[1]), greatest=True)


def _min_by(columns: PartialColumns, args: list[Argument], _: Options) -> pl.Expr:
    return _by(columns, "min_by", args[0], ordered_by(args[1]), greatest=False)


def _by(columns: PartialColumns, name: str, arg: Argument, by: Argument, *, greatest: bool) -> pl.Expr:
    """The value of the row in which another one is greatest or least: the first by event time, then arrival."""
    if columns.event_time and columns.form > TIES_BY_ARRIVAL:
        # Not by arrival alone: sessions and panes are merged in order of event time.
        return _by_and_time(columns, name, arg, by, greatest=greatest)
    best = _best_of(columns, name, by, greatest=greatest)

    def place(values: pl.Expr) -> pl.Expr:
        return _first_where(values == (values.max() if greatest else values.min()))

    value = columns.add(
        name, (name, by.node, arg.node), arg.type, arg.expr, _at(arg.expr, by.expr, place(by.expr)),
        lambda partial: _at(partial, best, place(best)), nullable=True,
    )  # fmt: skip
    return pl.when(best.is_not_null()).then(value)


def _by_and_time(columns: PartialColumns, name: str, arg: Argument, by: Argument, *, greatest: bool) -> pl.Expr:
    # Windows under triggers have no time of partials that former versions stored: they count as the first.
    best, time = _best_of(columns, name, by, greatest=greatest), columns.time()

    def times(values: pl.Expr, among: pl.Expr) -> pl.Expr:
        return pl.when(values == (values.max() if greatest else values.min())).then(among)

    earliest = columns.add(
        name, (name, by.node, "time"), INT64, time, times(by.expr, time).min(),
        lambda partial: times(best, partial.fill_null(MIN_WATERMARK)).min(), nullable=True, behind=True,
        former=((name, by.node), lambda _: pl.lit(MIN_WATERMARK, _INT64)),
    )  # fmt: skip

    def place(values: pl.Expr, among: pl.Expr) -> pl.Expr:
        return _first_where(times(values, among) == times(values, among).min())

    value = columns.add(
        name, (name, by.node, arg.node), arg.type, arg.expr, _at(arg.expr, by.expr, place(by.expr, time)),
        lambda partial: _at(partial, best, place(best, earliest.fill_null(MIN_WATERMARK))), nullable=True,
    )  # fmt: skip
    return pl.when(best.is_not_null()).then(value)


def _best_of(columns: PartialColumns, name: str, by: Argument, *, greatest: bool) -> pl.Expr:
    """The greatest or least of the values that rows are chosen by."""

    def found(values: pl.Expr) -> pl.Expr:
        return values.max() if greatest else values.min()

    return columns.add(name, (name, by.node), by.type, by.expr, found(by.expr), found, nullable=by.nullable)


def _at(values: pl.Expr, by: pl.Expr, place: pl.Expr) -> pl.Expr:
    """The value at that place; null if rows are chosen by nothing but nulls."""
    return pl.when(by.count() > 0).then(values.get(place))


# -- aggregates that keep all values ------------------------------------------------------------------------------------


def _collect(columns: PartialColumns, args: list[Argument], _: Options) -> pl.Expr:
    arg = args[0]
    kept = args[1].expr.fill_null(False) if len(args) > 1 else None
    key = ("collect", *(each.node for each in args))
    if not columns.event_time:
        return _gathered(columns, key, ListType(arg.type), arg.expr, kept)
    kind = ListType(StructType((Field("time", INT64), Field("value", arg.type, arg.nullable))))
    pair = pl.struct(columns.time().alias("time"), arg.expr.alias("value"))
    pairs = _gathered(columns, key, kind, pair, kept)
    element = pl.element().struct
    return pairs.list.eval(pl.element().sort_by(element.field("time"), maintain_order=True).struct.field("value"))


def _gathered(columns: PartialColumns, key: Any, kind: DataType, value: pl.Expr, kept: pl.Expr | None) -> pl.Expr:
    one, many = pl.concat_list(value), value.implode()
    if kept is not None:
        one = pl.when(kept).then(one).otherwise(pl.lit([], dtype=polars_type(kind)))
        many = value.filter(kept).implode()
    return columns.add("collect", key, kind, one, many, lambda partial: partial.explode(empty_as_null=False))


def _collect_distinct(columns: PartialColumns, args: list[Argument], _: Options) -> pl.Expr:
    values = _distinct(columns, args[0])
    if args[0].type in FLOATS:
        values = values.list.eval(_unsigned_zero(pl.element(), args[0]))
    return values.list.sort()


def _n_unique(columns: PartialColumns, args: list[Argument], _: Options) -> pl.Expr:
    return _distinct(columns, args[0]).list.len().cast(_INT64)


def _distinct(columns: PartialColumns, arg: Argument) -> pl.Expr:
    return columns.add(
        "n_unique",
        ("unique", arg.node),
        ListType(arg.type),
        pl.concat_list(arg.expr).list.drop_nulls(),
        arg.expr.drop_nulls().unique(),
        lambda partial: partial.explode().drop_nulls().unique(),
    )


def _mode(columns: PartialColumns, args: list[Argument], options: Options) -> pl.Expr:
    """The most frequent value. The partial has each distinct value with its number of rows and its first event time."""
    (arg,) = args
    value = _unsigned_zero(arg.expr, arg)
    timed = columns.event_time and options["ties"] == "first"
    parts = {
        "value": (value, Field("value", arg.type)), "rows": (pl.lit(1, _INT64), Field("rows", INT64)),
        **({"time": (columns.time(), Field("time", INT64))} if timed else {}),
    }  # fmt: skip
    kind = ListType(StructType(tuple(field for _, field in parts.values())))
    each = pl.struct(expr.alias(part) for part, (expr, _) in parts.items())
    counted = columns.add(
        "mode", ("mode", timed, arg.node), kind,
        pl.when(arg.expr.is_not_null()).then(pl.concat_list(each)).otherwise(pl.lit([], dtype=polars_type(kind))),
        _counted(each.filter(arg.expr.is_not_null()), timed=timed),
        lambda partial: _counted(partial.explode(empty_as_null=False), timed=timed),
    )  # fmt: skip
    rows = pl.element().struct.field("rows")
    most = counted.list.eval(pl.element().filter(rows == rows.max()).struct.field("value"))
    return most.list.first() if options["ties"] == "first" else most.list.min()


def _counted(parts: pl.Expr, *, timed: bool) -> pl.Expr:
    """Each value of a group once, with the sum of its rows, ordered by its first event time and then by arrival."""
    part = pl.element().struct
    rows = part.field("rows").sum().over(part.field("value"))
    ordered = pl.element().sort_by(part.field("time"), maintain_order=True) if timed else pl.element()
    # In lists, because Polars mistakes the fields of what is exploded within a group for those of other groups.
    summed = parts.implode().list.eval(part.with_fields(rows.alias("rows")))
    return summed.list.eval(ordered.filter(ordered.struct.field("value").is_first_distinct()))


def _quantile(columns: PartialColumns, args: list[Argument], options: Options) -> pl.Expr:
    value = args[0].expr.cast(_FLOAT64)
    values = columns.add(
        "quantile",
        ("values", args[0].node),
        ListType(FLOAT64),
        pl.concat_list(value).list.drop_nulls(),
        value.drop_nulls(),
        lambda partial: partial.explode().drop_nulls(),
    )
    at = options["quantile"]
    found = values.list.eval(pl.element().quantile(at, interpolation="linear")).list.first()
    return pl.when(found == 0).then(0.0).otherwise(found)


COMPUTED: Final[dict[str, Callable[[PartialColumns, list[Argument], Options], pl.Expr]]] = {
    "count": _count,
    "sum": _sum,
    "mean": _mean,
    "var": _var,
    "std": _std,
    "min": _min,
    "max": _max,
    "min_by": _min_by,
    "max_by": _max_by,
    "any": _any,
    "all": _all,
    "first": _first,
    "last": _last,
    "mode": _mode,
    "collect": _collect,
    "top_k_by": top_k_by,
    "bottom_k_by": bottom_k_by,
    "collect_distinct": _collect_distinct,
    "n_unique": _n_unique,
    "quantile": _quantile,
    "approx_n_unique": approx_n_unique,
    "approx_quantile": approx_quantile,
}
"""The aggregates of the catalogue but for `aggregate`."""
