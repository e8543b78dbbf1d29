"""OVER of current rows, in any order and over any frame, as databases have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Final, cast

from penstock.plan.building.keys import keyed
from penstock.plan.building.over_current import over_current
from penstock.plan.operations.over_current import Frame, OverColumn
from penstock.sql.binding.context import Context
from penstock.sql.binding.expressions import WINDOW_FUNCTIONS, Expressions
from penstock.sql.binding.moments import micros_of
from penstock.sql.binding.relations import PendingRank, Relation
from penstock.sql.functions.catalogue import AGGREGATES
from penstock.sql.syntax import Call, Constant, FrameBound, Part, Window
from penstock.sql.syntax import Frame as WrittenFrame

if TYPE_CHECKING:
    from penstock.plan.operations.over_current import Offset, RowFunction, Unit
    from penstock.plan.order import Order

_NUMBERED: Final = ("NTILE", "NTH_VALUE", "LAG", "LEAD")
_MOST_ARGUMENTS: Final = {"NTILE": 1, "NTH_VALUE": 2, "LAG": 3, "LEAD": 3, "FIRST_VALUE": 1, "LAST_VALUE": 1}


def current(
    context: Context,
    relation: Relation,
    window: Window,
    keys: tuple[str, ...],
    order: Sequence[Order],
    columns: Mapping[str, Call],
) -> Relation:
    """The rows with columns for calls over one window.

    Raises:
        SqlError: a function, a frame or an order does not fit.
    """
    binds = Expressions(context, relation.rows.node.row_schema)
    frame = None if window.frame is None else _frame(context, window.frame)
    made = [_column(context, binds, name, call, tuple(order), frame) for name, call in columns.items()]
    with context.at(window.span):
        rows = over_current(keyed(relation.rows, keys), made)
    return relation.with_rows(rows)


def ranked(context: Context, relation: Relation, rank: PendingRank) -> Relation:
    """The rows with a number that no condition bounds."""
    function = cast("RowFunction", rank.function.lower())
    with context.at(rank.span):
        by_key = keyed(relation.rows, rank.partition)
        return relation.with_rows(over_current(by_key, [OverColumn(rank.column, function, order=rank.order)]))


def _column(
    context: Context, binds: Expressions, name: str, call: Call, order: tuple[Order, ...], frame: Frame | None
) -> OverColumn:
    if call.function not in WINDOW_FUNCTIONS:
        if call.function not in AGGREGATES:
            raise context.error(call, f"{call.function} is no aggregate, so it takes no OVER")
        return OverColumn(name, binds.aggregate(replace(call, over=None)), order=order, frame=frame)
    most = _MOST_ARGUMENTS.get(call.function, 0)
    if len(call.arguments) > most or (most and not call.arguments):
        raise context.error(call, f"{call.function} takes {most or 'no'} argument{'s' if most > 1 else ''}")
    arguments = list(call.arguments)
    number = 1
    if call.function in _NUMBERED:
        place = 0 if call.function == "NTILE" else 1
        if len(arguments) > place:
            number = _whole(context, arguments.pop(place), call.function)
    function = cast("RowFunction", call.function.lower())
    values = tuple(binds.value(each) for each in arguments)
    ranking = call.function not in ("FIRST_VALUE", "LAST_VALUE", "NTH_VALUE")
    return OverColumn(name, function, values, number, order, None if ranking else frame)


def _whole(context: Context, part: Part, what: str) -> int:
    if not isinstance(part, Constant) or not isinstance(part.value, int) or isinstance(part.value, bool):
        raise context.error(part, f"{what} takes a constant whole number here")
    return part.value


def _frame(context: Context, frame: WrittenFrame) -> Frame:
    start = _offset(context, frame, frame.start, first=True)
    end = _offset(context, frame, frame.end, first=False)
    return Frame(cast("Unit", frame.unit.lower()), start, end)


def _offset(context: Context, frame: WrittenFrame, bound: FrameBound, *, first: bool) -> Offset | None:
    if bound.kind == "current":
        return 0
    if bound.distance is None:
        if (bound.kind == "preceding") != first:
            raise context.error(bound, "a frame begins at UNBOUNDED PRECEDING and ends at UNBOUNDED FOLLOWING")
        return None
    distance: Offset | None = None
    micros = micros_of(context, bound.distance)
    if micros is not None and frame.unit == "RANGE":
        distance = timedelta(microseconds=micros)
    elif isinstance(bound.distance, Constant) and isinstance(bound.distance.value, int | float | Decimal):
        distance = bound.distance.value
    if distance is None or isinstance(distance, bool):
        raise context.error(bound, "the distance of a frame is a constant: a number, or of RANGE an interval")
    return -distance if bound.kind == "preceding" else distance
