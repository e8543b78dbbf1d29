"""The cluster as a dispatcher knows it: only what Kafka, Redis and the store say, read anew for every answer.

Nothing is kept but objects that never change, so that any number of dispatchers agree. Whatever does not answer in
time is an `ExternalError` (see `reading`): nobody waits for ever.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import httpx2
import msgspec
import structlog

from penstock.client.documents import NO_COORDINATOR
from penstock.coordination.cluster_view import VIEW, ClusterView
from penstock.coordination.collected_rows import collected_names, collected_prefix
from penstock.coordination.control_topics import REQUESTS, create_control_topics
from penstock.coordination.job_catalog import ACTIVE, FINISHED, FinishedJob, JobCatalog
from penstock.coordination.job_store import JobReader
from penstock.coordination.worker_logs import LOGS_PATH, WorkerLog, WorkerLogList, logs_in
from penstock.errors import CorruptDataError, ExternalError, UsageError
from penstock.ports import BlobNotFoundError, Blobs, Clock, Log, Metadata, NewRecord, RecordTooLargeError
from penstock.protocol.joblog import JobHistory
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import Restore, encode
from penstock.protocol.requests import Answer, AnyRequest, AnyRunRequest, artifact_key
from penstock.service.audit import note_change
from penstock_dispatcher.manifest_sizes import ManifestSizes
from penstock_dispatcher.oidc.login import Login
from penstock_dispatcher.reading import KEPT, PublishedView, cache_bounded, for_each_concurrently, within_deadline
from penstock_dispatcher.refusing import RestError

UPLOAD_S: Final = 60.0
ASKED_MS: Final = 3_600_000
IN_DOUBT: Final = (
    "the request may have arrived all the same, and is carried out then: look (penstock jobs, penstock status) before "
    "asking again"
)
"""How long a request without an answer is known to have been sent."""

DISPOSED: Final = "disposed/"
_log = structlog.get_logger("penstock.dispatcher")


@dataclass(frozen=True)
class DispatcherPorts:
    """The world."""

    log: Log
    blobs: Blobs
    metadata: Metadata
    clock: Clock
    new_id: Callable[[], str]
    """32 fresh hex digits."""
    http: httpx2.AsyncClient | None = None
    """With the token, for what only task managers know; None: they are not asked."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those of this process by name, as they may be shown."""
    logs: Callable[[str, int], WorkerLogList] | None = None
    """Tells what workers of a job, or with an empty name all, have logged, so many lines each; None: task managers are
    asked."""
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    """What nobody can do here, `submit` or `rescale`, and why."""
    login: Login | None = None
    """Of the dashboard; None: it has none, but takes tokens."""


