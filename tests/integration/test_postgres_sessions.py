"""Sessions of a real Postgres: encodings, options in the address, and transactions that the server ends."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest
from postgres_tables import Table, Target
from tests.integration.sink_rows import joined, write
from tests.postgres_server import PostgresServer
from tests.services import wait_for

from penstock import PipelineError
from penstock.connectors import postgres
from penstock.connectors.base import PublishedMark
from penstock.connectors.postgres import publishing
from penstock.errors import ExternalError
from penstock.settings import Secret
from penstock.types import schema_of

pytestmark = pytest.mark.timeout(120)


@dataclass
class Named:
    id: int
    label: str | None


@dataclass
class Numbered:
    id: int


@dataclass
class Labelled:
    label: str


def test_more_columns_than_a_function_takes_arguments(server: PostgresServer) -> None:
    """All of them come."""
    import pyarrow as pa

    names = [f"c {n}" for n in range(120)]
    table = Table(server, "id bigint, " + ", ".join(f'"{name}" int' for name in names))
    table.do("insert into {} values (" + ", ".join(map(str, range(121))) + ")")
    schema: Any = pa.schema([("id", pa.int64()), *((name, pa.int64()) for name in names)])
    assert joined(table.lookup(schema), Numbered(0), on="id") == [(0, *range(1, 121))]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("key", [None, "label"])
def test_a_database_of_another_encoding(
    server: PostgresServer, delivery: Any, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts come there and back as they are, whatever the encodings of the database and of the environment."""
    name = f"latin_{secrets.token_hex(4)}"
    server.execute(f"create database {name} encoding 'LATIN1' template template0")
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    url = Secret(server.url_of(name))
    sink = postgres.Sink("t", url=url, key=key, create=True, delivery=delivery)
    write(sink, [Named(1, "é"), Named(2, "ß")], Named)
    assert server.execute("select length(label), ascii(label) from t order by id", database=name) == [
        (1, 233),
        (1, 223),
    ]

    lookup = postgres.Lookup("t", schema=Named, url=url)
    assert joined(lookup, Labelled("é"), Labelled("ß"), Labelled("x"), on="label") == [("é", 1), ("ß", 2)]


def test_options_in_the_address(server: PostgresServer) -> None:
    """They are those of the sessions, such as the schema in which tables are looked for."""
    server.execute("create schema if not exists other")
    table = Table(server, "id bigint, label text")
    server.execute(f"create table other.{table.name} (like public.{table.name})")
    url = f"{server.url}?options=-csearch_path%3Dother%20-cdatestyle%3DGerman"
    write(postgres.Sink(table.name, url=Secret(url)), [Named(1, "a")], Named)
    assert server.execute(f"select * from other.{table.name}") == [(1, "a")]
    assert table.do("select * from {}") == []


def test_what_takes_no_copy_is_refused_before_rows_flow(server: PostgresServer) -> None:
    """A view without a trigger, and a table whose rows a policy checks, for a user whom it is for."""
    table, schema = Table(server, "id bigint, label text"), schema_of(Named)
    server.execute(f"create view {table.name}_view as select * from {table.name}")
    view = postgres.Sink(f"{table.name}_view", url=Secret(server.url))
    with pytest.raises(PipelineError, match=r"_view at .*: cannot copy to view"):
        view.reach(schema)
    role = f"r_{secrets.token_hex(4)}"
    server.execute(f"create role {role} login password 'x'; grant all on {table.name} to {role}")
    table.do("alter table {} enable row level security")
    url = Secret(server.url.replace("penstock:topsecret", f"{role}:x"))
    with pytest.raises(PipelineError, match="COPY FROM not supported with row-level security"):
        postgres.Sink(table.name, url=url).reach(schema)
    table.sink().reach(schema)


async def test_a_transaction_that_stood_still_is_tried_again(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends what a process left open that was stopped for a while; it goes on when that runs again."""
    monkeypatch.setattr(publishing, "OPTIONS", " -c idle_in_transaction_session_timeout=50")
    target = Target(server)
    publisher = target.publisher()
    await publisher.open()
    await publisher.init_producer()
    writing = publisher._writing

    class Stopped:
        place = writing.place

        async def write(self, connection: Any, frames: Any) -> None:
            ended = "select count(*) from pg_stat_activity where pid = %s"
            wait_for(lambda: server.execute(ended, connection.info.backend_pid) == [(0,)], lambda: "it is ended", 20)
            await writing.write(connection, frames)

    publisher._writing = Stopped()
    with pytest.raises(ExternalError, match="25P03"):
        await publisher.commit([pl.DataFrame({"value": [b"3"]})], PublishedMark(5, "{}"))
    await publisher.close()
    assert target.numbers() == []
