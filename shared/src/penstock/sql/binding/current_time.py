"""Conditions on the current time, which is the time that event time has reached: rows are valid for a while.

`ts > NOW() - INTERVAL '7' DAY` is no filter of a row that arrives, but says how long it is valid: it is retracted when
the watermark has come to `ts` and seven days. So the state of what follows is bounded (Materialize: temporal filters).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from penstock.core.times import EPOCH
from penstock.expressions import Expr, coalesce, lit, max_horizontal, min_horizontal
from penstock.plan.building.columns import filter_rows
from penstock.plan.building.temporal_filters import event_time_advances, temporal_filter
from penstock.sql.binding.context import Context
from penstock.sql.binding.expressions import NOW, Expressions
from penstock.sql.binding.moments import moment
from penstock.sql.binding.names import MIRRORED, within
from penstock.sql.binding.relations import PendingWindow, Relation, changes_of
from penstock.sql.functions.arguments import sql_name
from penstock.sql.syntax import Call, Part
from penstock.types import TIMESTAMP

_MICROSECOND: Final = timedelta(microseconds=1)


def reads_now(part: Part) -> bool:
    """Whether the current time stands within it."""
    return any(isinstance(each, Call) and each.function in NOW for each in within(part))


def valid_now(context: Context, relation: Relation, conditions: Sequence[Part]) -> Relation:
    """The rows for which conditions on the current time hold, for as long as they do.

    Args:
        context: the text.
        relation: the rows; no rank is pending.
        conditions: comparisons in which the current time stands.

    Raises:
        SqlError: a condition is no comparison of the current time with a time of the row, or the rows are to be put into
            windows.
    """
    if isinstance(relation.pending, PendingWindow):
        raise context.error(
            conditions[0],
            "rows of windows cannot be compared with the current time; a window ends by event time itself",
        )
    if not event_time_advances(relation.rows.node):
        raise context.error(
            conditions[0],
            "the current time is the time that event time has reached, and these rows have none; declare it in CREATE "
            "TABLE: WATERMARK FOR ts AS ts, or give the stream event_time=",
        )
    expressions = Expressions(context, relation.rows.node.row_schema)
    bounds: dict[str, list[Expr]] = {"valid_from": [], "valid_until": []}
    known: list[Expr] = []
    for each in conditions:
        name, bound, nullable = _bound(context, expressions, each)
        if nullable:  # what is compared with null does not hold; and then none of those that are left is null
            known.append(bound.is_not_null())
            bound = coalesce(bound, lit(EPOCH))
        bounds[name].append(bound)
    begin = _chosen(max_horizontal, bounds["valid_from"])
    end = _chosen(min_horizontal, bounds["valid_until"])
    with context.at(conditions[0].span):
        rows = filter_rows(changes_of(relation).rows, known) if known else relation.rows
        rows = temporal_filter(rows, begin, end)
    return replace(relation.with_rows(rows), windows=None)


def _bound(context: Context, expressions: Expressions, part: Part) -> tuple[str, Expr, bool]:
    """Which bound of the row's span a condition says, where it is, and whether it may be null."""
    operator, now, other = _comparison(context, part)
    found = moment(context, now)
    if found is None:
        raise context.error(
            now,
            "the current time may be shifted by a constant interval, but not by months, whose lengths differ; "
            "shift the time of the row instead: ts + INTERVAL '1' MONTH > NOW()",
        )
    if not isinstance(found[0], Call) or found[0].function not in NOW:
        raise context.error(
            now,
            "the current time stands alone on its side, or with a constant interval; write what else is asked of it on "
            "the side of the row: ts + INTERVAL '7' DAY > NOW()",
        )
    value = expressions.bind(other)
    if value.type != TIMESTAMP:
        raise context.error(other, f"this is {sql_name(value.type)}, and is compared with the current time; CAST it")
    with context.at(now.span):
        at = value.expr + timedelta(microseconds=-found[1]) if found[1] else value.expr
    # now < at, now <= at, now > at, now >= at
    if operator in ("<", "<="):
        return "valid_until", at + _MICROSECOND if operator == "<=" else at, value.nullable
    return "valid_from", at + _MICROSECOND if operator == ">" else at, value.nullable


def _comparison(context: Context, part: Part) -> tuple[str, Part, Part]:
    """An operator, the side with the current time, and the other one."""
    if isinstance(part, Call) and part.function in ("<", "<=", ">", ">="):
        one, other = part.arguments
        if reads_now(one) and not reads_now(other):
            return part.function, one, other
        if reads_now(other) and not reads_now(one):
            return MIRRORED[part.function], other, one
    raise context.error(
        next(each for each in within(part) if isinstance(each, Call) and each.function in NOW),
        "the current time can be compared by <, <=, > and >= with a time of the row, alone or joined by AND: "
        "WHERE ts > NOW() - INTERVAL '7' DAY",
    )


def _chosen(choose: Callable[..., Expr], bounds: Sequence[Expr]) -> Expr | None:
    return choose(*bounds) if len(bounds) > 1 else next(iter(bounds), None)
