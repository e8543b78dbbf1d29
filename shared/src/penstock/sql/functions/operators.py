"""Operators, found by their symbol or keywords, with SQL's logic of three values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from penstock.errors import PipelineError
from penstock.expressions import Expr, concat_str, lit
from penstock.expressions.nodes import Call, Case
from penstock.sql.functions.arguments import (
    argument,
    call,
    cast_to,
    constant_text,
    is_null_constant,
    need_boolean,
    need_integer,
    need_text,
    null_of,
    sql_name,
)
from penstock.sql.functions.conditions import aligned, joined
from penstock.sql.functions.function import Argument, Options, ScalarFunction
from penstock.sql.functions.intervals import months, months_of
from penstock.sql.functions.patterns import of_like, of_similar
from penstock.types import (
    ANY_NUMBER,
    BOOLEAN,
    DATE,
    DURATION,
    INT64,
    INTEGERS,
    NULL,
    STRING,
    TIMESTAMP,
    DecimalType,
    ListType,
    MapType,
    StructType,
    family,
)

_DAY: Final = timedelta(days=1)
_COMPARISONS: Final = {"=": "eq", "<>": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


# -- arithmetic ---------------------------------------------------------------------------------------------------------


def _numbers(sign: str, arguments: Sequence[Argument]) -> None:
    for value in arguments:
        if value.type != NULL and family(value.type) not in ANY_NUMBER:
            names = " and ".join(sql_name(other.type) for other in arguments)
            raise PipelineError(f"cannot compute {names} with {sign}; {_advice(sign, arguments)}")


def _advice(sign: str, arguments: Sequence[Argument]) -> str:
    if sign == "+" and all(value.type in (STRING, NULL) for value in arguments):
        return "write a || b to join texts"
    return "write CAST(... AS ...) around one of them"


def add(left: Argument, right: Argument) -> Expr:
    """The sum of numbers, or a moment or an interval moved by an interval."""
    for moved, by in ((left, right), (right, left)):
        if by.type == DURATION and moved.type in (DATE, TIMESTAMP):
            return _moved(moved, by, 1)
    return _added("+", "add", left, right)


def subtract(left: Argument, right: Argument) -> Expr:
    """The difference of numbers, or of moments as an interval, or a moment moved back by an interval."""
    if right.type == DURATION and left.type in (DATE, TIMESTAMP):
        return _moved(left, right, -1)
    kinds = {left.type, right.type}
    if kinds & {DATE, TIMESTAMP} and kinds <= {DATE, TIMESTAMP, NULL}:
        if NULL in kinds:
            return null_of(DURATION)
        first, second = aligned([left, right], "-")
        return call("sub", first, second)
    return _added("-", "sub", left, right)


def _added(sign: str, function: str, left: Argument, right: Argument) -> Expr:
    if left.type == DURATION and right.type == DURATION:
        numbers = months_of(left), months_of(right)
        if None not in numbers:
            first, second = (number or 0 for number in numbers)
            return months(first + second if sign == "+" else first - second).expr
        return call(function, left, right)
    _numbers(sign, (left, right))
    return _computed(function, left, right)


def _computed(function: str, left: Argument, right: Argument) -> Expr:
    """Of numbers; with NULL it is NULL of the other's type."""
    if is_null_constant(left) or is_null_constant(right):
        kinds = [value.type for value in (left, right) if value.type != NULL]
        return null_of(kinds[0] if kinds else INT64)
    return call(function, left, right)


def _moved(moment: Argument, by: Argument, sign: int) -> Expr:
    number = months_of(by)
    if number is not None:
        return call("sql.add_months", moment, sign * number)
    if moment.type == DATE:
        value = by.value if by.is_constant else None
        if isinstance(value, timedelta) and not value % _DAY:
            return moment.expr.dt.offset_by(f"{sign * (value // _DAY)}d")
        moment = argument(cast_to(moment, TIMESTAMP), TIMESTAMP, nullable=moment.nullable)
    return call("add" if sign > 0 else "sub", moment, by)


def divide(left: Argument, right: Argument) -> Expr:
    """The quotient: of integers one rounded towards zero, of decimals a decimal, else a double."""
    _numbers("/", (left, right))
    exact = left.type in INTEGERS and right.type in INTEGERS
    return _computed("sql.div" if exact else "truediv", left, right)


def remainder(left: Argument, right: Argument) -> Expr:
    """The remainder with the sign of the dividend."""
    _numbers("%", (left, right))
    kinds = {left.type, right.type}
    if not any(isinstance(kind, DecimalType) for kind in kinds) or any(str(kind).startswith("float") for kind in kinds):
        return _computed("sql.mod", left, right)
    if is_null_constant(left) or is_null_constant(right):
        return _computed("mod", left, right)
    divisor = call("sql.divisor", right, left.expr.is_not_null())
    size = call("mod", left.expr.abs(), divisor.abs())
    return Expr(Case(((call("lt", left, 0).node, (-size).node),), size.node))


