"""What users write: `col("price") * 0.908`, with every operator and method typed, named as in Polars.

An `Expr` wraps a node of the tree and only builds bigger nodes; nothing is checked against a schema or computed here.
Namespaces (`.str`, `.dt`, ...) stand in `penstock.expressions.namespaces`, free functions in
`penstock.expressions.constructors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Self

from penstock.errors import PipelineError
from penstock.expressions.namespaces import (
    BinaryNamespace,
    DateTimeNamespace,
    JsonNamespace,
    ListNamespace,
    StringNamespace,
    StructNamespace,
    as_kind,
    unknown,
)
from penstock.expressions.nodes import Aggregate, Alias, Call, Cast, Literal, Node, Option, Value
from penstock.expressions.rendering import render
from penstock.types import DataType

_Text = str
"""`str` within the class body of `Expr` is the namespace of text functions."""


class _NoDefault:
    """Stands for a default that was not given, because None is one."""


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

    if not TYPE_CHECKING:  # an editor shall know that there is no such method

        def __getattr__(self, name):
            raise unknown(name, f"{self}.{name}")

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

    def __lshift__(self, other: Operand) -> Expr:
        return _binary("shift_left", self, other)

    def __rlshift__(self, other: Operand) -> Expr:
        return _binary("shift_left", other, self)

    def __rshift__(self, other: Operand) -> Expr:
        return _binary("shift_right", self, other)

    def __rrshift__(self, other: Operand) -> Expr:
        return _binary("shift_right", other, self)

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

    def fill_nan(self, value: Operand) -> Expr:
        """The float, or `value` where it is NaN; null stays null.

        Example:
            >>> evaluate(col("x").fill_nan(0.0), x=[1.5, float("nan"), None])
            [1.5, 0.0, None]
        """
        return self._call("fill_nan", value)

    def nullif(self, value: Operand) -> Expr:
        """The value, or null where it equals `value`.

        Example:
            >>> evaluate(col("name").nullif(""), name=["ada", "", None])
            ['ada', None, None]
        """
        return self._call("nullif", value)

    def replace(self, mapping: Mapping[Any, Value]) -> Expr:
        """The value that `mapping` has for it; a value that it has none for stays.

        Null stays null unless None is a key.

        Raises:
            PipelineError: the mapping is empty, or holds what is no constant.

        Example:
            >>> evaluate(col("country").replace({"BRD": "DE", "DDR": "DE"}), country=["BRD", "FR", None])
            ['DE', 'FR', None]
        """
        return Expr(Call("replace", (self.node, *self._pairs(mapping, "replace"))))

    def replace_strict(self, mapping: Mapping[Any, Value], *, default: Operand | type[_NoDefault] = _NoDefault) -> Expr:
        """The value that `mapping` has for it, of the mapping's type, or else `default`.

        Null stays null unless None is a key. Without `default` a value that is not in the mapping fails the job.

        Raises:
            PipelineError: the mapping is empty, or holds what is no constant.

        Example:
            >>> evaluate(col("code").replace_strict({1: "new", 2: "paid"}, default="other"), code=[1, 7, None])
            ['new', 'other', None]
        """
        pairs = self._pairs(mapping, "replace_strict")
        if isinstance(default, type):
            return Expr(Call("replace_strict", (self.node, *pairs)))
        return Expr(
            Call("replace_strict", (self.node, *pairs, as_node(default, "replace_strict")), (("default", True),))
        )

    def _pairs(self, mapping: Mapping[Any, Value], where: _Text) -> Iterable[Literal]:
        if not isinstance(mapping, Mapping) or not mapping:
            raise PipelineError(f'{self}.{where}: need a mapping such as {{"a": "b"}}, got {mapping!r}')
        return [literal(part, where) for pair in mapping.items() for part in pair]

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

    def sin(self) -> Expr:
        """Sine of an angle in radians.

        Example:
            >>> evaluate(col("x").radians().sin().round(3), x=[0, 30, 90])
            [0.0, 0.5, 1.0]
        """
        return self._call("sin")

    def cos(self) -> Expr:
        """Cosine of an angle in radians.

        Example:
            >>> evaluate(col("x").radians().cos().round(3), x=[0, 60, 180])
            [1.0, 0.5, -1.0]
        """
        return self._call("cos")

    def tan(self) -> Expr:
        """Tangent of an angle in radians.

        Example:
            >>> evaluate(col("x").radians().tan().round(3), x=[0, 45])
            [0.0, 1.0]
        """
        return self._call("tan")

    def arcsin(self) -> Expr:
        """Angle in radians whose sine this is; NaN outside of -1 to 1.

        Example:
            >>> evaluate(col("x").arcsin().degrees().round(3), x=[0.5, 2])
            [30.0, nan]
        """
        return self._call("arcsin")

    def arccos(self) -> Expr:
        """Angle in radians whose cosine this is; NaN outside of -1 to 1.

        Example:
            >>> evaluate(col("x").arccos().degrees().round(3), x=[0.5, None])
            [60.0, None]
        """
        return self._call("arccos")

    def arctan(self) -> Expr:
        """Angle in radians whose tangent this is.

        Example:
            >>> evaluate(col("x").arctan().degrees().round(3), x=[1, -1])
            [45.0, -45.0]
        """
        return self._call("arctan")

    def sinh(self) -> Expr:
        """Hyperbolic sine.

        Example:
            >>> evaluate(col("x").sinh().round(3), x=[0, 1])
            [0.0, 1.175]
        """
        return self._call("sinh")

    def cosh(self) -> Expr:
        """Hyperbolic cosine.

        Example:
            >>> evaluate(col("x").cosh().round(3), x=[0, 1])
            [1.0, 1.543]
        """
        return self._call("cosh")

    def tanh(self) -> Expr:
        """Hyperbolic tangent.

        Example:
            >>> evaluate(col("x").tanh().round(3), x=[0, 1])
            [0.0, 0.762]
        """
        return self._call("tanh")

    def degrees(self) -> Expr:
        """An angle in radians as degrees.

        Example:
            >>> evaluate(col("x").degrees().round(1), x=[0.0, 3.14159265])
            [0.0, 180.0]
        """
        return self._call("degrees")

    def radians(self) -> Expr:
        """An angle in degrees as radians.

        Example:
            >>> evaluate(col("x").radians().round(4), x=[0, 180])
            [0.0, 3.1416]
        """
        return self._call("radians")

    def hash(self) -> Expr:
        """A stable 64-bit hash, the same that places keys; never null."""
        return self._call("hash")

    # -- types and names ------------------------------------------------------------------------------------------------

    def cast(self, to: type[Any] | DataType, *, strict: bool = True) -> Expr:
        """The value as another type: `int`, `float`, `str`, `datetime`, ..., or one of `penstock.types`.

        A value that cannot be converted fails the job, with `strict=False` it becomes null.
        """
        return Expr(Cast(self.node, as_kind(to, f"{self}.cast"), strict))

    def alias(self, name: _Text) -> Expr:
        """The same value under another column name."""
        return Expr(Alias(self.node, name))

    # -- namespaces -----------------------------------------------------------------------------------------------------

    @property
    def str(self) -> StringNamespace:
        """Functions of text."""
        return StringNamespace(self)

    @property
    def json(self) -> JsonNamespace:
        """Values read out of JSON text."""
        return JsonNamespace(self)

    @property
    def bin(self) -> BinaryNamespace:
        """Functions of bytes."""
        return BinaryNamespace(self)

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
