"""The free functions that begin an expression: `col`, `lit`, `when`, `coalesce`, `count`, `aggregate` and their kin.

Where Polars takes a bare string for a column (`coalesce("a", "b")`) so do these; where it could be meant either way
(`then("a")`) a string is refused and the error says what to write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.core.arguments import checked
from penstock.errors import PipelineError
from penstock.expressions.accumulators import Accumulator, result_type
from penstock.expressions.functions_building import names_option
from penstock.expressions.nodes import Aggregate, Call, Case, Column, Literal, Node, Option, Value, implied_name
from penstock.expressions.rendering import render
from penstock.expressions.surface import Expr, Operand, as_node, condition, filtered, literal


@checked
def col(name: str) -> Expr:
    """The value of a column."""
    return Expr(Column(name))


@checked
def lit(value: Value) -> Expr:
    """A constant; a datetime must have a time zone."""
    return Expr(literal(value, "lit"))


@checked
@dataclass(frozen=True, slots=True)
class When:
    """A condition that waits for its value: `when(condition).then(value)`."""

    _branches: tuple[tuple[Node, Node], ...]
    _condition: Node

    def then(self, value: Operand) -> Then:
        """The value where the condition is true."""
        return Then(Case((*self._branches, (self._condition, _branch_value(value, "then")))))


@checked
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Then(Expr):
    """A conditional expression, null where no condition holds, to which more branches can be added."""

    node: Case  # pyright: ignore[reportIncompatibleVariableOverride] (frozen, so narrowing it is safe)

    def when(self, condition: Expr | bool) -> When:
        """A further condition, asked where none before held."""
        return When(self.node.branches, as_node(condition, "when"))

    def otherwise(self, value: Operand) -> Expr:
        """The value where no condition holds."""
        return Expr(Case(self.node.branches, _branch_value(value, "otherwise")))


@checked
def when(condition: Expr | bool) -> When:
    """Begins a conditional: `when(...).then(...)`, any number of further ones, and `.otherwise(...)`; else it is null.

    Text in a branch is `lit("text")` or `col("name")`, so that one is not taken for the other.

    Example:
        >>> size = when(col("price") > 200).then(lit("large")).when(col("price") > 100).then(lit("medium"))
        >>> bids.select("price", size=size.otherwise(lit("small"))).collect().rows()
        [(50.0, 'small'), (250.0, 'large'), (120.0, 'medium'), (80.0, 'small')]
    """
    return When((), as_node(condition, "when"))


def _branch_value(value: Operand, where: str) -> Node:
    if isinstance(value, str):
        raise PipelineError(f'{where}({value!r}): write lit("{value}") for the text or col("{value}") for the column')
    return as_node(value, where)


@checked
def coalesce(*values: Operand) -> Expr:
    """The first value that is not null; strings name columns."""
    return _of_columns("coalesce", values)


@checked
def min_horizontal(*values: Operand) -> Expr:
    """The least of a row's values, nulls left out; strings name columns."""
    return _of_columns("min_horizontal", values)


@checked
def max_horizontal(*values: Operand) -> Expr:
    """The greatest of a row's values, nulls left out; strings name columns."""
    return _of_columns("max_horizontal", values)


@checked
def arctan2(y: Operand, x: Operand) -> Expr:
    """Angle in radians of the point (x, y) from the x axis, -pi to pi; strings name columns.

    Example:
        >>> evaluate(arctan2("y", "x").degrees().round(3), y=[1.0, 0.0], x=[1.0, -2.0])
        [45.0, 180.0]
    """
    return _of_columns("arctan2", (y, x))


@checked
def struct(*values: Expr | str, **named: Operand) -> Expr:
    """A nested row of these values; strings name columns, a field is called as its keyword or else its column.

    Raises:
        PipelineError: there is no value, or one without a name.

    Example:
        >>> evaluate(struct("a", twice=col("a") * 2), a=[1, 2])
        [{'a': 1, 'twice': 2}, {'a': 2, 'twice': 4}]
    """
    fields = [Column(value) if isinstance(value, str) else as_node(value, "struct") for value in values]
    names = [implied_name(node) for node in fields]
    if None in names:
        raise PipelineError(f"struct: {render(fields[names.index(None)])} has no name; write struct(name=...)")
    fields += [_branch_value(value, f"struct: {name}=") for name, value in named.items()]
    if not fields:
        raise PipelineError("struct: give at least one column")
    together = (*(str(name) for name in names), *named)
    return Expr(Call("struct", tuple(fields), (("names", names_option(together)),)))


@checked
def concat_list(*values: Operand) -> Expr:
    """A list of these values, or of all elements if they are lists; strings name columns.

    Example:
        >>> evaluate(concat_list("a", "b", 0), a=[1, 2], b=[None, 5])
        [[1, None, 0], [2, 5, 0]]
        >>> evaluate(concat_list("a", "b"), a=[[1], []], b=[[2], [5]])
        [[1, 2], [5]]
    """
    return _of_columns("concat_list", values)


