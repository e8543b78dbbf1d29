"""The columns of SELECT, and the order in which its rows are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.expressions import Expr, col
from penstock.functions.windows.definitions import FixedWindow
from penstock.plan.building.columns import project
from penstock.plan.order import Order
from penstock.sql.binding.context import Context
from penstock.sql.binding.expressions import Expressions
from penstock.sql.binding.groups import distinct_rows
from penstock.sql.binding.names import Bound, Scope
from penstock.sql.binding.overs import in_time_of_order, order_of
from penstock.sql.binding.ranks import settled
from penstock.sql.binding.relations import (
    PROCTIME,
    WINDOW_END,
    WINDOW_START,
    WINDOW_TIME,
    Column,
    PendingRank,
    Relation,
    as_keyed_by,
    changes_of,
    fresh,
    plain_columns,
    with_computed,
)
from penstock.sql.syntax import Call, Constant, OrderItem, Part, Select
from penstock.sql.text import Span, counted
from penstock.types import INT32


@dataclass(frozen=True)
class Ordered:
    """A relation, and the order in which a query wants its rows shown: columns of the rows."""

    relation: Relation
    order: tuple[Order, ...] = ()
    span: Span | None = None
    """Where the text says the order."""
    limited: bool = False
    """Whether they are the first rows of it."""
    by_event_time: bool = False
    """Whether the order begins with the time of the rows, or the ends of the windows of which they are results."""


@dataclass(frozen=True)
class Clauses:
    """The resolved expressions of a SELECT behind FROM and WHERE."""

    items: tuple[Part, ...]
    names: tuple[str, ...]
    """What the columns of SELECT are called, each differently."""
    having: tuple[Part, ...]
    qualify: tuple[Part, ...]
    order: tuple[tuple[Part, OrderItem], ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """All of them."""
        return (*self.items, *self.having, *self.qualify, *(part for part, _ in self.order))

    def each(self, change: Callable[[Part], Part]) -> Clauses:
        """The clauses with something else for every expression."""
        return replace(
            self,
            items=tuple(map(change, self.items)),
            having=tuple(map(change, self.having)),
            qualify=tuple(map(change, self.qualify)),
            order=tuple((change(part), item) for part, item in self.order),
        )


def projected(context: Context, select: Select, relation: Relation, clauses: Clauses) -> Ordered:
    """The columns of SELECT, and beside them those that it is ordered by, for nobody to see.

    Raises:
        SqlError: one cannot be computed, or DISTINCT rows have no such column to be ordered by.
    """
    relation = settled(context, relation)
    if clauses.order:
        relation = in_time_of_order(relation, *clauses.order[0])
    binds = Expressions(context, relation.rows.node.row_schema)
    made = {name: shown_value(binds, part) for part, name in zip(clauses.items, clauses.names, strict=True)}
    shown = [_column(relation, part, name) for part, name in zip(clauses.items, clauses.names, strict=True)]
    orders = [_order(context, select, binds, clauses, part, item, made) for part, item in clauses.order]
    rows = as_keyed_by(relation.rows, plain_columns(made))
    hidden = [Column(name, name, hidden=True) for name in made if name not in clauses.names]
    with context.at(select.span):
        rows = project(rows, "select", tuple(made.items()))
        found = Relation(rows, (*shown, *hidden), windows=_windows(relation, shown))
        if select.distinct:
            found = changes_of(found)
            made_once = distinct_rows(found.rows, clauses.names, relation.take_ttl())
            found = replace(found.with_rows(made_once), windows=None)
    by_event_time = bool(orders) and _rises_with_time(relation, clauses.order[0][0], orders[0])
    return Ordered(found, tuple(orders), _span(item for _, item in clauses.order), by_event_time=by_event_time)


def _span(order: Iterable[OrderItem]) -> Span | None:
    return next((item.span for item in order), None)


def _rises_with_time(relation: Relation, part: Part, order: Order) -> bool:
    """Whether an expression is never less for a row of a greater event time."""
    column = next((each for each in relation.columns if part == Bound(each.column)), None)
    if column is None or order.descending or not relation.rows.node.event_time:
        return False
    return column.is_time or (relation.windows is not None and column.bound in (WINDOW_END, WINDOW_TIME))


def _order(
    context: Context,
    select: Select,
    binds: Expressions,
    clauses: Clauses,
    part: Part,
    item: OrderItem,
    made: dict[str, Expr],
) -> Order:
    """One order, by a column of SELECT that is the same, or by one that is added to those that are made."""
    placed = order_of(binds, replace(item, expression=part))
    selected = (name for name, one in zip(clauses.names, clauses.items, strict=True) if one == part)
    alike_values = (name for name, value in made.items() if value.node == placed.expr.node)
    name = next(selected, None) or next(alike_values, None)
    if name is None:
        if select.distinct:
            raise context.error(item, "ORDER BY of SELECT DISTINCT can name only columns of SELECT")
        name = fresh(f"order_{len(made)}", made)
        made[name] = placed.expr
    return replace(placed, expr=col(name))


def with_pending_rank(context: Context, relation: Relation, rank: PendingRank, clauses: Clauses) -> Ordered:
    """The columns of SELECT, of which one is a number that the query around may bound; hidden beside them are those that
    the number is made of."""
    binds = Expressions(context, relation.rows.node.row_schema)
    made: dict[str, Expr] = {}
    shown: list[Column] = []
    for part, name in zip(clauses.items, clauses.names, strict=True):
        if part == Bound(rank.column):
            shown.append(Column(name, rank.column))
        else:
            made[name] = binds.value(part)
            shown.append(_column(relation, part, name))
    keys = {key: fresh(f"{key}_of_partition", made, (rank.column,)) for key in rank.partition}
    made.update({new: col(old) for old, new in keys.items()})
    orders: list[Order] = []
    time = relation.time_column()
    for number, order in enumerate(rank.order):
        same = (name for name, value in made.items() if value.node == order.expr.node)
        name = next(same, None) or fresh(f"order_{number}", made, (rank.column,))
        made[name] = order.expr
        orders.append(replace(order, expr=col(name)))
        if time is not None and order.expr.node == col(time.column).node and name not in clauses.names:
            shown.append(Column(name, name, is_time=True, hidden=True))
    rows = project(as_keyed_by(relation.rows, {*made}), "select", tuple(made.items()))
    moved = replace(rank, partition=tuple(keys.values()), order=tuple(orders))
    return Ordered(Relation(rows, tuple(shown), pending=moved, windows=_windows(relation, shown)))


def shown_value(binds: Expressions, part: Part) -> Expr:
    """A column of SELECT or VALUES. A whole number that an INT can hold is one, as in Flink; beside other values it takes
    their type."""
    value = binds.value(part)
    number = part.value if isinstance(part, Constant) else None
    small = isinstance(number, int) and not isinstance(number, bool) and -(2**31) <= number < 2**31
    return value.cast(INT32) if small else value


def ordered_by(context: Context, relation: Relation, order: Sequence[OrderItem]) -> Ordered:
    """Rows in an order of what they show.

    Raises:
        SqlError: there is no such column.
    """
    shown = list(relation.shown)
    scope = Scope(context.text, relation)
    found: list[Order] = []
    by_event_time = False
    for number, item in enumerate(order):
        place = numbered(context, item, len(shown))
        part = scope.resolve(item.expression) if place is None else Bound(shown[place].column, span=item.span)
        if number == 0:
            relation = in_time_of_order(relation, part, item)
        placed = order_of(Expressions(context, relation.rows.node.row_schema), replace(item, expression=part))
        if not isinstance(part, Bound):
            name = fresh(f"order_{number}", relation.rows.schema.names)
            relation = with_computed(relation, {name: placed.expr})
            placed = replace(placed, expr=col(name))
        by_event_time = _rises_with_time(relation, part, placed) if number == 0 else by_event_time
        found.append(placed)
    return Ordered(relation, tuple(found), _span(order), by_event_time=by_event_time)


def numbered(context: Context, part: Part, columns: int) -> int | None:
    """Which column a constant in ORDER BY or GROUP BY means, from 0; None if it is no whole number.

    Raises:
        SqlError: there are not so many, or the rows are ordered by a constant.
    """
    expression = part.expression if isinstance(part, OrderItem) else part
    number = expression.value if isinstance(expression, Constant) else None
    if not isinstance(number, int) or isinstance(number, bool):
        if isinstance(part, OrderItem) and isinstance(expression, Constant):
            raise context.error(
                part, "this is the same for all rows; name a column, without quotes, or give its number"
            )
        return None
    if not 1 <= number <= columns:
        raise context.error(part, f"there {counted(columns)}, so none has the number {number}")
    return number - 1


def _column(relation: Relation, part: Part, name: str) -> Column:
    """A column of SELECT, which may still be the event time or a bound of the window of its rows."""
    time = relation.time_column()
    own = next((each for each in relation.columns if part == Bound(each.column)), None)
    is_time = time is not None and part == Bound(time.column)
    if own is None:
        return Column(name, name, is_time=is_time, is_proctime=isinstance(part, Call) and part.function == PROCTIME)
    return replace(own, name=name, column=name, table=None, is_time=is_time, hidden=False)


def _windows(relation: Relation, shown: Sequence[Column]) -> FixedWindow | None:
    """The windows of which rows are results, if they still say of which."""
    return relation.windows if {WINDOW_START, WINDOW_END} <= {each.bound for each in shown} else None
