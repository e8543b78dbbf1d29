"""What somebody who asks is shown: the rows of a query in its order, plans, tables and their columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.errors import nearest
from penstock.expressions.nodes import Column as ColumnNode
from penstock.plan.building.changes import final, has_end
from penstock.sql.binding.names import alike
from penstock.sql.binding.projections import Ordered
from penstock.sql.binding.queries import Binder
from penstock.sql.binding.ranks import settled
from penstock.sql.binding.relations import changes_of
from penstock.sql.connectors import connector_of
from penstock.sql.functions.arguments import sql_name
from penstock.sql.functions.catalogue import WORDS
from penstock.sql.parsing.statements import Parser
from penstock.sql.syntax import Describe, Show, TableName
from penstock.sql.testing.tables import cell_of
from penstock.sql.text import SqlError, SqlText
from penstock.sql.writing import finished

if TYPE_CHECKING:
    import polars as pl

    from penstock.plan.building.rows import Rows
    from penstock.plan.order import Order
    from penstock.sql.binding.context import Context
    from penstock.sql.catalogue import Catalogue
    from penstock.types import Field


@dataclass(frozen=True)
class Answer:
    """The rows of a query as they are shown."""

    rows: Rows
    """With the columns that they are ordered by, shown or not; where they are shown as they come without these."""
    columns: tuple[tuple[str, str], ...]
    """The columns that are shown, in order: name, and what the rows call it."""
    order: tuple[Order, ...]
    bounded: bool
    """Whether all tables of it have an end: then the rows are the final ones, each once."""

    def arranged(self, found: pl.DataFrame) -> pl.DataFrame:
        """The rows in their order, with the columns that are shown."""
        return self.shown(self.sorted(found) if self.bounded else found)

    def frame(self, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
        """The rows that a sink has collected, in their order, with the columns that are shown."""
        import polars as pl

        return self.arranged(pl.DataFrame(rows, schema=self.rows.node.schema.polars(), orient="row"))

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns that are shown, with their types."""
        return tuple(replace(self.rows.schema.field(own), name=name) for name, own in self.columns)

    @property
    def ordered_by(self) -> tuple[str, ...]:
        """The columns that say in which order the rows are shown."""
        return tuple(each.expr.node.name for each in self.order if isinstance(each.expr.node, ColumnNode))

    def sorted(self, found: pl.DataFrame) -> pl.DataFrame:
        """The rows in their order, if they have one."""
        if not self.order:
            return found
        return found.sort(
            self.ordered_by,
            descending=[each.descending for each in self.order],
            nulls_last=[bool(each.nulls_last) for each in self.order],
            maintain_order=True,
        )

    def cells(self, shown: pl.DataFrame) -> list[tuple[str, ...]]:
        """The values of the columns that are shown as texts, as tables of tests have them."""
        kinds = [each.type for each in self.fields]
        return [tuple(map(cell_of, row, kinds)) for row in shown.iter_rows()]

    def shown(self, found: pl.DataFrame) -> pl.DataFrame:
        """The columns that are shown, under the names that the query gives them."""
        import polars as pl

        return found.select([pl.col(own).alias(name) for name, own in self.columns])


def answer_of(context: Context, found: Ordered) -> Answer:
    """The rows of a query: where its tables have an end the final ones, else as they come."""
    relation = settled(context, found.relation)
    bounded = has_end(relation.rows.node)
    if not bounded:
        rows = finished(context, found)
        return Answer(rows, tuple((name, name) for name in relation.named()), found.order, bounded)
    if relation.rows.node.updates:
        relation = relation.with_rows(final(changes_of(relation).rows))
    return Answer(relation.rows, tuple(relation.named().items()), found.order, bounded)


def described(context: Context, catalogue: Catalogue, part: Describe) -> list[tuple[str, str, str]]:
    """The columns of a table: name, type, and what is said of it.

    Raises:
        SqlError: there is no such table.
    """
    meant = alike(context.table_name(part.name.parts, part.name), catalogue.names)
    if meant is None:
        known = nearest(part.name.parts[-1], catalogue.names)
        raise context.error(part.name, f"there is no table {str(part.name)!r}; {known}")
    table = catalogue.tables.get(meant)
    if table is not None and connector_of(table.settings()).source is None:
        return [(each.name, sql_name(each.type), _said(each, is_time=False)) for each in table.physical.fields]
    relation = Binder(context).table(TableName(part.name.parts, span=part.name.span))
    found: list[tuple[str, str, str]] = []
    for column in relation.shown:
        field = relation.field(column)
        found.append((column.name, sql_name(field.type), _said(field, is_time=column in relation.times())))
    return found


def _said(field: Field, *, is_time: bool) -> str:
    return ", ".join([*(["event time"] if is_time else []), *([] if field.nullable else ["NOT NULL"])])


def listed(catalogue: Catalogue, part: Show) -> list[str]:
    """The names that SHOW asks for, in order; of LIKE in capitals or not."""
    names: Iterable[str]
    match part.what:
        case "TABLES":
            names = [*catalogue.streams, *catalogue.tables, *catalogue.views]
        case "VIEWS":
            names = catalogue.views
        case "USER FUNCTIONS":
            names = catalogue.functions
        case "FUNCTIONS":
            names = {*WORDS, *catalogue.functions}
        case _:
            names = ()
    if part.like is None:
        return sorted(names)
    pattern = "".join({"%": ".*", "_": "."}.get(each, re.escape(each)) for each in part.like)
    return sorted(name for name in names if re.fullmatch(pattern, name, re.IGNORECASE | re.DOTALL))


def completions(text: str, tables: Sequence[str], columns: Sequence[str]) -> list[str]:
    """What may stand at the end of a text whose last word is not complete: keywords as the grammar expects them, tables,
    columns and functions where a name may stand."""
    head, word = _last_word(text)
    parser = _expecting(head)
    found: list[str] = []
    for what in parser:
        if what == "a table":
            found += tables
        elif what in ("a column", "an expression"):
            found += [*columns, *(f"{name}(" for name in WORDS)]
        elif what[:1].isupper():
            found.append(what)
    return [each for each in dict.fromkeys(found) if each.casefold().startswith(word.casefold())]


def _last_word(text: str) -> tuple[str, str]:
    place = len(text)
    while place and (text[place - 1].isalnum() or text[place - 1] in "_`"):
        place -= 1
    return text[:place], text[place:].lstrip("`")


def _expecting(head: str) -> tuple[str, ...]:
    """What the grammar expects behind a text."""
    try:
        parser = Parser(SqlText(head))
    except SqlError:
        return ()
    try:
        parser.statements()
        if not head.strip() or head.rstrip().endswith(";"):
            parser.statement()
    except SqlError:
        if not parser.at_end:
            return ()
    return parser.expected
