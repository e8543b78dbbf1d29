"""What users write: `col("price") * 0.908`, with every operator and method typed, named as in Polars.

An `Expr` wraps a node of the tree and only builds bigger nodes; nothing is checked against a schema or computed here.
Namespaces (`.str`, `.dt`, ...) stand in `penstock.expressions.namespaces`, free functions in
`penstock.expressions.constructors`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, NoReturn, Self

from penstock.arguments import checked
from penstock.errors import PipelineError
from penstock.expressions.namespaces import DateTimeNamespace, ListNamespace, StringNamespace, StructNamespace
from penstock.expressions.nodes import Aggregate, Alias, Call, Cast, Literal, Node, Option, Value
from penstock.expressions.rendering import render
from penstock.types import DataType, ListType, Scalar, StructType, of_python

_Text = str
"""`str` within the class body of `Expr` is the namespace of text functions."""


@checked
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Expr:
    """A value to be computed for every row, or with an aggregate for every group. Immutable; `str()` shows the code."""

    node: Node

    def __repr__(self) -> _Text:
        return render(self.node)

    def __hash__(self) -> int:
        return hash(self.node)

    def __bool__(self) -> NoReturn:
        raise PipelineError(
            f"{self} has no truth value before rows flow: use & | ~ instead of and, or, not, with comparisons in "
            "parentheses, and .is_between() or .is_in() instead of chained comparisons and `in`"
        )

    def __iter__(self) -> NoReturn:
        raise PipelineError(f"{self} is one column and cannot be iterated over")

    # -- arithmetic -----------------------------------------------------------------------------------------------------

    def __add__(self, other: Operand) -> Expr:
        return _binary("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return _binary("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return _binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return _binary("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return _binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return _binary("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return _binary("truediv", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return _binary("truediv", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        return _binary("floordiv", self, other)

    def __rfloordiv__(self, other: Operand) -> Expr:
        return _binary("floordiv", other, self)

    def __mod__(self, other: Operand) -> Expr:
        return _binary("mod", self, other)

    def __rmod__(self, other: Operand) -> Expr:
        return _binary("mod", other, self)

    def __pow__(self, other: Operand) -> Expr:
        return _binary("pow", self, other)

    def __rpow__(self, other: Operand) -> Expr:
        return _binary("pow", other, self)

    def __neg__(self) -> Expr:
        return self._call("neg")

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Expr:
        return self.abs()

    # -- comparison and logic -------------------------------------------------------------------------------------------

    # object says that == gives bool; here it gives an expression, as in every dataframe library.
    def __eq__(self, other: Operand) -> Expr:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _binary("eq", self, other)

    def __ne__(self, other: Operand) -> Expr:  # pyright: ignore[reportIncompatibleMethodOverride] (as ==)
        return _binary("ne", self, other)

    def __lt__(self, other: Operand) -> Expr:
        return _binary("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return _binary("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return _binary("gt", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return _binary("ge", self, other)

    def __and__(self, other: Operand) -> Expr:
        return _binary("and", self, other)

    def __rand__(self, other: Operand) -> Expr:
        return _binary("and", other, self)

    def __or__(self, other: Operand) -> Expr:
        return _binary("or", self, other)

    def __ror__(self, other: Operand) -> Expr:
        return _binary("or", other, self)

    def __xor__(self, other: Operand) -> Expr:
        return _binary("xor", self, other)

    def __rxor__(self, other: Operand) -> Expr:
        return _binary("xor", other, self)

    def __invert__(self) -> Expr:
        return self._call("not")

    def is_null(self) -> Expr:
        """Whether the value is missing."""
        return self._call("is_null")

    def is_not_null(self) -> Expr:
        """Whether there is a value."""
        return self._call("is_not_null")

    def is_nan(self) -> Expr:
        """Whether a float is NaN."""
        return self._call("is_nan")

    def is_finite(self) -> Expr:
        """Whether a float is neither infinite nor NaN."""
        return self._call("is_finite")

    def fill_null(self, value: Operand) -> Expr:
        """The value, or `value` where it is null."""
        return self._call("fill_null", value)

    def is_in(self, values: Iterable[Value]) -> Expr:
        """Whether the value equals one of these constants; null if it is null.

        Raises:
            PipelineError: a constant is null or no constant.
        """
        constants = [literal(value, "is_in") for value in values]
        if any(constant.value is None for constant in constants):
            raise PipelineError(f"{self}.is_in: None is equal to nothing; add | {self}.is_null()")
        return Expr(Call("is_in", (self.node, *constants)))

    def is_between(self, lower: Operand, upper: Operand, closed: _Text = "both") -> Expr:
        """Whether the value lies within the bounds; `closed` is "both", "left", "right" or "none".

        Raises:
            PipelineError: `closed` is something else.
        """
        if closed not in ("both", "left", "right", "none"):
            raise PipelineError(f'{self}.is_between: closed must be "both", "left", "right" or "none", got {closed!r}')
        return self._call("is_between", lower, upper, closed=None if closed == "both" else closed)

    # -- numbers --------------------------------------------------------------------------------------------------------

    def abs(self) -> Expr:
        """Absolute value."""
        return self._call("abs")

    def round(self, decimals: int = 0) -> Expr:
        """Rounded to this many decimals; halves go to the even neighbour."""
        return self._call("round", decimals=decimals or None)

    def floor(self) -> Expr:
        """The next whole number below."""
        return self._call("floor")

    def ceil(self) -> Expr:
        """The next whole number above."""
        return self._call("ceil")

    def sign(self) -> Expr:
        """-1, 0 or 1."""
        return self._call("sign")

    def sqrt(self) -> Expr:
        """Square root; NaN for a negative number."""
        return self._call("sqrt")

    def exp(self) -> Expr:
        """e to that power."""
        return self._call("exp")

    def log(self, base: float | None = None) -> Expr:
        """Logarithm to this base; without one the natural logarithm."""
        return self._call("log", base=base)

    def pow(self, exponent: Operand) -> Expr:
        """To that power, as `**`."""
        return self._call("pow", exponent)

    def clip(self, lower: Operand = None, upper: Operand = None) -> Expr:
        """Held within the bounds; None does not bind."""
        return self._call("clip", lower, upper)

    def hash(self) -> Expr:
        """A stable 64-bit hash, the same that places keys; never null."""
        return self._call("hash")

    # -- types and names ------------------------------------------------------------------------------------------------

    def cast(self, to: type[Any] | DataType, *, strict: bool = True) -> Expr:
        """The value as another type: `int`, `float`, `str`, `datetime`, ..., or one of `penstock.types`.

        A value that cannot be converted fails the job, with `strict=False` it becomes null.
        """
        kind = to if isinstance(to, (Scalar, ListType, StructType)) else of_python(to, f"{self}.cast")[0]
        return Expr(Cast(self.node, kind, strict))

    def alias(self, name: _Text) -> Expr:
        """The same value under another column name."""
        return Expr(Alias(self.node, name))

    # -- namespaces -----------------------------------------------------------------------------------------------------

    @property
    def str(self) -> StringNamespace:
        """Functions of text."""
        return StringNamespace(self)

    @property
    def dt(self) -> DateTimeNamespace:
        """Functions of timestamps, dates and durations."""
        return DateTimeNamespace(self)

    @property
    def list(self) -> ListNamespace:
        """Functions of lists."""
        return ListNamespace(self)

    @property
    def struct(self) -> StructNamespace:
        """Functions of nested rows."""
        return StructNamespace(self)

    # -- aggregates -----------------------------------------------------------------------------------------------------

    def count(self) -> Expr:
        """Number of rows of the group where this is not null."""
        return self._aggregate("count")

    def sum(self) -> Expr:
        """Sum over the group; null if all values are null."""
        return self._aggregate("sum")

    def mean(self) -> Expr:
        """Mean over the group; null if all values are null."""
        return self._aggregate("mean")

    def min(self) -> Expr:
        """Least value of the group; null if all values are null."""
        return self._aggregate("min")

    def max(self) -> Expr:
        """Greatest value of the group; null if all values are null."""
        return self._aggregate("max")

    def first(self) -> Expr:
        """The value of the group's row with the smallest event time, null or not."""
        return self._aggregate("first")

    def last(self) -> Expr:
        """The value of the group's row with the largest event time, null or not."""
        return self._aggregate("last")

    def n_unique(self) -> Expr:
        """Exact number of different values of the group, nulls not counted."""
        return self._aggregate("n_unique")

    def collect(self) -> Expr:
        """All values of the group as a list ordered by event time, then arrival."""
        return self._aggregate("collect")

    def quantile(self, quantile: float) -> Expr:
        """Exact quantile (0 to 1) of the group, linear between neighbours."""
        return self._aggregate("quantile", quantile=quantile)

    def median(self) -> Expr:
        """The quantile 0.5."""
        return self.quantile(0.5)

    # -- building -------------------------------------------------------------------------------------------------------

    def _call(self, function: _Text, *others: Operand, **options: Option) -> Expr:
        """A function of the catalogue applied to this and further arguments; options that are None are left out."""
        args = tuple(as_node(other, function) for other in others)
        settings = tuple((name, value) for name, value in options.items() if value is not None)
        return Expr(Call(function, (self.node, *args), settings))

    def _aggregate(self, function: _Text, **options: Option) -> Expr:
        return Expr(Aggregate(function, (self.node,), tuple(options.items())))


