"""A worker in a process of its own, started by a `Supervisor`: `python -m penstock.taskmanager.worker_process`.

The first line of standard input says what it is to be; the end of standard input means that the supervisor is gone, and
ends the process at once, whatever it is doing. Events go to the supervisor through a pipe: it outlives the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import struct
import sys
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import structlog

from penstock.adapters.directory.blobs import DirectoryBlobs
from penstock.adapters.directory.log import DirectoryLog
from penstock.adapters.local_copies import LocalCopies
from penstock.adapters.system_clock import SystemClock
from penstock.coordination.job_store import JobReader
from penstock.coordination.timings import HEARTBEAT_MS
from penstock.observability.logs import LogFormat, configure_logging
from penstock.ports import Blobs, Log
from penstock.protocol.messages import AnyEvent
from penstock.protocol.worker import LEADER_SILENCE_MS
from penstock.service.process_exit import leave
from penstock.settings import FILE_VARIABLE, load_settings
from penstock.task.environment import Services, SubtaskSettings
from penstock.taskmanager.event_appender import encode_batch
from penstock.taskmanager.job_loading import FileLoader, JobLoader, StoreLoader
from penstock.taskmanager.worker import WorkerService, resident_bytes

LENGTH: Final = struct.Struct("<I")
"""Of each batch of events in the pipe."""
MEMORY_PRESSURE: Final = 0.85
"""From this part of the slot's memory on, sources slow down."""
ALIVE: Final = "alive"
"""File in a worker's folder that a thread of it touches with every heartbeat, whatever else the process does."""
ORPHANED: Final = 3
"""Exit code of a worker whose supervisor is gone."""


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker process is told. It may hold secrets, so it goes through a pipe and never onto a command line."""

    name: str
    host: str
    events_fd: int
    folder: str
    """Of this process alone; whoever starts it removes it."""
    cluster: str = ""
    """The settings of a cluster as TOML, or:"""
    directory: str = ""
    """the directory of an embedded run,"""
    target: str = ""
    """whose pipeline is in this file, with"""
    parameters: dict[str, str] = {}
    durable: bool = True
    for_job: str = ""
    """The only job that it serves."""
    leader_silence_ms: int = LEADER_SILENCE_MS
    memory_mb: int = 0
    """What the slot may use; 0: no limit."""
    local_state: str = ""
    """Folder of local copies of snapshots, which the workers of a task manager share,"""
    local_state_mb: int = 0
    """and how much may be in it; 0: none."""
    data: SubtaskSettings = SubtaskSettings()
    log_format: LogFormat = "text"
    log_level: str = "info"


_BATCH: msgspec.json.Decoder[list[AnyEvent]] = msgspec.json.Decoder(list[AnyEvent])


def decode_batch(data: bytes) -> list[AnyEvent]:
    """A batch of events as a worker wrote it."""
    return _BATCH.decode(data)


class PipeEvents:
    """Hands events to the supervisor."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send(self, events: Sequence[AnyEvent]) -> None:
        """Once they are in the pipe they outlive this process."""
        data = encode_batch(events)
        self._writer.write(LENGTH.pack(len(data)) + data)
        await self._writer.drain()


async def _open_pipe(descriptor: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop=loop), os.fdopen(descriptor, "wb")
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)


@asynccontextmanager
async def _ports(spec: WorkerSpec) -> AsyncGenerator[tuple[Log, Blobs, JobLoader]]:
    """The parts of the world that the spec names, opened."""
    if spec.directory:
        directory = Path(spec.directory)
        log: Log = DirectoryLog(directory / "log", durable=spec.durable)
        blobs: Blobs = DirectoryBlobs(directory / "blobs")
        try:
            yield log, blobs, FileLoader(spec.target, spec.parameters, JobReader(blobs))
        finally:
            await log.close()
        return
    from penstock.adapters.cluster_ports import cluster_log, cluster_store  # loads the clients of Kafka and S3

    folder = Path(spec.folder)
    settings_file = folder / "cluster.toml"
    settings_file.touch(0o600)
    settings_file.write_text(spec.cluster)
    os.environ[FILE_VARIABLE] = str(settings_file)  # what connectors of the pipeline mean by "the platform's Kafka"
    settings = load_settings()
    async with cluster_log(settings, spec.name) as log, cluster_store(settings) as blobs:
        if spec.local_state_mb:
            blobs = LocalCopies(blobs, Path(spec.local_state), spec.local_state_mb << 20)
        yield log, blobs, StoreLoader(blobs, JobReader(blobs), folder, spec.for_job)


async def _serve(spec: WorkerSpec) -> None:
    limit_bytes = spec.memory_mb << 20

    def pressed() -> bool:
        return bool(limit_bytes) and resident_bytes() > MEMORY_PRESSURE * limit_bytes

    writer = await _open_pipe(spec.events_fd)
    async with _ports(spec) as (log, blobs, loader):
        services = Services(log, blobs, SystemClock(), spec.data, pressed, collects=bool(spec.cluster))
        worker = WorkerService(
            spec.name, 1, services, loader, spec.leader_silence_ms, sender=PipeEvents(writer), host=spec.host
        )
        await worker.run()


def _show_life(folder: Path) -> None:
    # A process that is stopped shows none, nor does one in a call that keeps Python's lock: that one uses the processor.
    while True:
        with contextlib.suppress(OSError):
            (folder / ALIVE).touch()
        time.sleep(HEARTBEAT_MS / 1_000)


def _end_with_the_supervisor(folders: Sequence[str]) -> None:
    # Not through sys.stdin: its lock would be held here for ever, and Python aborts at exit if it cannot have it.
    while os.read(sys.stdin.fileno(), 1):
        pass
    for folder in filter(None, folders):
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(ORPHANED)


def main() -> None:
    """Run until the worker is used up, fails, or loses its supervisor."""
    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerSpec)
    configure_logging(spec.log_format, spec.log_level)
    structlog.contextvars.bind_contextvars(worker=spec.name)
    structlog.get_logger("penstock.worker").info("worker started", pid=os.getpid())
    threading.Thread(target=_show_life, args=[Path(spec.folder)], daemon=True).start()
    threading.Thread(target=_end_with_the_supervisor, args=[[spec.folder, spec.local_state]], daemon=True).start()
    asyncio.run(_serve(spec))


if __name__ == "__main__":
    leave(main)
