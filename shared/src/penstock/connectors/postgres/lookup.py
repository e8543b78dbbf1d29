"""`postgres.Lookup`: rows of a table for the keys of a stream, many keys in one query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Unpack

from penstock.connectors import lookups
from penstock.connectors.base import T
from penstock.connectors.lookups import Key, LookupClient, LookupOptions, check_lookup_keys
from penstock.connectors.postgres.tables import TableColumn, TablePlace, composed, identifier, postgres_type
from penstock.core.arguments import checked
from penstock.settings import Secret
from penstock.types import BINARY, DURATION, INTEGERS, STRING, Field, ListType, MapType, Schema, StructType

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg import AsyncConnection
    from psycopg.sql import Composable, Composed

_WHAT: Final = "postgres.Lookup"
_SECONDS: Final = """
case when extract(month from {column}) = 0 and extract(year from {column}) = 0 then
    case when extract(epoch from {column}) < 0 then '-PT' else 'PT' end || abs(extract(epoch from {column})) || 'S'
else {column}::text end
"""
"""An interval without months as ISO 8601 has it; how long a month is nobody knows, so one with months stays none."""


class Lookup(lookups.Lookup[T], Generic[T]):
    """Rows of a table of Postgres, or of a view, to join a stream with: `orders.join(postgres.Lookup(...), on=...)`.

    The keys of a call are one query, on one of at most `capacity` connections per subtask. The columns of the key should
    have an index. Columns of text take any type of Postgres as its text; lists, maps and structs take arrays, composites
    and JSON; everything else has to be what it says: numbers that are whole, timestamps with time zone, intervals without
    months, numbers with a floating point that are finite.

    Args:
        table: its name, `"customers"` or `"shop.customers"`.
        schema: dataclass, msgspec.Struct or pyarrow.Schema of the columns that are wanted, those of the key included.
        url: `postgresql://user:password@host:5432/database`; a `Secret` if it has a password.
        **options: as at every lookup, see `LookupOptions`.

    Raises:
        PipelineError: something of it does not fit.

    Example:
        >>> @dataclass
        ... class Seller:
        ...     auction: int
        ...     seller: str
        >>> sellers = postgres.Lookup("sellers", schema=Seller, url="postgresql://localhost/shop", cache_ttl="1m")
        >>> bids.join(sellers, on="auction", how="left").schema.names
        ('auction', 'price', 'at', 'tags', 'seller')
    """

    kind: ClassVar[str] = "postgres"

    @checked
    def __init__(
        self,
        table: str,
        *,
        schema: type[T] | Schema | pa.Schema,
        url: str | Secret,
        **options: Unpack[LookupOptions],
    ) -> None:
        self._declare(schema, **options)
        self.place: Final = TablePlace(_WHAT, table, url)
        for field in self.schema:
            postgres_type(field.type, f"{_WHAT}: {field.name}")

    @property
    def name(self) -> str:
        """See `Lookup.name`."""
        return self.place.name

    def client(self, columns: Schema, keys: Schema) -> LookupClient:
        """See `Lookup.client`."""
        check_lookup_keys(_WHAT, keys)
        return _Table(self.place, columns, keys)

    def describe(self) -> Mapping[str, Any]:
        """See `Lookup.describe`."""
        return {"table": self.place.table, "url": self.place.address}


class _Table:
    """See `LookupClient`. A connection is used by one call at a time, and only as long as nothing went wrong with it."""

    def __init__(self, place: TablePlace, columns: Schema, keys: Schema) -> None:
        self._place = place
        self._columns = columns
        self._keys = keys
        self._idle: list[AsyncConnection[Any]] = []
        self._query: Composed

    async def open(self) -> None:
        with self._place.errors():
            async with self._place.connection() as connection:
                there = await self._place.columns(connection)
        wanted = {field.name: field for field in (*self._columns, *self._keys)}
        self._place.check_columns(Schema(tuple(wanted.values())), there)
        self._query = self._made(there)

    def _made(self, there: Mapping[str, TableColumn]) -> Composed:
        """Rows as JSON objects, with the number of the key that they belong to."""
        from psycopg.sql import SQL, Placeholder

        names = [identifier(f"k{number}") for number in range(len(self._keys.fields))]
        arrays = [
            composed("{value}::{type}[]", value=Placeholder(), type=SQL(_key_type(field, there[field.name])))  # pyright: ignore[reportArgumentType] # from the catalogue of Postgres
            for field in self._keys
        ]
        equal = [
            composed("t.{own} = k.{given}", own=identifier(field.name), given=name)
            for field, name in zip(self._keys, names, strict=True)
        ]
        return composed(
            "select k.n - 1, row_to_json(found.*)::text from unnest({arrays}) with ordinality as k({names}, n) "
            "join {table} t on {equal} cross join lateral (select {members}) found order by k.n",
            members=SQL(", ").join([_member(field, there[field.name]) for field in self._columns]),
            arrays=SQL(", ").join(arrays),
            names=SQL(", ").join(names),
            table=self._place.identifier(),
            equal=SQL(" and ").join(equal),
        )

    async def ask(self, keys: Sequence[Key]) -> Sequence[Sequence[bytes]]:
        answers: list[list[bytes]] = [[] for _ in keys]
        with self._place.errors():
            connection = self._idle.pop() if self._idle else await self._place.connect()
            try:
                cursor = connection.cursor(binary=True)
                await cursor.execute(self._query, [list(values) for values in zip(*keys, strict=True)])
                for number, document in await cursor.fetchall():
                    answers[number].append(document.encode())
            except BaseException:  # also a cancellation: what comes for it must not be taken for a later answer
                await connection.close()
                await (
                    self.close()
                )  # those that are idle are likely to be broken as well, and each would cost an attempt
                raise
            self._idle.append(connection)
        return answers

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()


def _key_type(field: Field, there: TableColumn) -> str:
    """Text is compared as what the column is (a uuid, an enum); numbers as they are, so that an index serves."""
    return there.type if field.type == STRING else postgres_type(field.type, field.name)


def _member(field: Field, there: TableColumn) -> Composable:
    """A column whose JSON Penstock reads, under its name."""
    column: Composable = composed("t.{name}", name=identifier(field.name))
    if field.type == STRING:
        column = composed("{column}::text", column=column)
    elif field.type == BINARY:
        column = composed("translate(encode({column}, 'base64'), E'\\n', '')", column=column)
    elif field.type == DURATION:
        column = composed(_SECONDS, column=column)
    elif field.type in INTEGERS and there.type == "numeric":
        column = composed("trim_scale({column})", column=column)  # 5.00 is whole
    elif isinstance(field.type, ListType | MapType | StructType):
        column = composed("to_json({column})", column=column)
    return composed("{column} as {name}", column=column, name=identifier(field.name))