Operand = Expr | Value
"""What operators and methods take beside an expression: another one, or a constant."""


def _binary(function: str, left: Operand, right: Operand) -> Expr:
    return Expr(Call(function, (as_node(left, function), as_node(right, function))))


def as_node(value: Operand, where: str) -> Node:
    """The node of an expression, or of a constant."""
    return value.node if isinstance(value, Expr) else literal(value, where)


def literal(value: object, where: str) -> Literal:
    """The node of a constant; a datetime is brought to UTC.

    Raises:
        PipelineError: it is a naive datetime, too large an integer, or nothing that a column can hold.
    """
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] (a numpy scalar)
    match value:
        case None | bool() | str() | bytes() | timedelta():
            return Literal(value)
        case float():
            return Literal(float(value))
        case int():
            if not -(2**63) <= value < 2**64:
                raise PipelineError(f"{where}: {value} does not fit into 64 bits; write it as a float")
            return Literal(int(value))
        case datetime():
            if value.tzinfo is None:
                raise PipelineError(f"{where}: {value!r} has no time zone; write datetime(..., tzinfo=UTC)")
            return Literal(value.astimezone(UTC).replace(fold=0))
        case date():
            return Literal(value)
        case _:
            raise PipelineError(
                f"{where}: {value!r} is neither an expression nor a constant; there are bool, int, float, str, bytes, "
                "datetime, date, timedelta and None"
            )
