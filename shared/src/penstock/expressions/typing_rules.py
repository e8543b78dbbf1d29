"""Rules that say which types a function takes and which type it gives: the building blocks of the catalogue's rows.

A rule sees the types of the operands, never a row. It answers with the result's type, whether it can be null, and the
types to which the operands are converted first, so that a lowering always meets operands of exactly known types.
Engines promote types in different ways; these rules are Penstock's own and hold on every engine:

* integers of one signedness meet in the wider type; an unsigned and a signed one in the next wider signed type, and
  uint64 with a signed one is refused; integers up to 16 bits and float32 meet in float32, all other mixtures in float64;
* decimals (and integers, which are such without digits behind the point) meet in the one that holds both, which is
  refused where it would need more than 38 digits; a decimal and a float meet in float64;
* a constant takes the type of the column beside it if that can hold it (`col("small") + 1` stays int8).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from penstock.core.decimals import MOST_DIGITS, units_of
from penstock.errors import PenstockError
from penstock.expressions.nodes import Literal, Node, Option
from penstock.types import (
    ANY_NUMBER,
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL,
    DURATION,
    FLOAT32,
    FLOAT64,
    FLOATS,
    INT16,
    INT32,
    INT64,
    INTEGERS,
    NULL,
    NUMERIC,
    SIGNED,
    STRING,
    TIME,
    TIMESTAMP,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    UNSIGNED,
    DataType,
    DecimalType,
    ListType,
    Scalar,
    family,
)

_WIDTH: Final = {kind: int("".join(filter(str.isdigit, kind.name))) for kind in NUMERIC}
_SIGNED_ABOVE: Final = {UINT8: INT16, UINT16: INT32, UINT32: INT64}
ORDERED: Final[frozenset[DataType]] = ANY_NUMBER | {STRING, BINARY, BOOLEAN, DATE, TIME, TIMESTAMP, DURATION}
"""Types whose values have an order."""
FITTING_INT64: Final[frozenset[DataType]] = INTEGERS - {UINT64}
"""Integers that int64 can hold."""


class TypeMismatchError(PenstockError):
    """Operands do not fit. Inference turns it into a `PipelineError` that says in which expression, at which verb."""

    domain = "user"


@dataclass(frozen=True, slots=True)
class Operand:
    """What a rule knows of an argument."""

    type: DataType
    nullable: bool
    node: Node

    @property
    def literal(self) -> bool:
        """Whether it is a constant, which adapts to the columns beside it."""
        return isinstance(self.node, Literal)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a rule is asked about: the function's name as users write it, its arguments and settings."""

    name: str
    operands: tuple[Operand, ...]
    options: Mapping[str, Option] = field(default_factory=dict[str, Option])

    def __getitem__(self, index: int) -> Operand:
        return self.operands[index]

    @property
    def nullable(self) -> bool:
        """Whether any argument can be null."""
        return any(operand.nullable for operand in self.operands)

    def fail(self, needs: str, got: DataType) -> TypeMismatchError:
        """The error of an argument of the wrong type."""
        return TypeMismatchError(f"{self.name} needs {needs}, got {got}")


@dataclass(frozen=True, slots=True)
class Typing:
    """A rule's answer. `operands` are the types to which the arguments are converted before the function runs."""

    type: DataType
    nullable: bool
    operands: tuple[DataType, ...]


Rule = Callable[[Arguments], Typing]


# -- common types -------------------------------------------------------------------------------------------------------


