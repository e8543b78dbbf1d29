"""Tables of a Postgres that a test has started, and what is published to one by hand."""

from __future__ import annotations

import secrets
import uuid
from time import time_ns
from typing import Any, Final

import polars as pl
from psycopg.sql import SQL, Identifier
from tests.postgres_server import PostgresServer

from penstock.connectors import postgres
from penstock.connectors.base import PublishContext, PublishedMark
from penstock.connectors.postgres.publishing import PostgresPublisher
from penstock.connectors.postgres.writing import TableWriting
from penstock.settings import Secret

QUICK: Final[dict[str, Any]] = {"retries": 2, "retry_delay": "1ms"}


class Table:
    """A table of one test."""

    def __init__(self, server: PostgresServer, columns: str, name: str = "") -> None:
        self.server = server
        self.name = name or f"t_{secrets.token_hex(4)}"
        self.identifier = Identifier(*self.name.split("."))
        self.do("create table {} (" + columns + ")")

    def do(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.server.execute(SQL(statement).format(self.identifier), *values)

    def lookup(self, schema: type, **options: Any) -> postgres.Lookup[Any]:
        return postgres.Lookup(self.name, schema=schema, url=Secret(self.server.url), **{**QUICK, **options})

    def sink(self, **options: Any) -> postgres.Sink:
        return postgres.Sink(self.name, url=Secret(self.server.url), **options)


class Target:
    """A table of numbers and a sink to it, published by hand."""

    def __init__(self, server: PostgresServer) -> None:
        self.table = Table(server, "n bigint")
        self.job = uuid.uuid4().hex
        self.context = PublishContext(self.job, "out", 0, 0, 1, lambda: time_ns() // 1_000)

    def publisher(self) -> Any:
        return _OfNumbers(TableWriting(self.table.sink().target, (), create=False), self.context)

    def numbers(self) -> list[int]:
        return sorted(n for (n,) in self.table.do("select n from {}"))


class _OfNumbers(PostgresPublisher):
    """Frames of the exchange of these tests have a column `value`."""

    async def commit(self, frames: Any, mark: PublishedMark) -> None:
        await super().commit([frame.select(pl.col("value").cast(pl.String).alias("c:n")) for frame in frames], mark)
