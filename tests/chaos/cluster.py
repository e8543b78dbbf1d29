"""The cluster that is tormented: two coordinators, two task managers with five slots each, and their client."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,  # pyright: ignore[reportPrivateImportUsage] # its documented place
)
from tests.chaos.feed import PARTITIONS, TOPIC
from tests.chaos.links import BrokerLink, Link, Links
from tests.chaos.outputs import SINKS

from penstock.adapters.cluster_ports import cluster_log, cluster_metadata, cluster_store
from penstock.connectors.kafka.default_cluster import use_cluster
from penstock.coordination.artifacts import pack
from penstock.coordination.cluster_view import VIEW, ClusterView, JobView
from penstock.coordination.control_topics import REQUESTS
from penstock.coordination.failpoints import VARIABLE
from penstock.coordination.job_catalog import FinishedJob, JobCatalog
from penstock.errors import ExternalError
from penstock.graph.jobgraph import build_job_graph
from penstock.graph.rescaling import scalable_form
from penstock.kafka.clients import confluent_options
from penstock.loading import load_pipeline
from penstock.platform.free_ports import free_port
from penstock.platform.processes import ProcessId, marked, tail
from penstock.platform.server import Recorder, no_recorder
from penstock.platform.servers import Servers
from penstock.platform.services import ServiceProcess
from penstock.ports import Blobs, Log, Metadata, NewRecord
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.joblog import JobSettings
from penstock.protocol.messages import encode
from penstock.protocol.requests import Answer, AnyRequest, CancelJob, RescaleJob, StopJob, SubmitJob, TakeSavepoint
from penstock.protocol.restarts import FixedDelay
from penstock.settings import ClusterSettings, settings_to_toml

NAME: Final = "chaos"
LEASE_S: Final = 3.0
WORKER_TIMEOUT_S: Final = 3.0
SLOTS: Final = 5
"""Of each task manager: the job, which needs at most 3, and the one beside it can go on with one of them."""
PARALLELISM: Final = 2
CHECKPOINT_MS: Final = 700
CHECKPOINT_BESIDE_MS: Final = 1_500
"""Of a job beside that one, which has more subtasks."""
ANSWER_S: Final = 60.0

_PIPELINE: Final = Path(__file__).with_name("pipeline.py")
_PAUSE_S: Final = 0.05
_TAIL_LINES: Final = 40

Part = Literal["kafka", "redis", "store"]
T = TypeVar("T")


class ChaosError(AssertionError):
    """Something that must hold did not."""


async def until(what: str, deadline_s: float, look: Callable[[], Awaitable[T | None]]) -> T:
    """Look again and again until there is something.

    Raises:
        ChaosError: there was nothing within the deadline.
    """
    end = time.monotonic() + deadline_s
    while True:
        found = await look()
        if found:
            return found
        if time.monotonic() > end:
            raise ChaosError(f"{what}: not within {deadline_s:.0f} s")
        await asyncio.sleep(_PAUSE_S)


class ChaosCluster:
    """Services on servers that are started already."""

    def __init__(self, servers: Servers, *, mark: str = "", record: Recorder = no_recorder) -> None:
        self.servers = servers
        self.folder = servers.folder
        self.steps = self.folder / "steps"
        self.settings: ClusterSettings = servers.settings(NAME)
        self.links: dict[tuple[str, Part], Links] = {}
        """What lies between a service, by name, and a part."""
        brokers = [node.port for node in servers.kafka.nodes]
        taken: set[int] = set()

        def service(name: str, kind: str, *options: str) -> ServiceProcess:
            ports = {port: free_port(taken) for port in (*brokers, servers.redis.port, servers.minio.port)}
            to_brokers = {broker: ports[broker] for broker in brokers}
            self.links[name, "kafka"] = Links([BrokerLink(ports[port], port, to_brokers) for port in brokers])
            self.links[name, "redis"] = Links([Link(ports[servers.redis.port], servers.redis.port)])
            self.links[name, "store"] = Links([Link(ports[servers.minio.port], servers.minio.port)])
            return ServiceProcess(
                name, kind, self.folder / name, free_port(taken), cluster=self._file_of(name), options=options,
                variables={VARIABLE: str(self.steps), "POLARS_MAX_THREADS": "1"},
                record=record, mark=mark or str(self.folder),
            )  # fmt: skip

        patience = ("--lease-ttl", f"{LEASE_S:.0f}s", "--worker-timeout", f"{WORKER_TIMEOUT_S:.0f}s")
        self.coordinators = [service(f"coordinator-{n}", "coordinator", *patience) for n in (1, 2)]
        self.task_managers = [service(f"taskmanager-{n}", "taskmanager", "--slots", str(SLOTS)) for n in (1, 2)]
        self._mark = mark or str(self.folder)
        self._ports = AsyncExitStack()
        self._log: Log | None = None
        self._blobs: Blobs | None = None
        self._metadata: Metadata | None = None

    @property
    def services(self) -> list[ServiceProcess]:
        """All of them."""
        return [*self.coordinators, *self.task_managers]

    # -- life -----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Create the topics and start the services."""
        self.steps.mkdir(parents=True, exist_ok=True)
        for service in self.services:
            self._write_settings(service.name)
        await asyncio.gather(*(link.start() for link in self.links.values()))
        use_cluster(self.settings.kafka, NAME)
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # that the broker is away is known here
        await asyncio.to_thread(self._create_topics)
        self._log = await self._ports.enter_async_context(cluster_log(self.settings, "chaos"))
        self._blobs = await self._ports.enter_async_context(cluster_store(self.settings))
        self._metadata = await self._ports.enter_async_context(cluster_metadata(self.settings))
        await asyncio.gather(*(service.start() for service in self.services))

    async def close(self) -> None:
        """End the services and the clients; the servers belong to whoever started them."""
        await asyncio.gather(*(service.kill() for service in self.services))
        await asyncio.gather(*(link.close() for link in self.links.values()))
        await self._ports.aclose()

    def _file_of(self, service: str) -> Path:
        return self.folder / f"{service}.toml"

    def _write_settings(self, service: str) -> None:
        """Those of a service, which reaches everything by its own links."""
        text = settings_to_toml(self.settings)
        for (name, _), links in self.links.items():
            if name == service:
                text = links.instead_of_targets(text)
        file = self._file_of(service)
        file.touch(0o600)
        file.write_text(text)

    def _create_topics(self) -> None:
        admin = AdminClient({**confluent_options(self.settings.kafka, "chaos-admin"), "log_level": 0})
        copies = self.settings.kafka.replication
        topics = [NewTopic(topic, num_partitions=PARTITIONS, replication_factor=copies) for topic in (TOPIC, *SINKS)]
        for future in admin.create_topics(topics).values():
            future.result(30)

    @property
    def blobs(self) -> Blobs:
        """The store."""
        assert self._blobs is not None, "the cluster is not started"
        return self._blobs

    @property
    def log(self) -> Log:
        """The log."""
        assert self._log is not None, "the cluster is not started"
        return self._log

    # -- looking --------------------------------------------------------------------------------------------------------

    async def view(self) -> ClusterView | None:
        """The newest that the leader wrote; None if Redis has none, or does not answer."""
        assert self._metadata is not None, "the cluster is not started"
        try:
            data = await self._metadata.get(VIEW)
        except ExternalError:
            return None
        view = None if data is None else msgspec.json.decode(data, type=ClusterView)
        fresh_us = (time.time() - 2) * 1e6
        return view if view is not None and view.seen_us > fresh_us else None

    async def job(self, job: str) -> JobView | None:
        """A job as the leader sees it now."""
        view = await self.view()
        return next((found for found in view.jobs if found.job == job), None) if view is not None else None

    async def leader(self) -> ServiceProcess:
        """The coordinator that leads now."""

        async def look() -> ServiceProcess | None:
            view = await self.view()
            return None if view is None else next((c for c in self.coordinators if c.address == view.address), None)

        return await until("a leader", 30, look)

    def workers(self, task_manager: ServiceProcess) -> list[ProcessId]:
        """The worker processes of a task manager."""
        own = task_manager.process.pid if task_manager.process is not None else 0
        return [process for process in marked(f"{self._mark}/{task_manager.name}") if process.pid != own]

    async def finished(self, job: str) -> FinishedJob | None:
        """What became of a job that has ended."""
        try:
            return next((found for found in await JobCatalog(self.blobs).finished() if found.job == job), None)
        except ExternalError:
            return None

    def tails(self) -> str:
        """The ends of all logs."""
        files = sorted(self.folder.glob("*/*.log"))
        return "\n".join(f"=== {file}\n{tail(file, _TAIL_LINES)}" for file in files)

    # -- asking ---------------------------------------------------------------------------------------------------------

    async def submit(self) -> str:
        """Submit the pipeline that is tormented; the job's id."""
        sources = self.folder / "sources"
        sources.mkdir(exist_ok=True)
        file = sources / "pipeline.py"  # alone: what lies beside it and is imported here would travel with it
        shutil.copyfile(_PIPELINE, file)
        return await self.submit_file(file, {}, CHECKPOINT_MS)

    async def submit_file(self, file: Path, parameters: dict[str, str], checkpoint_ms: int) -> str:
        """Submit a pipeline as a client does; the job's id."""
        pipeline = load_pipeline(str(file), parameters)
        packed = pack(str(file), parameters)
        await self.blobs.put(packed.artifact.key, packed.data)
        job = uuid.uuid4().hex
        settings = JobSettings(
            CheckpointSettings(interval_ms=checkpoint_ms, timeout_ms=30_000, tolerable_failed=1_000, incremental=True),
            FixedDelay(attempts=1_000_000, delay_ms=100),
            state_backend="rocksdb",
        )
        graph = build_job_graph(pipeline.plan, PARALLELISM).to_json()
        request = SubmitJob(
            request=job, job=job, issued_us=_now_us(), name=pipeline.name, graph=graph,
            scalable=scalable_form(pipeline.plan).to_json(), artifact=packed.artifact, settings=settings,
        )  # fmt: skip
        await self._send(request)
        return job

    async def rescale(self, job: str, parallelism: int) -> str:
        """Ask for another parallelism; the id to wait for with `answer`."""
        request = RescaleJob(request=uuid.uuid4().hex, job=job, issued_us=_now_us(), parallelism=parallelism)
        return await self._send(request)

    async def savepoint(self, job: str) -> str:
        """Ask for a savepoint."""
        return await self._send(TakeSavepoint(request=uuid.uuid4().hex, job=job, issued_us=_now_us()))

    async def stop(self, job: str) -> str:
        """Ask for an end with all windows fired."""
        return await self._send(StopJob(request=uuid.uuid4().hex, job=job, issued_us=_now_us(), drain=True))

    async def cancel(self, job: str) -> str:
        """Ask for an end now."""
        return await self._send(CancelJob(request=uuid.uuid4().hex, job=job, issued_us=_now_us()))

    async def answer(self, job: str, request: str) -> Answer:
        """The answer to a request."""
        catalog = JobCatalog(self.blobs)

        async def look() -> Answer | None:
            try:
                return await catalog.answer_to(job, request)
            except ExternalError:
                return None

        return await until(f"an answer to request {request}", ANSWER_S, look)

    async def _send(self, request: AnyRequest) -> str:
        await self.log.append(REQUESTS, 0, [NewRecord(encode(request))])
        return request.request


def _now_us() -> int:
    return int(time.time() * 1e6)
