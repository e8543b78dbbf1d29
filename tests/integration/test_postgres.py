"""Tables of a real Postgres: lookups, what sinks write and refuse, and that they publish every row once."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from postgres_tables import QUICK, Table, Target
from psycopg.sql import SQL, Identifier
from tests.integration.publishing_by_hand import (
    FIRST,
    check_a_stopped_publisher_is_refused,
    check_doubt_changes_nothing,
    check_rows_are_visible_once,
    published,
)
from tests.integration.sink_rows import ALL, EMPTY, Everything, Sale, joined, read_back, sales, sales_by_shop, write
from tests.postgres_server import PostgresServer
from tests.unit.task.publishing_parts import Exchange, Run

from penstock import DecimalType, Pipeline, PipelineError, col, count, lit
from penstock.adapters.system_clock import SystemClock
from penstock.connectors import iterables, postgres
from penstock.connectors.base import PublishedMark
from penstock.connectors.postgres.writing import takes
from penstock.embedded import EmbeddedSettings, run_pipeline
from penstock.errors import BadRecordError, ExternalError, RefusedRowError
from penstock.loading import load_pipeline
from penstock.protocol.manifests import Interval
from penstock.task.transaction_loop import PublishingError
from penstock.types import DURATION, FLOAT32, FLOAT64, INT64, STRING, TIME, TIMESTAMP, UINT64, ListType, schema_of

pytestmark = pytest.mark.timeout(120)

START = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)


@dataclass
class Key:
    id: int
    name: str | None = None


@dataclass
class Named:
    id: int
    label: str | None


# -- lookups ------------------------------------------------------------------------------------------------------------


def test_rows_of_a_table(server: PostgresServer) -> None:
    """Several of a key, none, null; more keys than a call takes."""
    table = Table(server, "id int, label text")
    table.do(
        "insert into {} select n / 2, 'l' || n from generate_series(0, 5000, 4) n union all values (3, null), (3, 'b')"
    )
    found = joined(table.lookup(Named), *(Key(n) for n in range(1, 10)))
    assert sorted(found, key=str) == [
        (2, None, "l4"), (3, None, "b"), (3, None, None), (4, None, "l8"), (6, None, "l12"), (8, None, "l16"),
    ]  # fmt: skip
    found = joined(table.lookup(Named, rows_per_call=700, cache_ttl="1m"), *(Key(n) for n in range(3_000)), how="left")
    assert [row[0] for row in found] == sorted([*range(3_000), 3])
    assert sum(row[2] is not None for row in found) == 1_252


COLUMNS = """
id bigint, text text, small smallint, amount numeric(12, 2), ratio double precision, truth boolean, data bytea,
at timestamptz, day date, moment time, span interval, tags text[], weights jsonb, absent int
"""


def test_all_types_of_a_table(server: PostgresServer) -> None:
    """Each comes as it went in."""
    table = Table(server, COLUMNS)
    values = [getattr(ALL, name) for name in Everything.__annotations__]
    values[-2] = '{"k": 1}'
    table.do("insert into {} values (" + ", ".join(["%s"] * len(values)) + ")", *values)
    assert read_back(table.lookup(Everything), 1) == [ALL]


@dataclass
class Numbers:
    id: int
    most: int


def test_whole_numbers_with_digits_behind_the_point(server: PostgresServer) -> None:
    """What the sink writes into a `numeric(22, 2)` is read back as it was."""
    table = Table(server, "id numeric(22, 2), most numeric(40, 10)")
    rows = [Numbers(10, 2**63 - 1), Numbers(20, -(2**63)), Numbers(30, 0)]
    write(table.sink(), rows, Numbers)
    found = joined(table.lookup(Numbers), *(Key(row.id) for row in rows))
    assert [(row[0], row[-1]) for row in found] == [(row.id, row.most) for row in rows]


@dataclass
class ByText:
    key: str
    n: int


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("text", "a'b\\"), ("varchar(3)", "abc"), ("char(5)", "ab   "), ("uuid", "11111111-2222-3333-4444-555555555555"),
        ("jsonb", "1"), ("inet", "10.0.0.1"),
    ],
)  # fmt: skip
def test_keys_of_text(server: PostgresServer, kind: str, key: str) -> None:
    """They are compared as what the column is; one that is longer than the column is no other one."""
    table = Table(server, f"key {kind}, n int")
    table.do("insert into {} values (%s, 7)", key)

    @dataclass
    class Asked:
        key: str

    assert joined(table.lookup(ByText), Asked(key), on="key") == [(key, 7)]
    if kind == "varchar(3)":
        assert joined(table.lookup(ByText), Asked("abcd"), on="key") == []


def test_several_key_columns_and_odd_names(server: PostgresServer) -> None:
    """Names are quoted, a key is equal in all of its columns, and those with a null are not asked for."""
    server.execute('create schema if not exists "Shop"')
    table = Table(server, '"Id x" bigint, "on" text, "%s" text', f"Shop.T {secrets.token_hex(4)}")
    table.do("insert into {} values (1, 'a', 'p'), (1, 'b', 'q'), (2, 'a', 'r')")
    import pyarrow as pa

    schema: Any = pa.schema([("Id x", pa.int64()), ("on", pa.string()), ("%s", pa.string())])
    found = joined(
        table.lookup(schema), Key(1, "a"), Key(1, None), Key(2, "b"), Key(2, "a"), on={"id": "Id x", "name": "on"}
    )
    assert found == [(1, "a", "p"), (2, "a", "r")]


@pytest.mark.parametrize(
    ("columns", "row", "said"),
    [
        ("id int, label int", "1, 2", None),
        ("id int", "1", "it has no column 'label'"),
        ("id text, label text", "'1', 'x'", r"operator does not exist: text = bigint.*\(42883\)"),
    ],
)
def test_tables_that_do_not_fit(server: PostgresServer, columns: str, row: str, said: str | None) -> None:
    """The error has the table, its address, what Postgres says and the key; no password."""
    table = Table(server, columns)
    table.do("insert into {} values (" + row + ")")
    if said is None:
        assert joined(table.lookup(Named), Key(1)) == [(1, None, "2")]
        return
    where = rf"postgres table {table.name} at 127.0.0.1:{server.port}/postgres: "
    with pytest.raises(PipelineError, match=f"{where}{said}.*; row: key id=1") as caught:
        joined(table.lookup(Named), Key(1))
    assert "topsecret" not in f"{caught.value}{table.lookup(Named)!r}"


@dataclass
class Ratio:
    id: int
    value: float


@dataclass
class Moment:
    id: int
    value: datetime


@dataclass
class Span:
    id: int
    value: timedelta


@pytest.mark.parametrize(
    ("kind", "value", "schema"),
    [
        ("double precision", "NaN", Ratio), ("text", "1.5", Ratio), ("timestamp", "2026-01-01", Moment),
        ("timestamptz", "infinity", Moment), ("interval", "1 month", Span), ("int", None, Ratio),
    ],
)  # fmt: skip
def test_values_that_do_not_fit(server: PostgresServer, kind: str, value: str | None, schema: type) -> None:
    """Nothing is rounded, guessed, or made null."""
    table = Table(server, f"id int, value {kind}")
    table.do("insert into {} values (1, %s)", value)
    with pytest.raises(BadRecordError, match=rf"postgres table {table.name}.*the row of id=1 is none of the schema"):
        joined(table.lookup(schema), Key(1))


def test_no_table_no_login_no_server(server: PostgresServer) -> None:
    """What cannot be asked is said; a server that is away is asked again."""
    missing = postgres.Lookup("nowhere.t", schema=Named, url=server.url, **QUICK)
    with pytest.raises(PipelineError, match=r"postgres table nowhere.t at .*: there is no such table"):
        joined(missing, Key(1))
    wrong = postgres.Lookup("t", schema=Named, url=server.url.replace("topsecret", "hidden"), **QUICK)
    with pytest.raises(ExternalError, match=r"password authentication failed.*check that it runs, and url=") as caught:
        joined(wrong, Key(1))
    assert "hidden" not in str(caught.value)
    away = postgres.Lookup("t", schema=Named, url="postgresql://127.0.0.1:1/x", **QUICK)
    with pytest.raises(ExternalError, match=r"postgres table t at 127.0.0.1:1/x: .*key id=1"):
        joined(away, Key(1))


def test_a_connection_that_breaks(server: PostgresServer) -> None:
    """The next attempt has another one."""
    table = Table(server, "id int, label text")
    table.do("insert into {} select n, 'x' from generate_series(0, 99) n")
    view, turns = f"v_{table.name}", f"s_{table.name}"
    server.execute(SQL("create sequence {}").format(Identifier(turns)))
    server.execute(
        SQL(
            "create view {} as select id, case when nextval({}) = 30 then pg_terminate_backend(pg_backend_pid())::text "
            "else label end as label from {}"
        ).format(Identifier(view), turns, table.identifier)
    )
    table.name = view
    found = joined(table.lookup(Named, rows_per_call=20, capacity=1), *(Key(n) for n in range(100)))
    assert [row[0] for row in found] == list(range(100))


async def test_a_server_that_was_away_costs_one_attempt(server: PostgresServer) -> None:
    """However many connections were idle."""
    table = Table(server, "id int, label text")
    table.do("insert into {} values (1, 'x')")
    schema = schema_of(Named)
    client = table.lookup(Named).client(schema.select(["label"]), schema.select(["id"]))
    await client.open()
    await asyncio.gather(*(client.ask([(1,)]) for _ in range(5)))
    server.execute("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()")
    with pytest.raises(ExternalError):
        await client.ask([(1,)])
    assert await client.ask([(1,)]) == [[b'{"label":"x"}']]
    await client.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": ""}, "postgres.Lookup: '' is no name of a table"),
        ({"table": "a.b.c"}, "is no name of a table"),
        ({"table": 'a"b'}, "is no name of a table"),
        ({"url": "http://h/x"}, "url= is an address such as postgresql://"),
        ({"url": "postgresql://h"}, "url= is an address such as postgresql://"),
        ({"schema": Ratio, "on": {"id": "value"}}, "id is int64, value of the lookup is float64"),
    ],
)
def test_wrong_lookups(options: dict[str, Any], said: str) -> None:
    """When the pipeline is built."""
    given: dict[str, Any] = {"table": "t", "url": "postgresql://h/x", "schema": Named, **options}
    stream = Pipeline("p").read(iterables.Source([], schema=Key))
    with pytest.raises(PipelineError, match=said):
        stream.join(postgres.Lookup(given["table"], url=given["url"], schema=given["schema"]), on=given.get("on", "id"))


def test_rows_of_a_table_in_sql(server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By JOIN ... FOR SYSTEM_TIME AS OF: several rows of a key, none, a null key, constants, and other conditions."""
    table = Table(server, "id bigint, name text, city text")
    for row in ((1, "a", "Bonn"), (1, "b", None), (2, "a", "Ulm")):
        table.do("insert into {} values (%s, %s, %s)", *row)
    monkeypatch.chdir(tmp_path)
    orders = [{"n": 1, "customer": 1}, {"n": 2, "customer": 3}, {"n": 3, "customer": None}, {"n": 4, "customer": 2}]
    (tmp_path / "orders.jsonl").write_text("".join(json.dumps(row) + "\n" for row in orders))
    declared = f"""
        CREATE TABLE orders (n BIGINT, customer INT, proc AS PROCTIME())
        WITH ('connector' = 'filesystem', 'path' = 'orders.jsonl');
        CREATE TABLE customers (id BIGINT, name STRING, city STRING)
        WITH ('connector' = 'postgres', 'url' = '{server.url}', 'table-name' = '{table.name}', 'retry-delay' = '1 ms');
        CREATE TABLE found
        WITH ('connector' = 'filesystem', 'path' = 'found', 'format' = 'json', 'existing' = 'replace')
        AS SELECT n, c.id, name, city FROM orders AS o """

    def found(joins: str) -> list[tuple[Any, ...]]:
        (tmp_path / "job.sql").write_text(declared + joins)
        pipeline = load_pipeline("job.sql", {})
        run_pipeline(pipeline, EmbeddedSettings(durable=False), directory=None, resume=False)
        lines = [line for part in Path("found").glob("part-*") for line in part.read_text().splitlines()]
        return sorted((tuple(json.loads(line).values()) for line in lines), key=str)

    every = [(1, 1, "a", "Bonn"), (1, 1, "b", None), (4, 2, "a", "Ulm")]
    join = "JOIN customers FOR SYSTEM_TIME AS OF o.proc AS c ON"
    assert found(f"{join} o.customer = c.id") == every
    assert found(f"LEFT {join} o.customer = c.id") == [
        *every[:2], (2, None, None, None), (3, None, None, None), every[2],
    ]  # fmt: skip
    assert found(f"{join} o.customer = c.id AND c.name = 'b'") == every[1:2]
    assert found(f"{join} c.id = o.customer + 1 AND c.city > 'M' WHERE n < 4") == [(1, 2, "a", "Ulm")]