@checked
def concat_str(*values: Expr | str, separator: str = "", ignore_nulls: bool = False) -> Expr:
    """The texts joined; strings name columns, `lit("x")` is a text."""
    return _of_columns("concat_str", values, separator=separator or None, ignore_nulls=ignore_nulls or None)


def _of_columns(function: str, values: tuple[Operand, ...], **options: Option) -> Expr:
    if not values:
        raise PipelineError(f"{function}: give at least one column")
    args = tuple(Column(value) if isinstance(value, str) else as_node(value, function) for value in values)
    return Expr(Call(function, args, tuple((name, value) for name, value in options.items() if value is not None)))


@checked
def count(*, filter: Expr | None = None) -> Expr:
    """Number of rows of the group, or of those in which a condition holds: `filter`, of which null counts as false.

    Of the rows that have a value in a column it is `col("price").count()`. Every aggregate takes `filter=`.

    Example:
        >>> evaluate(count(filter=col("x") > 1), x=[1, 2, None, 3])
        2
    """
    return Expr(Aggregate("count")) if filter is None else count_if(filter)


@checked
def count_if(holds: Expr) -> Expr:
    """Number of rows of the group in which a condition holds.

    Example:
        >>> evaluate(count_if(col("x") > 1), x=[1, 2, None, 3])
        2
    """
    return Expr(Aggregate("count", (filtered(Literal(True), holds, "count_if"),)))


@checked
def row_number() -> Expr:
    """How many rows of the key there are up to this one, by event time, then arrival: only in `keyed.over()`.

    Example:
        >>> numbered = bids.key_by("auction").over().with_columns(n=row_number())
        >>> numbered.select("auction", "n").collect().rows()
        [(1, 1), (2, 1), (1, 2), (2, 2)]
    """
    return Expr(Aggregate("row_number"))


@checked
def lag(value: Expr | str, rows: int = 1, *, default: Value = None) -> Expr:
    """The value of the key's row so many rows before this one, by event time, then arrival: only in `keyed.over()`.

    Args:
        value: a column or an expression of a row.
        rows: how many rows before; 1 or more.
        default: stands where there is no such row; null if not given.

    Example:
        >>> risen = bids.key_by("auction").over().with_columns(by=col("price") - lag("price"))
        >>> risen.select("auction", "by").collect().rows()
        [(1, None), (2, None), (1, 70.0), (2, -170.0)]
    """
    return _beside("lag", value, rows, default)


@checked
def lead(value: Expr | str, rows: int = 1, *, default: Value = None) -> Expr:
    """The value of the key's row so many rows after this one, by event time, then arrival: only in `keyed.over()`.

    A row is sent when the row that it waits for is there, with the event time of that row, so that it is not late for
    what comes behind. At the end of the input the others are sent with the default.

    Args:
        value: a column or an expression of a row.
        rows: how many rows after; 1 or more.
        default: stands where there is no such row; null if not given.

    Example:
        >>> followed = bids.key_by("auction").over().with_columns(then=lead("price", default=0.0))
        >>> sorted(followed.select("auction", "price", "then").collect().rows())
        [(1, 50.0, 120.0), (1, 120.0, 0.0), (2, 80.0, 0.0), (2, 250.0, 80.0)]
    """
    return _beside("lead", value, rows, default)


def _beside(function: str, value: Expr | str, rows: int, default: Value) -> Expr:
    if rows < 1:
        raise PipelineError(f"{function}: rows must be 1 or more, got {rows}")
    node = Column(value) if isinstance(value, str) else value.node
    found = Aggregate(function, (node,), (("rows", rows),))
    if default is None:
        return Expr(found)
    present = Aggregate(function, (Literal(True),), (("rows", rows),))
    return Expr(Case(((present, found),), literal(default, f"{function}: default")))


@checked
def aggregate(accumulator: Accumulator[Any, Any], *values: Expr | str, filter: Expr | None = None) -> Expr:
    """A user-defined aggregate over these columns, or with `filter` over the rows in which a condition holds.

    Args:
        accumulator: an instance of a class of yours, see `Accumulator`; stands wherever `col("x").sum()` may stand.
        *values: the columns or expressions whose values `add` is given, in this order; text names a column.
        filter: a condition; only rows for which it is true are added.

    Raises:
        PipelineError: the accumulator does not declare its types, or no column is given.
    """
    result_type(accumulator)
    if not values:
        raise PipelineError(f"aggregate: {type(accumulator).__name__} needs at least one column")
    args = tuple(Column(value) if isinstance(value, str) else value.node for value in values)
    if filter is None:
        return Expr(Aggregate("aggregate", args, (), accumulator))
    kept = condition(filter, "aggregate")
    return Expr(Aggregate("aggregate", (*args, kept), (("filter", True),), accumulator))
