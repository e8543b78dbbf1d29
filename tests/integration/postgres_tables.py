"""Tables of a Postgres that a test has started, and what is published to one by hand."""

from __future__ import annotations

import secrets
import uuid
from time import time_ns
from typing import Any, Final

import polars as pl
from psycopg.sql import SQL, Identifier
from tests.postgres_server import PostgresServer
from tests.unit.task.publishing_parts import Exchange, Run

from penstock.adapters.system_clock import SystemClock
from penstock.connectors import postgres
from penstock.connectors.base import PublishContext, PublishedMark
from penstock.connectors.postgres.publishing import PostgresPublisher
from penstock.connectors.postgres.writing import TableWriting
from penstock.protocol.manifests import Interval
from penstock.settings import Secret

FIRST: Final = "a" * 32
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


async def published(target: Target, exchange: Exchange, *, frames: int = 4) -> tuple[Run, Interval]:
    """A first attempt that has published its first checkpoint."""
    run = Run(target.publisher(), exchange, 1, clock=SystemClock())
    await run.until(lambda: run.marks)
    for n in range(frames):
        exchange.rows(FIRST, range(10 * n, 10 * n + 10))
    covered = Interval(FIRST, 0, exchange.barrier(FIRST), 1)
    run.loop.covered([covered])
    await run.until(lambda: run.published == 1)
    return run, covered
