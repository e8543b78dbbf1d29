"""FROM: tables, windowing functions, nested queries, and the order in which they are joined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.errors import nearest
from penstock.expressions import coalesce
from penstock.functions.windows.definitions import (
    CumulativeWindow,
    RowWindow,
    SessionWindow,
    SlidingWindow,
    TumblingWindow,
)
from penstock.plan.building.columns import filter_rows
from penstock.sql.binding.context import Context, Wanted
from penstock.sql.binding.current_time import reads_now, valid_now
from penstock.sql.binding.expressions import Expressions
from penstock.sql.binding.joins import Conditions, Join, renamed_apart, sorted_out
from penstock.sql.binding.lookup_joins import LookedUp, LookupJoin, check_processing_time
from penstock.sql.binding.moments import micros_of
from penstock.sql.binding.named_arguments import arguments_in_order
from penstock.sql.binding.names import Bound, Scope, alike, columns_in, conjuncts, has_query, is_correlated, moved
from penstock.sql.binding.python_calls import calls_python, with_python_calls
from penstock.sql.binding.ranks import bounded, settled
from penstock.sql.binding.relations import (
    WINDOW_END,
    WINDOW_START,
    WINDOW_TIME,
    Column,
    PendingRank,
    PendingWindow,
    Relation,
    StateTtl,
    changes_of,
    fresh,
    with_computed,
)
from penstock.sql.binding.row_patterns import RowPattern
from penstock.sql.binding.unnest import conditions_left, is_unnest, unnested
from penstock.sql.syntax import (
    Call,
    DerivedTable,
    Descriptor,
    Joined,
    MatchRecognize,
    Name,
    Part,
    Subquery,
    TableArgument,
    TableFunction,
    TableName,
)
from penstock.sql.text import counted

if TYPE_CHECKING:
    from penstock.sql.binding.queries import Binder

WINDOWING: Final = {
    "TUMBLE": "TUMBLE(TABLE t, DESCRIPTOR(ts), size [, offset])",
    "HOP": "HOP(TABLE t, DESCRIPTOR(ts), slide, size [, offset])",
    "CUMULATE": "CUMULATE(TABLE t, DESCRIPTOR(ts), step, size [, offset])",
    "SESSION": "SESSION(TABLE t [PARTITION BY key], DESCRIPTOR(ts), gap)",
}
_ARGUMENTS: Final = {
    "TUMBLE": ("DATA", "TIMECOL", "SIZE", "OFFSET"),
    "HOP": ("DATA", "TIMECOL", "SLIDE", "SIZE", "OFFSET"),
    "CUMULATE": ("DATA", "TIMECOL", "STEP", "SIZE", "OFFSET"),
    "SESSION": ("DATA", "TIMECOL", "GAP"),
}


@dataclass
class Items:
    """Tables that are joined by inner joins, in any order, and the conditions of these."""

    relations: list[Relation]
    conditions: list[Part]

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns, in the order of the text."""
        return tuple(column for relation in self.relations for column in relation.columns)


