"""Changes of tables of a real Postgres: what is read, what is refused, and what becomes of the slot."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from postgres_tables import Table
from tests.integration.sink_rows import ALL, Everything
from tests.postgres_server import PostgresServer, running_postgres
from tests.services import wait_for

from penstock import PipelineError
from penstock.adapters.system_clock import SystemClock
from penstock.connectors import postgres
from penstock.connectors.base import BadRow, ReadContext, Split
from penstock.connectors.change_rows import UNCHANGED
from penstock.connectors.postgres import change_reading
from penstock.connectors.postgres.change_reading import ChangeReader
from penstock.errors import ExternalError
from penstock.settings import Secret
from penstock.types import Schema

pytestmark = pytest.mark.timeout(120)


@dataclass
class Order:
    id: int
    town: str | None
    total: int


COLUMNS = "id bigint primary key, town text, total bigint not null"


def source_of(table: Table, schema: Any = Order, **options: Any) -> postgres.ChangeSource[Any]:
    name = options.pop("slot", table.name.replace(".", "_"))
    options = {"key": "id", "url": Secret(table.server.url), **options}
    return postgres.ChangeSource(table.name, schema=schema, slot=name, **options)


class Reading:
    """A reader, and what it has brought."""

    def __init__(self, source: postgres.ChangeSource[Any], reader: ChangeReader) -> None:
        self.source = source
        self.reader = reader
        self.rows: list[dict[str, Any]] = []
        self.bad: list[BadRow] = []

    async def until(self, count: int) -> list[tuple[Any, ...]]:
        """As soon as so many more rows and bad ones are there; they are forgotten then."""
        async with asyncio.timeout(30):
            while len(self.rows) + len(self.bad) < count or not self.reader.position()["read"]:
                fetched = await self.reader.read(10_000)
                if fetched is not None:
                    self.rows += fetched.frame.iter_rows(named=True)
                    self.bad += fetched.bad
        rows, self.rows = self.rows, []
        return [tuple(row.values()) for row in rows]

    async def fails(self) -> str:
        """With this."""
        with pytest.raises((PipelineError, ExternalError)) as caught:
            await self.until(1 << 30)
        return str(caught.value)


def opened(source: postgres.ChangeSource[Any], position: Any = None) -> Reading:
    clock, split = SystemClock(), Split("t")
    context = ReadContext(clock.now_us, clock.monotonic_ms)
    reader = source.open(split, position or source.resolve(split, late=False), context)
    assert isinstance(reader, ChangeReader)
    return Reading(source, reader)


@asynccontextmanager
async def reading(source: postgres.ChangeSource[Any], position: Any = None) -> AsyncIterator[Reading]:
    made = opened(source, position)
    try:
        yield made
    finally:
        await made.reader.close()


# -- what is read -------------------------------------------------------------------------------------------------------


async def test_rows_and_then_changes(server: PostgresServer) -> None:
    """Of a key its newest row; a key that changes is taken back; what was rolled back never comes."""
    table = Table(server, COLUMNS)
    table.do("insert into {} values (1, 'Ulm', 5), (2, null, 6)")
    async with reading(source_of(table)) as found:
        assert await found.until(2) == [(1, "Ulm", 5, False), (2, None, 6, False)]
        table.do("update {} set total = 7 where id = 1")
        with psycopg.connect(server.url) as session:
            session.execute(f"delete from {table.name}")
            session.rollback()
        table.do("update {} set id = 3 where id = 2")
        table.do("delete from {} where id = 1")
        assert await found.until(4) == [
            (1, "Ulm", 7, False), (2, None, None, True), (3, None, 6, False), (1, None, None, True),
        ]  # fmt: skip


async def test_whole_former_rows(server: PostgresServer) -> None:
    """With the large values that an update left as they were."""
    table, large = Table(server, COLUMNS), secrets.token_hex(5_000)
    table.do("alter table {} replica identity full")
    table.do("insert into {} values (1, %s, 5)", large)
    async with reading(source_of(table, before_images=True)) as found:
        assert await found.until(1) == [(1, large, 5, False)]
        table.do("update {} set total = 7")
        table.do("delete from {}")
        assert await found.until(3) == [(1, large, 5, True), (1, large, 7, False), (1, large, 7, True)]


async def test_large_values_that_were_not_logged(server: PostgresServer) -> None:
    """The kept row has them, but not of another key; with the table's former rows in the log they are known."""
    table, large = Table(server, COLUMNS), secrets.token_hex(5_000)
    table.do("insert into {} values (1, %s, 5)", large)
    async with reading(source_of(table)) as found:
        await found.until(1)
        table.do("update {} set total = 7")
        assert await found.until(1) == [(1, UNCHANGED, 7, False)]
        table.do("update {} set id = 2")
        assert await found.until(1) == []
        assert "town: an update left this large value as it was" in found.bad[0].error
        assert found.bad[0].raw == b'{"id":"2"}'
        found.bad.clear()
        table.do("alter table {} replica identity full")
        table.do("update {} set total = 8")
        table.do("truncate {}")
        assert await found.until(2) == [(2, large, 8, False)]
        assert "the table was truncated" in found.bad[0].error


