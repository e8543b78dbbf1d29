"""What `penstock up` and `penstock down` do: a whole local platform as daemons, written down in one folder.

`FOLDER/cluster.toml` tells clients where everything is; `FOLDER/cluster.d` has the plan (ports and passwords, kept over
restarts), the list of processes, and a folder with log and data for each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from penstock.adapters.directory.file_lock import file_lock
from penstock.errors import UsageError
from penstock.platform.free_ports import HOST
from penstock.platform.parts import Parts, Progress, silent
from penstock.platform.plan import PlatformPlan, Wishes, read_plan, settle, write_plan, write_private
from penstock.platform.process_table import ProcessTable
from penstock.platform.server import Server
from penstock.platform.servers import Servers
from penstock.platform.services import SERVICES, ServiceProcess, service_problem
from penstock.settings import ClusterSettings, settings_to_toml

_SERVICE_GRACE_S: Final = 30.0
_SERVER_GRACE_S: Final = 30.0

MAX_TASK_MANAGERS: Final = 4
"""How many task managers a local coordinator may start for jobs submitted with `--per-job`."""


@dataclass(frozen=True)
class UpReport:
    """What `up` found and did."""

    settings: ClusterSettings
    file: Path
    started: tuple[str, ...]
    ran_already: tuple[str, ...]
    absent: dict[str, str]
    """Services that this installation cannot run, and why."""
    logs: dict[str, Path] = field(default_factory=dict[str, Path])


@dataclass(frozen=True)
class DownReport:
    """What `down` did."""

    stopped: tuple[str, ...]
    gone_before: tuple[str, ...]
    """What had ended by itself, or been killed by somebody else."""
    purged: bool


class LocalPlatform:
    """The platform that is written down in one folder, running or not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.file = self.folder / "cluster.toml"
        self._inner = self.folder / "cluster.d"
        self._plan_file = self._inner / "plan.json"
        self._table_file = self._inner / "processes.json"

    async def up(self, wishes: Wishes, parts: Callable[[], Awaitable[Parts]], progress: Progress = silent) -> UpReport:
        """Start what does not run. If something fails, what this call started is ended again.

        Raises:
            UsageError: a named port is taken, or what runs already has other ports or slots than those named.
            PlatformError: a part is missing or a server did not start.
        """
        self._refuse_foreign_file()
        async with self._locked():
            table = ProcessTable(self._table_file, str(self._inner))
            plan = settle(read_plan(self._plan_file), wishes, table.running())
            write_plan(self._plan_file, plan)
            servers = Servers(await parts(), self._inner, plan.servers, record=table.record)
            planned = self._services(plan, table)
            wanted = {service.service for service in planned}
            absent = {name: problem for name in SERVICES if name in wanted and (problem := service_problem(name))}
            services = [service for service in planned if service.service not in absent]
            everything: list[Server] = [*servers.all, *services]
            ran = _adopt(everything, table)
            settings = _settings(servers, plan)
            await self._start(servers, services, ran, progress, settings)
            return UpReport(
                settings=settings,
                file=self.file,
                started=tuple(server.name for server in everything if server.name not in ran),
                ran_already=tuple(server.name for server in everything if server.name in ran),
                absent=absent,
                logs={server.name: server.log_file for server in everything},
            )

    async def down(self, *, purge: bool = False, progress: Progress = silent) -> DownReport:
        """End what `up` started: services first, then servers. With `purge` the data goes too.

        Raises:
            PlatformError: a process does not end, or the list of processes cannot be read.
        """
        if not self._inner.exists():
            return DownReport((), (), purged=False)
        async with self._locked():
            table = ProcessTable(self._table_file, str(self._inner))
            names, running = set(table.processes), set(table.running())
            services = sorted(name for name in names if name.startswith(SERVICES))
            with progress("stopping"):
                await table.end(services, _SERVICE_GRACE_S)
                await table.end(sorted(names - set(services)), _SERVER_GRACE_S)
            if purge:
                await asyncio.to_thread(self._purge)
        return DownReport(tuple(sorted(running)), tuple(sorted(names - running)), purged=purge)

    async def _start(
        self,
        servers: Servers,
        services: list[ServiceProcess],
        ran: set[str],
        progress: Progress,
        settings: ClusterSettings,
    ) -> None:
        new_servers = [server for server in servers.all if server.name not in ran]
        new_services = [service for service in services if service.name not in ran]
        try:
            if new_servers:
                with progress(f"starting {', '.join(server.name for server in new_servers)}"):
                    await servers.start()
            write_private(self.file, settings_to_toml(settings).encode())
            if new_services:
                with progress(f"starting {', '.join(service.name for service in new_services)}"):
                    await _start_all(new_services)
        except BaseException:
            await asyncio.gather(*(service.kill() for service in new_services))
            await asyncio.gather(*(server.stop() for server in new_servers))
            raise

    def _services(self, plan: PlatformPlan, table: ProcessTable) -> list[ServiceProcess]:
        def service(name: str, kind: str, port: int, *options: str) -> ServiceProcess:
            return ServiceProcess(
                name,
                kind,
                self._inner / name,
                port,
                cluster=self.file,
                options=options,
                record=table.record,
                mark=table.mark,
                tls=kind == "dispatcher" and plan.tls is not None,
            )

        pipeline = () if plan.pipeline_port is None else (("pipeline", plan.pipeline_port),)
        return [
            *(
                service(name, "coordinator", port, "--start-task-managers", str(MAX_TASK_MANAGERS))
                for name, port in plan.coordinators.items()
            ),
            service("dispatcher", "dispatcher", plan.rest_port),
            service("taskmanager", "taskmanager", plan.taskmanager_port, "--slots", str(plan.slots)),
            *(
                service(name, "pipeline", port, "--dir", str(self._inner / name / "runs"), "--allow-overrides")
                for name, port in pipeline
            ),
        ]

    def _refuse_foreign_file(self) -> None:
        if self.file.exists() and not self._plan_file.exists():
            raise UsageError(f"{self.file} was not written by penstock up; give another folder with --dir")

    def _purge(self) -> None:
        self.file.unlink(missing_ok=True)
        shutil.rmtree(self._inner)
        with contextlib.suppress(OSError):  # embedded runs may lie beside
            self.folder.rmdir()

    @asynccontextmanager
    async def _locked(self) -> AsyncGenerator[None]:
        """Keep every other `up` and `down` of this folder out."""
        path = self._inner / "lock"
        while True:
            self._inner.mkdir(parents=True, exist_ok=True, mode=0o700)
            with path.open("a") as lock:
                async with file_lock(lock.fileno()):
                    # A purge that we waited for has removed the very file that we hold now: take the next one.
                    if path.exists() and path.stat().st_ino == os.fstat(lock.fileno()).st_ino:
                        yield
                        return


def _settings(servers: Servers, plan: PlatformPlan) -> ClusterSettings:
    if plan.tls is None:
        return servers.settings(rest=f"http://{HOST}:{plan.rest_port}")
    return replace(
        servers.settings(rest=f"https://{HOST}:{plan.rest_port}"),
        rest_ssl_certfile=plan.tls.certificate, rest_ssl_keyfile=plan.tls.key, rest_ssl_cafile=plan.tls.ca,
    )  # fmt: skip


def _adopt(servers: Sequence[Server], table: ProcessTable) -> set[str]:
    """Take over what runs already; its names."""
    running = table.running()
    for server in servers:
        server.process = running.get(server.name)
    return {server.name for server in servers if server.process is not None}


async def _start_all(services: Sequence[ServiceProcess]) -> None:
    outcomes = await asyncio.gather(*(service.start() for service in services), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
