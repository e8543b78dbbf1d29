"""Rows, and what a text calls their columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.expressions import Expr, col, lit
from penstock.expressions.nodes import Column as ColumnNode
from penstock.functions.windows.definitions import CumulativeWindow, FixedWindow, SlidingWindow, TumblingWindow
from penstock.plan.building.changes import known_keys, to_changes
from penstock.plan.building.columns import project
from penstock.plan.building.keys import keyed
from penstock.plan.building.times import event_time_column, with_event_time
from penstock.plan.building.windows import assign_windows

if TYPE_CHECKING:
    from penstock.functions.windows.definitions import RowWindow
    from penstock.plan.building.rows import Rows
    from penstock.plan.order import Order
    from penstock.sql.text import Span
    from penstock.types import Field

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
WINDOW_TIME: Final = "window_time"
"""What windowing functions call the bounds, and the last moment, of a row's window."""
PROCTIME: Final = "PROCTIME"
"""The function that gives when a row is processed."""


@dataclass(frozen=True)
class Column:
    """A column that a text can name."""

    name: str
    """What the text calls it."""
    column: str
    """What the rows call it."""
    table: str | None = None
    """The table or alias in front of it."""
    is_time: bool = False
    """Whether it is the event time of the rows."""
    hidden: bool = False
    """Whether `*` leaves it out, as the right one of two columns of USING."""
    bound: str | None = None
    """Which of `window_start`, `window_end` and `window_time` of the row's window it is, whatever it is called."""
    is_proctime: bool = False
    """Whether it is PROCTIME(), when the row was processed."""
    lag_us: int | None = None
    """Of the event times of both sides of an interval join, behind it: by how much it may be before the event time of its
    row, and before the other such times. So it can become the event time: see `Relation.in_time_of`."""

    @property
    def ahead_us(self) -> int:
        """By how much the event time of the rows, which this column is, is later: that of results of a window is its last
        microsecond, and `window_time` its last millisecond."""
        return 999 if self.bound == WINDOW_TIME and self.lag_us is None else 0

    @property
    def known_lag_us(self) -> int | None:
        """The same as `lag_us` also of a column that is the event time; None if there is no such bound."""
        return self.ahead_us if self.is_time and self.lag_us is None else self.lag_us


@dataclass(frozen=True)
class PendingWindow:
    """A windowing function whose windows no row has got yet: columns of these names do not exist in the rows."""

    window: RowWindow
    span: Span
    sessions_of: frozenset[str] | None = None
    """The columns by which SESSION partitions rows; None where the keys of GROUP BY do, and for other windows."""


@dataclass(frozen=True)
class PendingRank:
    """A row number that nobody has computed yet: `column` does not exist in the rows."""

    column: str
    partition: tuple[str, ...]
    order: tuple[Order, ...]
    function: str
    span: Span
    windows: FixedWindow | None = None
    """Those of which the rows are results, if they are partitioned by the bounds."""


@dataclass
class StateTtl:
    """What the hint STATE_TTL says of a table: how long a join keeps its rows, or a grouping what it has computed."""

    table: str
    span: Span
    duration: timedelta
    used: bool = False
    """Whether an operator has taken it."""

    def take(self) -> timedelta:
        """The duration, for an operator that keeps state so long."""
        self.used = True
        return self.duration


@dataclass(frozen=True)
class Relation:
    """Rows, and the columns that can be named."""

    rows: Rows
    columns: tuple[Column, ...]
    pending: PendingWindow | PendingRank | None = None
    windows: FixedWindow | None = None
    """The windows of which the rows are results, one row's time being the last moment of its window."""
    state_ttl: StateTtl | None = None
    """That of the one table whose rows these are, if a hint says it."""

    def take_ttl(self) -> timedelta | None:
        """How long an operator is to keep these rows, or what it computes of them; None: as the pipeline says."""
        return None if self.state_ttl is None else self.state_ttl.take()

    def field(self, column: Column) -> Field:
        """Its type."""
        return self.rows.schema.field(column.column)

    @property
    def shown(self) -> Iterator[Column]:
        """The columns of `*`."""
        return (column for column in self.columns if not column.hidden)

    def named(self) -> dict[str, str]:
        """The columns of `*` under names of which each is there once, to what the rows call them."""
        return dict(zip(each_once(each.name for each in self.shown), (each.column for each in self.shown), strict=True))

    def called(self, table: str | None, names: tuple[str, ...] = ()) -> Relation:
        """The same rows under the name of a table, with other names of the columns that are shown."""
        renamed = [
            replace(column, table=table, name=names[place] if place < len(names) else column.name)
            for place, column in enumerate(self.shown)
        ]
        return replace(self, columns=tuple(renamed))

    def with_rows(self, rows: Rows) -> Relation:
        """The same columns over other rows, which have all of them."""
        return replace(self, rows=rows)

    def time_column(self) -> Column | None:
        """The column that is the event time; None if there is none, or the rows have no event time."""
        if not self.rows.node.event_time:
            return None
        return next((column for column in self.columns if column.is_time), None)

    def times(self) -> list[Column]:
        """The columns that are the event time, or can become it: see `in_time_of`."""
        if not self.rows.node.event_time or self.rows.node.updates:
            return [column for column in (self.time_column(),) if column is not None]
        return [column for column in self.columns if column.is_time or column.lag_us is not None]

    def in_time_of(self, name: str) -> Relation:
        """The relation with this column as event time, if it can become that; else as it is."""
        own = next((column for column in self.times() if column.column == name), None)
        if own is None or own.is_time or own.lag_us is None:
            return self
        delay = timedelta(microseconds=own.lag_us)
        rows = with_event_time(self.rows, name, None, None, None, None, None, watermark_delay=delay)
        columns = tuple(replace(column, is_time=column.column == name) for column in self.columns)
        return replace(self, rows=rows, columns=columns)