def multiply(left: Argument, right: Argument) -> Expr:
    """The product of numbers, or of an interval and an integer."""
    for interval, by in ((left, right), (right, left)):
        if interval.type == DURATION and by.type in INTEGERS:
            number = months_of(interval)
            if number is None:
                return call("mul", interval, by)
            if by.is_constant and isinstance(by.value, int):
                return months(number * by.value).expr
            raise PipelineError("an interval of months is multiplied by constants only; write TIMESTAMPADD(MONTH, ...)")
    _numbers("*", (left, right))
    return _computed("mul", left, right)


def negate(value: Argument) -> Expr:
    """The unary minus."""
    number = months_of(value)
    if number is not None:
        return months(-number).expr
    if value.is_constant and isinstance(value.value, (int, float, timedelta)) and not isinstance(value.value, bool):
        return lit(-value.value)
    if value.type != DURATION:
        _numbers("-", (value,))
    return null_of(INT64) if is_null_constant(value) else call("neg", value)


def join(left: Argument, right: Argument) -> Expr:
    """`||`."""
    if any(isinstance(value.type, ListType) for value in (left, right)):
        return call("concat_list", left, right)
    return concat_str(need_text("||", left).expr, need_text("||", right).expr)


# -- comparison ---------------------------------------------------------------------------------------------------------


def compare(sign: str, left: Argument, right: Argument) -> Expr:
    """A comparison, null if either is."""
    if isinstance(left.type, StructType) and isinstance(right.type, StructType):
        return _compare_rows(sign, left, right)
    if is_null_constant(left) or is_null_constant(right):
        return null_of(BOOLEAN)
    left, right = aligned([left, right], f"cannot compare {sql_name(left.type)} {sign} {sql_name(right.type)}")
    return call(_COMPARISONS[sign], left, right)


def _compare_rows(sign: str, left: Argument, right: Argument) -> Expr:
    """Field by field; `<` and its kin by the first fields that differ."""
    pairs = list(zip(fields_of(left), fields_of(right), strict=False))
    if len(fields_of(left)) != len(fields_of(right)):
        raise PipelineError(f"cannot compare rows of {len(fields_of(left))} and {len(fields_of(right))} values")
    if sign in ("=", "<>"):
        equal = _all([compare("=", *pair) for pair in pairs])
        return equal if sign == "=" else ~equal
    (first, *others) = pairs
    if not others:
        return compare(sign, *first)
    rest = _compare_parts(sign, others)
    return compare(sign[0], *first) | (compare("=", *first) & rest)


def _compare_parts(sign: str, pairs: Sequence[tuple[Argument, Argument]]) -> Expr:
    first, *others = pairs
    if not others:
        return compare(sign, *first)
    return compare(sign[0], *first) | (compare("=", *first) & _compare_parts(sign, others))


def fields_of(row: Argument) -> list[Argument]:
    """The values of a row: those that ROW(...) was given, or the fields of a column."""
    assert isinstance(row.type, StructType)
    node = row.expr.node
    if isinstance(node, Call) and node.function == "struct":
        parts = [Expr(part) for part in node.args]
    else:
        parts = [row.expr.struct.field(field.name) for field in row.type.fields]
    return [
        argument(part, field.type, nullable=field.nullable or row.nullable)
        for part, field in zip(parts, row.type.fields, strict=True)
    ]


def _all(conditions: Sequence[Expr]) -> Expr:
    found = conditions[0]
    for condition in conditions[1:]:
        found = found & condition
    return found


def is_same(left: Argument, right: Argument) -> Expr:
    """IS NOT DISTINCT FROM: equal, or both null; never null."""
    if isinstance(left.type, StructType) and isinstance(right.type, StructType):
        pairs = zip(fields_of(left), fields_of(right), strict=True)
        return _all([is_same(*pair) for pair in pairs])
    if is_null_constant(left) or is_null_constant(right):
        return left.expr.is_null() & right.expr.is_null()
    left, right = aligned([left, right], "IS DISTINCT FROM")
    equal = call("eq", left, right)
    if not (left.nullable or right.nullable):
        return equal
    return call("fill_null", equal, left.expr.is_null() & right.expr.is_null())


def between(value: Argument, low: Argument, high: Argument, *, symmetric: bool = False) -> Expr:
    """Whether the value lies within the bounds, which with `symmetric` come in any order."""
    found = compare(">=", value, low) & compare("<=", value, high)
    return found | (compare(">=", value, high) & compare("<=", value, low)) if symmetric else found


