"""The aggregates: their names, documentation and type rules, and what Spark knows them by.

How they are computed stands in `aggregates`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.expressions.decimal_rules import mean_of_decimals
from penstock.expressions.functions_nested import sum_type
from penstock.expressions.nodes import Option
from penstock.expressions.typing_rules import ORDERED, Arguments, TypeMismatchError, describe
from penstock.types import (
    ANY_NUMBER,
    BOOLEAN,
    DATE,
    DECIMAL,
    DURATION,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    NULL,
    STRING,
    TIMESTAMP,
    UINT8,
    UINT16,
    UINT32,
    DataType,
    DecimalType,
    ListType,
    MapType,
    StructType,
    family,
)

AggregateRule = Callable[[Arguments], tuple[DataType, bool]]
"""Type of the result, and whether it can be null."""


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """An aggregate of the catalogue."""

    name: str
    usage: str
    rule: AggregateRule
    doc: str
    sql: str = ""
    spark: Mapping[DataType, str] = field(default_factory=dict[DataType, str])
    """Family of types of a partial to the Spark expression that merges partials of it, `{}` being the column. Only what
    tests prove equal to streaming (`tests/spark/test_native.py`); rows of other types, and of an aggregate without any,
    replay."""
    polars: tuple[str, ...] = ()
    """Polars' names where they are others."""
    arrival: str = ""
    """What of its result the order of arrival decides; empty if nothing."""
    settled_by: tuple[str, Option] | None = None
    """The setting under which the order of arrival decides nothing."""


_ORDERS: Final[tuple[DataType, ...]] = (
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    STRING,
    BOOLEAN,
    TIMESTAMP,
    DATE,
    DECIMAL,
)
"""Types that Spark orders as Polars does."""
_COUNTED: Final[dict[DataType, str]] = {INT64: "sum({})"}
_SUMMED: Final[dict[DataType, str]] = {INT64: "sum({})", FLOAT64: "sum({})", DECIMAL: "sum({})"}
_FLOATS: Final[tuple[DataType, ...]] = (FLOAT32, FLOAT64)
_LEAST: Final[dict[DataType, str]] = dict.fromkeys((*_ORDERS, *_FLOATS), "min({})")
# To Spark NaN is the greatest number: it may only count where there is nothing else.
_GREATEST: Final[dict[DataType, str]] = {
    **dict.fromkeys(_ORDERS, "max({})"),
    **dict.fromkeys(_FLOATS, "coalesce(max(if(isnan({0}), null, {0})), max({0}))"),
}


_EQUAL_ROWS: Final = "which of several best rows of one event time counts"
_EQUAL_TIMES: Final = "which of several rows with that event time counts"
_LISTED: Final = "the places of rows with equal event times"
_EQUALLY_FREQUENT: Final = "which of several most frequent values of one first event time counts"


def _only(arguments: Arguments, kinds: frozenset[DataType]) -> DataType:
    kind = arguments[0].type
    if family(kind) not in kinds:
        raise arguments.fail(describe(kinds), kind)
    return kind


def _count(arguments: Arguments) -> tuple[DataType, bool]:
    return INT64, False


def _sum(arguments: Arguments) -> tuple[DataType, bool]:
    return sum_type(_only(arguments, ANY_NUMBER | {BOOLEAN, DURATION})), arguments.nullable


def _mean(arguments: Arguments) -> tuple[DataType, bool]:
    kind = _only(arguments, ANY_NUMBER | {BOOLEAN, DURATION})
    if isinstance(kind, DecimalType):
        return mean_of_decimals(kind), arguments.nullable
    return (DURATION if kind == DURATION else FLOAT64), arguments.nullable


def _extreme(arguments: Arguments) -> tuple[DataType, bool]:
    return _only(arguments, ORDERED), arguments.nullable


def _one_row(arguments: Arguments) -> tuple[DataType, bool]:
    check_filter(arguments)
    return arguments[0].type, arguments[0].nullable or len(arguments.operands) > 1


def check_filter(arguments: Arguments) -> None:
    """The last argument of an aggregate with `filter=` is a condition.

    Raises:
        TypeMismatchError: it is not.
    """
    kind = arguments.operands[-1].type
    if arguments.options.get("filter") and kind != BOOLEAN:
        raise TypeMismatchError(f"{arguments.name}: filter= needs a condition, got {kind}; compare it with something")


def _row_by(arguments: Arguments) -> tuple[DataType, bool]:
    value, by = arguments.operands
    if family(by.type) not in ORDERED:
        raise arguments.fail(f"a column to order by ({describe(ORDERED)})", by.type)
    return value.type, value.nullable or by.nullable or by.type in _FLOATS