def test_floats_are_exact(server: PostgresServer) -> None:
    """Digit by digit."""
    table = Table(server, "id int, value double precision")
    values = [0.1, 1e300, -5e-324, math.pi, 2.0]
    for n, value in enumerate(values):
        table.do("insert into {} values (%s, %s)", n, value)
    assert [row[-1] for row in joined(table.lookup(Ratio), *(Key(n) for n in range(5)))] == values


# -- the sink: what is written ------------------------------------------------------------------------------------------


def written(table: Table, rows: Any, schema: Any, **options: Any) -> None:
    """A run of its own, exactly once or not."""
    write(table.sink(**options), rows, schema)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("key", [None, "id"])
def test_all_types_of_a_sink(server: PostgresServer, delivery: Any, key: str | None) -> None:
    """Each comes back as it went in, whatever is in the texts; the table is made."""
    table = Table(server, "")
    table.do("drop table {}")
    least = replace(
        ALL, id=3, text="\\N\t\\.\r\n,\x01", at=datetime(1, 1, 1, tzinfo=UTC), day=date.min, ratio=-5e-324,
        moment=time.min, span=timedelta(days=40_000, microseconds=1), tags=["\\", "\n", "null", '"'], small=-(2**63),
    )  # fmt: skip
    most = replace(ALL, id=4, at=datetime.max.replace(tzinfo=UTC), day=date.max, amount=Decimal("-9999999999.99"))
    rows = [ALL, EMPTY, least, most]
    written(table, rows, Everything, key=key, create=True, delivery=delivery)
    assert read_back(table.lookup(Everything), 4) == rows


