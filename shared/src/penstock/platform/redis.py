"""A Redis server of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path

from penstock.platform.errors import ServerStartError
from penstock.platform.free_ports import HOST
from penstock.platform.parts import Parts
from penstock.platform.server import Recorder, Server, no_recorder
from penstock.settings import RedisSettings, Secret

_ANSWER_S = 1.0


class RedisServer(Server):
    """One Redis; every write is on disk (append-only file) before it is answered, so SIGKILL loses nothing."""

    start_deadline_s = 30.0
    stop_grace_s = 10.0

    def __init__(
        self,
        parts: Parts,
        folder: Path,
        port: int,
        *,
        password: str,
        name: str = "redis",
        record: Recorder = no_recorder,
        mark: str = "",
    ) -> None:
        super().__init__(name, folder, port, record=record, mark=mark)
        self._program = parts.redis
        self._password = password

    @property
    def settings(self) -> RedisSettings:
        """How to reach it."""
        return RedisSettings(url=Secret(f"redis://:{self._password}@{self.address}/0"))

    async def restart(
        self,
        *,
        by_force: bool = False,
        deadline_s: float | None = None,
        wipe: bool = False,
        data: Path | None = None,
    ) -> None:
        """End it and start it again: with its data, without (`wipe`), or with an older copy (`data`, by `copy_data`)."""
        await self.end(by_force=by_force)
        if wipe or data is not None:
            await asyncio.to_thread(shutil.rmtree, self.data, ignore_errors=True)
        if data is not None:
            await asyncio.to_thread(shutil.copytree, data, self.data)
        await self.start(deadline_s)

    async def copy_data(self, target: Path) -> None:
        """Copy what it holds now into the new folder `target`, for a restart that goes back in time."""
        running = self.is_running
        if running:
            self.pause()  # so that the copy is of one moment; a half-written last command is left out when it is loaded
        try:
            await asyncio.to_thread(shutil.copytree, self.data, target)
        finally:
            if running:
                self.resume()

    async def prepare(self) -> None:
        lines = [
            f"bind {HOST}",
            f"port {self.port}",
            f"dir {self.data}",
            f"requirepass {self._password}",
            "daemonize no",
            "appendonly yes",
            "appendfsync always",
            "aof-load-truncated yes",
            'save ""',
            "maxmemory-policy noeviction",
        ]
        file = self.folder / "redis.conf"
        file.touch(mode=0o600)
        file.write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        return [str(self._program), str(self.folder / "redis.conf")]

    async def is_ready(self) -> bool:
        answer = await self._ping()
        if answer.startswith((b"-WRONGPASS", b"-ERR")):
            raise ServerStartError(f"{self.address}: another Redis answers there; give it another port")
        return answer.startswith(b"+OK\r\n+PONG")

    async def _ping(self) -> bytes:
        """What it says to AUTH and PING; nothing while it does not serve."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_connection(HOST, self.port)
                writer.write(f"AUTH {self._password}\r\nPING\r\n".encode())
                return await reader.readline() + await reader.readline()
        except (OSError, TimeoutError):
            return b""
        finally:
            if writer is not None:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
