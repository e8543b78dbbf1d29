"""Joins: which conditions make keys, which bound the time between two rows, and which are asked of every pair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Literal

from penstock.expressions import Expr, col, lit
from penstock.expressions.typing_rules import promote
from penstock.functions.windows.definitions import AsOf, Within
from penstock.plan.building.columns import filter_rows, project
from penstock.plan.building.joins import join_current_rows, join_in_time
from penstock.sql.binding.context import Context
from penstock.sql.binding.expressions import Expressions
from penstock.sql.binding.moments import moment
from penstock.sql.binding.names import MIRRORED, Bound, all_of, columns_in, has_query, moved
from penstock.sql.binding.relations import (
    WINDOW_END,
    WINDOW_START,
    Column,
    Relation,
    changes_of,
    fresh,
    only,
    updates_with_keys,
    with_computed,
)
from penstock.sql.functions.arguments import sql_name
from penstock.sql.functions.function import Argument
from penstock.sql.syntax import Call, Part
from penstock.types import Schema, can_be_key

if TYPE_CHECKING:
    from penstock.plan.building.rows import Rows
    from penstock.plan.operations.join import JoinKind

Side = Literal["left", "right", "both", "none"]


@dataclass
class Conditions:
    """The conditions of a join, by what becomes of them."""

    keys: list[tuple[Part, Part]] = field(default_factory=list[tuple[Part, Part]])
    """Expressions of the left and of the right rows that are equal."""
    left: list[Part] = field(default_factory=list[Part])
    """Of the left rows alone; so too `right`."""
    right: list[Part] = field(default_factory=list[Part])
    residual: list[Part] = field(default_factory=list[Part])


def renamed_apart(left: Relation, right: Relation) -> Relation:
    """The right relation with columns that are called as none of the left one."""
    taken = {*left.rows.schema.names}
    own = right.rows.node.row_schema.names
    clashing = [name for name in own if name in taken]
    if not clashing:
        return right
    names: dict[str, str] = {}
    for name in clashing:
        table = next((each.table for each in right.columns if each.column == name and each.table), "right")
        names[name] = fresh(f"{table}_{name}", taken, own, names.values())
    right = updates_with_keys(right)
    columns = tuple((names.get(name, name), col(name)) for name in own)
    rows = project(right.rows, "rename", columns)
    return replace(
        right,
        rows=rows,
        columns=tuple(replace(each, column=names.get(each.column, each.column)) for each in right.columns),
    )


def sorted_out(conditions: Iterable[Part], left: Relation, right: Relation) -> Conditions:
    """Conditions by the side that they read."""
    found = Conditions()
    for each in conditions:
        side = side_of(each, left, right)
        if side == "left":
            found.left.append(each)
        elif side in ("right", "none"):
            found.right.append(each)
        elif (pair := _equal_sides(each, left, right)) is not None:
            found.keys.append(pair)
        else:
            found.residual.append(each)
    return found


def side_of(part: Part, left: Relation, right: Relation) -> Side:
    """Of which relation a resolved part reads columns."""
    read = columns_in(part)
    of_left = not read.isdisjoint(left.rows.schema.names) or any(each.column in read for each in left.columns)
    of_right = not read.isdisjoint(right.rows.schema.names) or any(each.column in read for each in right.columns)
    if of_left and of_right:
        return "both"
    return "left" if of_left else "right" if of_right else "none"


def _equal_sides(part: Part, left: Relation, right: Relation) -> tuple[Part, Part] | None:
    if not isinstance(part, Call) or part.function != "=" or has_query(part):
        return None
    one, other = part.arguments
    match side_of(one, left, right), side_of(other, left, right):
        case "left", "right":
            return one, other
        case "right", "left":
            return other, one
        case _:
            return None


class Join:
    """One join of two relations whose columns have unlike names."""

    def __init__(self, context: Context, left: Relation, right: Relation, span: Part) -> None:
        self._context = context
        self._left, self._right = left, right
        self._part = span
        self.merged: dict[str, str] = {}
        """Columns of the right rows that are one with a column of the left ones behind the join."""

    def of(
        self,
        kind: JoinKind,
        conditions: Conditions,
        kept: frozenset[str] | None = None,
        *,
        nulls_equal: bool = False,
    ) -> Relation:
        """The joined rows.

        Args:
            kind: as of the verb `join`.
            conditions: what must hold of a pair; those of one side alone are no more among them than the kind allows.
            kept: the columns of the rows that are needed behind the join; None for all.
            nulls_equal: whether null is equal to null in keys.

        Raises:
            SqlError: such rows cannot be joined.
        """
        within_time = self._time_between(conditions)
        residual = [*conditions.residual, *conditions.left, *conditions.right]
        if within_time is not None:
            residual = [each for each in residual if each not in within_time.used]
        self._prune(conditions, residual, kept)
        keys = self._keys(kind, conditions)
        condition = all_of(residual)
        others = self._right.columns if kind not in ("semi", "anti") else ()
        lags = _lags(self._left.columns, others, within_time.time) if within_time is not None else {}
        columns = (*self._left.columns, *(replace(each, bound=None) for each in others))
        with self._context.at(self._part.span):
            rows = self._joined(kind, keys, condition, within_time, nulls_equal)
        columns = tuple(
            replace(each, column=self.merged.get(each.column, each.column), is_time=False, lag_us=lags.get(each.column))
            for each in columns
        )
        windows = self._left.windows if within_time is not None and within_time.of_windows else None
        return Relation(rows, columns, windows=windows)

    def _joined(
        self, kind: JoinKind, keys: dict[str, str], condition: Part | None, time: _Between | None, nulls_equal: bool
    ) -> Rows:
        where = None if condition is None else self._condition(condition)
        asked = None if kind == "inner" else where
        if time is not None:
            left, right = self._left.rows, self._right.rows
            joined = join_in_time(left, right, keys, kind, time.time, "_right", where=asked, nulls_equal=nulls_equal)
        else:
            left, right = changes_of(self._left).rows, changes_of(self._right).rows
            ttl = (self._left.take_ttl(), self._right.take_ttl())
            joined = join_current_rows(left, right, keys, kind, ttl, "_right", where=asked, nulls_equal=nulls_equal)
        return filter_rows(joined, (where,)) if where is not None and kind == "inner" else joined

    def _condition(self, condition: Part) -> Expr:
        """Bound over the columns of both, of which the right keys are called as the left ones."""
        left, right = self._left.rows.node.row_schema, self._right.rows.node.row_schema
        both = Schema((*left.fields, *(each for each in right.fields if each.name not in left)))
        return Expressions(self._context, both).condition(moved(condition, self.merged))

    def _prune(self, conditions: Conditions, residual: Sequence[Part], kept: frozenset[str] | None) -> None:
        """Leave out columns that nobody reads, so that they are not kept as state."""
        if kept is None:
            return
        read = {*kept}
        for one, other in conditions.keys:
            read |= columns_in(one) | columns_in(other)
        for each in residual:
            read |= columns_in(each)
        self._left, self._right = only(self._left, read), only(self._right, read)

    # -- keys -----------------------------------------------------------------------------------------------------------

    def _keys(self, kind: JoinKind, conditions: Conditions) -> dict[str, str]:
        """Key columns of the left rows and of the right ones, of equal types.

        A key column of the right rows is merged into that of the left ones where that cannot be told apart behind the
        join; elsewhere both have copies, whose merging nobody sees.
        """
        keys: dict[str, str] = {}
        left_made: dict[str, Expr] = {}
        right_made: dict[str, Expr] = {}
        for number, (one, other) in enumerate(conditions.keys):
            own, met = self._bound(self._left, one), self._bound(self._right, other)
            common = promote(own.type, met.type)
            if common is None:
                raise self._context.error(
                    one.span.to(other.span),
                    f"{sql_name(own.type)} and {sql_name(met.type)} are never equal; CAST one of them",
                )
            if not can_be_key(common):
                raise self._context.error(
                    one.span.to(other.span), f"{sql_name(common)} cannot be compared by = in a join"
                )
            plain = own.type == met.type and isinstance(one, Bound) and isinstance(other, Bound)
            apart = kind in ("right", "full")
            copy = f"key_{number}" if number else "key"
            if plain and not apart and isinstance(one, Bound) and one.column not in keys:
                left_name = one.column
            else:
                left_name = fresh(
                    copy, self._left.rows.schema.names, self._right.rows.schema.names, left_made, right_made
                )
                left_made[left_name] = own.expr if own.type == common else own.expr.cast(common)
            if (
                plain
                and kind in ("inner", "semi", "anti")
                and isinstance(other, Bound)
                and other.column not in keys.values()
            ):
                right_name = other.column
                self.merged[right_name] = left_name
            else:
                right_name = fresh(
                    f"{copy}_right", self._left.rows.schema.names, self._right.rows.schema.names, left_made, right_made
                )
                right_made[right_name] = met.expr if met.type == common else met.expr.cast(common)
            keys[left_name] = right_name
        if not keys:
            name = fresh("all_rows", self._left.rows.schema.names, self._right.rows.schema.names)
            left_made[name], right_made[f"{name}_right"] = lit(True), lit(True)
            keys[name] = f"{name}_right"
        self._left = with_computed(self._left, left_made)
        self._right = with_computed(self._right, right_made)
        return keys

    def _bound(self, relation: Relation, part: Part) -> Argument:
        return Expressions(self._context, relation.rows.node.row_schema).bind(part)

    # -- time -----------------------------------------------------------------------------------------------------------

    def _time_between(self, conditions: Conditions) -> _Between | None:
        """Whether the conditions say that rows of both sides meet in time: they bound the time between two rows."""
        nodes = (self._left.rows.node, self._right.rows.node)
        if any(node.updates or not node.event_time for node in nodes):
            return None
        if self._of_the_same_windows(conditions):
            return _Between(Within(0, 0), [], of_windows=True)
        for left, right in product(self._left.times(), self._right.times()):
            found = self._bounded(conditions, left, right)
            if found is not None:
                self._left, self._right = self._left.in_time_of(left.column), self._right.in_time_of(right.column)
                conditions.keys[:] = [pair for pair in conditions.keys if Call("=", pair) not in found.used]
                return found
        return None

    def _bounded(self, conditions: Conditions, left: Column, right: Column) -> _Between | None:
        """The time between two rows by these columns, if the conditions bound it on both sides."""
        lower: list[int] = []
        upper: list[int] = []
        used: list[Part] = []
        ahead = right.ahead_us - left.ahead_us
        for each in [*conditions.residual, *(Call("=", pair) for pair in conditions.keys)]:
            bounds = _bounds_of(self._context, each, left.column, right.column)
            if bounds is None:
                continue
            operator, distance = bounds[0], bounds[1] + ahead
            if operator in ("<=", "<", "="):
                upper.append(distance - (operator == "<"))
            if operator in (">=", ">", "="):
                lower.append(distance + (operator == ">"))
            used.append(each)
        if not lower or not upper or max(lower) > min(upper):
            return None
        return _Between(Within(max(lower), min(upper)), used)

    def _of_the_same_windows(self, conditions: Conditions) -> bool:
        if self._left.windows is None or self._left.windows != self._right.windows:
            return False
        found: set[str] = set()
        for one, other in conditions.keys:
            names = {
                column.bound
                for part, relation in ((one, self._left), (other, self._right))
                for column in relation.columns
                if isinstance(part, Bound) and column.column == part.column
            }
            found |= {name for name in names if name is not None and len(names) == 1}
        return WINDOW_END in found or WINDOW_START in found

    def as_of(self, conditions: Conditions, kind: JoinKind) -> Relation:
        """Every left row with the newest right row of its key that is not newer.

        Raises:
            SqlError: the rows have no event time.
        """
        if extra := [*conditions.residual, *conditions.left, *conditions.right]:
            raise self._context.error(
                extra[0], "FOR SYSTEM_TIME AS OF takes conditions of the form a = b only; write others in WHERE"
            )
        keys = self._keys(kind, conditions)
        with self._context.at(self._part.span):
            rows = join_in_time(self._left.rows, self._right.rows, keys, kind, AsOf(), "_right")
        others = (replace(each, is_time=False, lag_us=None) for each in self._right.columns)
        columns = (*self._left.columns, *others)
        merged = tuple(replace(each, column=self.merged.get(each.column, each.column)) for each in columns)
        return Relation(rows, merged)


@dataclass
class _Between:
    time: Within
    used: list[Part]
    of_windows: bool = False
    """Whether rows meet that are results of the same window."""


def _lags(left: Sequence[Column], right: Sequence[Column], within: Within) -> dict[str, int]:
    """By column: how much before the event time of a row behind the join the event times of both sides are at most.

    A pair has the time of its later row, and the other one's is not further from it than the join allows; a row that met
    none has waited for as long. Where a side took one of several times behind a join before, its others may be later by
    as much as that one lags.
    """
    sides = (left, within.upper_us), (right, -within.lower_us)
    later = [max((each.lag_us or 0 for each in side if each.is_time), default=0) for side, _ in sides]
    return {
        each.column: lag + max(0, reach) + later[1 - number]
        for number, (side, reach) in enumerate(sides)
        for each in side
        if (lag := each.known_lag_us) is not None
    }


def _bounds_of(context: Context, part: Part, left: str, right: str) -> tuple[str, int] | None:
    """What a comparison says of the right row's time minus the left row's: an operator and microseconds."""
    if not isinstance(part, Call) or part.function not in MIRRORED:
        return None
    one, other = (_moment(context, each) for each in part.arguments)
    if one is None or other is None:
        return None
    if (one[0], other[0]) == (left, right):  # left + a op right + b: right - left op' a - b
        return MIRRORED[part.function], one[1] - other[1]
    if (one[0], other[0]) == (right, left):
        return part.function, other[1] - one[1]
    return None


def _moment(context: Context, part: Part) -> tuple[str, int] | None:
    """A column and how many microseconds are added to it."""
    found = moment(context, part)
    return (found[0].column, found[1]) if found is not None and isinstance(found[0], Bound) else None