class Tables:
    """One FROM.

    Args:
        context: the text.
        binder: binds queries within it.
        outer: the scope of the query around.
        wanted: the names that the query mentions: other columns are not kept by joins.
        ttls: what STATE_TTL says, by the table or alias.
    """

    def __init__(
        self, context: Context, binder: Binder, outer: Scope | None, wanted: Wanted, ttls: Mapping[str, StateTtl]
    ) -> None:
        self._context = context
        self._binder = binder
        self._outer = outer
        self._wanted = wanted
        self._ttls = ttls
        self.names: set[str] = set()
        """The tables and aliases that stand in FROM, as far as it has been bound."""

    def items(self, part: Part) -> Items:
        """The tables that inner joins and commas stand between."""
        if not isinstance(part, Joined):
            return Items([self._table(part)], [])
        if is_unnest(self._context, part.right):
            left = self.connected(self.items(part.left), [])
            found = Items([unnested(self._context, part, left, self._outer)], [])
            if part.condition is not None:
                conditions = self._conditions(part.condition, found.columns, found)
                found.conditions += conditions_left(self._context, part, conditions)
            return found
        if isinstance(part.right, TableName) and part.right.as_of is not None:
            return Items([self._as_of(part, part.right, part.right.as_of)], [])
        left, right = self.items(part.left), self.items(part.right)
        if part.kind in ("inner", "cross") and not part.using and not part.natural:
            return self._together(part, left, right)
        return Items([self._outer_join(part, left, right)], [])

    def _together(self, part: Joined, left: Items, right: Items) -> Items:
        relations = [*left.relations]
        names: dict[str, str] = {}
        for relation in right.relations:
            before = [each.column for each in relation.columns]
            apart = relation
            for other in relations:
                apart = renamed_apart(other, settled(self._context, apart) if other is not apart else apart)
            names.update({old: new.column for old, new in zip(before, apart.columns, strict=True) if old != new.column})
            relations.append(apart)
        found = Items(relations, [*left.conditions, *(moved(each, names) for each in right.conditions)])
        if part.condition is not None:
            found.conditions += self._conditions(part.condition, found.columns, found)
        return found

    def _conditions(self, condition: Part, columns: Sequence[Column], items: Items) -> list[Part]:
        scope = self.scope(items, columns)
        return conjuncts(scope.resolve(condition))

    def scope(self, items: Items, columns: Sequence[Column] | None = None) -> Scope:
        """The columns of several tables."""
        whole = Relation(items.relations[0].rows, tuple(items.columns if columns is None else columns))
        return Scope(self._context.text, whole, self._outer)

    # -- the order of joins ---------------------------------------------------------------------------------------------

    def connected(self, items: Items, conditions: Iterable[Part]) -> Relation:
        """The tables joined, with conditions of ON and WHERE.

        They are joined in the order of the text, but one that no condition connects waits for those that do: a table that
        touches only a later one is not multiplied with all rows before.

        Raises:
            SqlError: rows cannot be joined so.
        """
        pool = [*items.conditions, *conditions]
        for each in pool:
            if has_query(each):
                raise self._context.error(each, "a subquery cannot stand in ON; write it in WHERE")
        waiting = [self._filtered(relation, pool) for relation in items.relations]
        found = waiting.pop(0)
        while waiting:
            place = self._next(found, waiting, pool)
            found = self._inner(found, waiting.pop(place), pool, waiting)
        return self._filtered(found, pool)

    def _filtered(self, relation: Relation, pool: list[Part]) -> Relation:
        """The rows for which the conditions hold that read no other table; these are taken out of the pool."""
        own = {each.column for each in relation.columns}
        mine = [each for each in pool if columns_in(each) <= own and columns_in(each) and not is_correlated(each)]
        for each in mine:
            pool.remove(each)
        relation, change = with_python_calls(self._context, relation, mine)
        return filtered(self._context, relation, [*map(change, mine)])

    def _next(self, found: Relation, waiting: Sequence[Relation], pool: Sequence[Part]) -> int:
        for place, relation in enumerate(waiting):
            if sorted_out(pool, found, relation).keys:
                return place
        for place, relation in enumerate(waiting):
            if sorted_out(pool, found, relation).residual:
                return place
        return 0

    def _inner(self, left: Relation, right: Relation, pool: list[Part], waiting: Sequence[Relation]) -> Relation:
        left, right, pool[:] = self._with_calls(settled(self._context, left), settled(self._context, right), pool)
        both = {*left.rows.schema.names, *right.rows.schema.names}
        mine = [each for each in pool if columns_in(each) <= both and not calls_python(self._context, each)]
        for each in mine:
            pool.remove(each)
        further = set[str]().union(*(columns_in(each) for each in pool))
        conditions = sorted_out(mine, left, right)
        join = Join(self._context, left, right, mine[0] if mine else Part())
        found = join.of("inner", conditions, self._kept(left, right, further))
        pool[:] = [moved(each, join.merged) for each in pool]
        return found

    def _with_calls(
        self, left: Relation, right: Relation, conditions: Iterable[Part]
    ) -> tuple[Relation, Relation, list[Part]]:
        """Both sides of a join with what Python functions give of their columns, and the conditions on that."""
        conditions = [*conditions]
        left, of_left = with_python_calls(self._context, left, conditions, right.rows.schema.names)
        conditions = [*map(of_left, conditions)]
        right, of_right = with_python_calls(self._context, right, conditions, left.rows.schema.names)
        return left, right, [*map(of_right, conditions)]

    def _kept(self, left: Relation, right: Relation, further: Iterable[str] = ()) -> frozenset[str]:
        columns = (*left.columns, *right.columns)
        if self._wanted is None:
            return frozenset(each.column for each in columns)
        return frozenset(
            each.column for each in columns if each.name.casefold() in self._wanted or each.column in further
        ).union(further)

    def _outer_join(self, part: Joined, left_items: Items, right_items: Items) -> Relation:
        left = settled(self._context, self.connected(left_items, []))
        right = settled(self._context, self.connected(right_items, []))
        right = renamed_apart(left, right)
        using, written = self._on(part, left, right)
        left, right, written = self._with_calls(left, right, written)
        conditions = sorted_out(written, left, right)
        kind = "inner" if part.kind == "cross" else part.kind
        left, right = self._filtered_sides(kind, left, right, conditions)
        kept = self._kept(left, right, {each.column for pair in using for each in pair})
        found = Join(self._context, left, right, part.condition or part).of(kind, conditions, kept)
        return _merged(found, using, kind) if using else found

    def _on(self, part: Joined, left: Relation, right: Relation) -> tuple[Sequence[tuple[Column, Column]], list[Part]]:
        """The pairs of columns of USING and NATURAL, and all conditions."""
        using = self._using(part, left, right)
        conditions: list[Part] = [
            Call("=", (Bound(one.column, span=part.span), Bound(other.column, span=part.span)), span=part.span)
            for one, other in using
        ]
        if part.condition is not None:
            items = Items([left, right], [])
            conditions += conjuncts(self.scope(items).resolve(part.condition))
        for each in conditions:
            if has_query(each):
                raise self._context.error(each, "a subquery cannot stand in ON of an outer join; join it before")
        return using, conditions

    def _filtered_sides(
        self, kind: str, left: Relation, right: Relation, conditions: Conditions
    ) -> tuple[Relation, Relation]:
        """Conditions of ON on one side alone are filters of the side whose unmatched rows are not shown."""
        if kind in ("inner", "left"):
            right = filtered(self._context, right, conditions.right)
            conditions.right = []
        if kind in ("inner", "right"):
            left = filtered(self._context, left, conditions.left)
            conditions.left = []
        return left, right

    def _using(self, part: Joined, left: Relation, right: Relation) -> list[tuple[Column, Column]]:
        names: list[tuple[str, Part]] = []
        for each in part.using:
            *before, name = each.parts
            if before:
                raise self._context.error(each, f"USING takes columns that both sides have; write {name}")
            if any(name.casefold() == other.casefold() for other, _ in names):
                raise self._context.error(each, f"USING has {name} twice; leave one out")
            names.append((name, each))
        if part.natural:
            mine = [each.name for each in left.shown]
            names = [(each.name, part) for each in right.shown if alike(each.name, mine) is not None]
            if not names:
                raise self._context.error(
                    part, "a NATURAL join needs columns of equal names, and there are none; write ON"
                )
        found: list[tuple[Column, Column]] = []
        for name, where in names:
            sides: list[Column] = []
            for relation, which in ((left, "left"), (right, "right")):
                known = [each.name for each in relation.shown]
                meant = alike(name, known)
                columns = [each for each in relation.shown if each.name == meant]
                if not columns:
                    raise self._context.error(where, f"the {which} side has no column {name!r}; {nearest(name, known)}")
                if len({each.column for each in columns}) > 1:
                    raise self._context.error(where, f"the {which} side has several columns {name!r}; write ON")
                sides.append(columns[0])
            found.append((sides[0], sides[1]))
        return found

    def _as_of(self, part: Joined, table: TableName, written: Part) -> Relation:
        """Every left row with the newest row of a table as of its time."""
        if part.kind not in ("inner", "left"):
            raise self._context.error(part, "FOR SYSTEM_TIME AS OF is for JOIN ... ON and LEFT JOIN ... ON")
        left = settled(self._context, self.connected(self.items(part.left), []))
        moment = self.scope(Items([left], [])).resolve(written)
        if (lookup := self._binder.lookup(table)) is not None:
            check_processing_time(self._context, left, written, moment)
            self.names.add(table.alias or table.name[-1])
            asked = LookedUp.of(lookup, table.alias or table.name[-1], table.columns, left)
            self._names(table.columns, asked.table, table)
            using, written_on = self._on(part, left, asked.table)
            conditions = sorted_out(written_on, left, asked.table)
            found, rest = LookupJoin(self._context, part, left, asked, conditions, self._wanted).bind()
            found = filtered(self._context, found, rest)
            return _merged(found, using, part.kind) if using else found
        right = renamed_apart(left, settled(self._context, self._table(replace(table, as_of=None))))
        left = left.in_time_of(moment.column) if isinstance(moment, Bound) else left
        time = left.time_column()
        if time is None or moment != Bound(time.column):
            raise self._context.error(
                written, "FOR SYSTEM_TIME AS OF takes the column that is the event time of the left table"
            )
        using, written_on = self._on(part, left, right)
        conditions = sorted_out(written_on, left, right)
        if part.kind == "inner":
            left, conditions.left = filtered(self._context, left, conditions.left), []
        found = Join(self._context, left, right, part).as_of(conditions, part.kind)
        return _merged(found, using, part.kind) if using else found

    # -- one table ------------------------------------------------------------------------------------------------------

    def _table(self, part: Part) -> Relation:
        found = self._bound_table(part)
        names = {each.table for each in found.shown if each.table is not None}
        self.names |= names
        ttl = self._ttls.get(alike(names.pop(), self._ttls) or "") if len(names) == 1 else None
        return found if ttl is None else replace(found, state_ttl=ttl)

    def _bound_table(self, part: Part) -> Relation:
        match part:
            case TableName():
                if part.as_of is not None:
                    raise self._context.error(
                        part.as_of, "FOR SYSTEM_TIME AS OF is for the right table of JOIN ... ON and LEFT JOIN ... ON"
                    )
                found = self._binder.table(part)
                return found.called(part.alias or part.name[-1], self._names(part.columns, found, part))
            case DerivedTable():
                found = self._binder.query(part.query, self._outer if part.lateral else None)
                return found.called(part.alias, self._names(part.columns, found, part))
            case TableFunction():
                found = self._function(part)
                return found.called(part.alias, self._names(part.columns, found, part))
            case MatchRecognize():
                found = RowPattern(self._context, part, self._bound_table(part.table)).bound()
                return found.called(part.alias, self._names(part.columns, found, part))
            case Joined():
                return self.connected(self.items(part), [])
            case _:
                raise AssertionError(f"{part} is no table")

    def _names(self, names: tuple[str, ...], relation: Relation, part: Part) -> tuple[str, ...]:
        have = sum(1 for _ in relation.shown)
        if len(names) > have:
            raise self._context.error(part, f"{len(names)} names are given, and there {counted(have)}")
        return names

    def _function(self, part: TableFunction) -> Relation:
        call = part.call
        if is_unnest(self._context, part):
            return unnested(self._context, Joined("cross", part, part), self._binder.no_table(), self._outer)
        if part.ordinality:
            raise self._context.error(call, "WITH ORDINALITY is for UNNEST; leave it out")
        if call.function in WINDOWING:
            return self._windowing(call)
        return self._binder.table_function(call)

    # -- windowing functions --------------------------------------------------------------------------------------------

    def _windowing(self, call: Call) -> Relation:
        usage = f"write {WINDOWING[call.function]}"
        arguments = arguments_in_order(self._context, call, _ARGUMENTS[call.function], usage)
        if (
            len(arguments) < 3
            or not isinstance(arguments[0], TableArgument)
            or not isinstance(arguments[1], Descriptor)
        ):
            raise self._context.error(call, usage)
        table, descriptor, *sizes = arguments
        assert isinstance(table, TableArgument)
        assert isinstance(descriptor, Descriptor)
        self._check_argument(call, table, descriptor)
        relation = settled(self._context, self._argument(table))
        lengths = [self._length(each, usage) for each in sizes]
        relation = self._in_time_of(relation, descriptor)
        window = self._window(call, lengths, usage)
        taken = [each.name for each in relation.columns]
        for name in (WINDOW_START, WINDOW_END, WINDOW_TIME):
            if name in taken:
                raise self._context.error(
                    table, f"the table has a column {name!r} already, which {call.function} makes; rename it"
                )
        bounds = (Column(name, name, bound=name) for name in (WINDOW_START, WINDOW_END, WINDOW_TIME))
        columns = (*relation.columns, *bounds)
        sessions = self._partition(table, relation) if isinstance(window, SessionWindow) else None
        return replace(relation, columns=columns, pending=PendingWindow(window, call.span, sessions), windows=None)

    def _check_argument(self, call: Call, table: TableArgument, descriptor: Descriptor) -> None:
        """Refuse what says nothing of windows."""
        if len(descriptor.columns) > 1:
            raise self._context.error(
                descriptor.columns[1], f"{call.function} goes by one column, the event time; leave the others out"
            )
        if table.partition and call.function != "SESSION":
            raise self._context.error(
                table.partition[0],
                f"PARTITION BY is for SESSION: windows of {call.function} are the same for all rows; leave it out",
            )
        if table.order:
            raise self._context.error(
                table.order[0], "windows go by event time, in whatever order rows come; leave ORDER BY out"
            )

    def _partition(self, table: TableArgument, relation: Relation) -> frozenset[str]:
        scope = Scope(self._context.text, relation)
        found: set[str] = set()
        for each in table.partition:
            column = scope.resolve(each)
            if not isinstance(column, Bound):
                raise self._context.error(each, "PARTITION BY of SESSION takes columns")
            found.add(column.column)
        return frozenset(found)

    def _argument(self, table: TableArgument) -> Relation:
        if isinstance(table.table, Name):
            return self._table(TableName(table.table.parts, span=table.table.span))
        assert isinstance(table.table, Subquery)
        return self._binder.query(table.table.query, None)

    def _length(self, part: Part, usage: str) -> int:
        micros = micros_of(self._context, part)
        if micros is None:
            raise self._context.error(part, f"a window's size is an interval such as INTERVAL '10' MINUTE; {usage}")
        return micros

    def _in_time_of(self, relation: Relation, descriptor: Descriptor) -> Relation:
        scope = Scope(self._context.text, relation)
        named = descriptor.columns[0]
        column: Part = scope.resolve(named)
        relation = relation.in_time_of(column.column) if isinstance(column, Bound) else relation
        time = relation.time_column()
        if time is None and relation.rows.node.updates:
            raise self._context.error(
                named,
                f"windows go by event time, and {named} is not: these rows may be retracted; put rows into windows "
                "before they are grouped, ranked or compared with the current time",
            )
        if time is None or column != Bound(time.column):
            names = " or ".join(dict.fromkeys(each.name for each in relation.times()))
            known = f"the event time of the table is {names}" if names else "the table has no event time"
            raise self._context.error(
                named,
                f"windows go by event time, and {named} is not: {known}; declare it in CREATE TABLE with "
                f"WATERMARK FOR {named} AS {named} - INTERVAL '5' SECOND, or with event_time= at the source",
            )
        return relation

    def _window(self, call: Call, lengths: Sequence[int], usage: str) -> RowWindow:
        if (any(each <= 0 for each in lengths[:2]) and call.function != "TUMBLE") or lengths[0] <= 0:
            raise self._context.error(call, f"the sizes of windows are positive; {usage}")
        most = {"TUMBLE": 2, "SESSION": 1}.get(call.function, 3)
        least = 1 if call.function in ("TUMBLE", "SESSION") else 2
        if not least <= len(lengths) <= most:
            raise self._context.error(call, usage)
        offset = lengths[-1] if len(lengths) == most and most > 1 else 0
        match call.function:
            case "TUMBLE":
                return TumblingWindow(lengths[0], offset % lengths[0])
            case "HOP":
                if lengths[1] % lengths[0]:
                    raise self._context.error(call, "the size of HOP must be a multiple of its slide")
                return SlidingWindow(lengths[1], lengths[0], offset % lengths[0])
            case "CUMULATE":
                if lengths[1] % lengths[0]:
                    raise self._context.error(call, "the size of CUMULATE must be a multiple of its step")
                return CumulativeWindow(lengths[1], lengths[0], offset % lengths[1])
            case _:
                return SessionWindow(lengths[0])

    def group_window(self, relation: Relation, call: Call) -> Relation:
        """The rows for `GROUP BY TUMBLE(ts, size)`, of older texts: as those of the windowing function."""
        usage = f"write GROUP BY {call.function}(ts, INTERVAL '10' MINUTE{', ...' if call.function == 'HOP' else ''})"
        if len(call.arguments) < 2 or not isinstance(call.arguments[0], Name):
            raise self._context.error(call, usage)
        relation = settled(self._context, relation)
        relation = self._in_time_of(relation, Descriptor((call.arguments[0],), span=call.arguments[0].span))
        window = self._window(call, [self._length(each, usage) for each in call.arguments[1:]], usage)
        columns = (
            *relation.columns,
            *(Column(name, name, hidden=True, bound=name) for name in (WINDOW_START, WINDOW_END, WINDOW_TIME)),
        )
        return replace(relation, columns=columns, pending=PendingWindow(window, call.span), windows=None)


