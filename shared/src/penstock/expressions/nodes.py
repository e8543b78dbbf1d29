"""The expression tree: small frozen values that say what is to be computed, and nothing about how.

Type checks, two-phase aggregation, JSON job graphs and every lowering look inside these nodes. Users never make them by
hand: `penstock.expressions.surface` does. Names of functions are looked up in `penstock.expressions.catalogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from penstock.core.decimals import written_digits
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT64,
    INT64,
    NULL,
    STRING,
    TIME,
    TIMESTAMP,
    UINT64,
    DataType,
    DecimalType,
    Scalar,
)

Value = bool | int | float | Decimal | str | bytes | datetime | date | time | timedelta | None
"""What a literal can be. A datetime is aware and in UTC (`lit` sees to it)."""
Option = bool | int | float | str | None
"""A setting of a function, such as `decimals` of `round`: known when the pipeline is built, the same for every row."""

_SCALARS: tuple[tuple[type, Scalar], ...] = (
    (bool, BOOLEAN),  # before int: True is an int to Python
    (int, INT64),
    (float, FLOAT64),
    (str, STRING),
    (bytes, BINARY),
    (datetime, TIMESTAMP),  # before date: a datetime is a date to Python
    (date, DATE),
    (time, TIME),
    (timedelta, DURATION),
)


@dataclass(frozen=True, slots=True)
class Column:
    """The value of a column of the row."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A constant. Equal are literals of one type that print alike: NaN equals NaN, and 0.0 is not -0.0."""

    value: Value

    @property
    def type(self) -> DataType:
        """The type the constant has by itself; next to a column it may adapt (see `typing_rules.common_type`)."""
        if self.value is None:
            return NULL
        if isinstance(self.value, Decimal):
            return DecimalType(*written_digits(self.value))
        kind = next(scalar for python, scalar in _SCALARS if isinstance(self.value, python))
        return UINT64 if kind == INT64 and isinstance(self.value, int) and self.value >= 2**63 else kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[str, str]:
        return type(self.value).__name__, repr(self.value)


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the catalogue applied to each row's arguments."""

    function: str
    args: tuple[Node, ...]
    options: tuple[tuple[str, Option], ...] = ()


@dataclass(frozen=True, slots=True)
class Cast:
    """A change of type. What cannot be converted fails the row, or with `strict=False` becomes null."""

    operand: Node
    to: DataType
    strict: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """The value of the first branch whose condition is true (not null), else `otherwise`, else null."""

    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node | None = None


@dataclass(frozen=True, slots=True)
class Alias:
    """Gives the value a name."""

    operand: Node
    name: str


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A value of many rows: a group's. `accumulator` is the user's object if `function` is `"aggregate"`.

    The user's object need not be hashable (a plain dataclass is not), so it takes part in equality only.
    """

    function: str
    args: tuple[Node, ...] = ()
    options: tuple[tuple[str, Option], ...] = ()
    accumulator: Any = field(default=None, hash=False)


Node = Column | Literal | Call | Cast | Case | Alias | Aggregate


def children(node: Node) -> tuple[Node, ...]:
    """The direct parts of a node, in the order in which they give an expression its name (values before conditions)."""
    match node:
        case Column() | Literal():
            return ()
        case Call(args=args) | Aggregate(args=args):
            return args
        case Cast(operand=operand) | Alias(operand=operand):
            return (operand,)
        case Case(branches=branches, otherwise=otherwise):
            values = tuple(value for _, value in branches)
            last = () if otherwise is None else (otherwise,)
            return (*values, *last, *(condition for condition, _ in branches))


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, parents first."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(reversed(children(current)))


def without_alias(node: Node) -> Node:
    """The node below any outer names."""
    while isinstance(node, Alias):
        node = node.operand
    return node


def implied_name(node: Node) -> str | None:
    """The outermost alias, the member a `struct.field` takes out, else the leftmost column's name; None if none."""
    for part in walk(node):
        match part:
            case Alias(name=name) | Column(name=name):
                return name
            case Call(function="struct.field", options=((_, str(name)),)):
                return name
            case _:
                pass
    return None


def with_parts(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with something else in place of each of its direct parts."""
    match node:
        case Column() | Literal():
            return node
        case Call(args=args) | Aggregate(args=args):
            return replace(node, args=tuple(map(change, args)))
        case Cast(operand=operand) | Alias(operand=operand):
            return replace(node, operand=change(operand))
        case Case(branches=branches, otherwise=otherwise):
            changed = tuple((change(condition), change(value)) for condition, value in branches)
            return Case(changed, None if otherwise is None else change(otherwise))


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The node over other names of its columns.

    Raises:
        KeyError: it reads a column that has no other name.
    """
    if isinstance(node, Column):
        return Column(names[node.name])
    return with_parts(node, lambda part: renamed(part, names))


def node_columns(node: Node) -> frozenset[str]:
    """The names of all columns that the node reads."""
    return frozenset(part.name for part in walk(node) if isinstance(part, Column))
