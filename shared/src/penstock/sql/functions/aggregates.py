"""Aggregates: functions of the values of many rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Final

from penstock.errors import PipelineError
from penstock.expressions import Expr, aggregate, concat_str, count, lit, when
from penstock.expressions.nodes import Call, Literal
from penstock.expressions.typing_rules import ORDERED
from penstock.sql.functions.arguments import (
    argument,
    call,
    constant_text,
    is_null_constant,
    need,
    need_boolean,
    need_number,
    need_text,
    python_signature,
    sql_name,
)
from penstock.sql.functions.casts import as_parameter, text_of
from penstock.sql.functions.function import AggregateFunction, Argument, Options, PythonAggregate
from penstock.sql.functions.json import json_text, member
from penstock.types import FLOATS, DecimalType, ListType, MapType, StructType

Filter = Expr | None
Build = Callable[[Sequence[Argument], Options, Filter], Expr]


def _is_distinct(options: Options) -> bool:
    return bool(options.get("distinct"))


def _refuse_distinct(name: str, options: Options) -> None:
    if _is_distinct(options):
        raise PipelineError(f"{name}(DISTINCT ...) is not supported")


def _both(left: Filter, right: Expr) -> Expr:
    return right if left is None else left & right


def _in_python(arguments: Sequence[Argument], options: Options, filter: Filter) -> Expr:
    function = options["function"]
    assert isinstance(function, PythonAggregate)
    _refuse_distinct(function.name, options)
    if len(arguments) != len(function.parameters):
        raise PipelineError(
            f"{function.name} takes {len(function.parameters)} arguments, not {len(arguments)}: "
            f"{python_signature(function.name, function.parameters)}"
        )
    values: list[Expr] = []
    for parameter, value in zip(function.parameters, arguments, strict=True):
        if value.nullable and not parameter.nullable:  # nulls are not for it, as for aggregates of SQL
            filter, value = _both(filter, value.expr.is_not_null()), replace(value, nullable=False)
        values.append(as_parameter(function.name, parameter, value))
    return aggregate(function.accumulator, *values, filter=filter)


IN_PYTHON: Final = AggregateFunction("PYTHON AGGREGATE", "f(x, ...)", "An aggregate in Python.", _in_python, 1, None)
"""Calls of user-defined aggregates are rewritten to calls of this one, with the user's as the option `function`.

