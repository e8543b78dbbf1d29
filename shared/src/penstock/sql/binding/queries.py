"""Queries as rows of a plan: WITH, the body, and how many of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.expressions import col
from penstock.expressions.typing_rules import ORDERED
from penstock.plan.building.aggregates import top
from penstock.plan.order import Order
from penstock.sql.binding.context import Context
from penstock.sql.binding.names import Scope, alike
from penstock.sql.binding.projections import Ordered, ordered_by
from penstock.sql.binding.python_calls import with_aggregates
from penstock.sql.binding.ranks import settled
from penstock.sql.binding.relations import Relation, changes_of, together
from penstock.sql.binding.seeds import one_row
from penstock.sql.binding.selects import Selecting
from penstock.sql.binding.set_operations import combined, values_of
from penstock.sql.binding.tables import filtered
from penstock.sql.syntax import (
    Call,
    CommonTable,
    Constant,
    OrderItem,
    Part,
    Query,
    Select,
    SelectItem,
    SetOperation,
    TableName,
    Values,
)
from penstock.sql.text import counted
from penstock.types import family

if TYPE_CHECKING:
    from penstock.connectors.lookups import Lookup


@dataclass(frozen=True)
class Binder:
    """Binds queries over the tables of a catalogue and of WITH."""

    context: Context
    tables: Mapping[str, _Named] = field(default_factory=dict[str, "_Named"])
    views: tuple[str, ...] = ()
    """The views within which it binds, the innermost last."""

    def query(self, query: Query, outer: Scope | None = None) -> Relation:
        """The rows of a query."""
        return self.ordered(query, outer).relation

    def ordered(self, query: Query, outer: Scope | None = None) -> Ordered:
        """The rows of a query, and in which order they are to be shown.

        Raises:
            SqlError: it is wrong, or cannot be computed of streams.
        """
        query = with_aggregates(self.context, query)
        binder = self._with_tables(query.tables, outer)
        found = binder._body(query.body, outer, query.order)
        for table in query.tables:  # also one that nobody reads is to be right
            binder.tables[table.name].relation()
        if query.limit is None and query.offset is None:
            return found
        return binder._limited(found, query)

    def _with_tables(self, tables: Sequence[CommonTable], outer: Scope | None) -> Binder:
        binder = self
        for table in tables:
            if any(each.name == table.name for each in tables if each is not table):
                raise self.context.error(table, f"WITH has {table.name!r} twice")
            named = {**binder.tables, table.name: _Named(table, binder, outer)}
            binder = replace(binder, tables=named)
        return binder

    # -- tables ---------------------------------------------------------------------------------------------------------

    def table(self, part: TableName) -> Relation:
        """The rows of a table by its name."""
        name = self.context.table_name(part.name, part)
        meant = alike(name, self.tables) if len(part.name) == 1 else None
        if meant is not None:
            if part.hints:
                raise self.context.error(part.hints[0], f"hints are for declared tables, and {name} is none")
            return self.tables[meant].relation()
        return self.context.catalogue.relation(self, part)

    def lookup(self, part: TableName) -> Lookup[Any] | None:
        """The table as one that is asked for rows by their key; None if it can be read as a stream, or is not there."""
        if len(part.name) == 1 and alike(part.name[-1], self.tables) is not None:
            return None
        return self.context.catalogue.lookup(part)

    def table_function(self, call: Call) -> Relation:
        """The rows of a function in FROM."""
        return self.context.catalogue.function(self, call)

    def no_table(self) -> Relation:
        """The one row of SELECT without FROM."""
        return Relation(one_row(self.context.plan), ())

    # -- bodies ---------------------------------------------------------------------------------------------------------

    def _body(self, part: Part, outer: Scope | None, order: Sequence[OrderItem]) -> Ordered:
        match part:
            case Select():
                return Selecting(self, part, outer, order).bind()
            case Values():
                return self._by_output(Ordered(values_of(self.context, part)), order)
            case SetOperation():
                return self._by_output(Ordered(self._together(part, outer)), order)
            case Query():
                return self._by_output(self.ordered(part, outer), order)
            case _:
                raise AssertionError(f"{part} is no query")

    def _by_output(self, found: Ordered, order: Sequence[OrderItem]) -> Ordered:
        """Rows in an order of what they show."""
        if not order:
            return found
        return ordered_by(self.context, settled(self.context, found.relation), order)

    def _together(self, part: SetOperation, outer: Scope | None) -> Relation:
        sides = (settled(self.context, self._body(each, outer, ()).relation) for each in (part.left, part.right))
        return combined(self.context, part, *sides)

    def _limited(self, found: Ordered, query: Query) -> Ordered:
        limit = self._count(query.limit, "LIMIT")
        offset = self._count(query.offset, "OFFSET") or 0
        relation = settled(self.context, found.relation)
        shown = [each.column for each in relation.shown]
        order = found.order
        if not order:  # any rows will do, and these are the same whatever the batches are
            first = [name for name in shown if family(relation.rows.schema.field(name).type) in ORDERED][:1]
            order = tuple(Order(col(name), False, False) for name in first)
        if not order:
            raise self.context.error(query, "LIMIT needs a column that has an order; add ORDER BY")
        if limit == 0:
            none = filtered(self.context, relation, [Constant(False, span=query.span)])
            return replace(found, relation=none, limited=True)
        keyed_rows = together(changes_of(relation))
        with self.context.at((query.limit or query.offset or query).span):
            rows = top(keyed_rows.rows, limit, order, None, offset=offset, rank=None)
        return replace(found, relation=relation.with_rows(rows), limited=True)

    def _count(self, part: Part | None, clause: str) -> int | None:
        if part is None:
            return None
        if (
            not isinstance(part, Constant)
            or not isinstance(part.value, int)
            or isinstance(part.value, bool)
            or part.value < 0
        ):
            raise self.context.error(part, f"{clause} takes a whole number, 0 or more")
        return part.value

    # -- for subqueries -------------------------------------------------------------------------------------------------

    def source(self, select: Select, outer: Scope) -> tuple[Scope, Relation, list[Part]]:
        """FROM and WHERE of a SELECT within a query: scope, rows, and the conditions that read the query around."""
        return Selecting(self, select, outer).source()

    def items(self, select: Select, scope: Scope) -> list[SelectItem]:
        """The columns of SELECT, with `*` written out."""
        return Selecting(self, select, scope.outer).expanded(scope)


@dataclass
class _Named:
    """A query of WITH, which is bound once, when its name is first used."""

    table: CommonTable
    binder: Binder
    outer: Scope | None
    found: Relation | None = None

    def relation(self) -> Relation:
        if self.found is None:
            bound = settled(self.binder.context, self.binder.query(self.table.query, None))
            if len(self.table.columns) > len(list(bound.shown)):
                raise self.binder.context.error(
                    self.table,
                    f"{len(self.table.columns)} names are given, and there {counted(len(list(bound.shown)))}",
                )
            self.found = bound.called(self.table.name, self.table.columns)
        return self.found