def contains(value: Argument, options: Sequence[Argument]) -> Expr:
    """IN: null rather than false if the value or one of those that it is not equal to is null."""
    if is_null_constant(value):
        return null_of(BOOLEAN)
    if isinstance(value.type, StructType):
        return _any([compare("=", value, option) for option in options])
    present = [option for option in options if not is_null_constant(option)]
    value, *present = aligned([value, *present], "IN")
    constants = [option for option in present if option.is_constant]
    found = [compare("=", value, option) for option in present if not option.is_constant]
    if constants:
        found.insert(0, call("is_in", value, *(lit(option.value) for option in constants)))
    if len(present) < len(options):
        found.append(null_of(BOOLEAN))
    return _any(found)


def _any(conditions: Sequence[Expr]) -> Expr:
    found = conditions[0]
    for condition in conditions[1:]:
        found = found | condition
    return found


# -- text ---------------------------------------------------------------------------------------------------------------


def like(arguments: Sequence[Argument], options: Options, *, ignore_case: bool = False) -> Expr:
    """LIKE and ILIKE."""
    name = "ILIKE" if ignore_case else "LIKE"
    for value in arguments:
        need_text(name, value)
    text, pattern, *others = arguments
    escape = constant_text(f"{name} ... ESCAPE", others[0], "a character") if others else None
    if any(is_null_constant(value) for value in arguments):
        return null_of(BOOLEAN)
    if not pattern.is_constant:
        if escape is not None:
            raise PipelineError(f"{name} ... ESCAPE needs a pattern that is a text constant, got {pattern.expr}")
        return call("sql.like", text, pattern, ignore_case=ignore_case or None)
    return text.expr.str.contains(("(?i)" if ignore_case else "") + of_like(str(pattern.value), escape))


def _similar(arguments: Sequence[Argument], _: Options) -> Expr:
    text, pattern, *others = arguments
    need_text("SIMILAR TO", text)
    if is_null_constant(text) or is_null_constant(pattern):
        return null_of(BOOLEAN)
    escape = constant_text("SIMILAR TO ... ESCAPE", others[0], "a character") if others else None
    return text.expr.str.contains(of_similar(constant_text("SIMILAR TO", pattern, "a pattern"), escape))


# -- the rest -----------------------------------------------------------------------------------------------------------


def _and(arguments: Sequence[Argument], _: Options) -> Expr:
    return joined([need_boolean("AND", value).expr for value in arguments], "and")


def _or(arguments: Sequence[Argument], _: Options) -> Expr:
    return joined([need_boolean("OR", value).expr for value in arguments], "or")


def _element(arguments: Sequence[Argument], _: Options) -> Expr:
    whole, key = arguments
    if isinstance(whole.type, MapType):
        return (
            null_of(whole.type.value) if is_null_constant(key) else call("map.get", whole, need_text("map[key]", key))
        )
    if not isinstance(whole.type, ListType):
        raise PipelineError(f"[] needs an ARRAY or MAP, got {sql_name(whole.type)}")
    need_integer("array[index]", key)
    if is_null_constant(key):
        return null_of(whole.type.inner)
    if key.is_constant and isinstance(key.value, int):
        if key.value < 1:
            raise PipelineError(f"array[{key.value}]: the first element has the index 1")
        return whole.expr.list.get(key.value - 1)
    # An index below 1 would be counted from the end.
    index = Expr(Case(((call("ge", key, 1).node, (key.expr - 1).node),)))
    return whole.expr.list.get(index)


def _zone(arguments: Sequence[Argument], _: Options) -> Expr:
    value, zone = arguments
    if is_null_constant(value):
        return null_of(TIMESTAMP)
    if value.type != TIMESTAMP:
        raise PipelineError(f"AT TIME ZONE needs a TIMESTAMP, got {sql_name(value.type)}; write CAST(... AS TIMESTAMP)")
    return call("sql.local_time", value, zone=zone_of("AT TIME ZONE", zone))


def zone_of(name: str, zone: Argument) -> str:
    """The name of a time zone.

    Raises:
        PipelineError: there is none of that name.
    """
    text = constant_text(name, zone, "a time zone")
    lit(None).dt.in_zone(text)  # says what is wrong
    return text


Pair = Callable[[Argument, Argument], Expr]


def _pair(symbol: str, doc: str, build: Pair) -> ScalarFunction:
    return ScalarFunction(symbol, f"a {symbol} b", doc, lambda arguments, _: build(*arguments), 2, 2)


def _comparison(sign: str, doc: str, *aliases: str) -> ScalarFunction:
    return ScalarFunction(
        sign, f"a {sign} b", doc, lambda arguments, _: compare(sign, *arguments), 2, 2, aliases,
    )  # fmt: skip


