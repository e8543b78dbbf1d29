"""What GROUP BY names: expressions, columns of SELECT by number or name, sets, and windows of older texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from penstock.sql.binding.context import Context
from penstock.sql.binding.expressions import has_aggregate
from penstock.sql.binding.groups import Group
from penstock.sql.binding.names import Bound, Scope, rewritten, within
from penstock.sql.binding.projections import Clauses, numbered
from penstock.sql.binding.python_calls import with_python_calls
from penstock.sql.binding.relations import WINDOW_END, WINDOW_START, WINDOW_TIME, Relation
from penstock.sql.syntax import Call, GroupingSets, Part, Select

_WINDOWS: Final = ("TUMBLE", "HOP", "SESSION", "CUMULATE")
_BOUNDS: Final = {"START": WINDOW_START, "END": WINDOW_END, "ROWTIME": WINDOW_TIME}


def window_call(context: Context, select: Select) -> Call | None:
    """The windowing function in `GROUP BY TUMBLE(ts, INTERVAL '1' HOUR)`, as older texts have it.

    Raises:
        SqlError: there are several.
    """
    calls = [each for each in select.group or () if isinstance(each, Call) and each.function in _WINDOWS]
    if len(calls) > 1:
        raise context.error(calls[1], "rows are grouped by one window")
    return calls[0] if calls else None


class GroupBy:
    """GROUP BY of one SELECT, and what stands behind it.

    Args:
        context: the text.
        select: the SELECT.
        scope: the columns that it may name.
    """

    def __init__(self, context: Context, select: Select, scope: Scope) -> None:
        self._context = context
        self._select = select
        self._scope = scope
        window = window_call(context, select)
        self._window = None if window is None else scope.resolve(window)

    def applies(self, clauses: Clauses) -> bool:
        """Whether the SELECT is one of groups."""
        return self._select.group is not None or any(map(has_aggregate, clauses.parts))

    def bind(self, relation: Relation, clauses: Clauses, labels: Mapping[Part, str]) -> tuple[Relation, Clauses]:
        """The groups, and the clauses with columns in place of keys and aggregates.

        Args:
            relation: the rows.
            clauses: what stands behind GROUP BY.
            labels: what SELECT calls expressions by AS.

        Raises:
            SqlError: rows cannot be grouped so, or a column is read that is no key.
        """
        keys = self._with_both_bounds(relation, [self._key(each, clauses) for each in self._select.group or ()])
        clauses = clauses.each(self._with_windows)
        relation, change = with_python_calls(self._context, relation, [*keys, *clauses.parts])
        keys, clauses = [*map(change, keys)], clauses.each(change)
        labels = {change(part): label for part, label in labels.items()}
        where = next(iter(self._select.group or ()), None) or next(filter(has_aggregate, clauses.parts), self._select)
        grouped = Group(self._context, relation, keys, clauses.parts, labels, where).bind()
        found = clauses.each(grouped.found)
        known = {*grouped.relation.rows.schema.names}
        for each in (each for part in found.parts for each in within(part)):
            if isinstance(each, Bound) and each.column not in known:
                raise self._context.error(each, _not_grouped(each, relation, keys))
        return grouped.relation, found

    def _key(self, part: Part, clauses: Clauses) -> Part:
        if isinstance(part, GroupingSets):
            members = tuple(
                self._sets(each, clauses) if isinstance(each, GroupingSets)
                else tuple(self._key(one, clauses) for one in each)
                for each in part.members
            )  # fmt: skip
            return replace(part, members=members)
        place = numbered(self._context, part, len(clauses.items))
        found = self._with_windows(self._scope.resolve(part)) if place is None else clauses.items[place]
        if has_aggregate(found):
            raise self._context.error(
                part, "an aggregate cannot stand in GROUP BY; group in a subquery, and again outside"
            )
        return replace(found, span=part.span)

    def _sets(self, part: GroupingSets, clauses: Clauses) -> GroupingSets:
        found = self._key(part, clauses)
        assert isinstance(found, GroupingSets)
        return found

    @staticmethod
    def _with_both_bounds(relation: Relation, keys: list[Part]) -> Sequence[Part]:
        """Of a grouping by one bound of windows both are keys: the other follows from it."""
        columns = {each.bound: each.column for each in relation.columns if each.bound is not None}
        bounds = [Bound(columns[name]) for name in (WINDOW_START, WINDOW_END) if name in columns]
        attached = relation.pending is not None or relation.windows is not None
        if attached and any(each in keys for each in bounds):
            return [*keys, *(each for each in bounds if each not in keys)]
        return keys

    def _with_windows(self, part: Part) -> Part:
        """`TUMBLE(...)` of older texts as its window's start, `TUMBLE_END(...)` as its end, and so on."""
        return part if self._window is None else rewritten(part, self._window_of_older_texts)

    def _window_of_older_texts(self, part: Part) -> Part | None:
        if not isinstance(part, Call):
            return None
        if part.function in _WINDOWS:
            return Bound(WINDOW_START, span=part.span)
        window, _, bound = part.function.rpartition("_")
        if window not in _WINDOWS or bound not in _BOUNDS:
            return None
        if replace(part, function=window) != self._window:
            raise self._context.error(part, "this names another window than GROUP BY does; give it the same arguments")
        return Bound(_BOUNDS[bound], span=part.span)


def _not_grouped(part: Bound, relation: Relation, keys: Sequence[Part]) -> str:
    name = next((each.name for each in relation.columns if each.column == part.column), part.column)
    if not keys:
        return f"{name} has many values where all rows are one group; write GROUP BY {name}, or MAX({name})"
    return f"{name} is not in GROUP BY and has many values in a group; add it there, or write MAX({name})"
