"""Slow, broken, oversized and many clients of a real dispatcher, which answers everybody else all the while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from penstock.client import ClusterClient, NoAnswerError, RefusedError
from penstock.platform.free_ports import HOST, free_port
from penstock.platform.services import ServiceProcess
from penstock.settings import ClusterSettings, KafkaSettings, RedisSettings, Secret, StoreSettings, settings_to_toml

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

JOB: Final = "ab" * 16
STOP: Final = f"/penstock/v1/jobs/{JOB}/stop"
QUICK_S: Final = 1.0
"""What a check of health may take, whatever the others do."""
CUT_S: Final = 20.0
"""When the latest of those who keep a connection for nothing has lost it."""


@asynccontextmanager
async def dispatcher(folder: Path, token: str = "") -> AsyncGenerator[ServiceProcess]:
    """A dispatcher whose Kafka, Redis and store are not there: what is tried here needs none of them."""
    nobody = f"{HOST}:{free_port()}"
    settings = ClusterSettings(
        kafka=KafkaSettings(nobody), redis=RedisSettings(Secret(f"redis://{nobody}/0")),
        store=StoreSettings(f"http://{nobody}"), token=Secret(token),
    )  # fmt: skip
    file = folder / "cluster.toml"
    file.write_text(settings_to_toml(settings))
    service = ServiceProcess("dispatcher", "dispatcher", folder / "dispatcher", free_port(), cluster=file)
    await service.spawn()
    try:
        await _until(lambda: _answers(service), "the dispatcher is alive")
        yield service
    finally:
        await service.stop()


async def _answers(service: ServiceProcess) -> bool:
    try:
        return await _status(service, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") == 200
    except (OSError, asyncio.IncompleteReadError):
        return False


async def _until(condition: Callable[[], Awaitable[bool]], what: str, deadline_s: float = 30) -> None:
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                if await condition():
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"not within {deadline_s} s: {what}")


async def _status(service: ServiceProcess, request: bytes) -> int:
    """The status that a request is answered with."""
    reader, writer = await asyncio.open_connection(HOST, service.port)
    try:
        async with asyncio.timeout(10):
            writer.write(request)
            return int((await reader.readline()).split()[1])
    finally:
        writer.close()


async def _slowest_check(service: ServiceProcess, until: asyncio.Task[object]) -> float:
    """The longest that a check of health took while something else went on; every one must succeed."""
    slowest = 0.0
    while True:
        began = time.monotonic()
        assert await _answers(service)
        slowest = max(slowest, time.monotonic() - began)
        if until.done():
            await until
            return slowest
        await asyncio.sleep(0.02)


def _head(length: int, path: str = STOP, kind: str = "application/json") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n".encode()
    )


async def _hang_up(service: ServiceProcess, head: bytes) -> None:
    reader, writer = await asyncio.open_connection(HOST, service.port)
    writer.write(head + b'{"drain"')
    await writer.drain()
    await asyncio.sleep(0.05)  # so that the dispatcher is in the middle of the body
    writer.transport.abort()
    del reader


async def test_clients_that_hang_up_in_a_body_are_no_errors(tmp_path: Path) -> None:
    """Two hundred of them leave no traceback, hardly any log beside the audit, and nobody else waits for them."""
    form = _head(10_000, "/penstock/v1/jobs", "multipart/form-data; boundary=x\r\nX-Requested-With: x")
    async with dispatcher(tmp_path) as service:
        before = service.log_file.stat().st_size

        async def attack() -> None:
            await asyncio.gather(*(_hang_up(service, form if n % 2 else _head(10_000)) for n in range(200)))

        assert await _slowest_check(service, asyncio.create_task(attack())) < QUICK_S
        text = service.log_file.read_text()
        audited = [line for line in text.splitlines(keepends=True) if "[penstock.audit]" in line]
        assert "Traceback" not in text
        assert len(audited) <= 200
        assert len(text) - len("".join(audited)) - before < 20_000


async def _drip(service: ServiceProcess, start: bytes, drop: bytes) -> float:
    """Send a request a drop at a time, for ever; seconds until the other side had enough of it."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection(HOST, service.port)
    ended = asyncio.create_task(reader.read())
    try:
        writer.write(start)
        while not ended.done() and time.monotonic() - began < 2 * CUT_S:
            writer.write(drop)
            await asyncio.wait([ended], timeout=0.5)
    finally:
        ended.cancel()
        writer.transport.abort()
    return time.monotonic() - began