def promote(left: DataType, right: DataType) -> DataType | None:
    """The type in which values of both types meet without losing whole numbers' meaning; None if there is none."""
    if left == right or right == NULL:
        return left
    if left == NULL:
        return right
    if isinstance(left, ListType) and isinstance(right, ListType):
        inner = promote(left.inner, right.inner)
        return None if inner is None else ListType(inner)
    if isinstance(left, DecimalType) or isinstance(right, DecimalType):
        return _promote_decimal(left, right)
    if not (isinstance(left, Scalar) and isinstance(right, Scalar) and left in NUMERIC and right in NUMERIC):
        return None
    if left in FLOATS or right in FLOATS:
        integer = left if left in INTEGERS else right
        small = integer in FLOATS or _WIDTH[integer] <= 16
        return FLOAT32 if small and FLOAT64 not in (left, right) else FLOAT64
    if (left in SIGNED) == (right in SIGNED):
        return max(left, right, key=_WIDTH.__getitem__)
    unsigned, signed = (left, right) if left in UNSIGNED else (right, left)
    return None if unsigned == UINT64 else promote(_SIGNED_ABOVE[unsigned], signed)


def _promote_decimal(left: DataType, right: DataType) -> DataType | None:
    """With all digits behind the point, as in DuckDB and Spark; a value with more before it than remain of 38 fails."""
    if left in FLOATS or right in FLOATS:
        return FLOAT64
    one, other = as_decimal(left), as_decimal(right)
    if one is None or other is None:
        return None
    scale = max(one.scale, other.scale)
    precision = max(one.precision - one.scale, other.precision - other.scale) + scale
    return DecimalType(min(precision, MOST_DIGITS), scale)


def as_decimal(kind: DataType) -> DecimalType | None:
    """The decimal that holds all values of a decimal or integer type; None for other types."""
    if isinstance(kind, DecimalType):
        return kind
    return DecimalType(len(str(2 ** (_WIDTH[kind] - (kind in SIGNED)))), 0) if kind in INTEGERS else None


def constant_as_decimal(operand: Operand) -> DecimalType | None:
    """The same, of a whole constant the decimal of just its digits."""
    value = operand.node.value if isinstance(operand.node, Literal) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return DecimalType(len(str(abs(value))), 0)
    return as_decimal(operand.type)


def _adapt(operand: Operand, kind: DataType) -> DataType | None:
    """The type in which a constant meets values of type `kind`."""
    assert isinstance(operand.node, Literal)
    value = operand.node.value
    if isinstance(value, int) and not isinstance(value, bool) and isinstance(kind, Scalar):
        if kind in FLOATS:
            return kind
        if kind in INTEGERS and fits(value, kind):
            return kind
    if isinstance(value, (float, Decimal)) and kind in FLOATS:
        return kind
    if isinstance(kind, DecimalType):
        number = Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if isinstance(number, Decimal) and units_of(number, kind.precision, kind.scale) is not None:
            return kind
        return promote(kind, constant_as_decimal(operand) or operand.type)
    return promote(kind, operand.type)


def fits(value: int, kind: Scalar) -> bool:
    """Whether an integer type can hold the number."""
    bits = _WIDTH[kind]
    return 0 <= value < 1 << bits if kind in UNSIGNED else -(1 << bits - 1) <= value < 1 << bits - 1


def common_type(operands: Sequence[Operand]) -> DataType | None:
    """The type in which all operands meet, constants adapting to the others; None if there is none."""
    constants = [operand for operand in operands if operand.literal]
    common: DataType | None = NULL
    for operand in operands:
        if not operand.literal and common is not None:
            common = promote(common, operand.type)
    for constant in constants:
        if common is not None:
            common = _adapt(constant, common)
    return common


def meet(arguments: Arguments, verb: str, kinds: Collection[DataType] | None = None) -> DataType:
    """The common type of all arguments.

    Raises:
        TypeMismatchError: there is none, or it is not among `kinds`; `verb` says what cannot be done with them.
    """
    common = common_type(arguments.operands)
    if common is not None and (kinds is None or family(common) in kinds):
        return common
    types = [str(operand.type) for operand in arguments.operands]
    raise TypeMismatchError(f"cannot {verb} {_listing(types)}; {_advice(arguments.operands)}")


def _listing(types: Sequence[str]) -> str:
    return types[0] if len(types) == 1 else ", ".join(types[:-1]) + " and " + types[-1]


