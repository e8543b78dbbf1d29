"""Tables, views and queries, read page by page in the order of a key, each page from behind the last row.

Nothing is open between two pages, so no lock is held while nobody reads; a page sees the table as it is at one moment.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.sqlite.column_types import inferred, never_holds
from penstock.connectors.sqlite.database import (
    Columns,
    Database,
    checked_table,
    columns_of,
    find_column,
    folded,
    missing_table,
    quoted,
)
from penstock.connectors.sqlite.decoding import Row, RowDecoder
from penstock.errors import PipelineError
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl

Key = tuple[Any, ...]
_ROWID_NAMES: Final = ("rowid", "_rowid_", "oid")
_VIEW: Final = "penstock_query"


@dataclass(frozen=True)
class Order:
    """The key by which rows are read, each once."""

    names: tuple[str, ...]
    expressions: tuple[str, ...]
    """In SQL."""
    by_rowid: bool = False
    """Whether it is the number of the row."""
    proven: bool = True
    """Whether SQLite sees to it that no two rows have the same one, and none has null in it."""

    @property
    def shown(self) -> str:
        """In errors."""
        return ", ".join(self.names)


def relation(
    database: Database, table: str | None, query: str | None, order_by: str | Sequence[str] | None, splits: int
) -> Relation:
    """What a user says that is to be read.

    Raises:
        PipelineError: it cannot be.
    """
    what = database.what
    names = (order_by,) if isinstance(order_by, str) else tuple(order_by or ())
    if (order_by is not None and not names) or len({folded(name) for name in names}) < len(names):
        raise PipelineError(f"{what}: order_by= names columns, each once, got {list(names)}")
    if (table is None) == (query is None):
        raise PipelineError(f"{what}: give either table= or query=")
    if query is not None and not names:
        raise PipelineError(
            f"{what}: query= needs order_by=, columns that are never null and together different in every row, to go on "
            "behind a row after a restart"
        )
    if splits < 1 or (splits > 1 and names):
        raise PipelineError(
            f"{what}: splits= is a whole number from 1, and 1 with order_by= (only row numbers are cut into ranges), got "
            f"{splits}"
        )
    select = None if query is None else query.strip().rstrip(";").rstrip()
    return Relation(database, None if table is None else checked_table(table, what), select, names)


@dataclass(frozen=True)
class Relation:
    """What is read: a table, a view or a query."""

    database: Database
    table: str | None
    query: str | None
    order_by: tuple[str, ...]

    @property
    def name(self) -> str:
        """As errors call it."""
        return f"{self._kind} of {self.database.full_path}"

    @property
    def _kind(self) -> str:
        return f"table {self.table}" if self.table is not None else "the query"

    @property
    def where(self) -> str:
        """What leads errors."""
        return f"{self.database.what}: {self.name}: "

    @property
    def sql(self) -> str:
        """As it stands behind `from`."""
        if self.table is not None:
            return f"main.{quoted(self.table)}"
        return f"(\n{self.query}\n)"

    def columns(self, connection: sqlite3.Connection) -> Columns:
        """Its columns.

        Raises:
            PipelineError: there is no such table.
        """
        if self.table is not None:
            there = columns_of(connection, self.table)
        else:
            connection.execute(f"create temporary view {_VIEW} as {self.query}")
            try:
                there = columns_of(connection, _VIEW, "temp")
            finally:
                connection.execute(f"drop view temp.{_VIEW}")
        if not there:
            raise PipelineError(f"{self.where}{missing_table(connection, self.table or '')}")
        return there

    def check(self, there: Columns, schema: Schema) -> None:
        """Raise `PipelineError` if a column is missing, or can never have such values."""
        wrong: list[str] = []
        for each in schema:
            column = find_column(there, each.name, self.where)
            if never_holds(column, each.type):
                wrong.append(f"{each.name} is {each.type}, the column is {column.declared}")
        if wrong:
            raise PipelineError(f"{self.where}it has no such rows: {'; '.join(wrong)}; change schema=")

    def look(self, schema: Schema) -> Order:
        """The key by which it is read; raises `PipelineError` if it has none, or no such rows."""
        with self.database.connection("ro", self.where) as connection:
            there = self.columns(connection)
            self.check(there, schema)
            return self.order(connection, there)

    def inferred(self) -> Schema:
        """The schema that the declared types of its columns say; see `column_types.inferred`."""
        with self.database.connection("ro", self.where) as connection:
            return inferred(self.columns(connection).values(), self.where)

    def numbers(self) -> tuple[int, int] | tuple[()] | None:
        """The first and the last row number; none if there are no rows, None if it is not read by row numbers."""
        with self.database.connection("ro", self.where) as connection:
            order = self.order(connection, self.columns(connection))
            if not order.by_rowid:
                return None
            [number] = order.expressions
            first, last = connection.execute(f"select min({number}), max({number}) from {self.sql}").fetchone()
        return () if first is None else (first, last)

    def order(self, connection: sqlite3.Connection, there: Columns) -> Order:
        """The key by which it is read.

        Raises:
            PipelineError: it has none, and no `order_by` says one.
        """
        if self.order_by:
            names = tuple(find_column(there, name, f"{self.where}order_by: ").name for name in self.order_by)
            return Order(names, tuple(f"{quoted(name)} collate binary" for name in names), proven=False)
        assert self.table is not None
        kind = connection.execute(
            "select type from main.sqlite_master where name = ? collate nocase", (self.table,)
        ).fetchone()
        if kind == ("view",):
            raise PipelineError(
                f"{self.where}a view has no key; say with order_by= which columns are never null and different in every "
                "row"
            )
        if (rowid := self._rowid(connection, there)) is not None:
            own = next((each.name for each in there.values() if each.is_rowid), "rowid")
            return Order((own,), (rowid,), by_rowid=True)
        key = sorted((each.key_place, each.name) for each in there.values() if each.key_place)
        if not key:
            raise PipelineError(f"{self.where}it has no key; say one with order_by=")
        names = tuple(name for _, name in key)
        return Order(names, tuple(map(quoted, names)))

    def _rowid(self, connection: sqlite3.Connection, there: Columns) -> str | None:
        """How the number of a row is called, by a name that no column has; None if there is none."""
        name = next((name for name in _ROWID_NAMES if name not in there), None)
        if name is None:
            return next((quoted(each.name) for each in there.values() if each.is_rowid), None)
        try:
            connection.execute(f"select {name} from {self.sql} limit 0")
        except sqlite3.OperationalError:
            return None
        return name


@dataclass(frozen=True)
class Page:
    """Rows behind one another, without those that are bad; `last` is the key of the last of all."""

    frame: pl.DataFrame
    bad: Sequence[tuple[str, bytes, str]]
    """What is wrong with a row, its values, and where it is."""
    last: Key


class Pages:
    """The pages of a range of row numbers, or of everything.

    Args:
        relation: what is read.
        schema: the columns.
        zone: of timestamps without offset; None: they make bad rows.
        until: the last row number; None: there is no end but that of the rows.
    """

    def __init__(self, relation: Relation, schema: Schema, zone: tzinfo | None, until: int | None) -> None:
        self.until: Final = until
        self._relation = relation
        self._schema = schema
        self._decoder = RowDecoder(schema, zone)
        self._order: Order | None = None

    def page(self, most: int, after: Key | None) -> Page | None:
        """The rows behind a key, or the first ones; None if there are none. Blocks."""
        relation, columns = self._relation, len(self._schema.fields)
        with relation.database.connection("ro", relation.where) as connection:
            order = self._order
            if order is None:
                there = relation.columns(connection)
                relation.check(there, self._schema)
                order = self._order = relation.order(connection, there)
                if after is None:
                    self._check_never_null(connection, order)
            sql, values = self._query(order, after)
            found: list[Row] = connection.execute(sql, (*values, most if order.proven else most + 1)).fetchall()
        keys: list[Key] = [row[columns:] for row in found]
        if not order.proven:
            self._check_unique(order, keys)
        found = found[:most]
        if not found:
            return None
        frame, bad = self._decoder.frame([row[:columns] for row in found])
        shown = [self._bad(order, found[index], keys[index], reason) for index, reason in bad]
        return Page(frame, shown, keys[len(found) - 1])

    def _query(self, order: Order, after: Key | None) -> tuple[str, Key]:
        """The statement of a page, and the values of its parameters but for the number of rows."""
        conditions: list[str] = []
        values: list[Any] = []
        if after is not None:
            places = ", ".join("?" * len(after))
            conditions.append(f"({', '.join(order.expressions)}) > ({places})")
            values += after
        if self.until is not None:
            conditions.append(f"{order.expressions[0]} <= ?")
            values.append(self.until)
        keys = ", ".join(order.expressions)
        selected = ", ".join([*map(quoted, self._schema.names), keys])
        where = f" where {' and '.join(conditions)}" if conditions else ""
        return f"select {selected} from {self._relation.sql}{where} order by {keys} limit ?", tuple(values)

    def _check_never_null(self, connection: sqlite3.Connection, order: Order) -> None:
        if order.proven:
            return
        null = " or ".join(f"{quoted(name)} is null" for name in order.names)
        if connection.execute(f"select exists (select 1 from {self._relation.sql} where {null})").fetchone() == (1,):
            raise PipelineError(
                f"{self._relation.where}order_by: {order.shown} is null in a row, which has no place in the order then; "
                "leave such rows out, or name columns that are never null"
            )

    def _check_unique(self, order: Order, keys: Sequence[Key]) -> None:
        for before, behind in itertools.pairwise(keys):
            if before == behind:
                raise PipelineError(
                    f"{self._relation.where}order_by: two rows have the same {order.shown}: {str(before)[:100]}; name "
                    "more columns, which together are different in every row"
                )

    def _bad(self, order: Order, row: Row, key: Key, reason: str) -> tuple[str, bytes, str]:
        raw = str(dict(zip(self._schema.names, row, strict=False)))
        named = ", ".join(f"{name}={value!r}" for name, value in zip(order.names, key, strict=True))
        return reason, raw.encode(errors="replace"), f"{self._relation.name}, {named}"


def range_of(number: int, first: int, last: int, splits: int, *, empty: bool) -> tuple[Key | None, int]:
    """The key in front of one of so many ranges of row numbers, and the last number in it; `empty`: one without rows."""
    if empty:
        return (last,), last
    size = last - first + 1
    return (first - 1 + size * number // splits,) if number else None, first - 1 + size * (number + 1) // splits


def key_to_json(key: Key | None) -> Any:
    """A key as it stands in a position; None: in front of the first row."""
    return None if key is None else [_to_json(value) for value in key]


def key_of_json(value: Any) -> Key | None:
    """The key of which `key_to_json` has made it."""
    return None if value is None else tuple(map(_of_json, value))


def _to_json(value: Any) -> Any:
    """A value of a key in a position: bytes and floats are exact as well."""
    if isinstance(value, bytes):
        return {"blob": value.hex()}
    return {"real": value.hex()} if isinstance(value, float) else value


def _of_json(value: Any) -> Any:
    match value:
        case {"blob": text}:
            return bytes.fromhex(text)
        case {"real": text}:
            return float.fromhex(text)
        case _:
            return value