async def test_slow_clients_are_cut_off(tmp_path: Path) -> None:
    """A head that never ends, a body that never comes, and a connection that says nothing lose it in time."""
    async with dispatcher(tmp_path) as service:
        slow = [(b"GET /overview HTTP/1.1\r\nHost: localhost\r\n", b"a: b\r\n"), (_head(10_000), b""), (b"", b"")]

        async def attack() -> None:
            times = await asyncio.gather(*(_drip(service, start, drop) for start, drop in slow for _ in range(20)))
            assert max(times) < CUT_S

        assert await _slowest_check(service, asyncio.create_task(attack())) < QUICK_S


async def test_more_connections_than_are_kept(tmp_path: Path) -> None:
    """Those that say nothing for the longest give way; whoever asks is answered."""
    async with dispatcher(tmp_path) as service:
        idle = [await asyncio.open_connection(HOST, service.port) for _ in range(700)]
        try:

            async def nothing() -> None:
                await asyncio.sleep(1)

            assert await _slowest_check(service, asyncio.create_task(nothing())) < QUICK_S
            cut = [asyncio.create_task(reader.read(1)) for reader, _ in idle[:50]]
            done, waiting = await asyncio.wait(cut, timeout=3)
            for task in waiting:
                task.cancel()
            assert len(done) == 50
        finally:
            for _, writer in idle:
                writer.transport.abort()


async def test_a_page_of_another_site_submits_nothing(tmp_path: Path) -> None:
    """The form that a page could send to loopback is refused before its body is looked at; so is its own name for us."""
    form = "multipart/form-data; boundary=x"
    async with dispatcher(tmp_path) as service:
        head = _head(0, "/penstock/v1/jobs", form)
        assert await _status(service, head.replace(b"\r\n\r\n", b"\r\nOrigin: http://evil.example\r\n\r\n")) == 403
        assert await _status(service, head) == 403
        assert await _status(service, head.replace(b"\r\n\r\n", b"\r\nX-Requested-With: x\r\n\r\n")) == 400
        assert await _status(service, b"GET /jobs HTTP/1.1\r\nHost: evil.example\r\n\r\n") == 403


async def test_a_dispatcher_with_a_token(tmp_path: Path) -> None:
    """Our client gets in with it, and is told what it lacks without; health is open, and the token in no log."""
    async with dispatcher(tmp_path, "a-token") as service:
        address = f"http://{service.address}"
        for token in ("", "another"):
            async with ClusterClient(address, token=Secret(token)) as cluster:
                with pytest.raises(RefusedError, match="wants a token"):
                    await cluster.overview()
        async with ClusterClient(address, token=Secret("a-token")) as cluster:
            with pytest.raises(NoAnswerError):  # it is let in: now what it asks for is not there
                await cluster.overview()
        assert await _answers(service)
        assert "a-token" not in service.log_file.read_text()


async def test_what_is_no_request(tmp_path: Path) -> None:
    """Too large a head, too large a body, and noise are refused, without a traceback."""
    async with dispatcher(tmp_path) as service:
        large = b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 100_000 + b"\r\n\r\n"
        assert await _status(service, large) in (400, 431)
        assert await _status(service, _head(1 << 40)) == 413
        assert await _status(service, b"\x16\x03\x01\x02\x00\r\n\r\n") == 400
        assert await _answers(service)
        assert "Traceback" not in service.log_file.read_text()
