"""Sinks that are at-least-once, whose answers are lost and whose process is killed while a checkpoint waits for them."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.chaos.links import Link
from tests.http_service import Service, running_service
from tests.integration.one_job import until
from tests.opensearch_server import OpenSearchServer, running_opensearch
from tests.postgres_server import PostgresServer

from penstock.platform.free_ports import free_port

from .conftest import Command, kill

pytestmark = [pytest.mark.e2e, pytest.mark.servers, pytest.mark.timeout(180)]

KEYS = 50
PIPELINE = """
from dataclasses import dataclass
from penstock import Pipeline, param
from penstock.connectors import http, iterables, opensearch, postgres, redis

@dataclass
class Row:
    key: int
    n: int

p = Pipeline("counting")
rows = param("rows", 10**6)
source = iterables.Source(lambda: (Row(n % {keys}, n) for n in range(rows)), schema=Row, rate=param("rate", 0) or None)
p.read(source).write({sink})
"""


class LosingLink(Link):
    """Holds back the next write, or the answer to it, and all behind it, once it is told to."""

    def __init__(self, target: int, write: bytes, answer: bytes) -> None:
        """`write`, `answer`: regular expressions for what passes when something is written, and never else."""
        super().__init__(free_port(), target)
        self._known = {"out": write, "in": answer}
        self._loses = ""

    async def _pieces(self, source: asyncio.StreamReader, direction: str) -> AsyncGenerator[bytes]:
        async for piece in super()._pieces(source, direction):
            if direction == self._loses and re.search(self._known[direction], piece):
                self.disturb("mute" if direction == "out" else "deaf")
            yield piece

    async def lose(self, direction: str) -> None:
        """Until a write is held back, which is not done then, or an answer, whose write is done and nobody knows."""
        self.met, self._loses = 0, direction
        await until(lambda: self.met, "something is lost")
        self._loses = ""

    async def cut(self) -> None:
        """End all connections, with what is held back; new ones are taken."""
        await self.close()
        self.heal()
        await self.start()


@dataclass
class Destination:
    """A server that a sink writes to."""

    port: int
    write: bytes
    answer: bytes
    """See `LosingLink`."""
    sink: str
    """The sink, in Python; `PORT` stands for the port of the server."""
    numbers: Callable[[], list[int]]
    """The `n` of every row that is there."""


def newest_checkpoint(folder: Path) -> int:
    """The number of the newest that is complete."""
    for path in sorted(folder.glob(".penstock/counting/blobs/jobs/*/log/0*"), reverse=True):
        record = json.loads(path.read_bytes())
        if record["type"] == "Complete":
            return record["checkpoint"]
    return 0


async def interrupted(folder: Path, to: Destination) -> tuple[int, set[int]]:
    """A job that is interrupted in three checkpoints: twice the connection is cut, and then its process is killed.

    Returns:
        How many rows it has written in the end, and those that may be there again.
    """
    link, penstock = LosingLink(to.port, to.write, to.answer), Command(folder)
    await link.start()
    file = penstock.pipeline("counting.py", PIPELINE.format(keys=KEYS, sink=to.sink.replace("PORT", str(link.port))))
    process = penstock.start("run", file, "--fresh", "--checkpoint-interval", "60ms", "--param", "rate=100")
    again = set[int]()

    def complete(checkpoint: int) -> bool:
        assert process.poll() is None, process.communicate()
        return newest_checkpoint(folder) >= checkpoint

    try:
        for lost, interrupt in (("out", link.cut), ("in", link.cut), ("in", lambda: asyncio.to_thread(kill, process))):
            covered = set(to.numbers())
            later = newest_checkpoint(folder) + 2  # the next one may have begun before
            await until(lambda later=later: complete(later), "what is there is in a checkpoint")
            await link.lose(lost)
            await interrupt()
            again |= set(to.numbers()) - covered
        link.heal()
        rows = max(to.numbers()) + KEYS
        await asyncio.to_thread(penstock.run, "run", file, "--resume", "--param", f"rows={rows}")
    finally:
        process.kill()
        await link.close()
    return rows, again


async def check_rows(folder: Path, to: Destination) -> None:
    """Every row is there, and again only what no complete checkpoint had."""
    rows, again = await interrupted(folder, to)
    counted = Counter(to.numbers())
    assert set(counted) == set(range(rows))
    assert set(counted.values()) == {1, 2}
    assert {n for n, times in counted.items() if times == 2} <= again


async def check_keys(folder: Path, to: Destination) -> None:
    """The newest row of every key, once."""
    rows, _ = await interrupted(folder, to)
    assert sorted(to.numbers()) == list(range(rows - KEYS, rows))


# -- Postgres -----------------------------------------------------------------------------------------------------------


def table(database: PostgresServer, name: str, columns: str, options: str) -> Destination:
    database.execute(f"create table {name} ({columns})")
    url = database.url.replace(f":{database.port}/", ":PORT/")
    return Destination(
        database.port, b"^d", b"^C\0\0\0\x0bCOMMIT",
        f'postgres.Sink("{name}", url="{url}", delivery="at-least-once"{options})',
        lambda: [n for (n,) in database.execute(f"select n from {name}")],
    )  # fmt: skip


async def test_rows_of_postgres(tmp_path: Path, postgres: PostgresServer) -> None:
    """Rows that are added."""
    await check_rows(tmp_path, table(postgres, "added", "key bigint, n bigint", ""))


async def test_keys_of_postgres(tmp_path: Path, postgres: PostgresServer) -> None:
    """Rows that replace others."""
    await check_keys(tmp_path, table(postgres, "keyed", "key bigint primary key, n bigint", ', key="key"'))


# -- Redis --------------------------------------------------------------------------------------------------------------


def of_redis(platform: Any, sink: str, numbers: Callable[[Any], list[int]]) -> Destination:
    url = platform.settings().redis.url.reveal()
    client = redis.Redis.from_url(url)
    port = client.connection_pool.connection_kwargs["port"]
    at = url.replace(f":{port}/", ":PORT/")
    return Destination(
        port, b"EVALSHA", rb"^\*0\r\n", f'redis.{sink}, url="{at}", delivery="at-least-once")', lambda: numbers(client)
    )


async def test_rows_of_redis(tmp_path: Path, platform: Any) -> None:
    """Entries of a stream."""
    name = secrets.token_hex(4)

    def numbers(client: Any) -> list[int]:
        return [int(fields[b"n"]) for _, fields in client.xrange(name)]

    await check_rows(tmp_path, of_redis(platform, f'StreamSink("{name}"', numbers))


async def test_keys_of_redis(tmp_path: Path, platform: Any) -> None:
    """Hashes."""
    name = secrets.token_hex(4)

    def numbers(client: Any) -> list[int]:
        return [int(client.hget(key, "n")) for key in client.scan_iter(f"{name}:*", count=1_000)]

    await check_keys(tmp_path, of_redis(platform, f'Sink("{name}:{{key}}"', numbers))


# -- OpenSearch ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def search() -> Iterator[OpenSearchServer]:
    with running_opensearch() as found:
        yield found


def index(search: OpenSearchServer, name: str, options: str) -> Destination:
    return Destination(
        search.port, b"_bulk", b"^HTTP/1.1 200",
        f'opensearch.Sink("{name}", url="http://127.0.0.1:PORT", delivery="at-least-once"{options})',
        lambda: [document["n"] for document in search.documents(name).values()],
    )  # fmt: skip


async def test_rows_of_opensearch(tmp_path: Path, search: OpenSearchServer) -> None:
    """Documents that are added."""
    await check_rows(tmp_path, index(search, "added", ""))


async def test_keys_of_opensearch(tmp_path: Path, search: OpenSearchServer) -> None:
    """Documents by id."""
    await check_keys(tmp_path, index(search, "keyed", ', document_id="{key}"'))


# -- HTTP ---------------------------------------------------------------------------------------------------------------


def requests(service: Service, method: str, path: str, numbers: Callable[[], list[int]]) -> Destination:
    sink = f'http.Sink("http://127.0.0.1:PORT{path}", method="{method}")'
    return Destination(service.server_port, f"^{method}".encode(), b"^HTTP/1.1 200", sink, numbers)


async def test_rows_of_http(tmp_path: Path) -> None:
    """Requests; again under the same key, by which a service does everything once."""
    with running_service() as service:
        sent = service.requests
        await check_rows(tmp_path, requests(service, "POST", "/hook", lambda: [each.body["n"] for each in sent]))
        assert len({each.key for each in sent}) == len({each.body["n"] for each in sent})


async def test_keys_of_http(tmp_path: Path) -> None:
    """Resources that are put."""
    with running_service() as service:
        there = service.resources
        await check_keys(tmp_path, requests(service, "PUT", "/{key}", lambda: [row["n"] for row in there.values()]))