@dataclass
class Floats:
    id: int
    value: float | None


def test_numbers_that_are_none(server: PostgresServer) -> None:
    """NaN and infinities are there in Postgres, and null is null."""
    table = Table(server, "id int8, value float8")
    written(table, [Floats(1, math.nan), Floats(2, math.inf), Floats(3, -math.inf), Floats(4, None)], Floats)
    found = [value for (value,) in table.do("select value from {} order by id")]
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf, None]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_updates_by_key(server: PostgresServer, delivery: Any) -> None:
    """The table is the result; its other columns keep what they have."""
    table = Table(server, "shop text primary key, total bigint, note text default 'kept'")
    table.do("insert into {} values ('s1', -1, 'mine'), ('other', 5, 'mine')")
    p = Pipeline("p")
    totals = p.read(iterables.Source(sales(), schema=Sale)).key_by("shop").agg(total=col("amount").sum())
    totals.write(table.sink(key="shop", delivery=delivery))
    assert p.run().state == "FINISHED"
    expected = {(shop, total, "mine" if shop == "s1" else "kept") for shop, total in sales_by_shop().items()}
    expected |= {("other", 5, "mine")}
    assert set(table.do("select * from {}")) == expected


def test_changes_delete(server: PostgresServer) -> None:
    """What is taken back and does not come again is deleted."""
    table = Table(server, "shop text, total bigint, primary key (shop)")
    table.do("insert into {} values ('s1', -1)")
    p = Pipeline("p")
    read = p.read(iterables.Source(sales(), schema=Sale, rate=1_000))
    totals = read.key_by("shop").agg(total=col("amount").sum())
    totals.filter((col("total") < 100) | (col("shop") > "s3")).write(table.sink(key="shop"))
    assert p.run().state == "FINISHED"
    sums = sales_by_shop()
    assert min(sums.values()) >= 100
    assert dict(table.do("select * from {}")) == {shop: total for shop, total in sums.items() if shop > "s3"}


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("uuid", "A0EEBC999C0B4EF8BB6D6BB9BD380A11", "a0eebc999c0b4ef8bb6d6bb9bd380a11"),
        ("char(4)", "a", "a "),
        ("numeric", "1.0", "1"),
    ],
)
async def test_texts_that_are_one_key(server: PostgresServer, kind: str, first: str, second: str) -> None:
    """The last row of a key is there, also where the column takes several texts for one, or none if it was taken back."""
    table = Table(server, f"label {kind} primary key, id bigint")
    written(table, [Named(1, first), Named(2, second)], Named, key="label")
    assert [number for (number,) in table.do("select id from {}")] == [2]

    other, last = (digit * 32 if kind == "uuid" else digit for digit in "23")
    rows = [(first, "3", False), (second, "4", True), (other, "5", True), (last, "6", False)]
    frame = pl.DataFrame(rows, schema=["c:label", "c:id", "gone"], orient="row")
    async with table.sink().target.connection() as connection, connection.transaction():
        await table.sink(key="label")._writing().write(connection, [frame])
    assert [number for (number,) in table.do("select id from {}")] == [6]


