"""`penstock coordinator`: parses, wires, runs."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.adapters.cluster_ports import cluster_log, cluster_metadata, cluster_store
from penstock.adapters.conditional_put import check_conditional_put
from penstock.adapters.system_clock import SystemClock
from penstock.coordination.retrying_ports import retry_until_done
from penstock.core.times import duration_us
from penstock.errors import UsageError
from penstock.jobmanager.coordinator import CoordinatorService, CoordinatorTimeouts, TaskManagerStarter
from penstock.jobmanager.leadership import ControlPorts
from penstock.jobmanager.sink_cleanup import sink_cleaner
from penstock.observability.tracing import tracing
from penstock.service.http_server import (
    Readiness,
    ServiceOptions,
    health_app,
    http_server,
    reachable,
    run_service,
    service_parser,
    watch_readiness,
)
from penstock.service.option_types import count, positive
from penstock.service.process_exit import leave
from penstock.settings import ClusterSettings
from penstock_coordinator.application import ApplicationOptions, submit_application
from penstock_coordinator.launching import task_manager_starter
from penstock_coordinator.metrics import coordinator_samples
from penstock_coordinator.scaling import ScalingOptions, add_scaling_options, scaling_of

LEAST_WAITING_MS: Final = 100
"""Options that say less are taken for a mistake."""


@dataclass(frozen=True)
class CoordinatorOptions(ServiceOptions, ApplicationOptions, ScalingOptions):
    """`penstock coordinator`."""

    lease_ttl: str
    worker_timeout: str
    start_task_managers: int


def main(argv: Sequence[str] | None = None) -> int:
    """Run a coordinator; the exit code."""
    parser = service_parser(
        "coordinator",
        "Run the JobManager and ResourceManager of a cluster; of several coordinators, one leads.",
        "127.0.0.1:8082",
    )
    parser.add_argument(
        "--lease-ttl", default="15s", metavar="TIME", help="how long to wait for a leader that does not answer (15s)"
    )
    parser.add_argument(
        "--worker-timeout", default="10s", metavar="TIME", help="how long a silent worker counts as alive (10s)"
    )
    parser.add_argument(
        "--start-task-managers", type=count, default=0, metavar="N",
        help="start up to N task managers for jobs submitted with --per-job (0)",
    )  # fmt: skip
    add_scaling_options(parser)
    parser.add_argument("--application", metavar="FILE", help="run this pipeline, once, on this cluster")
    parser.add_argument("--parallelism", type=positive, default=1, metavar="N", help="of the application (1)")
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the application; @env:VARIABLE and @file:PATH keep its value off the command line",
    )
    parser.add_argument("--from-savepoint", metavar="KEY", help="the manifest that the application starts from")
    return run_service(parser, argv, CoordinatorOptions, serve)


async def serve(settings: ClusterSettings, options: CoordinatorOptions) -> None:
    """Compete for leadership until cancelled."""
    clock = SystemClock()
    timeouts = CoordinatorTimeouts(
        lease_ttl_ms=_waiting_ms(options.lease_ttl, "--lease-ttl"),
        worker_ms=_waiting_ms(options.worker_timeout, "--worker-timeout"),
    )
    name = f"{socket.gethostname()}-{uuid.uuid4().hex}"
    readiness = Readiness()
    starter: TaskManagerStarter | None = None
    async with (
        cluster_log(settings, "coordinator") as log,
        cluster_metadata(settings) as metadata,
        cluster_store(settings) as blobs,
        scaling_of(options, timeouts) as scaling,
        tracing(settings.tracing) as observe,
    ):
        if options.start_task_managers:
            starter = task_manager_starter(options.cluster, options.start_task_managers)
        ports = ControlPorts(log, blobs, metadata, clock, lambda: uuid.uuid4().hex)
        service = CoordinatorService(
            name,
            ports,
            timeouts,
            clean_sinks=sink_cleaner(settings, clock),
            address=reachable(options.http),
            starter=starter,
            scaling=scaling,
            observe=observe,
        )
        app = health_app(readiness, lambda: coordinator_samples(service, clock.now_us()))
        async with http_server(app, options.http):  # alive, though it may have to wait
            await retry_until_done("try the store's conditional PUT", clock, lambda: check_conditional_put(blobs))
            if options.application:
                await submit_application(settings, options.application, options, log, blobs, clock)
            async with asyncio.TaskGroup() as group:
                group.create_task(service.run())
                group.create_task(watch_readiness(readiness, log, blobs, clock))


def _waiting_ms(text: str, option: str) -> int:
    """How long others are waited for before they count as dead.

    Raises:
        UsageError: that is no time, or one that no message takes.
    """
    duration = duration_us(text, option, positive=True) // 1_000
    if duration < LEAST_WAITING_MS:
        raise UsageError(f"{option} {text}: is less than {LEAST_WAITING_MS} ms, in which nobody is sure to answer")
    return duration


if __name__ == "__main__":
    leave(main)