The space in its name keeps SQL texts from calling it."""


def _count(arguments: Sequence[Argument], options: Options, filter: Filter) -> Expr:
    varying = [value for value in arguments if not (value.is_constant and value.value is not None)]
    if _is_distinct(options):
        return _count_distinct(arguments, filter)
    if any(is_null_constant(value) for value in varying):
        return count(filter=filter) * 0
    nullable = [value for value in varying if value.nullable]
    if len(varying) == 1 and nullable:
        return varying[0].expr.count(filter=filter)
    for value in nullable:
        filter = _both(filter, value.expr.is_not_null())
    return count(filter=filter)


def _count_distinct(arguments: Sequence[Argument], filter: Filter) -> Expr:
    """Of several values, of texts that are equal if all values are; null if one is."""
    if not arguments:
        raise PipelineError("COUNT(DISTINCT) needs a value; write COUNT(DISTINCT x)")
    if len(arguments) == 1 and not isinstance(arguments[0].type, (ListType, MapType, StructType)):
        return arguments[0].expr.n_unique(filter=filter)
    return concat_str(*(part for value in arguments for part in _key(value))).n_unique(filter=filter)


def _key(value: Argument) -> list[Expr]:
    """Parts of a text that tell values apart, whatever stands beside them."""
    if isinstance(value.type, (ListType, MapType, StructType)):
        raise PipelineError(f"COUNT(DISTINCT ...) of {sql_name(value.type)} is not supported; name its parts")
    number = value.expr + 0.0 if value.type in FLOATS else value.expr  # -0.0 equals 0.0
    text = text_of(argument(number, value.type, nullable=value.nullable))
    return [text.str.len_chars().cast(str), lit(":"), text]


def _of_numbers(name: str, build: Callable[[Expr, Filter], Expr], distinct: Callable[[Expr], Expr] | None) -> Build:
    def checked(arguments: Sequence[Argument], options: Options, filter: Filter) -> Expr:
        value = need_number(name, arguments[0])
        if not _is_distinct(options):
            return build(value.expr, filter)
        if distinct is None or isinstance(value.type, DecimalType):
            raise PipelineError(f"{name}(DISTINCT ...) of {sql_name(value.type)} is not supported")
        values = value.expr.collect_distinct(filter=filter)
        return when(values.list.len() > 0).then(distinct(values))

    return _with_constants(name, checked)


def _with_constants(name: str, build: Build) -> Build:
    """An aggregate of a constant is told by the number of rows."""

    def checked(arguments: Sequence[Argument], options: Options, filter: Filter) -> Expr:
        value = arguments[0]
        if not value.is_constant:
            return build(arguments, options, filter)
        if value.value is None:
            raise PipelineError(f"{name}(NULL) has no type; write CAST(NULL AS ...)")
        rows = count(filter=filter)
        if name == "SUM" and not _is_distinct(options):
            return when(rows > 0).then(rows * need_number(name, value).expr)
        if name in ("SUM", "AVG"):
            need_number(name, value)
        if name in ("SUM", "AVG", "MIN", "MAX"):
            made = value.expr.cast(float) if name == "AVG" and not isinstance(value.type, DecimalType) else value.expr
            return when(rows > 0).then(made)
        raise PipelineError(f"{name} of a constant is not supported")

    return checked


def _extreme(name: str, build: Callable[[Expr, Filter], Expr]) -> Build:
    def checked(arguments: Sequence[Argument], _: Options, filter: Filter) -> Expr:
        return build(need(name, arguments[0], ORDERED, "a value that has an order").expr, filter)

    return _with_constants(name, checked)


def _collect(name: str) -> Build:
    def build(arguments: Sequence[Argument], options: Options, filter: Filter) -> Expr:
        (value,) = arguments
        if _is_distinct(options):
            values = value.expr.collect_distinct(filter=filter)
        else:
            if (name == "COLLECT" or options.get("ignore_nulls")) and value.nullable:
                filter = _both(filter, value.expr.is_not_null())
            values = value.expr.collect(filter=filter)
        return values if name == "COLLECT" else when(values.list.len() > 0).then(values)

    return build


def _listagg(arguments: Sequence[Argument], options: Options, filter: Filter) -> Expr:
    value, *separators = arguments
    need_text("LISTAGG", value)
    by = constant_text("LISTAGG", separators[0], "a separator") if separators else ","
    if _is_distinct(options):
        values = value.expr.collect_distinct(filter=filter)
    else:
        values = value.expr.collect(filter=_both(filter, value.expr.is_not_null()) if value.nullable else filter)
    return when(values.list.len() > 0).then(values.list.join(by))


def _object(arguments: Sequence[Argument], options: Options, filter: Filter) -> Expr:
    """`on_null` is "null" or "absent"."""
    key, value = arguments
    if options.get("on_null") == "absent" and value.nullable:
        filter = _both(filter, value.expr.is_not_null())
    return _json("{", member(key, value).collect(filter=filter), "}")


def _array(arguments: Sequence[Argument], options: Options, filter: Filter) -> Expr:
    """`on_null` is "absent" or "null"."""
    (value,) = arguments
    text = json_text(value)
    if value.nullable and options.get("on_null") == "null":
        text = text.fill_null("null")
    elif value.nullable:
        filter = _both(filter, value.expr.is_not_null())
    return _json("[", text.collect(filter=filter), "]")


def _json(opening: str, parts: Expr, closing: str) -> Expr:
    return call("sql.json", concat_str(lit(opening), parts.list.join(","), lit(closing)))


def _end(name: str, build: Callable[[Expr, Filter], Expr]) -> Build:
    def checked(arguments: Sequence[Argument], options: Options, filter: Filter) -> Expr:
        (value,) = arguments
        if value.nullable and options.get("ignore_nulls", True):
            filter = _both(filter, value.expr.is_not_null())
        return build(value.expr, filter)

    del name
    return checked


def _condition(name: str, build: Callable[[Expr, Filter], Expr]) -> Build:
    def checked(arguments: Sequence[Argument], _: Options, filter: Filter) -> Expr:
        value = need_boolean(name, arguments[0])
        present = value.expr.count(filter=filter) if value.nullable else count(filter=filter)
        return when(present > 0).then(build(value.expr, filter))

    return checked


def _quantile(name: str, build: Callable[[Expr, float, Filter], Expr]) -> Build:
    def checked(arguments: Sequence[Argument], options: Options, filter: Filter) -> Expr:
        _refuse_distinct(name, options)
        value, place = need_number(name, arguments[0]), arguments[1]
        node = place.expr.node
        if isinstance(node, Call) and node.function == "sql.array":
            return call("sql.array", *(build(value.expr, _fraction(name, Expr(part)), filter) for part in node.args))
        return build(value.expr, _fraction(name, place.expr), filter)

    return checked


def _fraction(name: str, place: Expr) -> float:
    value = place.node.value if isinstance(place.node, Literal) else None
    number = float(value) if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool) else None
    if number is None or not 0 <= number <= 1:
        raise PipelineError(f"{name} needs a constant between 0 and 1, got {place}")
    return number


def _row_by(name: str, build: Callable[[Expr, Expr, Filter], Expr]) -> Build:
    def checked(arguments: Sequence[Argument], options: Options, filter: Filter) -> Expr:
        _refuse_distinct(name, options)
        value, by = arguments
        need(name, by, ORDERED, "a value to order by")
        return build(value.expr, by.expr, filter)

    return checked


def _mode(arguments: Sequence[Argument], options: Options, filter: Filter) -> Expr:
    _refuse_distinct("MODE", options)
    return arguments[0].expr.mode(filter=filter)


def _distincts(arguments: Sequence[Argument], _: Options, filter: Filter) -> Expr:
    return arguments[0].expr.approx_n_unique(filter=filter)


def _median(arguments: Sequence[Argument], options: Options, filter: Filter) -> Expr:
    _refuse_distinct("MEDIAN", options)
    return need_number("MEDIAN", arguments[0]).expr.median(filter=filter)


def _spread(name: str, what: str, ddof: int, *aliases: str) -> AggregateFunction:
    root = name.startswith("STD")

    def build(value: Expr, filter: Filter) -> Expr:
        return value.std(ddof, filter=filter) if root else value.var(ddof, filter=filter)

    doc = f"{what} in DOUBLE; null for {'no value' if ddof == 0 else 'less than two values'}."
    return AggregateFunction(name, f"{name}(x)", doc, _of_numbers(name, build, None), 1, 1, aliases)


ROWS: Final = (
    AggregateFunction("COUNT", "COUNT(*), COUNT([DISTINCT] x [, y ...])", "Number of rows, or of those in which no "
                      "value is null, or of different such values; 0 of nothing.", _count, 0, None),
    AggregateFunction("SUM", "SUM([DISTINCT] x)", "Sum: of integers a BIGINT (one that does not fit fails), of decimals "
                      "one of 38 digits, of floats a DOUBLE; null of nothing.",
                      _of_numbers("SUM", lambda x, f: x.sum(filter=f), lambda values: values.list.sum()), 1, 1),
    AggregateFunction("AVG", "AVG([DISTINCT] x)", "Mean: of decimals a decimal, else a DOUBLE (Flink: of integers an "
                      "integer); null of nothing.",
                      _of_numbers("AVG", lambda x, f: x.mean(filter=f), lambda values: values.list.mean()), 1, 1),
    AggregateFunction("MIN", "MIN(x)", "The least value; null of nothing.",
                      _extreme("MIN", lambda x, f: x.min(filter=f)), 1, 1),
    AggregateFunction("MAX", "MAX(x)", "The greatest value; null of nothing.",
                      _extreme("MAX", lambda x, f: x.max(filter=f)), 1, 1),
    _spread("STDDEV_POP", "Standard deviation of all values", 0),
    _spread("STDDEV_SAMP", "Standard deviation of a sample", 1, "STDDEV"),
    _spread("VAR_POP", "Variance of all values", 0),
    _spread("VAR_SAMP", "Variance of a sample", 1, "VARIANCE"),
    AggregateFunction("COLLECT", "COLLECT([DISTINCT] x)", "The values that are not null as an ARRAY in order of event "
                      "time (Flink: a MULTISET), different ones in ascending order; empty of nothing.",
                      _collect("COLLECT"), 1, 1),
    AggregateFunction("ARRAY_AGG", "ARRAY_AGG([DISTINCT] x) [IGNORE NULLS]", "The values as an ARRAY in order of event "
                      "time, nulls included; different ones without null in ascending order. Null of nothing.",
                      _collect("ARRAY_AGG"), 1, 1),
    AggregateFunction("LISTAGG", "LISTAGG([DISTINCT] text [, separator])", "The texts joined in order of event time by "
                      "a constant separator, without one by a comma; different ones in ascending order. Nulls are left "
                      "out; null of nothing.", _listagg, 1, 2),
    AggregateFunction("JSON_OBJECTAGG", "JSON_OBJECTAGG([KEY] key VALUE x [NULL | ABSENT ON NULL])", "A JSON object of a "
                      "member for every row, in order of event time; keys are never null.", _object, 2, 2),
    AggregateFunction("JSON_ARRAYAGG", "JSON_ARRAYAGG(x [ABSENT | NULL ON NULL])", "A JSON array of the values in order "
                      "of event time, by default without nulls.", _array, 1, 1),
    AggregateFunction("FIRST_VALUE", "FIRST_VALUE(x) [RESPECT NULLS]", "The value with the smallest event time, of those "
                      "that are not null unless RESPECT NULLS is said.",
                      _end("FIRST_VALUE", lambda x, f: x.first(filter=f)), 1, 1),
    AggregateFunction("LAST_VALUE", "LAST_VALUE(x) [RESPECT NULLS]", "The value with the largest event time, of those "
                      "that are not null unless RESPECT NULLS is said.",
                      _end("LAST_VALUE", lambda x, f: x.last(filter=f)), 1, 1),
    AggregateFunction("BOOL_AND", "BOOL_AND(condition)", "Whether it holds wherever it is not null; null of nothing.",
                      _condition("BOOL_AND", lambda x, f: x.all(filter=f)), 1, 1, ("EVERY",)),
    AggregateFunction("BOOL_OR", "BOOL_OR(condition)", "Whether it holds in one row at least; null of nothing.",
                      _condition("BOOL_OR", lambda x, f: x.any(filter=f)), 1, 1, ("SOME", "ANY")),
    AggregateFunction("APPROX_COUNT_DISTINCT", "APPROX_COUNT_DISTINCT(x)", "Number of different values, estimated where "
                      "there are more than 4,095.", _distincts, 1, 1),
    AggregateFunction("PERCENTILE", "PERCENTILE(x, fraction)", "The exact quantile, linear between neighbours, or an "
                      "ARRAY of them; fractions are constants.",
                      _quantile("PERCENTILE", lambda x, q, f: x.quantile(q, filter=f)), 2, 2),
    AggregateFunction("APPROX_PERCENTILE", "APPROX_PERCENTILE(x, fraction)", "The quantile with little state.",
                      _quantile("APPROX_PERCENTILE", lambda x, q, f: x.approx_quantile(q, filter=f)), 2, 2,
                      ("APPROX_QUANTILE",)),
    AggregateFunction("MEDIAN", "MEDIAN(x)", "The middle of the values, or the mean of the two in the middle.",
                      _median, 1, 1),
    AggregateFunction("MODE", "MODE(x)", "The most frequent value, of several the first by event time.", _mode, 1, 1),
    AggregateFunction("MAX_BY", "MAX_BY(x, y)", "The value of the row with the largest y.",
                      _row_by("MAX_BY", lambda x, y, f: x.max_by(y, filter=f)), 2, 2, ("ARG_MAX",)),
    AggregateFunction("MIN_BY", "MIN_BY(x, y)", "The value of the row with the smallest y.",
                      _row_by("MIN_BY", lambda x, y, f: x.min_by(y, filter=f)), 2, 2, ("ARG_MIN",)),
)  # fmt: skip
