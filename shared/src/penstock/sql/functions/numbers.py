"""Functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Final

from penstock.errors import PipelineError
from penstock.expressions import Expr, lit
from penstock.expressions.nodes import Case
from penstock.sql.functions.arguments import (
    argument,
    call,
    cast_to,
    constant_integer,
    is_null_constant,
    need_number,
    null_of,
)
from penstock.sql.functions.function import Argument, Options, ScalarFunction
from penstock.sql.functions.operators import remainder
from penstock.types import FLOAT64, INT32, INT64, INTEGERS, NULL, DecimalType

_SHOWN: Final = 18
"""Digits behind the point with which floats are cut as decimals; no float of more than 0.01 shows as many."""


def _float(
    name: str, usage: str, doc: str, build: Callable[..., Expr], *aliases: str, count: int = 1
) -> ScalarFunction:
    """A function of numbers that is computed in doubles."""

    def checked(arguments: Sequence[Argument], _: Options) -> Expr:
        values = [need_number(name, value) for value in arguments]
        if any(is_null_constant(value) for value in values):
            return null_of(FLOAT64)
        return build(*(value.expr for value in values))

    return ScalarFunction(name, usage, doc, checked, count, count, aliases)


def round_half_up(value: Argument, digits: int) -> Expr:
    """Rounded, halves away from zero; of a float those of the number that is shown."""
    kind = value.type
    if digits >= 0:
        if kind in INTEGERS:
            return value.expr
        if isinstance(kind, DecimalType):
            return call("round", value, decimals=digits)
        return _as_shown(value, digits, lambda decimal: decimal)
    if isinstance(kind, DecimalType):
        raise PipelineError("ROUND of a DECIMAL needs digits from 0; write CAST(x AS BIGINT) or CAST(x AS DOUBLE)")
    if digits < -18:
        return lit(0)
    if kind in INTEGERS:
        return _to_power(value.expr, 10**-digits)
    # Whether half of a whole power of ten is reached is seen without the fraction.
    whole = _to_power(cast_to(value, INT64, strict=False), 10**-digits)
    return call("coalesce", cast_to(whole, kind), value)


def _to_power(number: Expr, power: int) -> Expr:
    half = Expr(Case(((call("lt", number, 0).node, lit(-power // 2).node),), lit(power // 2).node))
    return call("sql.div", number + half, power) * power


def _as_shown(value: Argument, digits: int, change: Callable[[Expr], Expr]) -> Expr:
    """A float by way of the decimal that it is shown as; of floats too large for that, nothing is behind the point."""
    decimal = cast_to(value, DecimalType(38, min(digits, 37)), strict=False)
    return call("coalesce", cast_to(change(decimal), value.type), value)


def truncate(value: Argument, digits: int) -> Expr:
    """Without the digits behind so many decimals; of a float those of the number that is shown."""
    kind = value.type
    if digits < 0:
        if kind not in INTEGERS:
            raise PipelineError("TRUNCATE of what is no integer needs digits from 0; write CAST(x AS BIGINT)")
        return call("sql.div", value, 10**-digits) * 10**-digits if digits >= -18 else lit(0)
    if kind in INTEGERS:
        return value.expr
    if isinstance(kind, DecimalType):
        return call("sql.truncate", value, decimals=digits)
    if digits > _SHOWN - 1:
        return value.expr
    decimal = cast_to(value, DecimalType(38, _SHOWN), strict=False)
    return call("coalesce", cast_to(call("sql.truncate", decimal, decimals=digits), kind), value)


def _digits(name: str, build: Callable[[Argument, int], Expr]) -> Callable[[Sequence[Argument], Options], Expr]:
    def checked(arguments: Sequence[Argument], _: Options) -> Expr:
        value, *digits = arguments
        need_number(name, value)
        if is_null_constant(value) or (digits and is_null_constant(digits[0])):
            return null_of(value.type if value.type != NULL else FLOAT64)
        return build(value, constant_integer(name, digits[0], "a number of digits") if digits else 0)

    return checked


def _abs(arguments: Sequence[Argument], _: Options) -> Expr:
    value = need_number("ABS", arguments[0])
    return null_of(FLOAT64) if is_null_constant(value) else value.expr.abs()


def _sign(arguments: Sequence[Argument], _: Options) -> Expr:
    value = need_number("SIGN", arguments[0])
    if isinstance(value.type, DecimalType):
        one = Decimal(1)
        branches = ((call("gt", value, 0).node, lit(one).node), (call("lt", value, 0).node, lit(-one).node))
        zero = Expr(Case(((value.expr.is_not_null().node, lit(Decimal(0)).node),)))
        return cast_to(Expr(Case(branches, zero.node)), value.type)
    return null_of(FLOAT64) if is_null_constant(value) else value.expr.sign()


def whole(value: Argument, *, up: bool) -> Expr:
    """CEIL and FLOOR of a number."""
    if is_null_constant(value):
        return null_of(FLOAT64)
    return value.expr.ceil() if up else value.expr.floor()


def _log(arguments: Sequence[Argument], _: Options) -> Expr:
    values = [need_number("LOG", value) for value in arguments]
    if any(is_null_constant(value) for value in values):
        return null_of(FLOAT64)
    if len(values) == 1:
        return values[0].expr.log()
    base, value = values
    if base.is_constant and base.value in (2, 10):
        return call(f"sql.log{base.value}", value)
    return value.expr.log() / base.expr.log()


def _mod(arguments: Sequence[Argument], _: Options) -> Expr:
    return remainder(*arguments)


def _power(arguments: Sequence[Argument], _: Options) -> Expr:
    base, exponent = (need_number("POWER", value) for value in arguments)
    if is_null_constant(base) or is_null_constant(exponent):
        return null_of(FLOAT64)
    return call("pow", cast_to(base, FLOAT64), cast_to(exponent, FLOAT64))


def _bin(arguments: Sequence[Argument], _: Options) -> Expr:
    (value,) = arguments
    if is_null_constant(value):
        value = argument(null_of(INT64), INT64, nullable=True)
    return call("sql.bin", value)


def _random_integer(arguments: Sequence[Argument], _: Options) -> Expr:
    bound = constant_integer("RAND_INTEGER", arguments[0], "a bound")
    if not 0 < bound <= 2**31:
        raise PipelineError(f"RAND_INTEGER needs a bound from 1 to {2**31}, got {bound}")
    return cast_to((call("sql.random") * lit(float(bound))).floor(), INT32)


_ANGLES: Final = (
    ("SIN", "sin", "Sine of an angle in radians."), ("COS", "cos", "Cosine of an angle in radians."),
    ("TAN", "tan", "Tangent of an angle in radians."), ("ASIN", "arcsin", "Angle of a sine; NaN outside of -1 to 1."),
    ("ACOS", "arccos", "Angle of a cosine; NaN outside of -1 to 1."), ("ATAN", "arctan", "Angle of a tangent."),
    ("SINH", "sinh", "Hyperbolic sine."), ("COSH", "cosh", "Hyperbolic cosine."),
    ("TANH", "tanh", "Hyperbolic tangent."), ("DEGREES", "degrees", "An angle in radians as degrees."),
    ("RADIANS", "radians", "An angle in degrees as radians."),
    ("SQRT", "sqrt", "Square root; NaN for a negative number."), ("EXP", "exp", "e to that power."),
    ("LN", "log", "Natural logarithm; -Infinity for zero, NaN for a negative number."),
)  # fmt: skip


def _angle(name: str, function: str, doc: str) -> ScalarFunction:
    return _float(name, f"{name}(x)", doc, lambda x: call(function, x))


ROWS: Final = (
    ScalarFunction("ABS", "ABS(x)", "Absolute value.", _abs, 1, 1),
    ScalarFunction("SIGN", "SIGN(x)", "-1, 0 or 1, of the same type.", _sign, 1, 1),
    ScalarFunction("MOD", "MOD(a, b)", "Remainder with the sign of a; by zero it fails the row.", _mod, 2, 2),
    ScalarFunction("ROUND", "ROUND(x [, digits])", "Rounded to digits behind the point (a constant; of integers and "
                   "doubles also negative), halves away from zero; of doubles those of the number that is shown.",
                   _digits("ROUND", round_half_up), 1, 2),
    ScalarFunction("TRUNCATE", "TRUNCATE(x [, digits])", "Without further digits behind the point (a constant).",
                   _digits("TRUNCATE", truncate), 1, 2),
    ScalarFunction("POWER", "POWER(x, y)", "x to the power y, a DOUBLE.", _power, 2, 2),
    ScalarFunction("LOG", "LOG([base,] x)", "Logarithm, without a base the natural one.", _log, 1, 2),
    _float("LOG2", "LOG2(x)", "Logarithm to base 2.", lambda x: call("sql.log2", x)),
    _float("LOG10", "LOG10(x)", "Logarithm to base 10.", lambda x: call("sql.log10", x)),
    *(_angle(*row) for row in _ANGLES),
    _float("COT", "COT(x)", "Cotangent of an angle in radians.", lambda x: lit(1.0) / x.tan()),
    _float("ATAN2", "ATAN2(y, x)", "Angle in radians of the point (x, y).", lambda y, x: call("arctan2", y, x), count=2),
    ScalarFunction("PI", "PI()", "3.141592653589793.", lambda *_: lit(math.pi), 0, 0),
    ScalarFunction("E", "E()", "2.718281828459045.", lambda *_: lit(math.e), 0, 0),
    ScalarFunction("BIN", "BIN(integer)", "The integer in binary digits; of a negative one those of its 64 bits.",
                   _bin, 1, 1),
    ScalarFunction("RAND", "RAND()", "A random number from 0 to less than 1 for every row.",
                   lambda *_: call("sql.random"), 0, 0),
    ScalarFunction("RAND_INTEGER", "RAND_INTEGER(bound)", "A random integer from 0 to less than a constant bound.",
                   _random_integer, 1, 1),
    ScalarFunction("UUID", "UUID()", "A random UUID (RFC 4122, version 4) for every row.",
                   lambda *_: call("sql.uuid"), 0, 0),
)  # fmt: skip