def _variance(arguments: Arguments) -> tuple[DataType, bool]:
    ddof = arguments.options["ddof"]
    if not isinstance(ddof, int) or isinstance(ddof, bool) or ddof < 0:
        raise TypeMismatchError(f"{arguments.name} needs ddof=1 (of a sample) or ddof=0 (of all), got {ddof!r}")
    if arguments[0].type == DURATION:
        raise TypeMismatchError(f"{arguments.name} needs a number, got duration; use .dt.total_microseconds() first")
    _only(arguments, ANY_NUMBER)
    return FLOAT64, True


def _condition(arguments: Arguments) -> tuple[DataType, bool]:
    if arguments[0].type != BOOLEAN:
        raise TypeMismatchError(f"{arguments.name} needs boolean, got {arguments[0].type}; compare it with something")
    return BOOLEAN, False


def _n_unique(arguments: Arguments) -> tuple[DataType, bool]:
    if isinstance(arguments[0].type, (ListType, MapType, StructType)) or arguments[0].type == NULL:
        raise arguments.fail("a column without parts", arguments[0].type)
    return INT64, False


def _mode(arguments: Arguments) -> tuple[DataType, bool]:
    _n_unique(arguments)
    return arguments[0].type, arguments.nullable


def _collect(arguments: Arguments) -> tuple[DataType, bool]:
    check_filter(arguments)
    return ListType(arguments[0].type), False


def _best_rows(arguments: Arguments) -> tuple[DataType, bool]:
    check_filter(arguments)
    value, by, *_ = arguments.operands
    if family(by.type) not in ORDERED:
        raise arguments.fail(f"a column to order by ({describe(ORDERED)})", by.type)
    k = arguments.options["k"]
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise TypeMismatchError(f"{arguments.name} needs how many rows, 1 or more, got {k!r}")
    return ListType(value.type), False


def _collect_distinct(arguments: Arguments) -> tuple[DataType, bool]:
    return ListType(_only(arguments, ORDERED)), False


def _quantile(arguments: Arguments) -> tuple[DataType, bool]:
    _only(arguments, ANY_NUMBER)
    quantile = arguments.options["quantile"]
    if not isinstance(quantile, (int, float)) or not 0 <= quantile <= 1:
        raise TypeMismatchError(f"{arguments.name} needs a number between 0 and 1, got {quantile!r}")
    return FLOAT64, arguments.nullable


