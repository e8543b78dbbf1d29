"""`penstock run --ui`: the dashboard of the run beside it, in the same process. The dispatcher's package serves it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from penstock.adapters.directory.blobs import DirectoryBlobs
from penstock.adapters.directory.log import DirectoryLog
from penstock.adapters.system_clock import SystemClock
from penstock.cli.services import part_of_service
from penstock.embedded import EmbeddedJob
from penstock.errors import UsageError

GROUP: Final = "penstock.dashboards"


@asynccontextmanager
async def dashboard(job: EmbeddedJob, directory: Path, port: int) -> AsyncGenerator[str]:
    """Serve it on loopback, from before the run until the caller has enough; gives its URL. A port of 0 is any free one.

    Raises:
        UsageError: the port is taken, or the dispatcher is not installed.
    """
    try:
        serve = part_of_service("dispatcher", GROUP)
    except UsageError as error:
        raise UsageError(f"--ui: the dashboard comes with the dispatcher, and {error}") from None
    # Of its own, on the same files: the run clears its log and its store when it begins.
    log, blobs = DirectoryLog(directory / "log"), DirectoryBlobs(directory / "blobs")
    try:
        async with serve(log, blobs, job.metadata, SystemClock(), job.worker_logs, port) as address:
            yield f"http://{address}/"
    finally:
        await log.close()


async def keep_dashboard(job: EmbeddedJob) -> None:
    """Let it show how the job ended, until Ctrl-C or SIGTERM."""
    showing = asyncio.create_task(job.show_end())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, showing.cancel)
    await asyncio.wait([showing])
    if not showing.cancelled():
        showing.result()
