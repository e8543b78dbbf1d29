"""A gateway that is asked without a network, and a clock that tests move."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from penstock.connectors import iterables
from penstock.gateway.app import gateway_app
from penstock.gateway.sessions import GatewaySession, Sessions
from penstock.service.access import Access, Gate

ADDRESS = "http://localhost"
DEADLINE_S = 20.0


class Clock:
    """Time that stands still."""

    def __init__(self) -> None:
        self.ms = 0

    def now_us(self) -> int:
        return 1_767_225_600_000_000 + self.ms * 1_000  # 2026

    def monotonic_ms(self) -> int:
        return self.ms

    def monotonic_us(self) -> int:
        return self.ms * 1_000

    async def sleep_ms(self, duration_ms: float) -> None:
        raise AssertionError("nobody sleeps here")


@dataclass
class Bid:
    auction: int
    price: int


@dataclass
class Endless:
    """Bids without an end, and how many of them were read."""

    failing_at: int | None = None
    read: int = 0

    def rows(self) -> Iterator[Bid]:
        for number in itertools.count():
            if number == self.failing_at:
                raise ValueError("the reader is broken")
            self.read += 1
            yield Bid(number % 3, number)


@dataclass
class SmallGateway:
    """One session of a gateway."""

    sessions: Sessions
    http: httpx2.AsyncClient
    session: str = ""
    clock: Clock = field(default_factory=Clock)

    @property
    def found(self) -> GatewaySession:
        return self.sessions.session(self.session)

    async def get(self, path: str, status: int = 200) -> Any:
        return self._json(await self.http.get(path), status)

    async def post(self, path: str, document: Any = None, status: int = 200) -> Any:
        return self._json(await self.http.post(path, json=document), status)

    async def delete(self, path: str, status: int = 200) -> Any:
        return self._json(await self.http.delete(path), status)

    @staticmethod
    def _json(answer: httpx2.Response, status: int) -> Any:
        assert answer.status_code == status, answer.text
        return answer.json()

    async def begin(self, statement: str, **others: Any) -> str:
        """The path of the operation that a statement becomes."""
        asked = {"statement": statement, **others}
        operation = (await self.post(f"/v3/sessions/{self.session}/statements", asked))["operationHandle"]
        return f"/v3/sessions/{self.session}/operations/{operation}"

    async def page(self, operation: str, token: int = 0, row_format: str = "JSON") -> Any:
        """A page, when it is ready."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                answer = await self.http.get(f"{operation}/result/{token}?rowFormat={row_format}")
                if answer.json().get("resultType") != "NOT_READY":
                    return answer.json()
                await asyncio.sleep(0.01)

    async def rows(self, operation: str, row_format: str = "JSON", most: int | None = None) -> list[Any]:
        """The rows of an operation, with their kinds, until its end or until there are so many."""
        found: list[Any] = []
        page = await self.page(operation, 0, row_format)
        async with asyncio.timeout(DEADLINE_S):
            while True:
                assert "errors" not in page, page
                found += [[row["kind"], *row["fields"]] for row in page["results"]["data"]]
                if "nextResultUri" not in page or (most is not None and len(found) >= most):
                    return found
                page = await self.get(page["nextResultUri"])

    async def run(self, statement: str, row_format: str = "JSON", **others: Any) -> list[Any]:
        """The rows of a statement without their kinds, which are all INSERT."""
        rows = await self.rows(await self.begin(statement, **others), row_format)
        assert {row[0] for row in rows} <= {"INSERT"}
        return [row[1:] for row in rows]

    async def refused(self, statement: str, **others: Any) -> str:
        """Why a statement is refused."""
        operation = await self.begin(statement, **others)
        page = await self.page(operation)
        assert await self.get(f"{operation}/status") == {"status": "ERROR"}
        first, second = page["errors"]
        assert first == "Internal server error."
        assert second.startswith("<Exception on server side:\n")
        assert second.endswith("\nEnd of exception on server side>")
        return second.splitlines()[1]

    async def endless(self, name: str = "bids", endless: Endless | None = None) -> Endless:
        """Declare a table without an end."""
        made = endless or Endless()
        await self.run(
            f"CREATE TABLE {name} (auction BIGINT NOT NULL, price BIGINT NOT NULL) "
            "WITH ('connector' = 'filesystem', 'path' = 'none.jsonl', 'format' = 'json')"
        )
        source = iterables.Source(made.rows, schema=Bid, bounded=False)
        self.found.statements.session.catalogue.tables[name].source = source
        return made


@asynccontextmanager
async def small_gateway(**others: Any) -> AsyncGenerator[SmallGateway]:
    """One with a session."""
    clock = Clock()
    sessions = Sessions(clock, lambda: str(uuid.uuid4()), **others)
    transport = httpx2.ASGITransport(Gate(gateway_app(sessions), Access()), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=ADDRESS) as http:
        gateway = SmallGateway(sessions, http, clock=clock)
        gateway.session = (await gateway.post("/v3/sessions", {"sessionName": "tests"}))["sessionHandle"]
        try:
            yield gateway
        finally:
            await sessions.end()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 (threads change it)
            await asyncio.sleep(0.01)