class Cluster:
    """Reads what there is, appends what is asked for."""

    def __init__(self, ports: DispatcherPorts) -> None:
        self._ports = ports
        self._catalog = JobCatalog(ports.blobs)
        self._store = JobReader(ports.blobs, remembered=KEPT)
        self.view: Final = PublishedView(ports.metadata, ports.clock, VIEW, ClusterView, "the cluster")
        """As its leader shows it."""
        self.refused: Final = dict(ports.refused)
        """See `DispatcherPorts`."""
        self._finished: dict[str, FinishedJob] = {}
        self._ended: dict[str, JobHistory] = {}
        self._sizes: dict[str, ManifestSizes] = {}
        self._topics_made = False

    # -- reading --------------------------------------------------------------------------------------------------------

    async def leading_view(self) -> ClusterView:
        """The view, for what only a leader can do; raises `RestError` 503 if there is none."""
        view = await self.view.read()
        if view is None or not view.epoch:
            raise RestError(503, f"{NO_COORDINATOR}; start one, or wait until one has taken over")
        return view

    async def active(self) -> list[str]:
        """Ids of jobs that have not ended, or are being cleaned up."""
        return await within_deadline("the store", self._catalog.active())

    async def finished(self) -> list[FinishedJob]:
        """All jobs that have ended."""
        keys = await within_deadline("the store", self._ports.blobs.list(FINISHED))
        await for_each_concurrently([key for key in keys if key not in self._finished], self._read_finished)
        return [self._finished[key] for key in keys if key in self._finished]

    async def _read_finished(self, key: str) -> None:
        try:
            data = await within_deadline("the store", self._ports.blobs.get(key))
        except BlobNotFoundError:
            return  # somebody removed it since it was listed
        try:
            cache_bounded(self._finished, key, msgspec.json.decode(data, type=FinishedJob))
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise CorruptDataError(f"{key}: not readable: {error}") from error

    async def ids(self) -> tuple[list[str], list[str]]:
        """Ids of all jobs: active ones, ended ones."""
        active, finished = await asyncio.gather(
            within_deadline("the store", self._ports.blobs.list(ACTIVE)),
            within_deadline("the store", self._ports.blobs.list(FINISHED)),
        )
        return [key.removeprefix(ACTIVE) for key in active], [key.removeprefix(FINISHED) for key in finished]

    async def history(self, job: str) -> JobHistory:
        """A job's log; empty if there is no such job."""
        if job in self._ended:
            return self._ended[job]
        history = await within_deadline("the store", self._store.history(job))
        if history.terminated is not None:
            cache_bounded(self._ended, job, history)
        return history

    async def histories(self, jobs: Iterable[str]) -> dict[str, JobHistory]:
        """The logs of several jobs; empty for one that cannot be read."""
        found: dict[str, JobHistory] = {}

        async def read(job: str) -> None:
            try:
                found[job] = await self.history(job)
            except CorruptDataError:  # the leader says what is wrong with it
                found[job] = JobHistory()

        await for_each_concurrently(list(jobs), read)
        return found

    async def manifest(self, key: str) -> tuple[Restore, Manifest] | None:
        """A checkpoint by the key of its manifest, which nothing vouches for; None if there is none."""
        try:
            data = await within_deadline("the store", self._ports.blobs.get(key))
        except BlobNotFoundError:
            return None
        digest = hashlib.sha256(data).hexdigest()
        manifest = await within_deadline("the store", self._store.manifest(Restore(0, key, digest)))
        return Restore(manifest.checkpoint, key, digest), manifest

    async def manifest_sizes(self, key: str) -> ManifestSizes | None:
        """The numbers in a manifest; None if it is no more."""
        if key in self._sizes:
            return self._sizes[key]
        try:
            data = await within_deadline("the store", self._ports.blobs.get(key))
        except BlobNotFoundError:
            return None
        try:
            cache_bounded(self._sizes, key, msgspec.json.decode(data, type=ManifestSizes))
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise CorruptDataError(f"{key}: not readable: {error}") from error
        return self._sizes[key]

    async def keys(self, prefix: str) -> list[str]:
        """The objects whose keys begin so."""
        return await within_deadline("the store", self._ports.blobs.list(prefix))

    async def delete(self, keys: list[str]) -> None:
        """Remove objects; those that are not there are passed over."""
        await for_each_concurrently(keys, lambda key: within_deadline("the store", self._ports.blobs.delete(key)))

    async def put_marker(self, key: str) -> None:
        """Write an empty object."""
        await within_deadline("the store", self._ports.blobs.put(key, b""))

    async def disposed(self) -> set[str]:
        """The manifests of savepoints that somebody has removed; the jobs' logs still name them."""
        return {key.removeprefix(DISPOSED) for key in await self.keys(DISPOSED)}

    async def note(self, key: str) -> None:
        """Remember for an hour that this was done, for every dispatcher to see."""
        await within_deadline("Redis", self._ports.metadata.acquire(key, b"1", ASKED_MS))

    async def is_noted(self, key: str) -> bool:
        """Whether it was."""
        return await within_deadline("Redis", self._ports.metadata.get(key)) is not None

    async def artifact(self, key: str) -> bytes:
        """The sources of a job."""
        return await within_deadline("the store", self._ports.blobs.get(key), UPLOAD_S)

    async def collected(self, job: str) -> list[str]:
        """The names of the parts that sinks gathered."""
        return await within_deadline("the store", collected_names(self._ports.blobs, job))

    async def collected_part(self, job: str, name: str) -> bytes:
        """A part, as JSON.

        Raises:
            RestError: there is none of that name.
        """
        try:
            return await within_deadline("the store", self._ports.blobs.get(collected_prefix(job) + name), UPLOAD_S)
        except (BlobNotFoundError, UsageError) as error:
            raise RestError(404, f"job {job} has no collected part {name!r}") from error

    async def worker_logs(self, job: str, lines: int, worker: str = "") -> WorkerLogList:
        """What workers have logged lately: those of a job, from all task managers that the leader knows, or, without
        one, all of the task manager that `worker` belongs to."""
        if self._ports.logs is not None:
            return self._ports.logs(job, lines)
        http = self._ports.http
        asked = [one for one in (await self.leading_view()).workers if worker in ("", one.worker)]
        addresses = sorted({one.host.rpartition(" ")[2] for one in asked} - {""})
        found: list[WorkerLog] = []
        missing: list[str] = []

        async def ask(address: str) -> None:
            try:
                assert http is not None
                query = {"job": job, "lines": str(lines)}
                answer = await within_deadline(address, http.get(f"http://{address}{LOGS_PATH}", params=query))
                if answer.status_code != 200:
                    raise ExternalError(
                        f"HTTP {answer.status_code}; beyond loopback a task manager needs the token too"
                    )
                found.extend(logs_in(answer.content).workers)
            except (httpx2.HTTPError, httpx2.InvalidURL, ExternalError) as error:
                missing.append(f"{address}: {error}")

        await for_each_concurrently(addresses if http is not None else [], ask)
        return WorkerLogList(tuple(sorted(found, key=lambda log: log.worker)), tuple(missing))

    # -- requests -------------------------------------------------------------------------------------------------------

    def new_id(self) -> str:
        """32 fresh hex digits."""
        return self._ports.new_id()

    def now_us(self) -> int:
        """Wall time."""
        return self._ports.clock.now_us()

    async def store_sources(self, data: bytes) -> tuple[str, str]:
        """Put the sources of a job where task managers find them; returns key and sha256."""
        digest = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
        key = artifact_key(digest)
        await within_deadline("the store", self._ports.blobs.put(key, data), UPLOAD_S)
        return key, digest

    async def ask(self, request: AnyRequest | AnyRunRequest) -> None:
        """Append a request. Sent again with the same id it is carried out once.

        Raises:
            RestError: it is too large for a record.
            ExternalError: it is not certain whether it is on its way.
        """
        note_change(kind=type(request).__name__, job=request.job, request=request.request)
        try:
            if not self._topics_made:
                await within_deadline("Kafka", create_control_topics(self._ports.log))
                self._topics_made = True
            await within_deadline("Kafka", self._ports.log.append(REQUESTS, 0, [NewRecord(encode(request))]))
        except RecordTooLargeError as error:
            raise RestError(413, f"the request is too large for Kafka: {error}") from error
        except ExternalError as error:
            if not error.retryable:
                raise
            raise ExternalError(f"{error}; {IN_DOUBT}") from error
        try:
            await self.note(_asked(request.request))
        except ExternalError as error:  # it is on its way; only a question for it may be answered with 404 meanwhile
            _log.warning("a request could not be noted", request=request.request, error=str(error))

    async def answer(self, job: str, request: str) -> Answer | None:
        """What a leader answered."""
        return await within_deadline("the store", self._catalog.answer_to(job, request))

    async def was_asked(self, request: str) -> bool:
        """Whether this request was sent within the last hour."""
        return await self.is_noted(_asked(request))


def disposed_key(manifest: str) -> str:
    """The object that says that a savepoint was removed."""
    return DISPOSED + manifest


def _asked(request: str) -> str:
    return f"asked-{request}"
