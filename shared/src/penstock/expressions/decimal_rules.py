"""How many digits the results of decimals have: the rules of Flink and Spark, which are those of SQL Server.

========================= ======================================= ==================
of (p1, s1) and (p2, s2)  scale                                   digits before it
========================= ======================================= ==================
`a + b`, `a - b`          max(s1, s2)                             max(p1-s1, p2-s2)+1
`a * b`                   s1 + s2                                 p1-s1 + p2-s2 + 1
`a / b`                   max(6, s1 + p2 + 1)                     p1-s1 + s2
`a % b`                   max(s1, s2)                             p2-s2
`a // b`                  0                                       p1-s1 + s2
========================= ======================================= ==================

Where that is more than 38 digits in all, the scale gives way, but not below 6 (or what it is, if that is less): digits
behind the point are rounded, those before it never are. A result that has more of these fails.

Integers are decimals without digits behind the point: int64 has 19, a constant just its own. With a float, floats are
computed. Sums have 38 digits, means so many and 6 behind the point at least, as Flink's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.core.decimals import MOST_DIGITS
from penstock.expressions.typing_rules import Arguments, Operand, Typing, constant_as_decimal
from penstock.types import NULL, DecimalType

_LEAST_SCALE: Final = 6


def fitted(whole: int, scale: int) -> DecimalType:
    """The decimal of so many digits before and behind the point, or what 38 digits leave of them."""
    if whole + scale > MOST_DIGITS:
        scale = max(MOST_DIGITS - whole, min(scale, _LEAST_SCALE))
    return DecimalType(max(1, min(whole + scale, MOST_DIGITS)), scale)


def _sum(left: DecimalType, right: DecimalType) -> DecimalType:
    whole = max(left.precision - left.scale, right.precision - right.scale) + 1
    return fitted(whole, max(left.scale, right.scale))


def _product(left: DecimalType, right: DecimalType) -> DecimalType:
    whole = left.precision - left.scale + right.precision - right.scale + 1
    return fitted(whole, left.scale + right.scale)


def _quotient(left: DecimalType, right: DecimalType) -> DecimalType:
    return fitted(left.precision - left.scale + right.scale, max(_LEAST_SCALE, left.scale + right.precision + 1))


def _remainder(left: DecimalType, right: DecimalType) -> DecimalType:
    # Not the fewer digits of both, as in Flink: with the sign of the divisor, -1 % 1000 is 999.
    return fitted(right.precision - right.scale, max(left.scale, right.scale))


def _whole_quotient(left: DecimalType, right: DecimalType) -> DecimalType:
    return fitted(left.precision - left.scale + right.scale + 1, 0)


_RESULTS: Final[dict[str, Callable[[DecimalType, DecimalType], DecimalType]]] = {
    "add": _sum, "subtract": _sum, "multiply": _product, "divide": _quotient,
    "take the remainder of": _remainder, "floor-divide": _whole_quotient,
}  # fmt: skip


def of_decimals(arguments: Arguments, verb: str, *, nullable: bool = False) -> Typing | None:
    """The typing of arithmetic between decimals, or a decimal and an integer; None if it is between other types."""
    if not any(isinstance(operand.type, DecimalType) for operand in arguments.operands):
        return None
    left, right = (_decimal(operand, arguments) for operand in arguments.operands)
    if left is None or right is None:
        return None
    return Typing(_RESULTS[verb](left, right), nullable or arguments.nullable, (left, right))


def _decimal(operand: Operand, arguments: Arguments) -> DecimalType | None:
    if operand.type != NULL:
        return constant_as_decimal(operand)
    return next(other.type for other in arguments.operands if isinstance(other.type, DecimalType))


def sum_of_decimals(kind: DecimalType) -> DecimalType:
    """The type of a sum."""
    return DecimalType(MOST_DIGITS, kind.scale)


def mean_of_decimals(kind: DecimalType) -> DecimalType:
    """The type of a mean."""
    return DecimalType(MOST_DIGITS, max(_LEAST_SCALE, kind.scale))


def rounded_to(kind: DecimalType, decimals: int) -> DecimalType:
    """The type of a number rounded to so many digits behind the point, which may make it one digit longer."""
    if decimals >= kind.scale:
        return kind
    return DecimalType(min(MOST_DIGITS, kind.precision - kind.scale + decimals + 1), decimals)