def fresh(name: str, *taken: Iterable[str]) -> str:
    """The name, or with a number behind it one that is not taken."""
    used = {each for names in taken for each in names}
    found, number = name, 0
    while found in used:
        found, number = f"{name}{number}", number + 1
    return found


def each_once(names: Iterable[str]) -> list[str]:
    """The names in their order, each differently: as in Flink, a second one of the same name gets a number behind it."""
    found: list[str] = []
    for name in names:
        found.append(fresh(name, found))
    return found


def with_computed(relation: Relation, computed: dict[str, Expr]) -> Relation:
    """The relation with columns that only the binder knows of."""
    if not computed:
        return relation
    rows = updates_with_keys(relation).rows
    columns = {name: col(name) for name in rows.node.row_schema.names}
    return relation.with_rows(project(rows, "with_columns", (*columns.items(), *computed.items())))


def with_column(relation: Relation, name: str, expr: Expr) -> tuple[Relation, str]:
    """The relation with one more column, and what the rows call it."""
    column = fresh(name, relation.rows.schema.names, (each.column for each in relation.columns))
    return with_computed(relation, {column: expr}), column


def only(relation: Relation, names: Iterable[str]) -> Relation:
    """The relation with only these columns of its rows, in their order."""
    wanted = {*names}
    rows = relation.rows
    kept = [name for name in rows.node.row_schema.names if name in wanted]
    if len(kept) == len(rows.node.row_schema.names):
        return relation
    if not kept:
        kept = [rows.node.row_schema.names[0]]
    if rows.node.mode == "upsert" and not {*(known_keys(rows.node) or ())} <= {*kept}:
        rows = changes_of(relation).rows
    pruned = project(rows, "select", tuple((name, col(name)) for name in kept))
    columns = tuple(column for column in relation.columns if column.column in kept or _is_pending(relation, column))
    return replace(relation, rows=pruned, columns=columns)


def _is_pending(relation: Relation, column: Column) -> bool:
    return column.column not in relation.rows.schema


def changes_of(relation: Relation) -> Relation:
    """Rows that may be replaced as changes, for clauses that look at all columns; facts as they are."""
    if relation.rows.node.mode != "upsert":
        return relation
    return relation.with_rows(to_changes(relation.rows, "sql"))


def updates_with_keys(relation: Relation) -> Relation:
    """The same, but for updates whose key is still there."""
    if relation.rows.node.mode == "upsert" and known_keys(relation.rows.node) is None:
        return changes_of(relation)
    return relation


def as_keyed_by(rows: Rows, kept: Set[str], verb: str = "sql") -> Rows:
    """Updates as changes, where `kept` is without a column by which a row replaces another; `verb` is for messages."""
    if rows.node.mode == "upsert" and not {*(known_keys(rows.node) or ("",))} <= kept:
        return to_changes(rows, verb)
    return rows


def plain_columns(made: Mapping[str, Expr]) -> set[str]:
    """The columns of the rows that are among these as they are, under whatever name."""
    return {value.node.name for value in made.values() if isinstance(value.node, ColumnNode)}


def together(relation: Relation) -> Relation:
    """The rows under a key that all of them have."""
    relation, key = with_column(relation, "all_rows", lit(True))
    return relation.with_rows(keyed(relation.rows, (key,)))


def with_windows(relation: Relation, window: FixedWindow) -> Relation:
    """The rows once for each of their windows, with its bounds as columns."""
    rows = assign_windows(relation.rows, window)
    return replace(relation, rows=rows, pending=None)


def steps_of(window: FixedWindow) -> TumblingWindow:
    """Windows as long as the step between the ends of two of these."""
    match window:
        case TumblingWindow():
            return window
        case SlidingWindow(slide_us=slide):
            return TumblingWindow(slide, (window.offset_us + window.size_us) % slide, window.timezone)
        case CumulativeWindow(step_us=step):
            return TumblingWindow(step, window.offset_us % step, window.timezone)


def last_moment(end: str = WINDOW_END) -> Expr:
    """`window_time`: the last millisecond of the window, as in Flink."""
    return col(end) - timedelta(milliseconds=1)


def relation_of(rows: Rows, table: str | None) -> Relation:
    """Rows under the names of their columns."""
    time = event_time_column(rows.node)
    names = rows.node.row_schema.names
    return Relation(rows, tuple(Column(name, name, table, is_time=name == time) for name in names))