def test_a_key_alone(server: PostgresServer) -> None:
    """Rows that are nothing but their key."""
    table = Table(server, "shop text primary key")
    p = Pipeline("p")
    p.read(iterables.Source(sales(), schema=Sale)).select("shop").write(table.sink(key="shop"))
    assert p.run().state == "FINISHED"
    assert len(table.do("select * from {}")) == 13


def test_odd_names_of_a_sink(server: PostgresServer) -> None:
    """Quoted wherever they stand, also a column that is called as what says what is deleted."""
    import pyarrow as pa

    server.execute('create schema if not exists "Shop"')
    table = Table(server, "x int", f"Shop.%s {secrets.token_hex(4)}")
    table.do("drop table {}")
    schema: Any = pa.schema([("gone", pa.int64()), ("select %", pa.string()), ("retracted", pa.bool_())])
    rows = [{"gone": 1, "select %": "a%", "retracted": True}, {"gone": 2, "select %": None, "retracted": None}]
    written(table, rows, schema, create=True)
    assert sorted(table.do("select * from {}")) == [(1, "a%", True), (2, None, None)]
    keyed = Table(server, "x int", f"Shop.k% {secrets.token_hex(4)}")
    keyed.do("drop table {}")
    written(keyed, rows, schema, create=True, key=["gone"])
    assert sorted(keyed.do("select * from {}")) == [(1, "a%", True), (2, None, None)]


