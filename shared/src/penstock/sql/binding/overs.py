"""OVER: values of every row from the rows around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from penstock.errors import nearest
from penstock.expressions import Expr, col, lag, lead, lit, row_number
from penstock.plan.building.aggregates import over
from penstock.plan.building.keys import keyed
from penstock.plan.operations.over import Over
from penstock.plan.order import Order
from penstock.sql.binding.context import Context
from penstock.sql.binding.current_overs import current, ranked
from penstock.sql.binding.expressions import WINDOW_FUNCTIONS, Expressions
from penstock.sql.binding.moments import micros_of
from penstock.sql.binding.names import Bound, rewritten
from penstock.sql.binding.relations import (
    WINDOW_END,
    WINDOW_START,
    PendingRank,
    Relation,
    changes_of,
    fresh,
    with_computed,
)
from penstock.sql.functions.arguments import sql_name
from penstock.sql.functions.catalogue import AGGREGATES
from penstock.sql.syntax import Call, Constant, OrderItem, Part, Select, Window
from penstock.types import can_be_key

_BY_PLACE: Final = ("ROW_NUMBER", "LAG", "LEAD")
_WITHOUT_ARGUMENTS: Final = ("ROW_NUMBER", "RANK", "DENSE_RANK", "PERCENT_RANK", "CUME_DIST")
_WITHOUT_FRAME: Final = (*_WITHOUT_ARGUMENTS, "NTILE", "LAG", "LEAD")


class Overs:
    """The calls with OVER of one SELECT, in the order of its rows.

    Windows that agree in PARTITION BY, ORDER BY and frame are computed together.
    """

    def __init__(self, context: Context, relation: Relation) -> None:
        self._context = context
        self._relation = changes_of(relation)

    def computed(self, calls: Sequence[Call], names: Mapping[Part, str]) -> tuple[Relation, dict[Part, str]]:
        """The rows with a column for each call.

        Raises:
            SqlError: it cannot be computed of such rows.
        """
        replaced: dict[Part, str] = {}
        for window, members in self._by_window(calls).items():
            columns: dict[str, Call] = {}
            for call in members:
                taken = (*self._relation.rows.schema.names, *columns)
                name = fresh(names.get(call, f"over_{len(replaced)}"), taken)
                columns[name] = call
                replaced[call] = name
            self._compute(window, columns)
        return self._relation, replaced

    def rank(self, call: Call, name: str) -> PendingRank | None:
        """The call as a number that a condition may bound; None if it is something else."""
        if call.function not in ("ROW_NUMBER", "RANK", "DENSE_RANK") or call.arguments:
            return None
        window = call.over
        if window is None or not window.order:
            return None
        self._take_time(window)
        keys = self._partition(window)
        column = fresh(name, self._relation.rows.schema.names)
        bounds = {each.bound for each in self._relation.columns if each.column in keys}
        windows = self._relation.windows if {WINDOW_START, WINDOW_END} <= bounds else None
        return PendingRank(column, keys, self._order(window.order), call.function, call.span, windows)

    @property
    def relation(self) -> Relation:
        """The rows, with what has been computed so far."""
        return self._relation

    def _by_window(self, calls: Sequence[Call]) -> dict[Window, list[Call]]:
        found: dict[Window, list[Call]] = {}
        for call in calls:
            assert call.over is not None
            found.setdefault(call.over, []).append(call)
        return found

    def _partition(self, window: Window) -> tuple[str, ...]:
        expressions = Expressions(self._context, self._relation.rows.node.row_schema)
        made: dict[str, Expr] = {}
        keys: list[str] = []
        for number, part in enumerate(window.partition):
            if isinstance(part, Constant):
                continue
            value = expressions.bind(part)
            if not can_be_key(value.type):
                raise self._context.error(part, f"rows cannot be partitioned by {sql_name(value.type)}")
            if isinstance(part, Bound):
                keys.append(part.column)
            else:
                name = fresh(f"partition_{number}", self._relation.rows.schema.names, made)
                made[name] = value.expr
                keys.append(name)
        if not keys:
            name = fresh("all_rows", self._relation.rows.schema.names)
            made[name] = lit(True)
            keys = [name]
        self._relation = with_computed(self._relation, made)
        return tuple(dict.fromkeys(keys))

    def _order(self, items: Sequence[OrderItem]) -> tuple[Order, ...]:
        expressions = Expressions(self._context, self._relation.rows.node.row_schema)
        return tuple(order_of(expressions, item) for item in items)

    def _take_time(self, window: Window) -> None:
        if len(window.order) == 1:
            self._relation = in_time_of_order(self._relation, window.order[0].expression, window.order[0])

    def _compute(self, window: Window, columns: Mapping[str, Call]) -> None:
        self._take_time(window)
        keys = self._partition(window)
        if self._by_event_time(window, columns):
            self._streamed(window, keys, columns)
            return
        self._relation = current(self._context, self._relation, window, keys, self._order(window.order), columns)

    # -- in event time --------------------------------------------------------------------------------------------------

    def _by_event_time(self, window: Window, columns: Mapping[str, Call]) -> bool:
        """Whether rows can be sent, once and for all, as event time passes them."""
        time = self._relation.time_column()
        if time is None or self._relation.rows.node.updates or len(window.order) != 1:
            return False
        order = window.order[0]
        if order.expression != Bound(time.column) or order.descending:
            return False
        if self._frame(window) is None:
            return False
        return all(
            call.function in _BY_PLACE or (call.function in AGGREGATES and call.function not in WINDOW_FUNCTIONS)
            for call in columns.values()
        )

    def _frame(self, window: Window) -> Over | None:
        frame = window.frame
        if frame is None:
            return Over(())
        if frame.end.kind != "current" or frame.start.kind != "preceding" or frame.unit == "GROUPS":
            return None
        distance = frame.start.distance
        if distance is None:
            return Over(()) if frame.unit == "RANGE" else None
        if frame.unit == "ROWS":
            whole = isinstance(distance, Constant) and isinstance(distance.value, int)
            return Over((), None, distance.value + 1) if whole and isinstance(distance, Constant) else None  # pyright: ignore
        micros = micros_of(self._context, distance)
        return None if micros is None or micros < 0 else Over((), micros)

    def _streamed(self, window: Window, keys: tuple[str, ...], columns: Mapping[str, Call]) -> None:
        frame = self._frame(window)
        assert frame is not None
        expressions = Expressions(self._context, self._relation.rows.node.row_schema)
        made = tuple((name, self._beside(expressions, call)) for name, call in columns.items())
        with self._context.at(window.span):
            rows = over(keyed(self._relation.rows, keys), frame, made)
        self._relation = self._relation.with_rows(rows)
        if any(
            call.function == "LEAD" for call in columns.values()
        ):  # a row has the time of the one that it waited for
            columns_behind = tuple(replace(each, lag_us=None) for each in self._relation.columns)
            self._relation = replace(self._relation, columns=columns_behind)

    def _beside(self, expressions: Expressions, call: Call) -> Expr:
        if call.function == "ROW_NUMBER":
            return row_number()
        if call.function not in ("LAG", "LEAD"):
            return expressions.aggregate(replace(call, over=None))
        make = lag if call.function == "LAG" else lead
        if not 1 <= len(call.arguments) <= 3:
            raise self._context.error(
                call, f"{call.function} takes 1 to 3 arguments: a value, a distance and a default"
            )
        value, *others = call.arguments
        rows = others[0].value if others and isinstance(others[0], Constant) else 1
        default = others[1].value if len(others) > 1 and isinstance(others[1], Constant) else None
        if (others and not isinstance(others[0], Constant)) or (
            len(others) > 1 and not isinstance(others[1], Constant)
        ):
            raise self._context.error(call, f"{call.function} takes a constant distance and a constant default")
        with self._context.at(call.span):
            return make(expressions.value(value), rows, default=default)  # pyright: ignore[reportArgumentType]


def check_over(context: Context, call: Call) -> None:
    """Refuse what OVER of a function would pass over.

    Raises:
        SqlError: the text says something of the call that is for aggregates, or IGNORE NULLS, or a frame of a function
            that goes by the place of rows.
    """
    if call.function not in WINDOW_FUNCTIONS:
        return
    if call.function in _WITHOUT_FRAME and call.over is not None and call.over.frame is not None:
        raise context.error(
            call.over.frame,
            f"{call.function} has no frame: it goes by the place among all rows; leave it out",
        )
    if call.function in _WITHOUT_ARGUMENTS and call.arguments:
        raise context.error(call.arguments[0], f"{call.function} takes no argument; what it goes by is ORDER BY")
    if call.distinct or call.filter is not None or call.order:
        raise context.error(call, f"DISTINCT, FILTER and ORDER BY are for aggregates, and {call.function} OVER is none")
    if call.ignore_nulls:
        raise context.error(call, f"IGNORE NULLS of {call.function} is not supported")


def with_named_windows(context: Context, select: Select) -> Select:
    """The SELECT with the windows of its WINDOW clause in place of their names.

    Raises:
        SqlError: there is no window of a name, or it says twice what it is.
    """
    named: dict[str, Window] = {}

    def whole(window: Window) -> Window:
        if window.base is None:
            return window
        base = named.get(window.base)
        if base is None:
            raise context.error(window, f"there is no window {window.base!r}; {nearest(window.base, named)}")
        if window.partition or (window.order and base.order) or (window.frame and base.frame):
            raise context.error(window, f"the window {window.base!r} says that already; add only what it does not say")
        return replace(base, order=window.order or base.order, frame=window.frame or base.frame, span=window.span)

    for name, window in select.windows:
        if name in named:
            raise context.error(window, f"WINDOW has {name!r} twice; give one another name")
        named[name] = whole(window)

    def change(part: Part) -> Part | None:
        if isinstance(part, Call) and part.over is not None and part.over.base is not None:
            return replace(part, over=whole(part.over))
        return None

    found = rewritten(select, change)
    assert isinstance(found, Select)
    return replace(found, windows=tuple(named.items()))


def in_time_of_order(relation: Relation, part: Part, item: OrderItem) -> Relation:
    """The rows in the event time by which an order begins, where that is one that they can have.

    Args:
        relation: the rows.
        part: the first expression of the order.
        item: what is said of its direction.
    """
    return relation.in_time_of(part.column) if isinstance(part, Bound) and not item.descending else relation


def order_of(expressions: Expressions, item: OrderItem) -> Order:
    """One expression of ORDER BY. Where the text does not say it, null is less than all values, as in Flink."""
    last = item.descending if item.nulls_last is None else item.nulls_last
    return Order(expressions.value(item.expression), item.descending, last)


def numbered(context: Context, relation: Relation, rank: PendingRank) -> Relation:
    """The rows with their number, which no condition bounds; in order of event time it is known once and for all."""
    time = relation.time_column()
    in_time = time is not None and not relation.rows.node.updates and len(rank.order) == 1
    if in_time and time is not None and rank.function == "ROW_NUMBER":
        order = rank.order[0]
        if order.expr.node == col(time.column).node and not order.descending:
            with context.at(rank.span):
                rows = over(keyed(relation.rows, rank.partition), Over(()), ((rank.column, row_number()),))
            return replace(relation, rows=rows, pending=None)
    return ranked(context, replace(relation, pending=None), rank)
