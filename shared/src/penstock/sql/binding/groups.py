"""GROUP BY: keys, aggregates, windows and grouping sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import combinations, product
from typing import Final

from penstock.expressions import Expr, col, count, lit
from penstock.functions.windows.definitions import (
    FixedWindow,
    RowWindow,
    SessionWindow,
)
from penstock.plan.building.aggregates import aggregate, deduplicate
from penstock.plan.building.changes import distinct
from penstock.plan.building.columns import filter_rows, project, select
from penstock.plan.building.grouping_sets import grouped
from penstock.plan.building.keys import keyed
from penstock.plan.building.rows import Rows
from penstock.plan.building.windows import aggregate_windows, aggregate_windows_of_changes, check_windows_of_changes
from penstock.plan.operations.expand import GROUPING_ID
from penstock.sql.binding.context import Context
from penstock.sql.binding.expressions import Expressions, is_aggregate
from penstock.sql.binding.names import Bound, columns_in, computed, moved, within
from penstock.sql.binding.ranks import settled
from penstock.sql.binding.relations import (
    WINDOW_END,
    WINDOW_START,
    WINDOW_TIME,
    Column,
    PendingWindow,
    Relation,
    changes_of,
    fresh,
    last_moment,
    only,
    steps_of,
    with_computed,
)
from penstock.sql.binding.seeds import with_seed
from penstock.sql.functions.arguments import sql_name
from penstock.sql.syntax import Call, GroupingSets, Part
from penstock.types import can_be_key

_GROUPING: Final = ("GROUPING", "GROUPING_ID")
_BOUND_NAMES: Final = (WINDOW_START, WINDOW_END, WINDOW_TIME)


@dataclass
class Grouped:
    """What became of a group: rows, and where its expressions are found in them."""

    relation: Relation
    replaced: dict[Part, str] = field(default_factory=dict[Part, str])
    """Expressions of GROUP BY and calls of aggregates, to the columns that hold them."""

    def found(self, part: Part) -> Part:
        """A part of SELECT or HAVING with columns instead of what is computed already."""
        return computed(part, self.replaced)


class Group:
    """One GROUP BY.

    Args:
        context: the text.
        relation: the rows.
        keys: the resolved expressions of GROUP BY.
        reads: the resolved expressions of SELECT, HAVING and ORDER BY, of which the aggregates are collected.
        names: what SELECT calls expressions, for the columns of the rows.
    """

    def __init__(
        self,
        context: Context,
        relation: Relation,
        keys: Sequence[Part],
        reads: Iterable[Part],
        names: Mapping[Part, str],
        span: Part,
    ) -> None:
        self._context = context
        self._relation = relation
        self._keys = list(keys)
        self._reads = list(reads)
        self._names = names
        self._part = span
        self._calls = list(
            dict.fromkeys(each for part in self._reads for each in within(part) if is_aggregate(each))  # pyright: ignore
        )

    def bind(self) -> Grouped:
        """The rows, one for every group.

        Raises:
            SqlError: rows cannot be grouped so.
        """
        sets = self._grouping_sets()
        window = self._window()
        if window is not None:
            if sets is not None:
                raise self._context.error(
                    self._part, "grouping sets of windows are not supported; UNION ALL the groupings"
                )
            return self._of_windows(window)
        if self._relation.windows is not None and self._names_windows():
            return self._of_results_of_windows(self._relation.windows)
        self._relation = settled(self._context, changes_of(self._relation))
        self._relation = only(self._relation, self._read())
        keys = self._key_columns()
        if sets is not None:
            return self._of_sets(keys, sets)
        if not keys:
            return self._of_all()
        return self._of_keys(keys)

    # -- keys -----------------------------------------------------------------------------------------------------------

    def _read(self) -> set[str]:
        """The columns that keys and aggregates read."""
        return {column for part in (*self._keys, *self._calls) for column in columns_in(part)}

    def _key_columns(self) -> dict[Part, str]:
        """The column of every key, made where it is an expression."""
        expressions = Expressions(self._context, self._relation.rows.node.row_schema)
        made: dict[str, Expr] = {}
        found: dict[Part, str] = {}
        taken = self._relation.rows.schema.names
        for number, key in enumerate(self._keys):
            if key in found:
                continue
            value = expressions.bind(key)
            if not can_be_key(value.type):
                raise self._context.error(
                    key, f"rows cannot be grouped by {sql_name(value.type)}; group by parts of it"
                )
            if isinstance(key, Bound):
                found[key] = key.column
                continue
            name = fresh(self._names.get(key, f"key_{number}"), taken, made)
            made[name] = value.expr
            found[key] = name
        self._relation = with_computed(self._relation, made)
        return found

    def _aggregates(self, taken: Iterable[str], but_seed: bool = False) -> dict[str, Expr]:
        """The aggregates by the column that each makes; `but_seed` leaves the seed out."""
        expressions = Expressions(self._context, self._relation.rows.node.row_schema)
        found: dict[str, Expr] = {}
        self._columns: dict[Part, str] = {}
        for number, call in enumerate(self._calls):
            assert isinstance(call, Call)
            name = fresh(self._names.get(call, f"{call.function.lower()}_{number}"), taken, found)
            if but_seed:
                seed = Bound(_SEED)
                kept = Call("NOT", (seed,)) if call.filter is None else Call("AND", (Call("NOT", (seed,)), call.filter))
                if call.filter is not None:
                    expressions.condition(call.filter)  # what is wrong with it is said of it alone
                call = replace(call, filter=kept)
            found[name] = expressions.aggregate(call)
            self._columns[self._calls[number]] = name
        return found

    # -- groups ---------------------------------------------------------------------------------------------------------

    def _of_keys(self, keys: dict[Part, str]) -> Grouped:
        names = list(dict.fromkeys(keys.values()))
        rows = self._relation.rows
        if not self._calls:
            with self._context.at(self._part.span):
                made = distinct_rows(only(self._relation, names).rows, names, self._relation.take_ttl())
                return Grouped(self._related(made, keys), dict(keys))
        aggregates = self._aggregates(names)
        with self._context.at(self._part.span):
            made = aggregate(keyed(rows, tuple(names)), aggregates, self._relation.take_ttl())
        return Grouped(self._related(made, keys), {**keys, **self._columns})

    def _of_all(self) -> Grouped:
        """One row, also of no rows: a row that no aggregate counts sees to it that there is one."""
        seeded = with_seed(self._relation.rows, _SEED)
        self._relation = self._relation.with_rows(seeded)
        rows = keyed(seeded, (_KEY,))
        aggregates = self._aggregates((_KEY,), but_seed=True)
        with self._context.at(self._part.span):
            made = aggregate(rows, aggregates, self._relation.take_ttl())
        return Grouped(Relation(made, ()), dict(self._columns))

    def _of_sets(self, keys: dict[Part, str], sets: Sequence[Sequence[Part]]) -> Grouped:
        named = [tuple(dict.fromkeys(keys[each] for each in one)) for one in sets]
        distinct_sets = list(dict.fromkeys(named))
        if len(distinct_sets) < len(named):
            raise self._context.error(
                self._part, "the same grouping set is there twice; its rows would be, too: leave one out"
            )
        copies = self._copies(keys)
        if copies:
            self._relation = with_computed(self._relation, {copy: col(name) for name, copy in copies.items()})
        calls = self._calls
        self._calls = [moved(each, copies) for each in calls]
        names = list(dict.fromkeys(keys.values()))
        of_all = () in distinct_sets
        if of_all:
            self._relation = self._relation.with_rows(with_seed(self._relation.rows, _SEED))
        else:  # what reads no column must not read a key either
            self._relation = with_computed(self._relation, {_KEY: lit(True)})
        aggregates = self._aggregates([*names, GROUPING_ID], but_seed=of_all)
        rows_of_set = fresh("rows_of_set", [*names, GROUPING_ID], aggregates)
        if of_all:
            aggregates[rows_of_set] = Expressions(self._context, self._relation.rows.node.row_schema).aggregate(
                Call("COUNT", (), filter=Call("NOT", (Bound(_SEED),)))
            )
        columns = {call: self._columns[moved] for call, moved in zip(calls, self._calls, strict=True)}
        with self._context.at(self._part.span):
            by_sets = grouped(self._relation.rows, "grouping_sets", distinct_sets)
            if aggregates:
                made = aggregate(by_sets, aggregates, self._relation.take_ttl())
            else:
                made = distinct_rows(by_sets, [*names, GROUPING_ID], self._relation.take_ttl())
            if of_all:
                made = filter_rows(made, ((col(rows_of_set) > 0) | (col(GROUPING_ID) == (1 << len(names)) - 1),))
        relation = self._related(made, keys)
        replaced: dict[Part, str] = {**keys, **columns}
        return self._with_grouping(Grouped(relation, replaced), keys)

    def _copies(self, keys: dict[Part, str]) -> dict[str, str]:
        """Copies of key columns that aggregates read: these are null in the rows of sets without them."""
        read = set[str]()
        for call in self._calls:
            read |= columns_in(call)
        taken = self._relation.rows.schema.names
        return {name: fresh(f"{name}_value", taken) for name in dict.fromkeys(keys.values()) if name in read}

    def _with_grouping(self, found: Grouped, keys: dict[Part, str]) -> Grouped:
        """GROUPING(a, b): a bit per column, of those that its set does not have."""
        order = list(dict.fromkeys(keys.values()))
        calls = [
            each
            for part in self._reads
            for each in within(part)
            if isinstance(each, Call) and each.function in _GROUPING and each.over is None
        ]
        made: dict[str, Expr] = {}
        for number, call in enumerate(dict.fromkeys(calls)):
            if not all(each in keys for each in call.arguments) or not call.arguments:
                raise self._context.error(call, f"{call.function} takes expressions of GROUP BY")
            total: Expr = lit(0)
            for place, argument in enumerate(reversed(call.arguments)):
                bit = len(order) - 1 - order.index(keys[argument])
                total = total + (col(GROUPING_ID) // (1 << bit) % 2) * (1 << place)
            name = f"grouping_{number}"
            made[name] = total
            found.replaced[call] = name
        found.relation = with_computed(found.relation, made)
        return found

    def _related(self, rows: Rows, keys: Mapping[Part, str]) -> Relation:
        """The groups, in which columns that are keys are still named."""
        kept = {name for key, name in keys.items() if isinstance(key, Bound)}
        columns = tuple(
            replace(each, is_time=False, lag_us=None)
            for each in self._relation.columns
            if each.column in kept and each.column in rows.schema
        )
        return Relation(rows, columns)

    # -- grouping sets --------------------------------------------------------------------------------------------------

    def _grouping_sets(self) -> list[list[Part]] | None:
        """All sets, if there are any; then the keys are all that are in one."""
        if not any(isinstance(key, GroupingSets) for key in self._keys):
            return None
        choices = [sets_of(key) if isinstance(key, GroupingSets) else [[key]] for key in self._keys]
        found = [[part for one in chosen for part in one] for chosen in product(*choices)]
        self._keys = list(dict.fromkeys(part for one in found for part in one))
        if not self._keys:
            return None
        return [list(dict.fromkeys(one)) for one in found]

    # -- windows --------------------------------------------------------------------------------------------------------

    def _window(self) -> RowWindow | None:
        """The window by which rows are grouped: that of a windowing function, or of a call such as TUMBLE in GROUP BY."""
        pending = self._relation.pending
        if not isinstance(pending, PendingWindow):
            return None
        return pending.window if self._names_windows() else None

    def _names_windows(self) -> bool:
        named = {each.column: each.bound for each in self._relation.columns}
        keys = {named.get(key.column) for key in self._keys if isinstance(key, Bound)}
        return WINDOW_START in keys or WINDOW_END in keys

    def _bound_columns(self) -> dict[str, Column]:
        return {each.bound: each for each in self._relation.columns if each.bound is not None}

    def _of_windows(self, window: RowWindow) -> Grouped:
        bounds = self._bound_columns()
        is_bound = [Bound(each.column) for each in bounds.values()]
        self._keys = [key for key in self._keys if key not in is_bound]
        pending = self._relation.pending
        sessions = pending.sessions_of if isinstance(pending, PendingWindow) else None
        if sessions is not None and {*self._keys} != {Bound(each) for each in sessions}:
            raise self._context.error(
                self._part,
                "beside window_start and window_end, GROUP BY of SESSION takes the columns by which it partitions rows: "
                "SESSION(TABLE t PARTITION BY k, ...) GROUP BY k, window_start, window_end",
            )
        if bad := [each for part in self._calls for each in within(part) if each in is_bound]:
            raise self._context.error(
                bad[0], "an aggregate over windows cannot read their bounds, which all rows have in common"
            )
        self._relation = only(replace(self._relation, pending=None), self._read())
        found = self._key_columns()
        names = list(dict.fromkeys(found.values()))
        rows = self._relation.rows
        if not names:
            self._relation = with_computed(self._relation, {_KEY: lit(True)})
            rows, names = self._relation.rows, [_KEY]
        aggregates = self._aggregates([*names, *_BOUND_NAMES]) or {_ROWS: count()}
        with self._context.at(self._part.span):
            by_key = keyed(rows, tuple(names))
            if rows.node.mode == "append":
                made = aggregate_windows(by_key, window, aggregates, 0, None)
            else:
                made = aggregate_windows_of_changes(by_key, check_windows_of_changes(by_key.node, window), aggregates)
        return self._with_bounds(made, found, bounds, window)

    def _of_results_of_windows(self, window: FixedWindow) -> Grouped:
        """Results of windows by the same windows: those of a window have its last moment as event time, so that of
        windows as long as the step from one to the next each holds the results of one."""
        bounds = self._bound_columns()
        ends = {each.column: f"{each.column}_" for each in bounds.values() if each.bound != WINDOW_TIME}
        is_bound = [Bound(each.column) for each in bounds.values()]
        self._keys = [key for key in self._keys if key not in is_bound]
        self._relation = only(self._relation, {*ends} | self._read())
        found = self._key_columns()
        rows = self._relation.rows
        columns = tuple((ends.get(name, name), col(name)) for name in rows.schema.names)
        rows = project(rows, "rename", columns)
        names = list(dict.fromkeys([*ends.values(), *found.values()]))
        self._relation = self._relation.with_rows(rows)
        aggregates = self._aggregates([*names, *_BOUND_NAMES]) or {_ROWS: count()}
        with self._context.at(self._part.span):
            made = aggregate_windows(keyed(rows, tuple(names)), steps_of(window), aggregates, 0, None)
            back = {after: before for before, after in ends.items()}
            kept = [name for name in made.schema.names if name not in (WINDOW_START, WINDOW_END)]
            made = select(made, (), {back.get(name, name): col(name) for name in kept})
        return self._with_bounds(made, found, bounds, window)

    def _with_bounds(
        self, made: Rows, keys: dict[Part, str], bounds: Mapping[str, Column], window: RowWindow
    ) -> Grouped:
        found = self._related(made, keys)
        columns = (*found.columns, *(replace(each, is_time=each.bound == WINDOW_TIME) for each in bounds.values()))
        windows = None if isinstance(window, SessionWindow) or made.node.mode != "append" else window
        relation = Relation(made, columns, windows=windows)  # pyright: ignore[reportArgumentType]
        replaced: dict[Part, str] = {**keys, **self._columns}
        time = bounds.get(WINDOW_TIME)
        if time is not None:
            relation = with_computed(
                relation, {time.column: last_moment(bounds[WINDOW_END].column if WINDOW_END in bounds else WINDOW_END)}
            )
        return Grouped(relation, replaced)


_KEY: Final = "all_rows"
_SEED: Final = "is_seed"
_ROWS: Final = "rows_in_window"


def distinct_rows(rows: Rows, names: Sequence[str], ttl: timedelta | None = None) -> Rows:
    """The values of these columns, once each: facts of facts, changes of changes."""
    if rows.node.mode == "append":
        only_these = select(rows, tuple(names), {})
        return deduplicate(keyed(only_these, tuple(names)), "first", ttl)
    return distinct(rows, names, ttl)


def sets_of(part: GroupingSets) -> list[list[Part]]:
    """The sets that a clause stands for."""
    members = [sets_of(each) if isinstance(each, GroupingSets) else [[*each]] for each in part.members]
    if part.kind == "GROUPING SETS":
        return [one for member in members for one in member]
    flat = [[part for one in member for part in one] for member in members]
    if part.kind == "ROLLUP":
        return [[each for one in flat[:size] for each in one] for size in range(len(flat), -1, -1)]
    chosen = [each for size in range(len(flat), -1, -1) for each in combinations(flat, size)]
    return [[each for one in combination for each in one] for combination in chosen]