# -- the sink: what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (None, {}, "there is no such table"),
        ("id int8, shop text", {}, "it has no column 'amount'"),
        ("id int4, shop text, amount int8", {}, r"id is int64 \(bigint\), the column is integer"),
        ("id int8, shop text, amount numeric(18)", {}, r"amount is int64 \(bigint\), the column is numeric\(18,0\)"),
        ("id int8, shop text, amount int8, x int not null", {}, "the column x needs a value, and no row has one"),
        ("id int8, shop text, amount int8", {"key": "id"}, r"there is no unique or exclusion constraint.*42P10"),
        ("id int8 primary key, shop text, amount int8", {"key": "shop"}, "42P10"),
    ],
)
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_tables_that_take_no_such_rows(
    server: PostgresServer, columns: Any, options: Any, said: str, delivery: Any
) -> None:
    """Before a row flows, by table and column."""
    table = Table(server, columns or "x int")
    if columns is None:
        table.do("drop table {}")
    with pytest.raises(PipelineError, match=rf"postgres table {table.name} at 127.0.0.1:\d+/postgres: .*{said}"):
        written(table, sales(), Sale, delivery=delivery, **options)


@pytest.mark.parametrize(
    ("column", "kind", "taken"),
    [
        ("numeric", INT64, True), ("numeric(19,0)", INT64, True), ("smallint", INT64, False), ("bigint", INT64, True),
        ("numeric(12,2)", DecimalType(12, 2), True), ("numeric(12,1)", DecimalType(12, 2), False),
        ("numeric(13,3)", DecimalType(12, 2), True), ("numeric(12,3)", DecimalType(12, 2), False),
        ("bigint", DecimalType(12, 2), False), ("real", FLOAT64, False), ("double precision", FLOAT32, True),
        ("timestamp with time zone", TIMESTAMP, True), ("timestamp without time zone", TIMESTAMP, False),
        ("timestamp(3) with time zone", TIMESTAMP, False), ("time without time zone", TIME, True),
        ("interval", DURATION, True), ("interval(0)", DURATION, False), ("uuid", STRING, True), ("text", INT64, False),
        ("jsonb", ListType(INT64), True), ("bigint[]", ListType(INT64), False), ("bigint", UINT64, False),
    ],
)  # fmt: skip
def test_which_columns_take_which_types(column: str, kind: Any, taken: bool) -> None:
    """Nothing is rounded or cut."""
    assert takes(column, kind) == taken