async def test_a_table_whose_key_is_another_index(server: PostgresServer) -> None:
    """Which former rows are known by."""
    table = Table(server, "other int, town text, id int not null, total bigint not null")
    table.do("create unique index on {} (id)")
    with pytest.raises(PipelineError, match=r"is not its primary key .it has none.*replica identity using index"):
        source_of(table).resolve(Split("t"), late=False)
    table.do(f"alter table {{}} replica identity using index {table.name}_id_idx")
    table.do("insert into {} values (1, 'Ulm', 2, 3)")
    async with reading(source_of(table)) as found:
        assert await found.until(1) == [(2, "Ulm", 3, False)]
        table.do("update {} set id = 5")
        table.do("delete from {}")
        assert await found.until(3) == [(2, None, None, True), (5, "Ulm", 3, False), (5, None, None, True)]


@pytest.mark.servers
async def test_rows_that_a_crash_could_undo_are_not_read() -> None:
    """Commits that are not on disk yet are visible to others: they are made durable before they are handed out."""
    with running_postgres("synchronous_commit=off", "wal_writer_delay=10s") as server:
        table = Table(server, COLUMNS)
        async with reading(source_of(table)) as found:
            table.do("insert into {} select n, 'x', n from generate_series(1, 100) n")
            rows = await found.until(100)
            server.kill()
        server.start()
        assert len(rows) == len(table.do("select * from {}"))


async def test_transactions_that_were_open_at_the_beginning_are_waited_for(server: PostgresServer) -> None:
    """The log may have their commit before the slot's beginning while no snapshot sees it: they would be in neither."""
    table = Table(server, COLUMNS)
    server.execute(f"create publication {table.name} for table {table.name}")
    server.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", table.name)
    with psycopg.connect(server.url) as session:
        session.execute(f"insert into {table.name} values (1, 'Ulm', 5)")
        async with reading(source_of(table)) as found:
            assert await found.reader.read(100) is None
            assert not found.reader.position()["read"]
            session.commit()
            assert await found.until(1) == [(1, "Ulm", 5, False)]


COLUMNS_OF_ALL = """
id bigint primary key, text text, small smallint, amount numeric(12, 2), ratio double precision, truth boolean,
data bytea, at timestamptz, day date, moment time, span interval, tags jsonb, weights jsonb, absent int
"""


async def test_all_types(server: PostgresServer) -> None:
    """The same from the table and from the log, whatever the database says of how values are written."""
    import json

    table = Table(server, COLUMNS_OF_ALL)
    server.execute("alter role penstock set bytea_output = 'escape'")
    values = [getattr(ALL, name) for name in Everything.__annotations__]
    tags = list(Everything.__annotations__).index("tags")
    values[tags] = json.dumps(values[tags])
    values[tags + 1] = '{"k": 1}'
    insert = "insert into {} values (" + ", ".join(["%s"] * len(values)) + ")"
    try:
        table.do(insert, *values)
        async with reading(source_of(table, Everything)) as found:
            [row] = await found.until(1)
            table.do(insert, *[ALL.id + 1, *values[1:]])
            [logged] = await found.until(1)
    finally:
        server.execute("alter role penstock reset bytea_output")
    assert row[1:] == logged[1:]
    assert row[:tags] == tuple(getattr(ALL, name) for name in Everything.__annotations__)[:tags]


@dataclass
class Local:
    id: int
    at: Any = None


async def test_whole_numbers_with_digits_behind_the_point(server: PostgresServer) -> None:
    """As a `numeric(12, 2)` writes them; others are bad rows."""
    table = Table(server, "id numeric(12, 2) primary key, town text, total numeric not null")
    table.do("insert into {} values (10, null, 5.000), (20, null, -0.0), (30, null, 7.5)")
    async with reading(source_of(table, bad_rows="skip")) as found:
        assert await found.until(3) == [(10, None, 5, False), (20, None, 0, False)]
        assert "total" in found.bad[0].error
        table.do("update {} set id = 100, total = 1e3 where id = 10")
        assert await found.until(3) == [(10, None, None, True), (100, None, 1000, False)]


