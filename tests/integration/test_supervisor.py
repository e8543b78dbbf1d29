"""A supervisor and its worker processes on a directory: what becomes of workers that die, hang or use too much."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.adapters.directory.log import DirectoryLog
from penstock.adapters.system_clock import SystemClock
from penstock.coordination.control_topics import EVENTS, create_control_topics
from penstock.coordination.timings import HEARTBEAT_MS
from penstock.ports import NewRecord
from penstock.protocol.messages import AnyEvent, Heartbeat, decode_event
from penstock.taskmanager import supervisor as supervisor_module
from penstock.taskmanager.outbox import Outbox
from penstock.taskmanager.supervisor import Supervisor
from penstock.taskmanager.worker_process import WorkerSpec

pytestmark = pytest.mark.timeout(120)


class Watched:
    """A supervisor, and the events that it forwarded."""

    def __init__(self, supervisor: Supervisor, log: DirectoryLog) -> None:
        self.supervisor = supervisor
        self.events: list[AnyEvent] = []
        self._log = log
        self._position = 0

    async def until(self, condition: Callable[[], object], what: str, deadline_s: float = 40) -> None:
        """Read events until something holds."""
        try:
            async with asyncio.timeout(deadline_s):
                while not condition():
                    for record in await self._log.read(EVENTS, 0, self._position, timeout_s=0.2):
                        self._position = record.next_offset
                        self.events.append(decode_event(record.value))
        except TimeoutError:
            pytest.fail(f"not within {deadline_s} s: {what}")

    def beats(self, worker: str = "") -> list[Heartbeat]:
        """Heartbeats (of one worker) of processes that live."""
        return [e for e in self.events if isinstance(e, Heartbeat) and not e.leaving and worker in ("", e.worker)]

    def farewells(self) -> dict[str, str]:
        """Who is gone, and why."""
        return {e.worker: e.leaving for e in self.events if isinstance(e, Heartbeat) and e.leaving}

    async def ready(self, count: int) -> dict[str, int]:
        """Wait for so many living workers; their process ids."""
        await self.until(
            lambda: len({b.worker for b in self.beats()} - self.farewells().keys()) >= count,
            f"{count} workers are there",
        )
        return dict(self.supervisor.workers)


@asynccontextmanager
async def supervised(tmp_path: Path, slots: int = 1, memory_mb: int = 0) -> AsyncIterator[Watched]:
    """A supervisor at work in a directory."""
    log = DirectoryLog(tmp_path / "log", durable=False)
    await create_control_topics(log)

    def spec(name: str, events_fd: int, folder: str) -> WorkerSpec:
        return WorkerSpec(
            name=name, host="here", events_fd=events_fd, folder=folder, directory=str(tmp_path), target="none.py"
        )

    supervisor = Supervisor("tm", slots, spec, log, SystemClock(), memory_mb=memory_mb)
    running = asyncio.create_task(supervisor.run())
    try:
        yield Watched(supervisor, log)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await log.close()


async def test_a_killed_worker_is_reported_and_replaced(tmp_path: Path) -> None:
    """At once, by the signal's name; the process in its place has another name, the other worker is untouched."""
    async with supervised(tmp_path, slots=2) as watched:
        first = await watched.ready(2)
        name, pid = next(iter(first.items()))
        os.kill(pid, signal.SIGKILL)
        await watched.until(lambda: name in watched.farewells(), "its death is reported")
        assert watched.farewells()[name] == "killed by SIGKILL"
        second = await watched.ready(2)
        assert len(second) == 2
        assert len(first.keys() & second.keys()) == 1


