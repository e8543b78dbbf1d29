"""Which processes a platform has, in a file, so that another process can end them."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import msgspec

from penstock.platform.errors import PlatformError
from penstock.platform.processes import ProcessId, is_alive, kill, marked, terminate


class _Content(msgspec.Struct):
    mark: str
    processes: dict[str, ProcessId]


class ProcessTable:
    """Names and processes; every change is in the file before it returns. One process writes at a time.

    For people, the number of each process stands in a file of its own beside it: `NAME.pid`.

    Args:
        path: the file; it need not exist.
        mark: what the processes carry in their environment (see `processes.MARK_VARIABLE`).
    """

    def __init__(self, path: Path, mark: str) -> None:
        self.path = path
        self.mark = mark
        self._processes = _read(path).processes if path.exists() else {}

    @staticmethod
    def load(path: Path) -> ProcessTable:
        """The table in an existing file.

        Raises:
            PlatformError: it cannot be read, or is no such file.
        """
        return ProcessTable(path, _read(path).mark)

    def record(self, name: str, process: ProcessId | None) -> None:
        """Note that `name` is this process now, or (None) that it is none any more. A `server.Recorder`."""
        if process is None:
            self._processes.pop(name, None)
        else:
            self._processes[name] = process
        self._write()
        number = self.path.with_name(f"{name}.pid")
        if process is None:
            number.unlink(missing_ok=True)
        else:
            number.write_text(f"{process.pid}\n")

    @property
    def processes(self) -> dict[str, ProcessId]:
        """All that were recorded and not retracted, alive or not."""
        return dict(self._processes)

    def running(self) -> dict[str, ProcessId]:
        """Those that are alive."""
        return {name: process for name, process in self._processes.items() if is_alive(process)}

    async def end(self, names: list[str], grace_s: float) -> None:
        """End these at the same time: SIGTERM, SIGKILL after `grace_s`; and what they started and left behind."""
        await asyncio.gather(*(self._end(name, grace_s) for name in names if name in self._processes))

    async def _end(self, name: str, grace_s: float) -> None:
        process = self._processes[name]
        if grace_s > 0:
            await terminate(process, grace_s)
        else:
            await kill(process)
        for left in marked(f"{self.mark}/{name}"):
            await kill(left)
        self.record(name, None)

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(_Content(self.mark, self._processes))))
        temporary.replace(self.path)


def _read(path: Path) -> _Content:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Content)
    except OSError as error:
        raise PlatformError(f"{path}: cannot read which processes run: {error.strerror}") from error
    except (msgspec.MsgspecError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise PlatformError(f"{path}: this is not a list of processes: {error}") from error
