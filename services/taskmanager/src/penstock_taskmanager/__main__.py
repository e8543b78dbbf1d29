"""`penstock taskmanager`: parses, wires, runs."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.adapters.cluster_ports import cluster_log, cluster_store
from penstock.adapters.system_clock import SystemClock
from penstock.coordination.control_topics import create_control_topics
from penstock.coordination.retrying_ports import RetryingLog
from penstock.core.times import duration_us
from penstock.observability.metrics import TASK_MANAGER_SLOTS, WORKER_MEMORY, Sample
from penstock.service.access import access_of, is_loopback
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
from penstock.settings import ClusterSettings, settings_to_toml
from penstock.task.environment import SubtaskSettings
from penstock.taskmanager.supervisor import SpecOf, Supervisor
from penstock.taskmanager.worker import resident_bytes
from penstock.taskmanager.worker_process import WorkerSpec


@dataclass(frozen=True)
class TaskManagerOptions(ServiceOptions):
    """`penstock taskmanager`."""

    slots: int
    memory_mb: int
    local_state_mb: int
    broker_patience: str
    for_job: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run a task manager; the exit code."""
    parser = service_parser("taskmanager", "Run subtasks, in one worker process per slot.", "127.0.0.1:8083")
    parser.add_argument("--slots", type=positive, default=os.cpu_count() or 1, metavar="N", help="slots (one per core)")
    parser.add_argument(
        "--memory-mb", type=count, default=0, metavar="MB", help="the memory limit of a slot (no limit)"
    )
    parser.add_argument(
        "--local-state-mb", type=count, default=1_024, metavar="MB", help="local copies of snapshots, 0: none (1024)"
    )
    parser.add_argument(
        "--broker-patience", default="10m", metavar="TIME",
        help="how long subtasks wait for unavailable brokers before their attempt fails (10m)",
    )  # fmt: skip
    parser.add_argument("--for-job", default="", metavar="JOB", help="serve this job only, and end with it")
    return run_service(parser, argv, TaskManagerOptions, serve)


async def serve(settings: ClusterSettings, options: TaskManagerOptions) -> None:
    """Keep the slots alive until cancelled."""
    host = socket.gethostname()
    name = f"{host}-{uuid.uuid4().hex[:8]}"
    patience_ms = duration_us(options.broker_patience, "--broker-patience") // 1_000

    def spec_of(worker: str, events_fd: int, folder: str) -> WorkerSpec:
        return WorkerSpec(
            name=worker, host=f"{host} {reachable(listens[0])}", events_fd=events_fd, folder=folder,
            for_job=options.for_job, cluster=settings_to_toml(settings), memory_mb=options.memory_mb,
            data=SubtaskSettings(broker_patience_ms=patience_ms),
            local_state=local_state, local_state_mb=options.local_state_mb,
            log_format=options.log_format, log_level=options.log_level,
        )  # fmt: skip

    listens = [options.http]
    with tempfile.TemporaryDirectory(prefix="penstock-state-", ignore_cleanup_errors=True) as local_state:
        await _serve(settings, options, name, spec_of, listens)


async def _serve(
    settings: ClusterSettings, options: TaskManagerOptions, name: str, spec_of: SpecOf, listens: list[str]
) -> None:
    clock = SystemClock()
    readiness = Readiness()
    async with cluster_log(settings, "taskmanager") as log, cluster_store(settings) as blobs:
        supervisor = Supervisor(
            name, options.slots, spec_of, log, clock, memory_mb=options.memory_mb, once=bool(options.for_job)
        )

        def samples() -> list[Sample]:
            workers = supervisor.workers
            memory = [Sample(WORKER_MEMORY, {"worker": worker}, resident_bytes(pid)) for worker, pid in workers]
            return [Sample(TASK_MANAGER_SLOTS, {}, len(workers)), *memory]

        # Beyond loopback logs are for those who know the token; without one, for nobody.
        access = access_of(settings, options.http, insecure=True, inner=True)
        shown = supervisor.logs.routes() if access.credentials or is_loopback(options.http.rpartition(":")[0]) else ()
        app = health_app(readiness, samples, shown)
        async with http_server(app, options.http, access) as listens[0], asyncio.TaskGroup() as group:
            watching = group.create_task(watch_readiness(readiness, log, blobs, clock))
            await create_control_topics(RetryingLog(log, clock))
            await supervisor.run()
            watching.cancel()


if __name__ == "__main__":
    leave(main)
