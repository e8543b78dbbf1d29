"""`JOIN t FOR SYSTEM_TIME AS OF o.proc` where `t` cannot be read as a stream: every row asks for the rows of its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.expressions import Expr
from penstock.expressions.typing_rules import promote
from penstock.plan.building.joins import join_lookup
from penstock.plan.logical import LogicalPlan
from penstock.sql.binding.context import Context, Wanted
from penstock.sql.binding.expressions import Expressions
from penstock.sql.binding.names import Bound, columns_in, has_query
from penstock.sql.binding.relations import PROCTIME, Column, Relation, fresh, with_computed
from penstock.sql.binding.seeds import constant_rows
from penstock.sql.functions.arguments import sql_name
from penstock.sql.syntax import Call, Joined, Part
from penstock.types import Schema

if TYPE_CHECKING:
    from penstock.connectors.lookups import Lookup
    from penstock.sql.binding.joins import Conditions


@dataclass(frozen=True)
class LookedUp:
    """A table that is asked for rows by their key."""

    lookup: Lookup[Any]
    table: Relation
    """Its columns under names that no column of the left rows has. The rows are none: they are not known before."""

    @classmethod
    def of(cls, lookup: Lookup[Any], alias: str, names: Sequence[str], left: Relation) -> LookedUp:
        """The columns of a lookup as a table.

        Args:
            lookup: the table.
            alias: what the text calls it.
            names: what the text calls its columns, from the first one on.
            left: the rows that it is joined with.
        """
        made: list[Column] = []
        for place, name in enumerate(lookup.schema.names):
            column = fresh(name, left.rows.schema.names, (each.column for each in made))
            made.append(Column(names[place] if place < len(names) else name, column, alias))
        fields = (replace(each, name=own.column) for each, own in zip(lookup.schema, made, strict=True))
        rows = constant_rows(LogicalPlan("scratch"), Schema(tuple(fields)), [])
        return cls(lookup, Relation(rows, tuple(made)))

    def own(self, column: str) -> str:
        """What the lookup calls a column."""
        return self.lookup.schema.names[[each.column for each in self.table.columns].index(column)]


def check_processing_time(context: Context, left: Relation, written: Part, moment: Part) -> None:
    """A lookup answers as of now, and the text is to say so.

    Raises:
        SqlError: it says another time.
    """
    if isinstance(moment, Call) and moment.function == PROCTIME:
        return
    if any(each.is_proctime and moment == Bound(each.column) for each in left.columns):
        return
    raise context.error(
        written,
        "this table is asked for rows when a row is processed; write FOR SYSTEM_TIME AS OF PROCTIME(), or name a column "
        "that the left table declares as proc AS PROCTIME()",
    )


class LookupJoin:
    """The join of rows with a table that is asked for rows.

    Args:
        context: the text.
        part: the join.
        left: the rows.
        right: the table.
        conditions: those of ON, by the side that they read.
        wanted: the names that the query mentions: other columns are not asked for.
    """

    def __init__(
        self, context: Context, part: Joined, left: Relation, right: LookedUp, conditions: Conditions, wanted: Wanted
    ) -> None:
        self._context, self._part = context, part
        self._left, self._right = left, right
        self._conditions = conditions
        self._wanted = wanted

    def bind(self) -> tuple[Relation, list[Part]]:
        """The joined rows, and the conditions that are left to ask of them.

        Raises:
            SqlError: rows cannot be asked for so.
        """
        if self._left.rows.node.updates:
            raise self._context.error(
                self._part,
                "rows that may be retracted would be asked for again, with another answer; join the table before the "
                "grouping, the ranking or the outer join",
            )
        keys, rest = self._keys()
        if rest and self._part.kind == "left":
            raise self._context.error(
                rest[0],
                "LEFT JOIN of a table that is asked for rows takes one condition a = b for each of its columns, and no "
                "others; write these in WHERE, or into a view in the database",
            )
        read = set[str]().union(*map(columns_in, rest))
        named = {
            each.column: self._right.own(each.column)
            for each in self._right.table.columns
            if self._wanted is None or each.name.casefold() in self._wanted or each.column in read
        } or {self._right.table.columns[0].column: self._right.lookup.schema.names[0]}
        with self._context.at(self._part.span):
            how = "left" if self._part.kind == "left" else "inner"
            rows = join_lookup(self._left.rows, self._right.lookup, keys, how, named=named)
        columns = tuple(each for each in self._right.table.columns if each.column in named)
        return Relation(rows, (*self._left.columns, *columns), windows=self._left.windows), rest

    def _keys(self) -> tuple[dict[str, str], list[Part]]:
        """Columns of the left rows, of the types of the columns of the table that they are equal to; and all other
        conditions."""
        pairs = list(self._conditions.keys)
        rest = [*self._conditions.residual, *self._conditions.left]
        for each in self._conditions.right:
            pair = _constant_key(each)
            if pair is None:
                rest.append(each)
            else:
                pairs.append(pair)
        keys: dict[str, str] = {}
        made: dict[str, Expr] = {}
        for one, other in pairs:
            if not isinstance(other, Bound) or self._right.own(other.column) in keys.values():
                rest.append(Call("=", (one, other), span=one.span.to(other.span)))
                continue
            own = self._right.own(other.column)
            value = Expressions(self._context, self._left.rows.node.row_schema).bind(one)
            asked = self._right.lookup.schema.field(own).type
            if promote(value.type, asked) != asked:
                raise self._context.error(
                    one, f"this is {sql_name(value.type)}, and {own} of the table {sql_name(asked)}; CAST it"
                )
            if isinstance(one, Bound) and value.type == asked and one.column not in keys:
                keys[one.column] = own
                continue
            name = fresh(f"key_{own}", self._left.rows.schema.names, made)
            made[name] = value.expr if value.type == asked else value.expr.cast(asked)
            keys[name] = own
        if not keys:
            raise self._context.error(
                self._part, "this table is asked for rows by their key, so ON needs a condition of the form a = b"
            )
        self._left = with_computed(self._left, made)
        return keys, rest


def _constant_key(part: Part) -> tuple[Part, Part] | None:
    """A constant and the column of the table that it is equal to."""
    if not isinstance(part, Call) or part.function != "=" or has_query(part):
        return None
    one, other = part.arguments
    if isinstance(other, Bound) and not columns_in(one):
        return one, other
    if isinstance(one, Bound) and not columns_in(other):
        return other, one
    return None
