"""The table whose changes are read: what has to hold of it, and of its publication. Asks the catalogue of Postgres."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.postgres.tables import TablePlace, composed, identifier
from penstock.errors import ExternalError, PipelineError, nearest
from penstock.types import (
    FLOATS,
    INTEGERS,
    STRING,
    TIMESTAMP,
    DataType,
    DecimalType,
    ListType,
    MapType,
    Schema,
    StructType,
)

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_TABLE: Final = """
select c.oid::bigint, n.nspname || '.' || c.relname, c.relkind::text, c.relreplident::text, c.relpersistence::text,
    current_setting('wal_level'), pg_is_in_recovery()
from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%s)
"""
_COLUMNS: Final = """
select a.attname, a.atttypid::bigint, a.atttypmod, format_type(a.atttypid, a.atttypmod), format_type(a.atttypid, -1),
    a.attnotnull, a.attgenerated <> '',
    (select quote_ident(n.nspname) || '.' || quote_ident(l.collname)
        from pg_collation l join pg_namespace n on n.oid = l.collnamespace where l.oid = a.attcollation)
from pg_attribute a where a.attrelid = %s and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_UNIQUE: Final = """
select i.indisprimary, i.indisreplident, array(
    select a.attname::text from unnest(i.indkey::int2[]) with ordinality k(n, place)
    join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.n where k.place <= i.indnkeyatts order by k.place)
from pg_index i
where i.indrelid = %s and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null and i.indexprs is null
order by i.indisprimary desc
"""
_PUBLICATION: Final = "select to_jsonb(p) from pg_publication p where pubname = %s"
_PUBLISHED: Final = """
select to_jsonb(t) from pg_publication_tables t where pubname = %s and (t.schemaname, t.tablename) = (
    select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = %s)
"""
_NUMBERS: Final = ("smallint", "integer", "bigint", "numeric")
_OTHERS: Final[Mapping[str, str]] = {
    "boolean": "boolean", "binary": "bytea", "date": "date", "time": "time without time zone",
    "timestamp": "timestamp with time zone", "duration": "interval",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CapturedColumn:
    """A column as it is there."""

    type_oid: int
    type_modifier: int
    full_type: str
    """With its length: `character varying(20)`."""
    type: str
    """As a value is cast to it."""
    not_null: bool
    generated: bool
    collation: str | None
    """Quoted; None where the type has none."""


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """A table that fits what is read of it."""

    oid: int
    name: str
    """With its schema."""
    columns: Mapping[str, CapturedColumn]
    key: tuple[str, ...]
    """In the order of its index."""


@dataclass(frozen=True)
class Capture:
    """What is read of a table."""

    place: TablePlace
    rows: Schema
    keys: tuple[str, ...]
    complete: bool
    """Whether the former rows are read, too."""
    slot: str
    publication: str
    timezone: str | None

    @property
    def where(self) -> str:
        """What leads errors."""
        return f"{self.place.name}: "

    # -- the table ------------------------------------------------------------------------------------------------------

    async def table(self, connection: AsyncConnection[Any]) -> CapturedTable:
        """The table as it is.

        Raises:
            PipelineError: its changes cannot be read as declared; says what to do.
        """
        name = self.place.identifier().as_string(connection).replace("%%", "%")
        found = await (await connection.execute(_TABLE, [name])).fetchone()
        if found is None:
            raise PipelineError(f"{self.where}there is no such table, or the user may not see it")
        oid, full_name, kind, identity, persistence, wal_level, standby = found
        if standby:
            raise ExternalError(f"{self.where}the server is a standby; url= has to lead to the primary")
        if wal_level != "logical":
            raise PipelineError(
                f"{self.where}wal_level is {wal_level}; set wal_level = logical at the server, which then has to be "
                "started again"
            )
        if kind == "p":
            raise PipelineError(
                f"{self.where}it is partitioned: what is done to a partition as a whole (truncate, detach, attach) is "
                "not in the log, and of former rows each partition logs what it likes. Read its partitions, each with a "
                "slot and a source of its own, and take them together with union"
            )
        if kind != "r" or persistence != "p":
            raise PipelineError(f"{self.where}only changes of ordinary tables are logged, not of this one")
        columns = {name: CapturedColumn(*rest) for name, *rest in await _rows(connection, _COLUMNS, oid)}
        self._check_columns(columns)
        key = self._key_order(identity, columns, await _rows(connection, _UNIQUE, oid))
        return CapturedTable(oid, full_name, columns, key)

    def _check_columns(self, there: Mapping[str, CapturedColumn]) -> None:
        wrong: list[str] = []
        for field in self.rows:
            column = there.get(field.name)
            if column is None:
                wrong.append(f"it has no column {field.name!r} ({nearest(field.name, there)})")
            elif column.generated:
                wrong.append(f"{field.name} is generated, and such columns are not logged")
            elif misfit := self.misfit(field.name, column.full_type):
                wrong.append(misfit)
        if wrong:
            raise PipelineError(f"{self.where}it has no such rows: {'; '.join(wrong)}")

    def misfit(self, name: str, full_type: str) -> str:
        """Why a column of this type cannot be read as the schema says; empty if it can."""
        kind = self.rows.field(name).type
        naive = kind == TIMESTAMP and full_type == "timestamp without time zone"
        if naive and self.timezone is None:
            return f"{name} is a timestamp without time zone; say which one with timezone="
        if naive or reads(full_type, kind):
            return ""
        return f"{name} is {kind}, the column is {full_type}"

    def _key_order(
        self, identity: str, columns: Mapping[str, CapturedColumn], unique: Sequence[Sequence[Any]]
    ) -> tuple[str, ...]:
        """The key in the order of its index, of whose columns every former row has the values."""
        if self.complete and identity != "f":
            raise PipelineError(
                f"{self.where}before_images=True needs former rows: alter table {self.place.table} replica identity full"
            )
        for primary, replica, names in unique:
            logged = identity == "f" or (identity == "d" and primary) or (identity == "i" and replica)
            if set(names) == set(self.keys) and logged and all(columns[name].not_null for name in names):
                return tuple(names)
        primary = ", ".join(next((names for primary, _, names in unique if primary), ["it has none"]))
        raise PipelineError(
            f"{self.where}key={list(self.keys)} is not its primary key ({primary}); "
            "name that, or make it known of former rows: a unique index on columns that are not null, and alter table "
            f"{self.place.table} replica identity using index ... (or full)"
        )

    # -- the publication ------------------------------------------------------------------------------------------------

    async def publish(self, connection: AsyncConnection[Any]) -> None:
        """Make the publication if there is none."""
        if not await _rows(connection, _PUBLICATION, self.publication):
            await self._make_publication(connection)

    async def check_publication(self, connection: AsyncConnection[Any], table: CapturedTable) -> None:
        """See to it that the publication has all changes of the table.

        Raises:
            PipelineError: it has not.
        """
        options = await _rows(connection, _PUBLICATION, self.publication)
        found = await _rows(connection, _PUBLISHED, self.publication, table.oid)
        if reason := self._lacks(options[0][0] if options else None, found[0][0] if found else None):
            raise PipelineError(
                f"{self.where}publication {self.publication}: {reason}; alter it, or name another one. Of a job that has "
                "begun, what changed meanwhile is not in the log: start it anew, without its former state"
            )

    def _lacks(self, options: Mapping[str, Any] | None, entry: Mapping[str, Any] | None) -> str:
        """What of the changes a publication leaves out."""
        if options is None:
            return "it is not there any more"
        if entry is None:
            return "it does not have the table (of a partition: as itself, without publish_via_partition_root)"
        left_out = [kind for kind in ("insert", "update", "delete", "truncate") if not options[f"pub{kind}"]]
        if left_out:
            return f"it leaves out {', '.join(left_out)}"
        if entry.get("rowfilter"):
            return f"it leaves out rows that are not {entry['rowfilter']}"
        names = entry.get("attnames")
        missing = [name for name in self.rows.names if names is not None and name not in names]
        return f"it leaves out the columns {', '.join(missing)}" if missing else ""

    async def check_types(self, connection: AsyncConnection[Any], types: Mapping[str, tuple[int, int]]) -> None:
        """Raise `PipelineError` if one of these columns, by oid and modifier of its type, cannot be read any more."""
        wrong: list[str] = []
        for name, (oid, modifier) in types.items():
            [(full_type,)] = await _rows(connection, "select format_type(%s, %s)", oid, modifier)
            wrong += [misfit] if (misfit := self.misfit(name, full_type)) else []
        if wrong:
            raise PipelineError(f"{self.where}it was altered: {'; '.join(wrong)}. Nothing was skipped")

    async def _make_publication(self, connection: AsyncConnection[Any]) -> None:
        import psycopg

        statement = composed(
            "create publication {name} for table {table}",
            name=identifier(self.publication),
            table=self.place.identifier(),
        )
        try:
            await connection.execute(statement, [])
        except psycopg.errors.DuplicateObject:
            return  # made at the same moment
        except psycopg.errors.InsufficientPrivilege as error:
            raise PipelineError(
                f"{self.where}there is no publication {self.publication}, and the user may not make it ({error}); let "
                f"the owner of the table run: create publication {self.publication} for table {self.place.table}"
            ) from error


def reads(full_type: str, kind: DataType) -> bool:
    """Whether values of a column of this type can be of this kind. Those that are not are bad rows; none is rounded."""
    base = full_type.partition("(")[0]
    if kind == STRING:
        return True
    if isinstance(kind, ListType | MapType | StructType):
        return base in ("jsonb", "json", "text")
    if isinstance(kind, DecimalType) or kind in INTEGERS:
        return base in _NUMBERS
    if kind in FLOATS:
        return base == "real" or (base == "double precision" and kind.name == "float64")
    return _without_precision(full_type) == _OTHERS.get(kind.name)


def _without_precision(full_type: str) -> str:
    """`timestamp(3) with time zone` without its digits; digits of seconds that are not there need none."""
    before, _, behind = full_type.partition("(")
    return before + behind.partition(")")[2]


async def _rows(connection: AsyncConnection[Any], query: str, *values: Any) -> Sequence[Sequence[Any]]:
    return await (await connection.execute(query.encode(), values)).fetchall()
