"""Row numbers and other values over the rows of a key: top-N where a condition bounds the number, OVER elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from penstock.expressions import col, lit
from penstock.expressions.nodes import Column as ColumnNode
from penstock.functions.windows.definitions import RANK, FixedWindow, SessionWindow
from penstock.plan.building.aggregates import top
from penstock.plan.building.columns import project, select
from penstock.plan.building.keys import keyed
from penstock.plan.building.windows import top_of_windows
from penstock.sql.binding.context import Context
from penstock.sql.binding.names import MIRRORED, Bound
from penstock.sql.binding.overs import numbered
from penstock.sql.binding.relations import (
    WINDOW_END,
    WINDOW_START,
    WINDOW_TIME,
    PendingRank,
    PendingWindow,
    Relation,
    changes_of,
    fresh,
    last_moment,
    steps_of,
    with_computed,
    with_windows,
)
from penstock.sql.syntax import Call, Constant, Part
from penstock.types import FLOATS


def settled(context: Context, relation: Relation) -> Relation:
    """The relation with what is pending computed: windows as columns of every row, row numbers.

    Raises:
        SqlError: it cannot be, because sessions are known when they are over.
    """
    match relation.pending:
        case None:
            return relation
        case PendingWindow(window=window, span=span):
            if isinstance(window, SessionWindow):
                raise context.error(
                    span,
                    "the rows of a session are known when it is over; GROUP BY window_start, window_end behind it, "
                    "and put WHERE into the table: SESSION(TABLE (SELECT ... WHERE ...), ...)",
                )
            with context.at(span):
                found = with_windows(relation, window)  # pyright: ignore[reportArgumentType]
                return with_computed(found, {WINDOW_TIME: last_moment()})
        case PendingRank() as rank:
            return numbered(context, relation, rank)


def bounded(context: Context, relation: Relation, conditions: Sequence[Part]) -> tuple[Relation, list[Part]]:
    """A pending row number as top-N, if a condition says how many rows of a key there are at most.

    Returns:
        The relation, and the conditions that are still to be asked.
    """
    rank = relation.pending
    if not isinstance(rank, PendingRank) or rank.function != "ROW_NUMBER":
        return relation, list(conditions)
    limits = [(_bound(each, rank.column), each) for each in conditions]
    found = [(limit, each) for limit, each in limits if limit is not None]
    if not found:
        return relation, list(conditions)
    low = max((limit[0] for limit, _ in found), default=1)
    high = [limit[1] for limit, _ in found if limit[1] is not None]
    rest = [each for limit, each in limits if limit is None]
    if not high:
        return relation, list(conditions)
    last = min(high)
    first = max(low, 1)
    if last < first:
        return replace(_topped(context, relation, rank, 1, 0), pending=None), [Constant(False, span=rank.span), *rest]
    return _topped(context, relation, rank, last - first + 1, first - 1), rest


def _topped(context: Context, relation: Relation, rank: PendingRank, count: int, offset: int) -> Relation:
    if not offset and (windows := _windows_that_end(relation, rank)) is not None:
        return _best_of_windows(context, relation, rank, windows, count)
    relation = replace(changes_of(relation), pending=None)
    keys = rank.partition
    if not keys:
        key = fresh("all_rows", relation.rows.schema.names)
        relation = with_computed(relation, {key: lit(True)})
        keys = (key,)
    with context.at(rank.span):
        rows = top(keyed(relation.rows, keys), count, rank.order, None, offset=offset, rank=rank.column)
    return relation.with_rows(rows)


def _windows_that_end(relation: Relation, rank: PendingRank) -> FixedWindow | None:
    """The windows whose best rows are known when they end: of results of windows, by one column that is never null."""
    if relation.rows.node.updates or rank.windows is None or len(rank.order) != 1:
        return None
    by = rank.order[0].expr.node
    if not isinstance(by, ColumnNode):
        return None
    field = relation.rows.schema.field(by.name)
    return None if field.nullable or field.type in FLOATS else rank.windows


def _best_of_windows(
    context: Context, relation: Relation, rank: PendingRank, windows: FixedWindow, count: int
) -> Relation:
    """The best rows of the results of each window, once and for all: they are in windows as long as a step."""
    names = relation.rows.schema.names
    made_anew = (WINDOW_START, WINDOW_END, RANK)
    moved = {name: fresh(f"{name}_of_row", names) for name in names if name in made_anew}
    order = rank.order[0]
    assert isinstance(order.expr.node, ColumnNode)
    by = order.expr.node.name
    with context.at(rank.span):
        rows = project(relation.rows, "rename", tuple((moved.get(name, name), col(name)) for name in names))
        by_key = keyed(rows, tuple(moved.get(name, name) for name in rank.partition))
        best = top_of_windows(by_key, steps_of(windows), count, moved.get(by, by), order.descending, None)
        columns = {name: col(moved.get(name, name)) for name in names}
        found = select(best, (), {**columns, rank.column: col(RANK)})
    return replace(relation, rows=found, pending=None)


def _bound(part: Part, column: str) -> tuple[int, int | None] | None:
    """The least and the largest number that a condition leaves; None if it says something else."""
    if not isinstance(part, Call) or part.function not in MIRRORED:
        return None
    one, other = part.arguments
    operator = part.function
    if isinstance(one, Constant):
        one, other, operator = other, one, MIRRORED[operator]
    if not isinstance(one, Bound) or one.column != column or not isinstance(other, Constant):
        return None
    if not isinstance(other.value, int | Decimal) or isinstance(other.value, bool) or other.value != int(other.value):
        return None
    number = int(other.value)
    return {
        "=": (number, number), "<": (1, number - 1), "<=": (1, number), ">": (number + 1, None), ">=": (number, None)
    }[operator]  # fmt: skip
