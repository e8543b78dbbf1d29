"""`penstock pipeline`: parses, wires, runs."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.adapters.cluster_ports import cluster_log, cluster_metadata, cluster_store
from penstock.adapters.conditional_put import check_conditional_put
from penstock.adapters.directory.claim import claimed
from penstock.adapters.system_clock import SystemClock
from penstock.coordination.retrying_ports import RetryingBlobs, RetryingLog, retry_until_done
from penstock.errors import UsageError
from penstock.platform.processes import ProcessId, identify, pid_namespace
from penstock.protocol.requests import RunOptions
from penstock.runs.run_store import RunStore
from penstock.runs.schedule_store import ScheduleStore
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
from penstock.service.process_exit import leave
from penstock.settings import ClusterSettings
from penstock.spark.session import DEFAULT_MASTER, check_installed, parse_conf
from penstock_pipeline.children import Children
from penstock_pipeline.lease import Holder, Lease
from penstock_pipeline.metrics import pipeline_samples
from penstock_pipeline.service import PipelinePorts, PipelineService, PipelineSettings

DEFAULT_FOLDER: Final = ".penstock/pipeline"


@dataclass(frozen=True)
class PipelineOptions(ServiceOptions):
    """`penstock pipeline`."""

    master: str
    conf: list[str]
    staging: str | None
    allow_overrides: bool
    concurrent: int
    dir: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run a pipeline service; the exit code."""
    parser = service_parser(
        "pipeline",
        "Runs pipelines over bounded input on Spark, one service per cluster. Told to end, it lets its runs go on; the "
        "next one in the same folder finds them again.",
        "127.0.0.1:8084",
    )
    parser.add_argument(
        "--master", default=DEFAULT_MASTER, metavar="URL", help=f"local[N], spark://host:port, ... ({DEFAULT_MASTER})"
    )
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark")
    parser.add_argument(
        "--staging", metavar="URL",
        help="where executors leave rows of exactly-once Kafka sinks for drivers, if they do not share the folder of "
        "--dir: s3://bucket/folder",
    )  # fmt: skip
    parser.add_argument(
        "--allow-overrides", action="store_true", help="let runs name a master and settings of Spark of their own"
    )
    parser.add_argument(
        "--concurrent", type=int, default=1, metavar="N", help="the number of concurrent runs; others wait (1)"
    )
    parser.add_argument(
        "--dir", default=DEFAULT_FOLDER, metavar="DIR",
        help=f"what makes runs repeatable, and the files of those at work ({DEFAULT_FOLDER})",
    )  # fmt: skip
    return run_service(parser, argv, PipelineOptions, serve)


async def serve(settings: ClusterSettings, options: PipelineOptions) -> None:
    """Take runs until cancelled."""
    if options.concurrent < 1:
        raise UsageError(f"--concurrent {options.concurrent}: at least one run at a time")
    check_installed(java=True)
    defaults = RunOptions(master=options.master, conf=parse_conf(options.conf))
    folder = Path(options.dir)
    with claimed(folder):
        children = Children(folder, uuid.uuid4().hex, settings, defaults, options.staging)
        await _serve(settings, options, children, defaults)


async def _serve(settings: ClusterSettings, options: PipelineOptions, children: Children, defaults: RunOptions) -> None:
    clock = SystemClock()
    host, name = socket.gethostname(), uuid.uuid4().hex
    readiness = Readiness()
    async with (
        cluster_log(settings, "pipeline") as log,
        cluster_metadata(settings) as metadata,
        cluster_store(settings) as blobs,
    ):
        await retry_until_done("try the store's conditional PUT", clock, lambda: check_conditional_put(blobs))
        ports = PipelinePorts(RetryingLog(log, clock), RetryingBlobs(blobs, clock), metadata, clock)
        store = RunStore(ports.blobs, clock, lambda: uuid.uuid4().hex)
        schedules = ScheduleStore(ports.blobs, clock, lambda: uuid.uuid4().hex)
        service = PipelineService(
            ports, store, schedules, children,
            PipelineSettings(
                name, host, reachable(options.http), options.concurrent, defaults, options.allow_overrides
            ),
        )  # fmt: skip
        app = health_app(readiness, lambda: pipeline_samples(service, clock.now_us()))
        async with http_server(app, options.http):
            lease = Lease(metadata, clock, Holder(name, host, _this_process(), pid_namespace()))
            await lease.take()
            async with asyncio.TaskGroup() as group:
                group.create_task(lease.keep())
                group.create_task(service.run())
                group.create_task(watch_readiness(readiness, log, blobs, clock, leader=False))


def _this_process() -> ProcessId:
    process = identify(os.getpid())
    assert process is not None
    return process


if __name__ == "__main__":
    leave(main)
