"""What a local platform keeps over restarts: ports, passwords, numbers; and how wishes change it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from penstock.errors import UsageError
from penstock.platform.errors import PlatformError
from penstock.platform.free_ports import free_port, is_free
from penstock.platform.servers import ServersPlan, plan_servers


@dataclass(frozen=True)
class Wishes:
    """What the user of `penstock up` named; None is "as before", at first a free port, two slots, one coordinator."""

    kafka_port: int | None = None
    minio_port: int | None = None
    redis_port: int | None = None
    rest_port: int | None = None
    slots: int | None = None
    coordinators: int | None = None
    pipeline: bool | None = None
    """A pipeline service too, at first none."""
    tls_certificate: Path | None = None
    """What the dispatcher shows; at first it speaks plain HTTP."""
    tls_key: Path | None = None
    tls_ca: Path | None = None
    """The authority that has signed it, for clients."""


@dataclass(frozen=True)
class RestTls:
    """The files of the dispatcher's TLS, by whole paths."""

    certificate: str
    key: str
    ca: str


@dataclass(frozen=True)
class PlatformPlan:
    """Everything about a local platform that is not a process."""

    servers: ServersPlan
    rest_port: int
    taskmanager_port: int
    coordinator_ports: tuple[int, ...]
    slots: int
    pipeline_port: int | None = None
    """None: there is no pipeline service."""
    tls: RestTls | None = None
    """None: the dispatcher speaks plain HTTP."""

    @property
    def coordinators(self) -> dict[str, int]:
        """Name and port of each coordinator."""
        return {f"coordinator-{number}": port for number, port in enumerate(self.coordinator_ports, 1)}


def settle(former: PlatformPlan | None, wishes: Wishes, running: Iterable[str]) -> PlatformPlan:
    """The plan to start from: what runs stays as it is, wishes come next, ports taken by others meanwhile are replaced.

    Raises:
        UsageError: a wish contradicts what runs, or names a port that is taken.
    """
    runs = set(running)
    servers = former.servers if former else plan_servers()
    ports = _Ports(wishes, servers, former)
    slots, coordinators = _numbers(former, wishes, runs)
    kept = former.coordinator_ports if former else ()
    broker = servers.brokers[0]
    return PlatformPlan(
        servers=replace(
            servers,
            brokers=(
                replace(
                    broker,
                    port=ports.settle("--kafka-port", wishes.kafka_port, broker.port, "kafka-1" in runs),
                    controller_port=ports.settle("", None, broker.controller_port, "kafka-1" in runs),
                ),
            ),
            minio_port=ports.settle("--minio-port", wishes.minio_port, servers.minio_port, "minio" in runs),
            redis_port=ports.settle("--redis-port", wishes.redis_port, servers.redis_port, "redis" in runs),
        ),
        rest_port=ports.settle(
            "--rest-port", wishes.rest_port, former.rest_port if former else None, "dispatcher" in runs
        ),
        taskmanager_port=ports.settle("", None, former.taskmanager_port if former else None, "taskmanager" in runs),
        coordinator_ports=tuple(
            ports.settle("", None, kept[index] if index < len(kept) else None, f"coordinator-{index + 1}" in runs)
            for index in range(coordinators)
        ),
        slots=slots,
        pipeline_port=_pipeline_port(former, wishes, ports, "pipeline" in runs),
        tls=_tls(former, wishes, "dispatcher" in runs),
    )


def _tls(former: PlatformPlan | None, wishes: Wishes, runs: bool) -> RestTls | None:
    kept = former.tls if former else None
    files = (wishes.tls_certificate, wishes.tls_key, wishes.tls_ca)
    if not any(files):
        return kept
    if wishes.tls_certificate is None:
        raise UsageError("--tls-key, --tls-ca: name the certificate too, with --tls-certificate")
    wanted = RestTls(*(str(file.absolute()) if file else "" for file in files))
    if runs and wanted != kept:
        raise UsageError("--tls-certificate: the dispatcher runs with another; penstock down ends it first")
    return wanted


def _pipeline_port(former: PlatformPlan | None, wishes: Wishes, ports: _Ports, runs: bool) -> int | None:
    kept = former.pipeline_port if former else None
    return ports.settle("", None, kept, runs) if wishes.pipeline or kept is not None else None


def read_plan(path: Path) -> PlatformPlan | None:
    """The plan in a file; None if there is no such file.

    Raises:
        PlatformError: the file cannot be read or is no plan.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=PlatformPlan)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PlatformError(f"{path}: cannot read the plan of the local platform: {error}") from error


def write_plan(path: Path, plan: PlatformPlan) -> None:
    """Write the plan, passwords included, so that only its owner reads it."""
    write_private(path, msgspec.json.format(msgspec.json.encode(plan)))


def write_private(path: Path, content: bytes) -> None:
    """Write or replace a whole file that only its owner may read."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # of a process with our number that was killed; its mode may be another
    temporary.touch(mode=0o600, exist_ok=False)
    temporary.write_bytes(content)
    temporary.replace(path)


class _Ports:
    """Gives out every port once."""

    def __init__(self, wishes: Wishes, servers: ServersPlan, former: PlatformPlan | None) -> None:
        named = [wishes.kafka_port, wishes.minio_port, wishes.redis_port, wishes.rest_port]
        wished = [port for port in named if port is not None]
        if twice := {port for port in wished if wished.count(port) > 1}:
            raise UsageError(f"port {min(twice)} is named twice: every server needs a port of its own")
        self._wished = set(wished)
        self._taken = self._wished | _ports_of(servers) | (_ports_of_services(former) if former else set())

    def settle(self, option: str, wish: int | None, kept: int | None, runs: bool) -> int:
        if runs and kept is not None:
            if wish not in (None, kept):
                raise UsageError(f"{option} {wish}: it runs already on port {kept}; penstock down ends it first")
            return kept
        if wish is not None:
            if not is_free(wish):
                raise UsageError(f"{option} {wish}: something listens there already; leave it out for a free port")
            return wish
        if kept is None or kept in self._wished or not is_free(kept):
            return free_port(self._taken)
        return kept


def _ports_of(servers: ServersPlan) -> set[int]:
    brokers = {port for node in servers.brokers for port in (node.port, node.controller_port)}
    return brokers | {servers.minio_port, servers.redis_port}


def _ports_of_services(plan: PlatformPlan) -> set[int]:
    pipeline = {plan.pipeline_port} if plan.pipeline_port is not None else set[int]()
    return {plan.rest_port, plan.taskmanager_port, *plan.coordinator_ports} | pipeline


def _numbers(former: PlatformPlan | None, wishes: Wishes, runs: set[str]) -> tuple[int, int]:
    slots = former.slots if former else 2
    coordinators = len(former.coordinator_ports) if former else 1
    if "taskmanager" in runs and wishes.slots not in (None, slots):
        raise UsageError(f"--slots {wishes.slots}: the task manager runs with {slots}; penstock down ends it first")
    if any(name.startswith("coordinator") for name in runs) and wishes.coordinators not in (None, coordinators):
        raise UsageError(f"--coordinators {wishes.coordinators}: {coordinators} run; penstock down ends them first")
    return wishes.slots or slots, wishes.coordinators or coordinators