async def test_timestamps_without_time_zone(server: PostgresServer) -> None:
    """Only where their zone is said."""
    import pyarrow as pa

    schema: Any = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("us", "UTC"))])
    table = Table(server, "id bigint primary key, at timestamp")
    table.do("insert into {} values (1, '2026-07-01 12:00:00')")
    with pytest.raises(PipelineError, match="at is a timestamp without time zone; say which one with timezone="):
        source_of(table, schema).resolve(Split("t"), late=False)
    async with reading(source_of(table, schema, timezone="Europe/Berlin")) as found:
        [(_, at, _)] = await found.until(1)
        assert at.isoformat() == "2026-07-01T10:00:00+00:00"


async def test_other_names(server: PostgresServer) -> None:
    """They are quoted."""
    server.execute('create schema if not exists "Shop"')
    columns = 'id bigint, town text, "%s" int, total bigint not null, primary key (town, id)'
    table = Table(server, columns, f"Shop.A b {secrets.token_hex(4)}")
    table.do("insert into {} (id, town, total) values (1, 'Ulm', 5), (2, 'Bonn', 6)")
    slot = "p" + secrets.token_hex(4)
    async with reading(source_of(table, key=("id", "town"), slot=slot, publication='Odd "name')) as found:
        assert await found.until(2) == [(2, "Bonn", 6, False), (1, "Ulm", 5, False)]
        table.do("update {} set town = 'Bonn' where id = 1")
        assert await found.until(2) == [(1, "Ulm", None, True), (1, "Bonn", 5, False)]


async def test_a_partitioned_table_is_refused_and_its_partitions_are_read(server: PostgresServer) -> None:
    """What is done to a partition as a whole is in no log."""
    table = Table(server, COLUMNS)
    table.do("drop table {}")
    table.do("create table {} (id bigint primary key, town text, total bigint not null) partition by hash (id)")
    partition = Table(server, COLUMNS)
    partition.do("drop table {}")
    partition.do("create table {} partition of " + table.name + " for values with (modulus 1, remainder 0)")
    with pytest.raises(PipelineError, match=r"it is partitioned.*Read its partitions"):
        source_of(table).resolve(Split("t"), late=False)
    table.do("insert into {} values (1, 'Ulm', 5)")
    async with reading(source_of(partition)) as found:
        assert await found.until(1) == [(1, "Ulm", 5, False)]
        table.do("update {} set total = 6")
        assert await found.until(1) == [(1, "Ulm", 6, False)]


async def test_rows_are_read_behind_a_table_that_is_being_rewritten(server: PostgresServer) -> None:
    """Behind the lock: an older snapshot would see an empty table."""
    table = Table(server, COLUMNS)
    table.do("insert into {} values (1, 'Ulm', 5), (2, 'Bonn', 6)")
    source = source_of(table)
    position = source.resolve(Split("t"), late=False)
    with psycopg.connect(server.url) as session:
        session.execute(f"alter table {table.name} alter column total type bigint using total + 1")
        async with reading(source, position) as found:
            waiting = asyncio.create_task(found.until(2))
            await asyncio.to_thread(
                wait_for,
                lambda: table.server.execute("select count(*) from pg_locks where not granted")[0][0] > 0,
                "it waits for the lock",
            )
            session.commit()
            assert await waiting == [(1, "Ulm", 6, False), (2, "Bonn", 7, False)]


async def test_a_log_that_ends_before_the_position_is_refused(server: PostgresServer) -> None:
    """A server that was set back would skip all up to there."""
    source = source_of(Table(server, COLUMNS))
    async with reading(source) as found:
        await found.until(0)
        position = found.reader.position()
    async with reading(source, {**position, "lsn": position["lsn"] + (1 << 40)}) as found:
        with pytest.raises(PipelineError, match="the log of the server ends before the checkpoint"):
            await found.until(1)


# -- positions and the slot ---------------------------------------------------------------------------------------------


def confirmed(table: Table) -> int:
    [(lsn,)] = table.server.execute(
        "select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots where slot_name = %s", table.name
    )
    return lsn


