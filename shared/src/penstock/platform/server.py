"""A server process of this machine that can be started, stopped, killed, paused, and started again as it was."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from penstock.platform.errors import PlatformError, ServerStartError
from penstock.platform.free_ports import HOST, is_free
from penstock.platform.processes import (
    ProcessId,
    await_stopped,
    is_alive,
    kill,
    marked,
    send,
    spawn,
    tail,
    terminate,
)

_PAUSE_S: Final = 0.03
_PORT_S: Final = 5.0
"""The last thread of a killed process may hold its port for a moment after the process counts as ended."""

Recorder = Callable[[str, ProcessId | None], None]
"""Told the name and process of every server the moment it is spawned, and None when it was stopped."""


def no_recorder(name: str, process: ProcessId | None) -> None:
    """For servers that nobody else needs to find."""


class Server(ABC):
    """One server. Its port and its data stay what they are over stops, kills and restarts.

    Args:
        name: in messages, the log file's name and the recorder's calls.
        folder: its own; `data`, configuration and the log lie in it.
        port: where it listens on 127.0.0.1.
        record: told of every process, so that somebody can end it when this object is gone.
        mark: in the process's environment; see `processes.MARK_VARIABLE`.
    """

    start_deadline_s: float = 60.0
    stop_grace_s: float = 20.0

    def __init__(self, name: str, folder: Path, port: int, *, record: Recorder = no_recorder, mark: str = "") -> None:
        self.name = name
        self.folder = folder.absolute()
        self.port = port
        self.process: ProcessId | None = None
        self._record = record
        self._mark = mark or str(self.folder)
        self._log_start = 0

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{HOST}:{self.port}"

    @property
    def log_file(self) -> Path:
        """Its output, of all its lives."""
        return self.folder / f"{self.name}.log"

    @property
    def data(self) -> Path:
        """What it must find again after a restart."""
        return self.folder / "data"

    @property
    def is_running(self) -> bool:
        """Whether its process lives; a paused one does."""
        return self.process is not None and is_alive(self.process)

    @property
    def pid(self) -> int:
        """The number of its process.

        Raises:
            PlatformError: it does not run.
        """
        if self.process is None or not is_alive(self.process):
            raise PlatformError(f"{self.name} does not run, so it has no process id")
        return self.process.pid

    async def start(self, deadline_s: float | None = None) -> None:
        """Start it and wait until it serves.

        Raises:
            ServerStartError: it ended, or did not serve within the deadline; nothing of it is left running.
        """
        await self.spawn()
        try:
            await self.wait_until_ready(self.start_deadline_s if deadline_s is None else deadline_s)
        except BaseException:
            await self.kill()
            raise

    async def spawn(self) -> None:
        """Start its process and return at once, for servers that need each other to become ready.

        Raises:
            PlatformError: it runs already, or its program cannot be started.
        """
        if self.is_running:
            raise PlatformError(f"{self.name} runs already (process {self.pid})")
        self.data.mkdir(parents=True, exist_ok=True)
        await self.prepare()
        self._log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
        self.process = spawn(
            self.command(),
            folder=self.folder,
            log=self.log_file,
            mark=f"{self._mark}/{self.name}",
            environment=self.environment(),
        )
        self._record(self.name, self.process)

    async def wait_until_ready(self, deadline_s: float) -> None:
        """Wait until it serves.

        Raises:
            ServerStartError: it ended, or did not serve within `deadline_s`.
        """
        end = time.monotonic() + deadline_s
        while not await self.is_ready():
            if not self.is_running:
                raise ServerStartError(self._start_failure("ended while it started"))
            if time.monotonic() > end:
                raise ServerStartError(self._start_failure(f"was not ready within {deadline_s:.0f} s"))
            await asyncio.sleep(_PAUSE_S)

    async def stop(self, grace_s: float | None = None) -> None:
        """End it in order (SIGTERM), by force after `grace_s`; a stopped server is left alone."""
        if self.process is not None:
            await terminate(self.process, self.stop_grace_s if grace_s is None else grace_s)
            await self._forget()

    async def kill(self) -> None:
        """End it by SIGKILL, with whatever it started itself; returns when it is gone."""
        if self.process is not None:
            await kill(self.process)
            await self._forget()

    async def crash(self) -> None:
        """End its process by SIGKILL and nothing else: what it started itself finds out on its own, as in real life.

        Raises:
            PlatformError: it does not run.
        """
        if self.process is None or not self.is_running:
            raise PlatformError(f"{self.name} does not run, so it cannot crash")
        await kill(self.process)

    async def restart(self, *, by_force: bool = False, deadline_s: float | None = None) -> None:
        """End it (in order, or by SIGKILL) and start it on the same port and data."""
        await self.end(by_force=by_force)
        await self.start(deadline_s)

    async def end(self, *, by_force: bool) -> None:
        """Stop or kill it, for a start on the same port: the system frees that a moment after the process is gone."""
        await (self.kill() if by_force else self.stop())
        end = time.monotonic() + _PORT_S
        while not is_free(self.port) and time.monotonic() < end:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(_PAUSE_S)

    def pause(self) -> None:
        """SIGSTOP: it stays, keeps its connections, and does nothing.

        Raises:
            PlatformError: it does not run.
        """
        self._signal(signal.SIGSTOP)
        assert self.process is not None
        await_stopped(self.process)

    def resume(self) -> None:
        """SIGCONT: it goes on where it was paused.

        Raises:
            PlatformError: it does not run.
        """
        self._signal(signal.SIGCONT)

    def new_log(self) -> str:
        """What it has written since it was started the last time."""
        try:
            with self.log_file.open("rb") as file:
                file.seek(self._log_start)
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    @abstractmethod
    async def prepare(self) -> None:
        """Write what the process reads; called before every start."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command line of the process."""

    def environment(self) -> Mapping[str, str]:
        """The environment of the process."""
        return os.environ

    @abstractmethod
    async def is_ready(self) -> bool:
        """Whether it serves now; called again and again while it starts."""

    def _signal(self, number: signal.Signals) -> None:
        if self.process is None or not send(self.process, number):
            raise PlatformError(f"{self.name} does not run: {number.name} was not sent")

    async def _forget(self) -> None:
        for left in marked(f"{self._mark}/{self.name}"):
            await kill(left)
        self.process = None
        self._record(self.name, None)

    def _start_failure(self, what: str) -> str:
        return f"{self.name} {what}. The end of {self.log_file}:\n{tail(self.log_file)}"


def accepts(port: int) -> bool:
    """Whether something listens on this port of the loopback interface."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((HOST, port)) == 0
