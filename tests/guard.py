"""Servers that never outlive the process they are for, even when that is killed.

A test run is a controller and its workers; each of them may start servers and be killed at any moment. So every
server is recorded in the run's folder, and a small process of its own, the reaper, waits for the controller's end and
then ends what is recorded there.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.adapters.directory.file_lock import file_lock
from penstock.platform.errors import PlatformError, ServerStartError
from penstock.platform.parts import Parts
from penstock.platform.process_table import ProcessTable
from penstock.platform.processes import ProcessId, is_alive, kill, marked, send, spawn, wait_until_gone
from penstock.platform.servers import Servers, ServersPlan, plan_servers
from penstock.settings import ClusterSettings, load_settings, settings_to_toml

_TABLE: Final = ".processes.json"
_REAPER: Final = "reaper"
_SHARED: Final = "shared"


class Guard:
    """The folder of a run, and what may be started in it.

    Args:
        folder: of this run alone, the same for all its processes; need not exist.
        owner: with its end everything ends.
    """

    def __init__(self, folder: Path, owner: ProcessId) -> None:
        self.folder = folder.absolute()
        self.owner = owner

    async def shared(self, parts: Parts, plan: ServersPlan | None = None) -> ClusterSettings:
        """How to reach the servers that the whole run shares; the first who asks starts them, the others wait.

        Raises:
            ServerStartError: they did not start, now or when another process of the run tried.
        """
        where = self.folder / _SHARED
        async with self._locked():
            settings, failure = where / "cluster.toml", where / "failure.txt"
            if failure.exists():
                raise ServerStartError(failure.read_text())
            if not settings.exists():
                servers = self._servers(parts, where, plan or plan_servers(heap_mb=256))
                try:
                    await servers.start()
                except PlatformError as error:
                    failure.write_text(str(error))
                    raise
                settings.touch(mode=0o600)
                settings.write_text(settings_to_toml(servers.settings()))
            return load_settings(settings, {})

    async def own(self, parts: Parts, name: str, plan: ServersPlan | None = None, *, kafka: bool = True) -> Servers:
        """Servers that only the caller uses, started; it ends them, or they end with the run.

        Args:
            parts: what they are started from.
            name: of their folder.
            plan: ports, names and passwords.
            kafka: start the brokers, too; without them, only MinIO and Redis run.

        Raises:
            ServerStartError: they did not start.
        """
        async with self._locked():
            servers = self._servers(parts, self.folder / name, plan or plan_servers(heap_mb=256))
        if kafka:
            await servers.start()
        else:
            await asyncio.gather(servers.minio.start(), servers.redis.start())
        return servers

    async def end(self) -> None:
        """End everything that was started in the folder and remove all data; the logs stay. Nothing starts any more."""
        if not self.folder.exists():
            return
        async with self._locked(closing=True):
            tables = [ProcessTable.load(path) for path in sorted(self.folder.glob(f"*{_TABLE}"))]
            # The reaper last: until then it is there to finish this.
            tables.sort(key=lambda table: _REAPER in table.processes)
            for table in tables:
                await table.end([name for name, process in table.processes.items() if process.pid != os.getpid()], 0)
            for process in marked(str(self.folder)):  # its starter died before it could write it down
                if process.pid != os.getpid():
                    await kill(process)
            await asyncio.to_thread(_remove_data, self.folder)

    def _servers(self, parts: Parts, folder: Path, plan: ServersPlan) -> Servers:
        self._ensure_reaper()
        table = ProcessTable(self.folder / f"{folder.name}{_TABLE}", str(folder))

        def record(name: str, process: ProcessId | None) -> None:
            table.record(name, process)
            # Either we see here that the run was closed, or who closes it sees the record.
            if process is not None and self._closed.exists():
                send(process, signal.SIGKILL)
                raise PlatformError(f"{self.folder}: this run is over; {name} was ended again")

        return Servers(replace(parts, java=self._java(parts.java)), folder, plan, record=record)

    def _java(self, java: Path) -> Path:
        """A program that starts Java for as long as a test takes; it becomes it, so whoever started it may kill it."""
        from tests.class_archives import KAFKA, quick_java  # not where the reaper starts: it finds no tests

        program = self.folder / "java"
        if not program.exists():
            made = program.with_suffix(f".{os.getpid()}")
            made.write_text(f'#!/bin/sh\nexec "{java}" {quick_java(KAFKA)} "$@"\n')
            made.chmod(0o755)
            made.replace(program)
        return program

    def _ensure_reaper(self) -> None:
        table = ProcessTable(self.folder / f"{_REAPER}{_TABLE}", str(self.folder))
        if table.running():
            return
        command = [sys.executable, "-P", __file__, str(self.folder)]
        command += [str(self.owner.pid), self.owner.started]
        log = self.folder / "reaper.log"
        table.record(_REAPER, spawn(command, folder=self.folder, log=log, mark=str(self.folder)))

    @property
    def _closed(self) -> Path:
        return self.folder / "closed"

    @asynccontextmanager
    async def _locked(self, *, closing: bool = False) -> AsyncGenerator[None]:
        """Hold the folder's lock; nothing more can be started once it was closed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("a") as lock:
            if closing:
                self._closed.touch()  # before the lock: who starts something now notices
            async with file_lock(lock.fileno()):
                if not closing and (self._closed.exists() or not is_alive(self.owner)):
                    raise PlatformError(f"{self.folder}: this run is over, nothing is started any more")
                yield


async def reap(folder: Path, owner: ProcessId) -> None:
    """Wait until the owner is gone, then end everything in the folder but this process."""
    await wait_until_gone(owner, math.inf)
    await Guard(folder, owner).end()


def _remove_data(folder: Path) -> None:
    for path in (*folder.glob("*/*/data"), *folder.glob("*/cluster.toml")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    asyncio.run(reap(Path(sys.argv[1]), ProcessId(int(sys.argv[2]), sys.argv[3])))