async def test_the_slot_moves_with_checkpoints_alone(server: PostgresServer) -> None:
    """Not with what was read; an older position is refused then, not answered with less."""
    table = Table(server, COLUMNS)
    async with reading(source_of(table)) as found:
        await found.until(0)
        beginning = found.reader.position()
        begins = confirmed(table)
        table.do("insert into {} values (1, 'Ulm', 5)")
        await found.until(1)
        assert confirmed(table) == begins
        async with asyncio.timeout(20):
            while found.reader.position()["lsn"] == beginning["lsn"]:  # the commit may come behind its row
                await found.reader.read(1)
        position = found.reader.position()
        found.reader.confirm(position)
        table.do("insert into {} values (2, 'Ulm', 5)")
        await found.until(1)
        async with asyncio.timeout(20):
            while confirmed(table) != position["lsn"]:
                await found.reader.read(1)
    async with reading(source_of(table), position) as again:
        assert await again.until(1) == [(2, "Ulm", 5, False)]
    async with reading(source_of(table), beginning) as older:
        assert "begins behind the checkpoint that the job goes on from" in await older.fails()


async def test_other_tables_move_the_position_too(server: PostgresServer) -> None:
    """Or the server would keep its log for a table that does not change."""
    table, other = Table(server, COLUMNS), Table(server, "n int")
    async with reading(source_of(table)) as found:
        await found.until(0)
        before = found.reader.position()["lsn"]
        other.do("insert into {} select generate_series(1, 1000)")
        [(end,)] = server.execute("select (pg_current_wal_lsn() - '0/0')::bigint")
        async with asyncio.timeout(30):
            while found.reader.position()["lsn"] < end:
                await found.reader.read(1)
        assert end > before


async def test_a_session_that_the_job_left_behind_is_ended(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt takes the slot over; the former one does not take it back."""
    table = Table(server, COLUMNS)
    former = opened(source_of(table))
    try:
        await former.until(0)
        async with asyncio.timeout(20):
            while not server.execute("select 1 from pg_replication_slots where slot_name = %s and active", table.name):
                await former.reader.read(1)
        async with reading(source_of(table), former.reader.position()) as next_one:
            table.do("insert into {} values (1, 'Ulm', 5)")
            assert await next_one.until(1) == [(1, "Ulm", 5, False)]
            monkeypatch.setattr(change_reading, "PATIENCE_S", 1.0)
            assert "is read by process" in await former.fails()
            table.do("insert into {} values (2, 'Ulm', 5)")
            assert await next_one.until(1) == [(2, "Ulm", 5, False)]
    finally:
        await former.reader.close()


async def test_a_slot_that_another_reads_is_waited_for(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for ever, and its session is left alone: the error names it."""
    table = Table(server, COLUMNS)
    other = opened(source_of(table))
    try:
        await other.until(0)
        position = {**other.reader.position(), "owner": "another"}
        async with asyncio.timeout(20):
            while not server.execute("select 1 from pg_replication_slots where slot_name = %s and active", table.name):
                await other.reader.read(1)
        monkeypatch.setattr(change_reading, "PATIENCE_S", 0.5)
        async with reading(source_of(table), position) as found:
            assert f"replication slot {table.name} is read by process" in await found.fails()
        with pytest.raises(ExternalError, match="is read by process"):
            source_of(table).resolve(Split("t"), late=False)
        table.do("insert into {} values (1, 'Ulm', 5)")
        assert await other.until(1) == [(1, "Ulm", 5, False)]
    finally:
        await other.reader.close()


@pytest.mark.servers
async def test_a_slot_that_was_lost_or_dropped() -> None:
    """The error says why, and what to do; nothing is skipped."""
    with running_postgres("max_slot_wal_keep_size=1MB", "min_wal_size=32MB", "max_wal_size=32MB") as server:
        table = Table(server, COLUMNS)
        async with reading(source_of(table)) as found:
            await found.until(0)
            position = found.reader.position()
        for _ in range(4):
            table.do(
                "insert into {} select coalesce(max(id), 0) + 1, 'x', 1 from {}".replace(
                    "from {}", f"from {table.name}"
                )
            )
            server.execute("select pg_switch_wal()")
        server.execute("checkpoint")
        async with reading(source_of(table), position) as again:
            assert (
                "is lost: the server removed the log that was not read (max_slot_wal_keep_size)" in await again.fails()
            )
        server.execute("select pg_drop_replication_slot(%s)", table.name)
        async with reading(source_of(table), position) as again:
            assert "is not there any more" in await again.fails()
        async with reading(source_of(table)) as anew:
            assert len(await anew.until(4)) == 4


# -- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("id bigint, town text, total bigint", {}, r"key=\['id'\] is not its primary key \(it has none\)"),
        (COLUMNS, {"key": "total"}, r"key=\['total'\] is not its primary key \(id\)"),
        (COLUMNS, {"before_images": True}, "needs former rows: alter table .* replica identity full"),
        ("id bigint primary key, town text, total text", {}, "total is int64, the column is text"),
        ("id bigint primary key, town text", {}, "it has no column 'total'"),
        ("id bigint primary key, town text, total bigint generated always as (id) stored", {}, "total is generated"),
    ],
)
def test_tables_that_do_not_fit(server: PostgresServer, columns: str, options: dict[str, Any], said: str) -> None:
    """Before rows flow, by name, and nothing is made."""
    table = Table(server, columns)
    with pytest.raises(
        PipelineError, match=f"postgres table {table.name} at 127.0.0.1:{server.port}/postgres: .*{said}"
    ):
        source_of(table, **options).resolve(Split("t"), late=False)
    assert not server.execute("select 1 from pg_replication_slots where slot_name = %s", table.name)