def filtered(context: Context, relation: Relation, conditions: Sequence[Part]) -> Relation:
    """The rows for which conditions hold. What they say of rows is asked before these are put into windows."""
    if not conditions:
        return relation
    relation, conditions = bounded(context, relation, conditions)
    of_now = [each for each in conditions if reads_now(each)]
    if of_now:
        relation = filtered(context, relation, [each for each in conditions if each not in of_now])
        if isinstance(relation.pending, PendingRank):
            relation = settled(context, relation)
        return valid_now(context, relation, of_now)
    if not conditions:
        return relation
    relation = changes_of(relation)
    if isinstance(relation.pending, PendingWindow):
        sessions = relation.pending.sessions_of  # a row that is left out may be what joins two sessions
        asked = {*relation.rows.schema.names} if sessions is None else sessions
        of_rows = [each for each in conditions if columns_in(each) <= asked]
        relation = _where(context, relation, of_rows)
        conditions = [each for each in conditions if each not in of_rows]
    return _where(context, settled(context, relation), conditions) if conditions else relation


def _where(context: Context, relation: Relation, conditions: Sequence[Part]) -> Relation:
    if not conditions:
        return relation
    expressions = Expressions(context, relation.rows.node.row_schema)
    predicates = [expressions.condition(each) for each in conditions]
    with context.at(conditions[0].span):
        return relation.with_rows(filter_rows(relation.rows, predicates))


def _merged(relation: Relation, using: Sequence[tuple[Column, Column]], kind: str) -> Relation:
    """Columns of USING once, first; where rows of either side may be missing, the value of the one that is there."""
    columns = list(relation.columns)
    first: list[Column] = []
    made = {}
    for left, right in using:
        own = next(each for each in columns if (each.table, each.name) == (left.table, left.name))
        other = next(each for each in reversed(columns) if (each.table, each.name) == (right.table, right.name))
        if kind == "full":
            name = fresh(f"{own.name}_of_both", relation.rows.schema.names, made)
            made[name] = coalesce(own.column, other.column)
            first.append(Column(own.name, name))
            hidden = (own, other)
        elif kind == "right":
            first.append(other)
            hidden = (own,)
            columns = [each for each in columns if each is not other]
        else:
            first.append(own)
            hidden = (other,)
            columns = [each for each in columns if each is not own]
        columns = [replace(each, hidden=True) if any(each is one for one in hidden) else each for each in columns]
    return replace(with_computed(relation, made), columns=(*first, *columns))