@pytest.mark.parametrize(
    ("row", "key", "said"),
    [
        (Named(1, "a\x00b"), None, "a text has a zero character.*a.x00b"),
        ({"id": 1, "tags": ["\\u0000", "\x00"]}, None, "a text has a zero character"),
        (Named(1, None), "label", "a row has no key .column label is null."),
    ],
)
def test_rows_that_cannot_be_written(server: PostgresServer, row: Any, key: str | None, said: str) -> None:
    """They fail the job by name, or are counted and left out."""
    import pyarrow as pa

    nested: Any = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
    schema = nested if isinstance(row, dict) else Named
    good = {"id": 2, "tags": ["\\u0000"]} if isinstance(row, dict) else Named(2, "\\u0000")
    table = Table(server, "")
    table.do("drop table {}")
    with pytest.raises(BadRecordError, match=f"postgres table {table.name}.*{said}"):
        written(table, [row, good], schema, create=True, key=key)
    written(table, [row, good], schema, create=True, key=key, bad_rows="skip")
    [(number, value)] = table.do("select * from {}")
    assert (number, value) == (2, ["\\u0000"] if isinstance(row, dict) else "\\u0000")


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize(
    ("columns", "key", "said"),
    [
        ("id int8, shop text, amount int8 check (amount <> 13)", None, r"violates check constraint.*23514"),
        ("id int8 primary key, shop text, amount int8 check (amount <> 13)", "id", r"violates check constraint.*23514"),
        ("id int8 check (id <> 13), shop varchar(5), amount int8", None, r"violates check|value too long.*22001"),
        ("id int8, shop text, amount int8 unique deferrable initially deferred", None, r"violates unique.*23505"),
    ],
)
def test_rows_that_postgres_refuses(server: PostgresServer, columns: str, key: Any, said: str, delivery: Any) -> None:
    """The job fails at once with what Postgres says, and nothing of the transaction is there; or they are left out."""
    rows = [Sale(n, "shop", n) for n in range(40)] + [Sale(13, "a long name", 13), Sale(41, "s", 1)]
    table = Table(server, columns)
    with pytest.raises(RefusedRowError, match=said):
        written(table, rows, Sale, key=key, delivery=delivery)
    assert table.do("select * from {}") == []
    written(table, rows, Sale, key=key, delivery=delivery, bad_rows="skip")
    found = sorted(number for (number,) in table.do("select id from {}"))
    expected = list(range(41)) if "unique" in columns else [n for n in (*range(40), 41) if n != 13]
    assert found == [n for n in expected if n != 40]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda s: s.write(postgres.Sink("t", url="postgresql://h/d", key=[])), "key= names no column"),
        (lambda s: s.write(postgres.Sink("t", url="postgresql://h/d", key="nope")), "key: there is no column 'nope'"),
        (lambda s: s.write(postgres.Sink("t", url="postgresql://h/d", key="value")), "value is float64, by which rows"),
        (
            lambda s: s.key_by("id").agg(n=count()).write(postgres.Sink("t", url="postgresql://h/d")),
            "every update would",
        ),
        (
            lambda s: s.select(n=lit(None)).write(postgres.Sink("t", url="postgresql://h/d")),
            "n is null, which Postgres",
        ),
        (lambda s: s.write(postgres.Sink("t", url="h/d")), "url= is an address"),
    ],
)
def test_wrong_sinks(make: Any, said: str) -> None:
    """When the pipeline is built."""
    with pytest.raises(PipelineError, match=said):
        make(Pipeline("p").read(iterables.Source([], schema=Ratio)))


