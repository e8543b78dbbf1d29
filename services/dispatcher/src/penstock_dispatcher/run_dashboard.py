"""The dashboard of one embedded run, in its process: `penstock run --ui` finds it by its entry point.

The same application on the ports of the run. What one run cannot do is refused, and the page says so beforehand.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from penstock.coordination.worker_logs import WorkerLogList
from penstock.ports import Blobs, Clock, Log, Metadata
from penstock.service.access import access_of
from penstock.service.http_server import Readiness, http_server
from penstock.settings import load_settings
from penstock_dispatcher.app import dispatcher_app
from penstock_dispatcher.cluster import DispatcherPorts

REFUSED: Final = {
    "submit": "This is one run of penstock run, which takes no other jobs; penstock up starts a cluster that does.",
    "rescale": "An embedded run keeps the parallelism that it was started with: stop it, and go on with penstock run "
    "FILE --resume --parallelism N.",
}


@asynccontextmanager
async def run_dashboard(
    log: Log, blobs: Blobs, metadata: Metadata, clock: Clock, logs: Callable[[str, int], WorkerLogList], port: int
) -> AsyncGenerator[str]:
    """Serve the dashboard and REST on loopback; gives the address, HOST:PORT.

    Args:
        log: where requests go.
        blobs: the job's log and checkpoints.
        metadata: what the run shows of itself.
        clock: wall time.
        logs: see `DispatcherPorts`.
        port: 0 is any free one.

    Raises:
        UsageError: the port is taken; or the tokens of the settings are not readable.
    """
    address = f"127.0.0.1:{port}"
    ports = DispatcherPorts(log, blobs, metadata, clock, lambda: uuid.uuid4().hex, logs=logs, refused=REFUSED)
    app = dispatcher_app(ports, Readiness({}), list)
    async with http_server(app, address, access_of(load_settings(), address), option="--ui-port") as listens:
        yield listens
