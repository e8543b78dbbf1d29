"""What a function of SQL is: names, how many arguments it takes, and how its expression is made.

A builder gets arguments that are typed already, and raises `PipelineError` for what does not fit; the binder adds the
place in the text. Operators are functions too, found by their symbol or keywords (`"/"`, `"LIKE"`, `"IS DISTINCT FROM"`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.expressions import Expr
from penstock.expressions.accumulators import Accumulator
from penstock.expressions.nodes import Literal, Value
from penstock.types import DataType, Field


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a call: an expression over a row, with its type."""

    expr: Expr
    type: DataType
    nullable: bool

    @property
    def is_constant(self) -> bool:
        """Whether it is a literal, whose `value` is known while the text is bound."""
        return isinstance(self.expr.node, Literal)

    @property
    def value(self) -> Value:
        """The value of a literal; ask `is_constant` before, since null is a value too."""
        assert isinstance(self.expr.node, Literal)
        return self.expr.node.value


Options = Mapping[str, Any]
"""What keywords within the parentheses say, such as `{"returning": INT64, "on_empty": "null"}` of JSON_VALUE; the names
are those of the builder's documentation, and a call without such keywords has none."""


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """A function of the values of one row."""

    name: str
    """In upper case."""
    signature: str
    """As documentation shows it: `SUBSTRING(text FROM start [FOR length])`."""
    doc: str
    """One line: what it gives, of null too, and what differs from Flink."""
    build: Callable[[Sequence[Argument], Options], Expr]
    least: int
    most: int | None
    """How many arguments it takes; None for any number."""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """A function of the values of many rows.

    `build` gets the arguments, the options (`{"distinct": True}` among them), and the condition of `FILTER (WHERE ...)`,
    and gives an expression made of aggregates.
    """

    name: str
    signature: str
    doc: str
    build: Callable[[Sequence[Argument], Options, Expr | None], Expr]
    least: int
    most: int | None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class PythonAggregate:
    """A function of the values of many rows in Python."""

    name: str
    """As texts call it, in upper case."""
    accumulator: Accumulator[Any, Any]
    parameters: tuple[Field, ...]
    """Those of `add` behind the accumulator."""


def takes(function: ScalarFunction | AggregateFunction, given: int) -> bool:
    """Whether a function takes so many arguments."""
    return given >= function.least and (function.most is None or given <= function.most)


def counts(function: ScalarFunction | AggregateFunction) -> str:
    """How many arguments a function takes, in words."""
    least, most = function.least, function.most
    if most is None:
        return f"{least} argument{'s' if least > 1 else ''} or more"
    if least == most:
        return "no argument" if most == 0 else "one argument" if most == 1 else f"{most} arguments"
    return f"{least} to {most} arguments"