def test_publications_that_leave_something_out(server: PostgresServer) -> None:
    """Rows, columns, kinds of changes, the table itself."""
    table, other = Table(server, COLUMNS), Table(server, COLUMNS)
    for made, said in [
        ("for table {} where (total > 5)", "leaves out rows that are not"),
        ("for table {} (id, town)", "leaves out the columns total"),
        ("for table {} with (publish = 'insert, update')", "leaves out delete, truncate"),
        (f"for table {other.name}", "does not have the table"),
    ]:
        table.do(f"create publication {table.name} {made}")
        with pytest.raises(PipelineError, match=f"publication {table.name}: it {said}"):
            source_of(table).resolve(Split("t"), late=False)
        server.execute(f"drop publication {table.name}")


def test_servers_and_users_that_may_not(server: PostgresServer) -> None:
    """What is missing, and how it is granted."""
    table, role = Table(server, COLUMNS), f"r_{secrets.token_hex(4)}"
    server.execute(f"create role {role} login password 'x'")
    table.do(f"grant select on {{}} to {role}")
    url = server.url.replace("penstock:topsecret", f"{role}:x")
    with pytest.raises(
        PipelineError, match=f"let the owner of the table run: create publication {table.name} for table"
    ):
        source_of(table, url=url).resolve(Split("t"), late=False)
    server.execute(f"create publication {table.name} for table {table.name}")
    with pytest.raises(PipelineError, match=r"run: alter role .* replication"):
        source_of(table, url=url).resolve(Split("t"), late=False)
    server.execute(f"alter role {role} replication")
    assert source_of(table, url=url).resolve(Split("t"), late=False)
    with running_postgres("wal_level=replica") as other:
        plain = Table(other, COLUMNS)
        with pytest.raises(PipelineError, match="wal_level is replica; set wal_level = logical"):
            source_of(plain).resolve(Split("t"), late=False)


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (["alter table {} drop column town", "insert into {} values (1, 1)"], "there is no column town any more"),
        (
            ["alter table {} alter total type text", "insert into {} values (1, 'x', '1')"],
            "total is int64, the column is text",
        ),
        (["alter table {} alter total type int", "insert into {} values (1, 'x', 1)"], None),
        (["alter table {} add more int", "insert into {} values (1, 'x', 1)"], None),
    ],
)
async def test_a_table_that_is_altered(server: PostgresServer, statements: list[str], said: str | None) -> None:
    """While it is read: what still fits goes on."""
    table = Table(server, COLUMNS)
    async with reading(source_of(table)) as found:
        table.do("insert into {} values (0, 'x', 1)")
        await found.until(1)
        table.do("update {} set total = 2")
        await found.until(1)
        for statement in statements:
            table.do(statement)
        if said is None:
            assert await found.until(1) == [(1, "x", 1, False)]
        else:
            assert said in await found.fails()


async def test_a_table_that_is_taken_out_or_made_anew(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the log says so; it is looked for."""
    monkeypatch.setattr(change_reading, "CHECK_S", 0.2)
    table = Table(server, COLUMNS)
    async with reading(source_of(table)) as found:
        await found.until(0)
        server.execute(f"alter publication {table.name} drop table {table.name}")
        assert "it does not have the table" in await found.fails()
    position = found.reader.position()
    table.do("drop table {}")
    table.do("create table {} (" + COLUMNS + ")")
    async with reading(source_of(table), position) as again:
        assert "the table was made anew" in await again.fails()


def test_columns_are_those_of_changes() -> None:
    """The row's, and whether it is taken back."""
    made = postgres.ChangeSource("t", key="id", schema=Order, url="postgresql://h/d", slot="s")
    assert isinstance(made.schema, Schema)
    assert made.schema.names == ("id", "town", "total", "retracted")
