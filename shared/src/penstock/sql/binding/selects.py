"""One SELECT, clause by clause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.core.times import checked_ttl_us
from penstock.errors import nearest
from penstock.sql.binding.context import Context, Wanted
from penstock.sql.binding.expressions import has_aggregate, is_aggregate
from penstock.sql.binding.group_by import GroupBy, window_call
from penstock.sql.binding.names import (
    Bound,
    Scope,
    alike,
    columns_in,
    computed,
    conjuncts,
    has_query,
    is_correlated,
    rewritten,
    within,
)
from penstock.sql.binding.overs import Overs, check_over, with_named_windows
from penstock.sql.binding.projections import (
    Clauses,
    Ordered,
    numbered,
    projected,
    with_pending_rank,
)
from penstock.sql.binding.python_calls import calls_python, with_python_calls
from penstock.sql.binding.ranks import settled
from penstock.sql.binding.relations import (
    WINDOW_END,
    WINDOW_START,
    WINDOW_TIME,
    Column,
    PendingRank,
    Relation,
    StateTtl,
    each_once,
)
from penstock.sql.binding.set_operations import UNNAMED
from penstock.sql.binding.subqueries import Subqueries
from penstock.sql.binding.tables import Items, Tables, filtered
from penstock.sql.connectors import duration_setting
from penstock.sql.syntax import Call, Hint, Name, OrderItem, Part, Select, SelectItem, Star, parts_of

if TYPE_CHECKING:
    from penstock.sql.binding.queries import Binder


class Selecting:
    """One SELECT.

    Args:
        binder: binds the queries within it.
        select: the SELECT.
        outer: the scope of the query around, which conditions of a subquery may read.
        order: ORDER BY of its query, which may name what SELECT does not show.
    """

    def __init__(self, binder: Binder, select: Select, outer: Scope | None, order: Sequence[OrderItem] = ()) -> None:
        self._binder = binder
        self._context = binder.context
        self._select = with_named_windows(binder.context, select)
        self._outer = outer
        self._order = order
        self._ttls = state_ttls(binder.context, select.hints)

    def bind(self) -> Ordered:
        """The rows, and the order in which they are to be shown.

        Raises:
            SqlError: something of it is wrong.
        """
        found = self._bound()
        for ttl in self._ttls.values():
            if not ttl.used:
                raise self._context.error(
                    ttl.span,
                    f"STATE_TTL says nothing of {ttl.table} here: it is for tables of this query's joins that no time "
                    "bounds, and for the one table of GROUP BY or DISTINCT without windows",
                )
        return found

    def _bound(self) -> Ordered:
        scope, relation, correlated = self.source()
        for each in correlated:
            raise self._context.error(
                each, "a subquery here cannot read columns of the query around; join the tables, or use EXISTS or IN"
            )
        window = window_call(self._context, self._select)
        if window is not None:
            tables = Tables(self._context, self._binder, self._outer, None, {})
            relation = tables.group_window(relation, window)
        scope = replace(scope, relation=relation)
        items = self.expanded(scope)
        clauses = self._resolved(scope, items)
        groups = GroupBy(self._context, self._select, self._with_aliases(scope, items))
        if groups.applies(clauses):
            relation, clauses = self._with_values_to_aggregate(scope, relation, clauses)
            labels = {
                part: item.alias for part, item in zip(clauses.items, items, strict=True) if item.alias is not None
            }
            relation, clauses = groups.bind(relation, clauses, labels)
        elif clauses.having:
            raise self._context.error(clauses.having[0], "HAVING needs GROUP BY or an aggregate; write WHERE")
        relation = self._where(scope, relation, clauses.having)
        relation, clauses = self._with_values(scope, relation, replace(clauses, having=()))
        relation, change = with_python_calls(self._context, relation, clauses.parts)
        return self._over(relation, clauses.each(change))

    # -- from and where -------------------------------------------------------------------------------------------------

    def source(self) -> tuple[Scope, Relation, list[Part]]:
        """FROM and WHERE: the scope, the rows, and the conditions that read the query around."""
        written = conjuncts(self._select.where)
        for each in written:
            if has_aggregate(each):
                raise self._context.error(each, "an aggregate cannot stand in WHERE; write HAVING")
        if self._select.tables is None:
            relation = self._binder.no_table()
            scope = Scope(self._context.text, relation, self._outer)
        else:
            tables = Tables(self._context, self._binder, self._outer, self._wanted(), self._ttls)
            items = tables.items(self._select.tables)
            for name, ttl in self._ttls.items():
                if alike(name, tables.names) is None:
                    raise self._context.error(
                        ttl.span, f"there is no table {name!r} in FROM; {nearest(name, tables.names)}"
                    )
            scope = tables.scope(items)
            plain = [(each, scope.resolve(each)) for each in written]
            relation = tables.connected(items, [found for _, found in plain if self._is_plain(found)])
            relation = _in_order(items, relation)
            scope = replace(scope, relation=relation)
            written = [each for each, found in plain if not self._is_plain(found)]
        rest = [scope.resolve(each) for each in written]
        correlated = [each for each in rest if is_correlated(each)]
        relation = self._where(scope, relation, [each for each in rest if each not in correlated])
        return replace(scope, relation=relation), relation, correlated

    def _is_plain(self, condition: Part) -> bool:
        """Whether it is asked of the tables of FROM alone, and by expressions alone."""
        alone = not is_correlated(condition) and not has_query(condition) and bool(columns_in(condition))
        return alone and not calls_python(self._context, condition)

    def _wanted(self) -> Wanted:
        """The names that the query mentions; None if it wants all."""
        mentioned: set[str] = set()
        for each in (each for part in (self._select, *self._order) for each in parts_of(part)):
            if isinstance(each, Star):
                return None
            if isinstance(each, Name):
                mentioned.update(name.casefold() for name in each.parts)
        return frozenset({*mentioned, WINDOW_START, WINDOW_END, WINDOW_TIME})

    def _where(self, scope: Scope, relation: Relation, conditions: Sequence[Part]) -> Relation:
        relation, change = with_python_calls(self._context, relation, conditions)
        conditions = [*map(change, conditions)]
        relation = filtered(self._context, relation, [each for each in conditions if not has_query(each)])
        nested = [each for each in conditions if has_query(each)]
        if not nested:
            return relation
        queries = Subqueries(self._context, self._binder, replace(scope, relation=relation))
        for each in nested:
            queries.condition(each)
        return queries.relation

    # -- select ---------------------------------------------------------------------------------------------------------

    def expanded(self, scope: Scope) -> list[SelectItem]:
        """The columns of SELECT, with `*` written out."""
        found: list[SelectItem] = []
        for item in self._select.items:
            found += self._all(item.expression, scope) if isinstance(item.expression, Star) else [item]
        return found

    def _all(self, star: Star, scope: Scope) -> list[SelectItem]:
        columns = list(scope.relation.shown)
        if star.table:
            self._context.table_name(star.table, star)
            tables = {each.table for each in scope.relation.columns if each.table is not None}
            meant = alike(star.table[-1], tables)
            if meant is None:
                raise self._context.error(
                    star, f"there is no table {star.table[-1]!r} in FROM; {nearest(star.table[-1], tables)}"
                )
            columns = [each for each in scope.relation.columns if each.table == meant]
        if not columns:
            raise self._context.error(star, "'*' needs FROM")
        for name in star.without:
            if alike(name, [each.name for each in columns]) is None:
                raise self._context.error(star, f"there is no column {name!r} to leave out")
            columns = [each for each in columns if each.name.casefold() != name.casefold()]
        return [SelectItem(Bound(each.column, span=star.span), each.name, span=star.span) for each in columns]

    def _with_aliases(self, scope: Scope, items: Sequence[SelectItem]) -> Scope:
        """A scope in which what AS names means its expression, where no column has the name."""
        aliases: dict[str, list[Part]] = {}
        for item in items:
            if item.alias is not None and (value := scope.resolve(item.expression)) not in aliases.get(item.alias, ()):
                aliases.setdefault(item.alias, []).append(value)
        return replace(scope, aliases=aliases)

    def _resolved(self, scope: Scope, items: Sequence[SelectItem]) -> Clauses:
        expressions = tuple(scope.resolve(item.expression) for item in items)
        scope = self._with_aliases(scope, items)
        for _, window in self._select.windows:  # also one that nobody uses is to be right
            scope.resolve(window)
        return Clauses(
            expressions,
            _names(items),
            tuple(map(scope.resolve, conjuncts(self._select.having))),
            tuple(map(scope.resolve, conjuncts(self._select.qualify))),
            tuple((self._order_expression(each, scope, items, expressions), each) for each in self._order),
        )

    def _order_expression(
        self, item: OrderItem, scope: Scope, items: Sequence[SelectItem], expressions: Sequence[Part]
    ) -> Part:
        """By number, by a column of SELECT, which goes before those of tables here, or any other expression."""
        place = numbered(self._context, item, len(expressions))
        if place is not None:
            return expressions[place]
        expression = item.expression
        if isinstance(expression, Name) and len(expression.parts) == 1:
            aliased = scope.aliased(expression)
            if aliased is not None:
                return aliased
            named = {
                value
                for each, value in zip(items, expressions, strict=True)
                if each.alias is None and isinstance(each.expression, Name)
                and alike(expression.parts[0], each.expression.parts[-1:]) is not None
            }  # fmt: skip
            if len(named) == 1:
                return named.pop()
        return scope.resolve(expression)

    def _with_values(self, scope: Scope, relation: Relation, clauses: Clauses) -> tuple[Relation, Clauses]:
        """Queries that are values as columns."""
        return self._computed(scope, relation, clauses, clauses.parts)

    def _with_values_to_aggregate(self, scope: Scope, relation: Relation, clauses: Clauses) -> tuple[Relation, Clauses]:
        """Queries within aggregates as columns of the rows that are grouped."""
        calls = (each for part in clauses.parts for each in within(part) if is_aggregate(each))
        return self._computed(scope, relation, clauses, calls)

    def _computed(
        self, scope: Scope, relation: Relation, clauses: Clauses, parts: Iterable[Part]
    ) -> tuple[Relation, Clauses]:
        """The clauses with columns in place of the queries within some of their parts."""
        nested = dict.fromkeys(filter(has_query, parts))
        if not nested:
            return relation, clauses
        queries = Subqueries(self._context, self._binder, replace(scope, relation=relation))
        values = {part: queries.value(part) for part in nested}
        return queries.relation, clauses.each(lambda part: rewritten(part, values.get))

    # -- over -----------------------------------------------------------------------------------------------------------

    def _over(self, relation: Relation, clauses: Clauses) -> Ordered:
        """Values over other rows, QUALIFY, and the columns of SELECT."""
        calls = [
            each
            for each in dict.fromkeys(each for part in clauses.parts for each in within(part))
            if isinstance(each, Call) and each.over is not None
        ]
        if not calls:
            if clauses.qualify:
                raise self._context.error(clauses.qualify[0], "QUALIFY needs a function with OVER; write WHERE")
            return projected(self._context, self._select, relation, clauses)
        for each in calls:
            check_over(self._context, each)
        overs = Overs(self._context, settled(self._context, relation))
        labels: dict[Part, str] = dict(zip(clauses.items, clauses.names, strict=True))
        compared = [side for each in clauses.qualify if isinstance(each, Call) for side in each.arguments]
        alone = len(calls) == 1 and calls[0] in (*clauses.items, *compared)
        alone = alone and not any(calls_python(self._context, part) for part in clauses.parts)
        if alone and not self._select.distinct and not clauses.order:
            rank = overs.rank(calls[0], labels.get(calls[0], "row_number"))
            if rank is not None:
                return self._ranked(overs.relation, rank, _replaced(clauses, {calls[0]: rank.column}))
        relation, replaced = overs.computed(calls, labels)
        clauses = _replaced(clauses, replaced)
        relation, change = with_python_calls(self._context, relation, clauses.parts)
        clauses = clauses.each(change)
        relation = filtered(self._context, relation, clauses.qualify)
        return projected(self._context, self._select, relation, clauses)

    def _ranked(self, relation: Relation, rank: PendingRank, clauses: Clauses) -> Ordered:
        """The rows with a number that is computed when it is known which numbers are wanted: QUALIFY or the query around
        says it."""
        column = Column(rank.column, rank.column, hidden=True)
        pending = replace(relation, pending=rank, columns=(*relation.columns, column))
        reading = [part for part in clauses.items if rank.column in columns_in(part)]
        if clauses.qualify or reading != [Bound(rank.column)]:
            pending = filtered(self._context, pending, clauses.qualify)
            return projected(self._context, self._select, pending, clauses)
        return with_pending_rank(self._context, relation, rank, clauses)


def state_ttls(context: Context, hints: Sequence[Hint]) -> dict[str, StateTtl]:
    """What the hints of a SELECT say of its tables.

    Raises:
        SqlError: a hint is none, or is no duration.
    """
    found: dict[str, StateTtl] = {}
    for hint in hints:
        if hint.name != "STATE_TTL":
            raise context.error(
                hint,
                f"the hint {hint.name} is not supported; there is STATE_TTL('table' = '1d') behind SELECT, and "
                "OPTIONS('key' = 'value') behind a table's name",
            )
        if not hint.settings:
            raise context.error(hint, "STATE_TTL needs a table and a duration; write STATE_TTL('table' = '1d')")
        for table, duration in hint.settings:
            if alike(table, found) is not None:
                raise context.error(hint, f"STATE_TTL says of {table} twice how long; leave one out")
            with context.at(hint.span):
                what = f"STATE_TTL of {table}"
                micros = checked_ttl_us(duration_setting(what, duration), what)
            found[table] = StateTtl(table, hint.span, timedelta(microseconds=micros))
    return found


def _in_order(items: Items, relation: Relation) -> Relation:
    """The columns in the order of the text, whatever the order of joins was."""
    if len(items.relations) == 1:
        return relation
    found: list[Column] = []
    waiting = list(relation.columns)
    for column in items.columns:
        same = [each for each in waiting if (each.table, each.name) == (column.table, column.name)]
        if same:
            found.append(same[0])
            waiting.remove(same[0])
    return replace(relation, columns=(*found, *waiting))


def _names(items: Sequence[SelectItem]) -> tuple[str, ...]:
    """What the columns are called, each differently: as SELECT says, else as the column or field."""
    found: list[str] = []
    for number, item in enumerate(items):
        name = item.alias
        if name is None and isinstance(item.expression, Name):
            name = item.expression.parts[-1]
        found.append(name or f"{UNNAMED}{number}")
    return tuple(each_once(found))


def _replaced(clauses: Clauses, replaced: dict[Any, str]) -> Clauses:
    """The clauses with columns in place of what has been computed."""
    return clauses.each(lambda part: computed(part, replaced))
