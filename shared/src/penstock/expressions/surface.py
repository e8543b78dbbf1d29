"""What users write: `col("price") * 0.908`, with every operator and method typed, named as in Polars.

An `Expr` wraps a node of the tree and only builds bigger nodes; nothing is checked against a schema or computed here.
Namespaces (`.str`, `.dt`, ...) stand in `penstock.expressions.namespaces`, free functions in
`penstock.expressions.constructors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn, Self
from typing import Literal as OneOf

from penstock.core.arguments import OF_POLARS, checked
from penstock.core.decimals import MOST_DIGITS, written_digits
from penstock.errors import PipelineError
from penstock.expressions.namespaces import (
    BinaryNamespace,
    DateTimeNamespace,
    JsonNamespace,
    ListNamespace,
    MapNamespace,
    StringNamespace,
    StructNamespace,
    as_kind,
    unknown,
)
from penstock.expressions.nodes import Aggregate, Alias, Call, Case, Cast, Column, Literal, Node, Option, Value
from penstock.expressions.rendering import render
from penstock.types import DataType

_Text = str
"""`str` within the class body of `Expr` is the namespace of text functions."""


class _NoDefault:
    """Stands for a default that was not given, because None is one."""


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

    if not TYPE_CHECKING:  # an editor shall know that there is no such method

        def __getattr__(self, name):
            raise unknown(name, f"{self}.{name}")

        def __getitem__(self, key):
            raise PipelineError(
                f"{self}[{key!r}]: write .map.get({key!r}) for a value of a map, .list.get(0) for an element of a list, "
                "or .struct.field('name') for a field of a struct"
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
        return _binary("eq", self, _not_none(other, "==", "is_null"))

    def __ne__(self, other: Operand) -> Expr:  # pyright: ignore[reportIncompatibleMethodOverride] (as ==)
        return _binary("ne", self, _not_none(other, "!=", "is_not_null"))

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
        """The value as another type: `int`, `float`, `str`, `datetime`, ..., `DecimalType(12, 2)`, a list of such.

        A value that cannot be converted fails the job, with `strict=False` it becomes null. A decimal is rounded to
        fewer digits behind the point, halves away from zero as in SQL; to int it is cut.

        Example:
            >>> evaluate(col("x").cast(DecimalType(4, 1)), x=["0.25", "-0.25", "12"])
            [Decimal('0.3'), Decimal('-0.3'), Decimal('12.0')]
        """
        return Expr(Cast(self.node, as_kind(to, f"{self}.cast"), strict))

    def alias(self, name: _Text) -> Expr:
        """The same value under another column name, as `name=...` in `select` gives it.

        Example:
            >>> bids.select("auction", (col("price") * 0.5).alias("euros")).schema.names
            ('auction', 'euros')
        """
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
    def map(self) -> MapNamespace:
        """Functions of maps."""
        return MapNamespace(self)

    @property
    def struct(self) -> StructNamespace:
        """Functions of nested rows."""
        return StructNamespace(self)

    # -- aggregates -----------------------------------------------------------------------------------------------------

    # `filter` of all of them: the rows that count are those in which this condition holds.

    def count(self, *, filter: Expr | None = None) -> Expr:
        """Number of rows of the group where this is not null.

        Example:
            >>> evaluate(col("x").count(filter=col("x") > 1), x=[1, 2, None, 3])
            2
        """
        return self._aggregate("count", filter)

    def sum(self, *, filter: Expr | None = None) -> Expr:
        """Sum over the group; null if all values are null.

        Integers whose sum does not fit into 64 bits fail the job; of floats it is exact, rounded once.

        Example:
            >>> evaluate(col("x").sum(), x=[0.1] * 10)
            1.0
            >>> evaluate(col("x").sum(filter=col("ok")), x=[1, 2, 4], ok=[True, None, True])
            5
        """
        return self._aggregate("sum", filter)

    def mean(self, *, filter: Expr | None = None) -> Expr:
        """Mean over the group; null if all values are null.

        Example:
            >>> evaluate(col("x").mean(), x=[1, 2, None])
            1.5
        """
        return self._aggregate("mean", filter)

    def std(self, ddof: int = 1, *, filter: Expr | None = None) -> Expr:
        """Standard deviation: of a sample, or with `ddof=0` of all there is; null for `ddof` values or fewer.

        Example:
            >>> evaluate(col("x").std(), x=[1, 3, None])
            1.4142135623730951
            >>> evaluate(col("x").std(ddof=0), x=[1, 3, None])
            1.0
        """
        return self._aggregate("std", filter, ddof=ddof)

    def var(self, ddof: int = 1, *, filter: Expr | None = None) -> Expr:
        """Variance: of a sample, or with `ddof=0` of all there is; null for `ddof` values or fewer.

        Example:
            >>> evaluate(col("x").var(), x=[1, 3, None])
            2.0
        """
        return self._aggregate("var", filter, ddof=ddof)

    def min(self, *, filter: Expr | None = None) -> Expr:
        """Least value of the group; null if all values are null.

        Example:
            >>> evaluate(col("x").min(), x=[3, None, 1])
            1
        """
        return self._aggregate("min", filter)

    def max(self, *, filter: Expr | None = None) -> Expr:
        """Greatest value of the group; null if all values are null.

        Example:
            >>> evaluate(col("x").max(filter=col("x") < 3), x=[3, None, 1])
            1
        """
        return self._aggregate("max", filter)

    def max_by(self, by: Expr | _Text, *, filter: Expr | None = None) -> Expr:
        """The value, null or not, of the group's row in which `by` is greatest.

        Of several the one with the smallest event time, then the one that arrived first. Rows in which `by` is null or
        NaN are left out. A string names a column.

        Example:
            >>> evaluate(col("name").max_by("score"), name=["ada", "bob", "cy"], score=[7, 9, None])
            'bob'
        """
        return self._by("max_by", by, filter)

    def min_by(self, by: Expr | _Text, *, filter: Expr | None = None) -> Expr:
        """The value, null or not, of the group's row in which `by` is least; otherwise as `max_by`.

        Example:
            >>> evaluate(col("name").min_by("score"), name=["ada", "bob", "cy"], score=[7, 9, None])
            'ada'
        """
        return self._by("min_by", by, filter)

    def any(self, *, filter: Expr | None = None) -> Expr:
        """Whether this condition holds in one row of the group at least; null counts as false.

        Example:
            >>> evaluate((col("x") > 2).any(), x=[1, None, 3])
            True
        """
        return self._aggregate("any", filter)

    def all(self, *, filter: Expr | None = None) -> Expr:
        """Whether this condition holds in every row of the group; null counts as true.

        Example:
            >>> evaluate((col("x") > 2).all(), x=[3, None, 3])
            True
        """
        return self._aggregate("all", filter)

    def first(self, *, filter: Expr | None = None) -> Expr:
        """The value of the group's row with the smallest event time, null or not.

        Example:
            >>> evaluate(col("x").first(filter=col("x") > 1), x=[1, 2, 3])
            2
        """
        return self._of_rows("first", filter)

    def last(self, *, filter: Expr | None = None) -> Expr:
        """The value of the group's row with the largest event time, null or not.

        Example:
            >>> evaluate(col("x").last(filter=col("x") < 3), x=[1, 2, 3])
            2
        """
        return self._of_rows("last", filter)

    def n_unique(self, *, filter: Expr | None = None) -> Expr:
        """Exact number of different values of the group, nulls not counted.

        Example:
            >>> evaluate(col("x").n_unique(), x=["a", "b", "a", None])
            2
        """
        return self._aggregate("n_unique", filter)

    def mode(self, ties: OneOf["first", "least"] = "first", *, filter: Expr | None = None) -> Expr:
        """The most frequent value of the group; null if all values are null.

        Args:
            ties: which of several equally frequent values it is: "first", the one whose first row has the smallest event
                time, then arrived first; or "least", the least one, which does not depend on the order of rows and which
                aggregates of updates therefore need.
            filter: the rows that count.

        Example:
            >>> evaluate(col("x").mode(), x=["b", "a", None, "a", "b", None, None])
            'b'
            >>> evaluate(col("x").mode(ties="least"), x=["b", "a", None, "a", "b"])
            'a'
        """
        return self._aggregate("mode", filter, ties=ties)

    def collect(self, *, filter: Expr | None = None) -> Expr:
        """All values of the group as a list ordered by event time, then arrival.

        Example:
            >>> evaluate(col("x").collect(filter=col("ok")), x=[3, None, 1], ok=[True, True, False])
            [3, None]
        """
        return self._of_rows("collect", filter)

    def top_k_by(self, by: Expr | _Text, k: int, *, filter: Expr | None = None) -> Expr:
        """The values of the group's `k` rows in which `by` is greatest, as a list, the greatest first.

        Of equal ones those with the smallest event time, then those that arrived first; null and NaN are behind all
        others. A string names a column. Whole rows are values too: `struct("name", "score").top_k_by("score", 3)`.

        Example:
            >>> evaluate(col("name").top_k_by("score", 2), name=["ada", "bob", "cy"], score=[7, 9, None])
            ['bob', 'ada']
        """
        return self._best("top_k_by", by, k, filter)

    def bottom_k_by(self, by: Expr | _Text, k: int, *, filter: Expr | None = None) -> Expr:
        """The values of the group's `k` rows in which `by` is least, the least first; otherwise as `top_k_by`.

        Example:
            >>> evaluate(col("name").bottom_k_by("score", 2), name=["ada", "bob", "cy"], score=[7, 9, None])
            ['ada', 'bob']
        """
        return self._best("bottom_k_by", by, k, filter)

    def collect_distinct(self, *, filter: Expr | None = None) -> Expr:
        """The different values of the group in ascending order, nulls left out.

        Example:
            >>> evaluate(col("x").collect_distinct(), x=["b", "a", None, "b"])
            ['a', 'b']
        """
        return self._aggregate("collect_distinct", filter)

    def quantile(self, quantile: float, *, filter: Expr | None = None) -> Expr:
        """Exact quantile (0 to 1) of the group, linear between neighbours.

        Example:
            >>> evaluate(col("x").quantile(0.25), x=[1, 2, 3, None])
            1.5
        """
        return self._aggregate("quantile", filter, quantile=quantile)

    def median(self, *, filter: Expr | None = None) -> Expr:
        """The middle of the values of the group, as a float; of an even number the mean of the two: the quantile 0.5.

        The group's state holds all its values; `approx_quantile(0.5)` needs little.

        Example:
            >>> evaluate(col("x").median(), x=[1, 2, 4])
            2.0
        """
        return self.quantile(0.5, filter=filter)

    def approx_n_unique(self, *, filter: Expr | None = None) -> Expr:
        """Number of different values of the group, nulls not counted: estimated where there are many, with little state.

        Exact up to 4,095 different values. Beyond, the relative standard error is 1.6 %: two results of three are
        within 1.6 %, 99.7 % within 5 %. A group keeps 8 bytes per different value, and never more than 32 KiB, where
        `n_unique` keeps all of them. The result depends on the values alone: on no batch, no order and no seed.

        Example:
            >>> evaluate(col("x").approx_n_unique(), x=["a", "b", "a", None])
            2
            >>> evaluate(col("x").approx_n_unique(), x=list(range(100_000)))
            101157
        """
        return self._aggregate("approx_n_unique", filter)

    def approx_quantile(self, quantile: float, *, filter: Expr | None = None) -> Expr:
        """Quantile (0 to 1) of the group, linear between neighbours: of rounded values where there are many.

        Exact up to 2,600 different values. Beyond, values are rounded, each to within 0.4 % of itself if all are within
        a factor of a million (such as 1 ms to 16 minutes; positive and negative ones counted together), within 0.8 % for
        a factor of its square, and so on; ranks stay exact. A group keeps 42 KB at most, where `quantile` keeps all
        values. The result depends on the values alone: on no batch, no order and no seed.

        Example:
            >>> evaluate(col("x").approx_quantile(0.25), x=[1, 2, 3, None])
            1.5
            >>> evaluate(col("x").approx_quantile(0.99), x=list(range(100_000)))
            98944.0
        """
        return self._aggregate("approx_quantile", filter, quantile=quantile)

    # -- building -------------------------------------------------------------------------------------------------------

    def _call(self, function: _Text, *others: Operand, **options: Option) -> Expr:
        """A function of the catalogue applied to this and further arguments; options that are None are left out."""
        args = tuple(as_node(other, function) for other in others)
        settings = tuple((name, value) for name, value in options.items() if value is not None)
        return Expr(Call(function, (self.node, *args), settings))

    def _aggregate(self, function: _Text, filter: Expr | None, **options: Option) -> Expr:
        """An aggregate that leaves nulls out: what does not count is made null."""
        return Expr(Aggregate(function, (filtered(self.node, filter, function),), tuple(options.items())))

    def _of_rows(self, function: _Text, filter: Expr | None) -> Expr:
        """An aggregate to which null is a value like any other."""
        if filter is None:
            return Expr(Aggregate(function, (self.node,)))
        return Expr(Aggregate(function, (self.node, condition(filter, function)), (("filter", True),)))

    def _by(self, function: _Text, by: Expr | _Text, filter: Expr | None) -> Expr:
        order = Column(by) if isinstance(by, str) else as_node(by, function)
        return Expr(Aggregate(function, (self.node, filtered(order, filter, function))))

    def _best(self, function: _Text, by: Expr | _Text, k: int, filter: Expr | None) -> Expr:
        args = (self.node, Column(by) if isinstance(by, str) else as_node(by, function))
        if filter is None:
            return Expr(Aggregate(function, args, (("k", k),)))
        return Expr(Aggregate(function, (*args, condition(filter, function)), (("filter", True), ("k", k))))


def condition(filter: object, where: str) -> Node:
    """The node of `filter=` of an aggregate.

    Raises:
        PipelineError: it is no expression.
    """
    if isinstance(filter, Expr):
        return filter.node
    raise PipelineError(f"{where}: filter= needs a condition such as col('ok') or col('x') > 1, got {filter!r}")


def filtered(node: Node, filter: Expr | None, where: str) -> Node:
    """The value where the condition holds, null elsewhere."""
    return node if filter is None else Case(((condition(filter, where), node),))


Operand = Expr | Value
"""What operators and methods take beside an expression: another one, or a constant."""


def _not_none(other: Operand, sign: str, instead: str) -> Operand:
    """The operand; raises `PipelineError` for None, with which every comparison is null."""
    if other is None:
        raise PipelineError(f"{sign} None: nothing equals null, so the answer is always null; write .{instead}()")
    return other


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
        case None | bool() | str() | bytes():
            return Literal(value)
        case timedelta():
            if not -(2**63) <= value // timedelta(microseconds=1) < 2**63:
                raise PipelineError(f"{where}: {value} is too long; durations have up to 106751991 days")
            return Literal(value)
        case float():
            return Literal(float(value))
        case int():
            if not -(2**63) <= value < 2**64:
                raise PipelineError(f"{where}: {value} does not fit into 64 bits; write it as a float or a Decimal")
            return Literal(int(value))
        case Decimal():
            return Literal(_decimal(value, where))
        case datetime():
            if value.tzinfo is None:
                raise PipelineError(f"{where}: {value!r} has no time zone; write datetime(..., tzinfo=UTC)")
            return Literal(value.astimezone(UTC).replace(fold=0))
        case time():
            if value.tzinfo is not None:
                raise PipelineError(
                    f"{where}: {value!r} has an offset, a time of day has none; use .replace(tzinfo=None)"
                )
            return Literal(value)
        case date():
            return Literal(value)
        case _ if type(value).__module__.startswith("polars."):
            raise PipelineError(f"{where}: {value!r} is no expression of this library{OF_POLARS}")
        case _:
            raise PipelineError(
                f"{where}: {value!r} is neither an expression nor a constant; there are bool, int, float, Decimal, str, "
                "bytes, datetime, date, time, timedelta and None"
            )


def _decimal(value: Decimal, where: str) -> Decimal:
    if not value.is_finite():
        raise PipelineError(f"{where}: {value!r} is no number; write float({str(value)!r}) for the float")
    if written_digits(value)[0] > MOST_DIGITS:
        raise PipelineError(f"{where}: {value!r} has more than {MOST_DIGITS} digits; round it")
    return value