async def test_brokers_that_are_away_cost_no_worker_its_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says finds no room, and is not read: its silence is not its own. It is heard once the brokers are back."""
    ticks = 0

    def looked(pid: int) -> int:
        nonlocal ticks
        ticks += 1
        return 0

    monkeypatch.setattr(supervisor_module, "UNRESPONSIVE_MS", 8 * HEARTBEAT_MS)
    monkeypatch.setattr(supervisor_module, "Outbox", lambda: Outbox(limit=1))
    monkeypatch.setattr(supervisor_module, "resident_bytes", looked)
    async with supervised(tmp_path) as watched:
        (name,) = await watched.ready(1)
        back, append = asyncio.Event(), watched.supervisor._log.append

        async def away(topic: str, partition: int, records: Sequence[NewRecord]) -> int:
            await back.wait()
            return await append(topic, partition, records)

        monkeypatch.setattr(watched.supervisor._log, "append", away)
        begun = ticks
        await watched.until(lambda: ticks >= begun + 14, "the supervisor looks at the worker for a while")
        assert len(watched.supervisor._outbox) <= 2
        heard = len(watched.beats(name))
        back.set()
        await watched.until(lambda: len(watched.beats(name)) > heard + 1, "it is heard again")
        assert watched.farewells() == {}


@pytest.mark.acceptance
@pytest.mark.parametrize("busy", ["computing", "waiting"])
async def test_a_worker_that_is_busy_keeps_its_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: str
) -> None:
    """In a call that uses the processor, or in one that waits for something: the supervisor speaks for it."""
    hang = "while True: pass" if busy == "computing" else "import time; time.sleep(600)"
    hanging = tmp_path / "hanging"
    hanging.mkdir()
    (hanging / "sitecustomize.py").write_text(
        "import asyncio, threading\n"
        "from penstock.taskmanager import worker\n"
        "async def heartbeats(self, kept=worker.WorkerService._heartbeats):\n"
        "    task = asyncio.ensure_future(kept(self))\n"
        "    await asyncio.sleep(1)\n"
        f"    {hang}\n"
        "worker.WorkerService._heartbeats = heartbeats\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(hanging))
    async with supervised(tmp_path) as watched:
        ((name, _),) = (await watched.ready(1)).items()
        own = watched.beats(name)
        await watched.until(lambda: len(watched.beats(name)) >= len(own) + 20, "heartbeats for ten seconds")
        assert watched.farewells() == {}


async def test_a_stopped_worker_is_not_spoken_for(tmp_path: Path) -> None:
    """Nobody works there: its heartbeats end, and its own begin again when it goes on. It counts as one failure."""
    async with supervised(tmp_path, slots=2) as watched:
        workers = await watched.ready(2)
        (name, pid), (other, _) = workers.items()
        os.kill(pid, signal.SIGSTOP)
        try:

            def silent() -> bool:
                names = [beat.worker for beat in watched.beats()]
                return name not in names[-8:] and names[-8:].count(other) == 8

            await watched.until(silent, "only the other one is heard of")
            known = len(watched.beats(name))
            assert watched.farewells() == {}
        finally:
            os.kill(pid, signal.SIGCONT)
        await watched.until(lambda: len(watched.beats(name)) > known, "it is heard of again")
        assert dict(watched.supervisor.workers) == workers


async def test_too_much_memory_is_a_clear_end(tmp_path: Path) -> None:
    """The reason names the setting."""
    async with supervised(tmp_path, memory_mb=1) as watched:
        await watched.until(lambda: watched.farewells(), "the worker is killed")
        assert "slot.memory_mb=1" in next(iter(watched.farewells().values()))


async def test_the_end_of_a_supervisor_is_the_end_of_its_workers(tmp_path: Path) -> None:
    """It takes leave for each of them; no process stays."""
    async with supervised(tmp_path, slots=2) as watched:
        pids = list((await watched.ready(2)).values())
    log = DirectoryLog(tmp_path / "log")
    records = [decode_event(record.value) for record in await log.read(EVENTS, 0, 0)]
    await log.close()
    assert sum(isinstance(e, Heartbeat) and "shuts down" in e.leaving for e in records) >= 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_what_workers_logged_is_known_after_their_death(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The supervisor passes it on, and keeps the end of it; a line of any length does no harm."""
    async with supervised(tmp_path) as watched:
        ((name, pid),) = (await watched.ready(1)).items()
        text = b"it is about to fail\n" + b"x" * 200_000 + b"\nlast words"
        await asyncio.to_thread(Path(f"/proc/{pid}/fd/2").write_bytes, text)  # as the worker itself would write
        os.kill(pid, signal.SIGKILL)
        await watched.until(lambda: name in watched.farewells(), "its death is reported")
        logs = {log.worker: log for log in watched.supervisor.logs.list("", 10).workers}
        assert logs[name].ended
        assert "worker started" in logs[name].lines[0]
        assert logs[name].lines[1] == "it is about to fail"
        assert logs[name].lines[-1] == "last words"
        assert max(map(len, logs[name].lines)) <= 65_536
        assert watched.supervisor.logs.list("another job", 10).workers == ()
    assert "it is about to fail" in capfd.readouterr().err
