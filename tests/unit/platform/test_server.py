"""A server can be started, stopped, killed, paused and started again as it was; failures show its log."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from small_server import SmallServer

from penstock.platform.errors import PlatformError, ServerStartError
from penstock.platform.free_ports import HOST, free_port
from penstock.platform.processes import ProcessId, is_alive, marked


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncGenerator[SmallServer]:
    """One that does not run yet; ended with the test."""
    made = SmallServer(tmp_path, free_port())
    yield made
    await made.kill()


def answers(server: SmallServer, timeout_s: float) -> bool:
    """Whether it answers within that time."""
    with socket.create_connection((HOST, server.port), timeout=timeout_s) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        try:
            return connection.recv(100).startswith(b"HTTP/1.1 200")
        except TimeoutError:
            return False


async def test_a_started_server_serves(server: SmallServer) -> None:
    """When `start` returns it answers; when `stop` returns it is gone."""
    await server.start()
    assert server.is_running
    assert await asyncio.to_thread(answers, server, 10)
    await server.stop()
    assert not server.is_running
    await server.stop()  # as often as one likes


@pytest.mark.parametrize("by_force", [False, True])
async def test_a_restart_keeps_port_and_data(server: SmallServer, *, by_force: bool) -> None:
    """Another process on the same port and folder, in order or by SIGKILL; one log for all lives."""
    await server.start()
    first, port = server.pid, server.port
    await server.restart(by_force=by_force)
    assert server.pid != first
    assert server.port == port
    assert (server.data / "starts").read_text() == "xx"
    assert server.log_file.read_text().count("listening") == 2
    assert server.new_log().count("listening") == 1


async def test_a_paused_server_lives_and_does_not_answer(server: SmallServer) -> None:
    """And answers again when it is resumed."""
    await server.start()
    server.pause()
    assert server.is_running
    assert not await asyncio.to_thread(answers, server, 0.2)
    server.resume()
    assert await asyncio.to_thread(answers, server, 10)


async def test_a_server_that_ends_shows_its_last_words(server: SmallServer) -> None:
    """So that nobody has to look for the log."""
    server.behaviour = "ends"
    with pytest.raises(ServerStartError, match=r"small ended while it started[^§]*no disk left"):
        await server.start()


async def test_a_server_that_is_not_ready_in_time_is_ended(server: SmallServer) -> None:
    """Nothing of it stays."""
    server.behaviour = "hangs"
    with pytest.raises(ServerStartError, match="small was not ready within 0 s"):
        await server.start(0.2)
    assert not server.is_running


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while it starts."""
    spawned = asyncio.Event()
    server = SmallServer(tmp_path, free_port(), "hangs", record=lambda *_: spawned.set())
    starting = asyncio.create_task(server.start())
    await spawned.wait()
    process = server.process
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert process is not None
    assert not is_alive(process)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the environments of other processes")
async def test_a_crash_spares_the_children_and_a_kill_does_not(server: SmallServer) -> None:
    """A test can see what workers do without their supervisor; afterwards nothing of them is left."""
    server.behaviour = "has a child"
    await server.start()
    await server.crash()
    (child,) = marked(str(server.folder))
    assert is_alive(child)
    await server.kill()
    assert not is_alive(child)
    with pytest.raises(PlatformError, match="small does not run, so it cannot crash"):
        await server.crash()


async def test_what_does_not_run_is_told(server: SmallServer) -> None:
    """No process id, nothing to pause; and no second start of what runs."""
    with pytest.raises(PlatformError, match="small does not run"):
        _ = server.pid
    with pytest.raises(PlatformError, match="SIGSTOP was not sent"):
        server.pause()
    await server.start()
    with pytest.raises(PlatformError, match="small runs already"):
        await server.start()


async def test_every_process_is_recorded_at_once(tmp_path: Path) -> None:
    """Before it is ready, and again when it is stopped: whoever ends orphans needs no luck."""
    seen: list[tuple[str, ProcessId | None]] = []
    server = SmallServer(tmp_path, free_port(), record=lambda name, process: seen.append((name, process)))
    await server.spawn()
    assert seen == [("small", server.process)]
    await server.kill()
    assert seen[1:] == [("small", None)]