def _test(keywords: str, doc: str, build: Callable[[Expr], Expr], *, boolean: bool = False) -> ScalarFunction:
    def checked(arguments: Sequence[Argument], _: Options) -> Expr:
        (value,) = arguments
        return build(need_boolean(keywords, value).expr if boolean else value.expr)

    return ScalarFunction(keywords, f"x {keywords}", doc, checked, 1, 1)


def _filled(value: Expr, with_: bool) -> Expr:
    return call("fill_null", value, with_)


ROWS: Final = (
    _pair("+", "Sum; a date or timestamp is moved by an interval. BIGINT wraps around, decimals fail.", add),
    _pair("-", "Difference; of dates and timestamps an interval.", subtract),
    _pair("*", "Product, also of an interval and an integer.", multiply),
    _pair("/", "Quotient: of integers rounded towards zero, of decimals a decimal, else a DOUBLE. Integers and decimals "
          "divided by zero fail the row.", divide),
    _pair("%", "Remainder with the sign of the dividend; by zero it fails the row.", remainder),
    ScalarFunction("NEGATE", "-x", "The negative number or interval.", lambda a, _: negate(*a), 1, 1),
    _pair("||", "The texts (or arrays) joined; null if either is null.", join),
    _comparison("=", "Equal; null if either is null."),
    _comparison("<>", "Not equal; null if either is null.", "!="),
    _comparison("<", "Less; null if either is null."),
    _comparison("<=", "Less or equal; null if either is null."),
    _comparison(">", "Greater; null if either is null."),
    _comparison(">=", "Greater or equal; null if either is null."),
    ScalarFunction("AND", "a AND b", "Both; false wins over null. What stands behind a false one fails no row.",
                   _and, 2, None),
    ScalarFunction("OR", "a OR b", "Either; true wins over null. What stands behind a true one fails no row.",
                   _or, 2, None),
    ScalarFunction("NOT", "NOT x", "The opposite; null stays null.",
                   lambda a, _: ~need_boolean("NOT", a[0]).expr, 1, 1),
    _test("IS NULL", "Whether it is null.", lambda x: x.is_null()),
    _test("IS NOT NULL", "Whether it is not null.", lambda x: x.is_not_null()),
    _test("IS TRUE", "Whether it is true, neither false nor null.", lambda x: _filled(x, False), boolean=True),
    _test("IS NOT TRUE", "Whether it is false or null.", lambda x: ~_filled(x, False), boolean=True),
    _test("IS FALSE", "Whether it is false, neither true nor null.", lambda x: ~_filled(x, True), boolean=True),
    _test("IS NOT FALSE", "Whether it is true or null.", lambda x: _filled(x, True), boolean=True),
    _test("IS UNKNOWN", "Whether a condition is null.", lambda x: x.is_null(), boolean=True),
    _test("IS NOT UNKNOWN", "Whether a condition is not null.", lambda x: x.is_not_null(), boolean=True),
    _pair("IS DISTINCT FROM", "Whether they differ, where null differs from all but null; never null.",
          lambda a, b: ~is_same(a, b)),
    _pair("IS NOT DISTINCT FROM", "Whether they are equal, or both null; never null.", is_same),
    ScalarFunction("BETWEEN", "x BETWEEN low AND high", "Whether x lies within the bounds, which belong to it.",
                   lambda a, _: between(*a), 3, 3),
    ScalarFunction("BETWEEN SYMMETRIC", "x BETWEEN SYMMETRIC a AND b", "As BETWEEN, with the bounds in any order.",
                   lambda a, _: between(*a, symmetric=True), 3, 3),
    ScalarFunction("IN", "x IN (a, b, ...)", "Whether x equals one of the values; null if x is null, or if it equals "
                   "none and one of them is null.", lambda a, _: contains(a[0], a[1:]), 2, None),
    ScalarFunction("LIKE", "x LIKE pattern [ESCAPE character]", "Whether the whole text matches: `%` is any text, `_` "
                   "any character.", like, 2, 3),
    ScalarFunction("ILIKE", "x ILIKE pattern [ESCAPE character]", "As LIKE, whatever the case of letters.",
                   lambda a, o: like(a, o, ignore_case=True), 2, 3),
    ScalarFunction("SIMILAR TO", "x SIMILAR TO pattern [ESCAPE character]", "Whether the whole text matches a regular "
                   "expression of SQL, a constant: LIKE's `%` and `_`, and `| * + ? {n,m} ( ) [ ]`.", _similar, 2, 3),
    ScalarFunction("[]", "array[index], map[key]", "The element at an index counted from 1, or the value of a key; null "
                   "if there is none.", _element, 2, 2, ("ITEM",)),
    ScalarFunction("AT TIME ZONE", "x AT TIME ZONE zone", "What clocks of a zone show at that moment (UTC), as a "
                   "TIMESTAMP; the zone is a constant.", _zone, 2, 2),
)  # fmt: skip