# -- the sink: exactly once ---------------------------------------------------------------------------------------------


async def test_rows_are_visible_once(server: PostgresServer) -> None:
    """And the mark says how far; a second attempt goes on behind it."""
    await check_rows_are_visible_once(Target(server))


async def test_a_publisher_that_was_stopped_is_refused(server: PostgresServer) -> None:
    """Before its transaction another one starts: what it commits never becomes visible."""
    await check_a_stopped_publisher_is_refused(Target(server))


@pytest.mark.parametrize("where", ["in a transaction", "in the middle of COPY"])
async def test_a_publisher_that_hangs_holds_nobody_up(server: PostgresServer, where: str) -> None:
    """Its rows are written, and its mark is locked: the next one ends that before it goes on."""
    target = Target(server)
    first, second = target.publisher(), target.publisher()
    for publisher in (first, second):
        await publisher.open()
    await first.init_producer()
    connection = await first._connected()
    await connection.execute("begin")
    await connection.execute(first._marks("select producer from {marks} where job = %s for update"), [target.job])
    await first._writing.write(connection, [pl.DataFrame({"c:n": ["1"]})])
    async with AsyncExitStack() as stack:
        if where == "in the middle of COPY":
            copy = stack.enter_context(suppress(psycopg.OperationalError))
            copy = await stack.enter_async_context(
                connection.cursor().copy(SQL("copy {} from stdin").format(target.table.identifier))
            )
            await copy.write("2\n")
        async with asyncio.timeout(20):
            await second.init_producer()
    with pytest.raises(ExternalError):
        await first.commit([pl.DataFrame({"value": [b"3"]})], PublishedMark(5, "{}"))
    assert target.numbers() == []
    await first.close()
    await second.close()


async def test_a_commit_whose_answer_is_lost_is_not_repeated(server: PostgresServer) -> None:
    """The transaction is in, the publisher does not know: it finds out from the mark. Others are not in."""
    target = Target(server)
    publisher = target.publisher()

    async def before(turn: int, _: Any) -> None:
        if turn == 1:
            pid = publisher._connection.info.backend_pid
            server.execute("select pg_terminate_backend(%s)", pid)

    await check_doubt_changes_nothing(target, publisher, 3, before)


async def test_a_mark_beyond_what_is_complete_fails(server: PostgresServer) -> None:
    """Somebody restored an older checkpoint than what is visible."""
    target, exchange = Target(server), Exchange()
    run, _ = await published(target, exchange)
    await run.stop()
    second = Run(target.publisher(), exchange, 2, [Interval(FIRST, 0, 2, 1)], restored=1, clock=SystemClock())
    with pytest.raises(PublishingError, match="beyond 2"):
        await second.until(lambda: False)


async def test_marks_are_forgotten(server: PostgresServer) -> None:
    """Those of one generation alone; where there are none, that is fine."""
    target = Target(server)
    sink = target.table.sink()
    run, _ = await published(target, Exchange())
    await run.stop()
    left = "select count(*) from penstock_marks where job = %s"
    await sink.forget(replace(target.context, generation=1))
    assert server.execute(left, target.job) == [(1,)]
    await sink.forget(target.context)
    assert server.execute(left, target.job) == [(0,)]
    server.execute("create schema elsewhere")
    await postgres.Sink("elsewhere.t", url=server.url).forget(target.context)
