"""Type rules of the operators between columns: arithmetic of numbers, moments and durations, and comparisons.

The rows of the catalogue that need more than the building blocks of `typing_rules` find their rules here.
"""

from __future__ import annotations

from typing import Final

from penstock.expressions.decimal_rules import of_decimals
from penstock.expressions.nodes import Literal
from penstock.expressions.typing_rules import (
    FITTING_INT64,
    ORDERED,
    Arguments,
    Rule,
    TypeMismatchError,
    Typing,
    common_type,
    meet,
    promote,
    to_float,
)
from penstock.types import (
    ANY_NUMBER,
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT64,
    INT64,
    INTEGERS,
    STRING,
    TIMESTAMP,
    DataType,
    ListType,
    MapType,
    StructType,
    family,
)

_MOMENTS: Final[dict[str, dict[tuple[DataType, DataType], DataType]]] = {
    "add": {
        (TIMESTAMP, DURATION): TIMESTAMP,
        (DURATION, TIMESTAMP): TIMESTAMP,
        (DURATION, DURATION): DURATION,
        (STRING, STRING): STRING,
    },
    "subtract": {
        (TIMESTAMP, TIMESTAMP): DURATION,
        (TIMESTAMP, DURATION): TIMESTAMP,
        (DURATION, DURATION): DURATION,
        (DATE, DATE): DURATION,
    },
    "divide": {(DURATION, DURATION): FLOAT64},
    "floor-divide": {(DURATION, DURATION): INT64},
    "take the remainder of": {(DURATION, DURATION): DURATION},
}
"""What is possible between two types that are not both numbers."""


def arithmetic(verb: str, *, null: bool = False) -> Rule:
    """`+`, `-`, `//` and `%`: numbers meet in their common type, moments by the table; `null`: integers may give null."""

    def rule(arguments: Arguments) -> Typing:
        left, right = arguments[0].type, arguments[1].type
        result = _MOMENTS.get(verb, {}).get((left, right))
        if result is not None:
            zero_divisor = null and not _nonzero(arguments)
            return Typing(result, zero_divisor or arguments.nullable, (left, right))
        if verb == "floor-divide" and left == DURATION and right in FITTING_INT64:
            return Typing(DURATION, arguments.nullable or not _nonzero(arguments), (DURATION, INT64))
        if DATE in (left, right) and DURATION in (left, right):
            raise TypeMismatchError(f"cannot {verb} {left} and {right}; make a timestamp of the date: .cast(datetime)")
        zero_divisor = null and not _nonzero(arguments)
        exact = of_decimals(arguments, verb, nullable=zero_divisor)
        if exact is not None:
            return exact
        common = meet(arguments, verb, ANY_NUMBER)
        zero_divisor = null and common in INTEGERS and not _nonzero(arguments)
        return Typing(common, zero_divisor or arguments.nullable, (common, common))

    return rule


def _nonzero(arguments: Arguments) -> bool:
    """Whether the divisor is a constant other than zero."""
    node = arguments[1].node
    return isinstance(node, Literal) and bool(node.value)


def multiplication(arguments: Arguments) -> Typing:
    """`*`: numbers, or a duration and an integer."""
    left, right = arguments[0].type, arguments[1].type
    if left == DURATION and right in FITTING_INT64:
        return Typing(DURATION, arguments.nullable, (DURATION, INT64))
    if right == DURATION and left in FITTING_INT64:
        return Typing(DURATION, arguments.nullable, (INT64, DURATION))
    exact = of_decimals(arguments, "multiply")
    if exact is not None:
        return exact
    common = meet(arguments, "multiply", ANY_NUMBER)
    return Typing(common, arguments.nullable, (common, common))


def true_division(arguments: Arguments) -> Typing:
    """`/`: float64, as in Python, but of decimals a decimal."""
    left, right = arguments[0].type, arguments[1].type
    if (left, right) == (DURATION, DURATION):
        return Typing(FLOAT64, arguments.nullable, (DURATION, DURATION))
    return of_decimals(arguments, "divide") or to_float("divide")(arguments)


def power(arguments: Arguments) -> Typing:
    """`**`: an integer to a constant whole power stays an integer; anything else is computed in float64."""
    base, exponent = arguments[0], arguments[1]
    constant = exponent.node.value if isinstance(exponent.node, Literal) else None
    if base.type in INTEGERS and isinstance(constant, int) and not isinstance(constant, bool) and 0 <= constant < 2**31:
        kind = INT64 if base.literal else base.type
        return Typing(kind, arguments.nullable, (kind, INT64))
    for operand in (base, exponent):
        if family(operand.type) not in ANY_NUMBER:
            raise arguments.fail("numbers", operand.type)
    return Typing(FLOAT64, arguments.nullable, (FLOAT64, FLOAT64))


def negation(arguments: Arguments) -> Typing:
    """Unary minus: signed numbers and durations."""
    kind = arguments[0].type
    if kind != DURATION and family(kind) not in ANY_NUMBER:
        raise TypeMismatchError(f"cannot negate {kind}; {'use ~' if kind == BOOLEAN else 'it needs a number'}")
    if str(kind).startswith("uint"):
        raise TypeMismatchError(f"cannot negate {kind}, which has no negative values; cast it to int64")
    return Typing(kind, arguments.nullable, (kind,))


def equality(arguments: Arguments) -> Typing:
    """`==` and `!=`: values that meet in one type."""
    common = meet(arguments, "compare")
    if isinstance(common, (ListType, MapType, StructType)):
        raise TypeMismatchError(f"cannot compare {common}; compare its parts")
    return Typing(BOOLEAN, arguments.nullable, (common, common))


def comparison(arguments: Arguments) -> Typing:
    """`<` and its kin: values that meet in one ordered type."""
    common = meet(arguments, "compare", ORDERED)
    return Typing(BOOLEAN, arguments.nullable, (common,) * len(arguments.operands))


def logical(arguments: Arguments) -> Typing:
    """`&`, `|`, `^`, `~`: booleans, three-valued, or the bits of integers."""
    common = common_type(arguments.operands)
    if common in INTEGERS:
        return Typing(common, arguments.nullable, (common,) * len(arguments.operands))
    for operand in arguments.operands:
        if promote(BOOLEAN, operand.type) != BOOLEAN:
            raise TypeMismatchError(
                f"{arguments.name} needs boolean or integers, got {operand.type}; put comparisons in parentheses: "
                "(a > 1) & (b > 2)"
            )
    return Typing(BOOLEAN, arguments.nullable, (BOOLEAN,) * len(arguments.operands))


def membership(arguments: Arguments) -> Typing:
    """`is_in`: constants that meet the first argument's type."""
    common = meet(arguments, "compare")
    if isinstance(common, (ListType, MapType, StructType)):
        raise TypeMismatchError(f"cannot compare {common}; compare its parts")
    return Typing(BOOLEAN, arguments[0].nullable, (common,) * len(arguments.operands))
