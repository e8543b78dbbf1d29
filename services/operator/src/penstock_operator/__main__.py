"""`penstock operator`: parses, wires, runs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.adapters.system_clock import SystemClock
from penstock.errors import UsageError
from penstock.service.http_server import (
    Readiness,
    ServiceOptions,
    health_app,
    http_server,
    run_service,
    service_parser,
)
from penstock.service.process_exit import leave
from penstock.settings import ClusterSettings
from penstock_operator.clusters import Clusters
from penstock_operator.controller import Controller
from penstock_operator.converting import convert
from penstock_operator.kubernetes import kubernetes_api
from penstock_operator.lease import Lease
from penstock_operator.metrics import Numbers, operator_samples
from penstock_operator.queue import Queue
from penstock_operator.watching import watch


@dataclass(frozen=True)
class OperatorOptions(ServiceOptions):
    """`penstock operator`."""

    namespace: list[str]
    convert: Path | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run an operator; the exit code."""
    parser = service_parser(
        "operator",
        "Keeps jobs on Kubernetes as their custom resources say: of several, one works. Clusters are named by resources, "
        "not by settings.",
        "127.0.0.1:8085",
    )
    parser.add_argument(
        "--namespace", action="append", default=[], metavar="NAME",
        help="look after this namespace; several times for several, never for all of them",
    )  # fmt: skip
    parser.add_argument(
        "--convert", metavar="FILE", type=Path,
        help="print the resources of Flink's operator in this file as Penstock's, say what to do about the rest, and end",
    )  # fmt: skip
    file: Path | None = parser.parse_args(argv).convert
    if file is not None:
        return _convert(file)
    return run_service(parser, argv, OperatorOptions, serve)


def _convert(file: Path) -> int:
    try:
        sys.stdout.write(convert(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, UsageError) as error:
        sys.stderr.write(f"penstock operator: --convert {file}: {error}\n")
        return 2
    return 0


async def serve(_settings: ClusterSettings, options: OperatorOptions) -> None:
    """Wait for the lease, then look after resources until told to end."""
    clock, numbers, readiness = SystemClock(), Numbers(), Readiness({})
    async with kubernetes_api() as api:
        lease = Lease(api, clock, api.namespace, f"{socket.gethostname()}-{uuid.uuid4().hex}")
        app = health_app(readiness, lambda: operator_samples(numbers, leading=lease.held))
        async with http_server(app, options.http), Clusters(api) as clusters:
            await lease.take()
            controller = Controller(api, clusters, clock, numbers)
            try:
                await _work(controller, lease, options.namespace)
            finally:
                await asyncio.shield(lease.give_back())


async def _work(controller: Controller, lease: Lease, namespaces: Sequence[str]) -> None:
    """Until the lease is lost, or kopf was told to end: it listens for SIGTERM in this service's place."""
    async with asyncio.TaskGroup() as group:
        queue = Queue(controller.look_after, group)
        keeping = group.create_task(lease.keep())
        await watch(queue.nudge, namespaces)
        keeping.cancel()
        queue.end()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping


if __name__ == "__main__":
    leave(main)