AGGREGATES: Final = (
    AggregateFunction("count", "count() or x.count()", _count,
                      "Number of rows, or of rows where x is not null.", "count", _COUNTED),
    AggregateFunction("sum", "x.sum()", _sum,
                      "Sum as int64, uint64, float64, duration or a decimal of 38 digits; true counts as 1. Nulls are "
                      "ignored; null if all are null. A result of integers or decimals that does not fit its type fails "
                      "the job (which running sums are results depends on batches). A sum of floats between 1e-13 and "
                      "3e16 (and zeros) is exact and rounded once, so it does not depend on batches.", "sum", _SUMMED),
    AggregateFunction("mean", "x.mean()", _mean,
                      "Sum divided by count in float64. For integers it is the exact quotient, rounded once: their sum "
                      "does not wrap around. Means of durations are rounded down to microseconds, those of decimals to 6 "
                      "digits or their own scale, halves away from zero. Nulls are ignored; null if all are null.", "avg",
                      _COUNTED),
    AggregateFunction("min", "x.min()", _extreme,
                      "The smallest value; nulls are ignored, and so is NaN unless all are NaN. Zero is 0.0, never "
                      "-0.0.", "min", _LEAST),
    AggregateFunction("max", "x.max()", _extreme,
                      "The largest value; nulls are ignored, and so is NaN unless all are NaN (some SQL engines give "
                      "NaN). Zero is 0.0, never -0.0.", "max", _GREATEST),
    AggregateFunction("std", "x.std(ddof=1)", _variance,
                      "Standard deviation in float64, the root of the variance: of a sample as in Polars, or of the "
                      "population with ddof=0. Nulls are ignored; null for ddof values or fewer.", "stddev_samp"),
    AggregateFunction("var", "x.var(ddof=1)", _variance,
                      "Variance in float64: of a sample as in Polars, or of the population with ddof=0. Nulls are "
                      "ignored; null for ddof values or fewer. Exact and rounded once for up to a million values that "
                      "are 0 or from 2.5e-4 to 3e16. For smaller values that hardly differ it is approximate: multiply "
                      "them by a power of two first.", "var_samp"),
    AggregateFunction("any", "x.any()", _condition,
                      "Whether a condition is true in at least one row; null counts as false.", "bool_or"),
    AggregateFunction("all", "x.all()", _condition,
                      "Whether a condition is true in every row; null counts as true.", "bool_and"),
    AggregateFunction("max_by", "x.max_by(y)", _row_by,
                      "The value, null or not, of the row with the largest y; of several such rows the first by event "
                      "time, then arrival. Rows in which y is null or NaN are ignored.", "max_by",
                      arrival=_EQUAL_ROWS),
    AggregateFunction("min_by", "x.min_by(y)", _row_by,
                      "The value, null or not, of the row with the smallest y; of several such rows the first by event "
                      "time, then arrival. Rows in which y is null or NaN are ignored.", "min_by",
                      arrival=_EQUAL_ROWS),
    AggregateFunction("first", "x.first()", _one_row,
                      "The value, null or not, of the row with the smallest event time; of several the one that "
                      "arrived first. Without event time: of the row that arrived first.", "first",
                      arrival=_EQUAL_TIMES),
    AggregateFunction("last", "x.last()", _one_row,
                      "The value, null or not, of the row with the largest event time; of several the one that "
                      "arrived last. Without event time: of the row that arrived last.", "last",
                      arrival=_EQUAL_TIMES),
    AggregateFunction("n_unique", "x.n_unique()", _n_unique,
                      "Exact number of different values, nulls not counted (as SQL; Polars counts null). NaN equals "
                      "NaN, -0.0 equals 0.0.", "count distinct"),
    AggregateFunction("mode", 'x.mode(ties="first")', _mode,
                      "The most frequent value; of several the one whose first row has the smallest event time, then "
                      'arrived first, or with ties="least" the smallest. Nulls are ignored, null if all are null. NaN '
                      "equals NaN, -0.0 equals 0.0. Keeps all different values and their counts as state.", "mode",
                      arrival=_EQUALLY_FREQUENT, settled_by=("ties", "least")),
    AggregateFunction("collect", "x.collect()", _collect,
                      "All values, nulls included, as a list ordered by event time, then arrival.", "list",
                      polars=("implode",),
                      arrival=_LISTED),
    AggregateFunction("top_k_by", "x.top_k_by(y, 3)", _best_rows,
                      "The values, nulls included, of the rows with the largest y as a list, the largest first; of equal "
                      "ones in order of event time, then arrival. Null and NaN come last. Keeps that many rows as state.",
                      arrival=_LISTED),
    AggregateFunction("bottom_k_by", "x.bottom_k_by(y, 3)", _best_rows,
                      "The values, nulls included, of the rows with the smallest y as a list, the smallest first; of "
                      "equal ones in order of event time, then arrival. Null and NaN come last. Keeps that many rows as "
                      "state.",
                      arrival=_LISTED),
    AggregateFunction("collect_distinct", "x.collect_distinct()", _collect_distinct,
                      "The different values in ascending order, without nulls.", "collect_set",
                      polars=("unique().drop_nulls().sort()",)),
    AggregateFunction("quantile", "x.quantile(0.99)", _quantile,
                      "Exact quantile in float64, linear between neighbours; nulls are ignored, null if all are null. "
                      "Keeps all values as state.", "quantile_cont"),
    AggregateFunction("approx_n_unique", "x.approx_n_unique()", _n_unique,
                      "Number of different values, nulls not counted: exact up to 4,095, above that with a standard "
                      "error of 1.6 % (99.7 % of results within 5 %). It does not depend on batches. Keeps at most 32 "
                      "KiB as state, and 8 bytes per value while there are few.", "approx_count_distinct"),
    AggregateFunction("approx_quantile", "x.approx_quantile(0.99)", _quantile,
                      "Quantile in float64, linear between neighbours; nulls are ignored, null if all are null. Exact up "
                      "to 2,600 different values. Above that, each neighbour is within 0.4 % of its value if values are "
                      "within a factor of a million (positive and negative ones together), within 0.8 % for the square "
                      "of that, and so on. It does not depend on batches. Keeps at most 42 KB as state.",
                      "approx_quantile", polars=("quantile",)),
    AggregateFunction("aggregate", "aggregate(Accumulator(), x, ...)", _count,
                      "A user-defined aggregate; runs Python per row.",
                      arrival="the rows that its accumulator gets one after the other"),
)  # fmt: skip
"""`aggregate` takes its type from the accumulator (see `inference`), so its rule is never asked. The partials of `mean`
are those of `sum` and `count`; sums of integers of 64 bits have beside them the sum of their high halves."""


def _beside(arguments: Arguments) -> tuple[DataType, bool]:
    return arguments[0].type, True


OVER_ROWS: Final = (
    AggregateFunction("row_number", "row_number()", _count,
                      "The number of rows of the key up to this one, by event time, then arrival.", "row_number",
                      arrival=_LISTED),
    AggregateFunction("lag", "lag(x, 1, default=...)", _beside,
                      "The value of the row so many rows before this one, by event time, then arrival; where there is "
                      "none the default, or null.", "lag",
                      arrival=_LISTED),
    AggregateFunction("lead", "lead(x, 1, default=...)", _beside,
                      "The value of the row so many rows after this one, by event time, then arrival; at the end of the "
                      "input the default, or null.", "lead",
                      arrival=_LISTED),
)  # fmt: skip
"""What `keyed.over()` knows beside the aggregates."""

BY_NAME: Final = {row.name: row for row in (*AGGREGATES, *OVER_ROWS)}