def _advice(operands: Sequence[Operand]) -> str:
    types = {operand.type for operand in operands}
    if types == {TIMESTAMP, STRING}:
        return "make a timestamp of the text with .str.to_datetime(format), or write datetime(..., tzinfo=UTC)"
    if types == {DATE, TIMESTAMP}:
        return "make a date of the timestamp with .dt.date(), or a timestamp of the date with .cast(datetime)"
    if types <= {DURATION, *NUMERIC} and DURATION in types:
        return "use .dt.total_seconds() to get a number, or a timedelta for a duration"
    if len(operands) == 1:
        return "cast it"
    return "cast one of them" if len(types) > 1 else "cast them"


# -- rules --------------------------------------------------------------------------------------------------------------


def describe(kinds: Collection[DataType]) -> str:
    """A set of types in words."""
    names = sorted("decimal" if kind == DECIMAL else str(kind) for kind in kinds)
    for words, group in (("a number", ANY_NUMBER), ("an integer", INTEGERS)):
        members = {"decimal" if kind == DECIMAL else str(kind) for kind in group}
        if members <= set(names):
            names = [words, *(name for name in names if name not in members)]
    return " or ".join(names)


def check(arguments: Arguments, index: int, kinds: Collection[DataType]) -> DataType:
    """The type of an argument, which must be one of `kinds` (or a null constant, which takes the first of them).

    Raises:
        TypeMismatchError: it is not.
    """
    kind = arguments[index].type
    if family(kind) in kinds:
        return kind
    if kind == NULL:
        return FLOAT64 if FLOAT64 in kinds else min(kinds, key=str)
    raise arguments.fail(describe(kinds), kind)


def takes(*parameters: Collection[DataType], gives: DataType, null: bool = False) -> Rule:
    """A function of arguments of these types with one type of result; `null`: also null without a null argument."""

    def rule(arguments: Arguments) -> Typing:
        operands = tuple(
            check(arguments, index, parameters[min(index, len(parameters) - 1)])
            for index in range(len(arguments.operands))
        )
        return Typing(gives, null or arguments.nullable, operands)

    return rule


def keeps(kinds: Collection[DataType]) -> Rule:
    """A function of one argument whose result has the argument's type."""

    def rule(arguments: Arguments) -> Typing:
        kind = check(arguments, 0, kinds)
        return Typing(kind, arguments.nullable, (kind,))

    return rule


def meets(verb: str, kinds: Collection[DataType] | None = None, *, gives: DataType | None = None) -> Rule:
    """A function whose arguments meet in one type, which is also the result's unless `gives` says otherwise."""

    def rule(arguments: Arguments) -> Typing:
        common = meet(arguments, verb, kinds)
        return Typing(gives or common, arguments.nullable, (common,) * len(arguments.operands))

    return rule


def first_of(verb: str, kinds: Collection[DataType] | None = None) -> Rule:
    """A function that gives one of its arguments and null only if all can be null (`coalesce`, `fill_null`)."""

    def rule(arguments: Arguments) -> Typing:
        common = meet(arguments, verb, kinds)
        nullable = all(operand.nullable for operand in arguments.operands)
        return Typing(common, nullable, (common,) * len(arguments.operands))

    return rule


def to_float(verb: str) -> Rule:
    """A function of numbers computed in float64."""

    def rule(arguments: Arguments) -> Typing:
        for operand in arguments.operands:
            if family(operand.type) not in ANY_NUMBER and operand.type != NULL:
                meet(arguments, verb, ANY_NUMBER)
        return Typing(FLOAT64, arguments.nullable, (FLOAT64,) * len(arguments.operands))

    return rule


def never_null(rule: Rule) -> Rule:
    """As `rule`, but the result is never null (`is_null`)."""

    def without(arguments: Arguments) -> Typing:
        answer = rule(arguments)
        return Typing(answer.type, False, answer.operands)

    return without


def anything(gives: DataType) -> Rule:
    """A function of one argument of any type."""

    def rule(arguments: Arguments) -> Typing:
        return Typing(gives, arguments.nullable, tuple(operand.type for operand in arguments.operands))

    return rule
