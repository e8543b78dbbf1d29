"""A client of the REST interface: any of several dispatchers may answer, every request carries the id that makes it safe
to send it again to the next.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from penstock.client.documents import (
    NO_COORDINATOR,
    CheckpointList,
    CollectedList,
    Failures,
    JobDetail,
    JobList,
    JobLog,
    Overview,
    Problem,
    Requested,
    RequestState,
    RescaleBody,
    SavepointBody,
    SavepointList,
    SavepointSummary,
    StopBody,
    Submission,
    WhoAmI,
    WorkerList,
)
from penstock.client.errors import BusyError, NoAnswerError, NoLeaderError, RefusedError
from penstock.client.run_documents import Located, RunBody, RunDetail, RunList, RunLog, RunSubmission
from penstock.client.schedule_documents import ScheduleDetail, ScheduleList, ScheduleSubmission
from penstock.coordination.collected_rows import CollectedPart
from penstock.coordination.worker_logs import WorkerLogList
from penstock.errors import CorruptDataError, UsageError
from penstock.settings import ClusterSettings, Secret

ANSWER_S: Final = 20.0
"""How long a dispatcher may take: it gives up on Kafka, Redis and the store before that."""
CONNECT_S: Final = 3.0
UPLOAD_S: Final = 120.0
POLL_S: Final = 0.2
LEADER_S: Final = 30.0
"""How long a submission waits for a coordinator to lead: longer than one takes to start, or to take over."""
LEADER_POLL_S: Final = 0.5
UNAVAILABLE: Final = (502, 503, 504)
_NO_TOKEN: Final = Secret()

T = TypeVar("T")


class ClusterClient:
    """A cluster, through its dispatchers. Use it as an asynchronous context manager.

    Every method raises `NoAnswerError` if no dispatcher answers or the cluster is not available, `RefusedError` if it
    says no, and `CorruptDataError` if the answer is none of ours.

    Example:
        >>> async def shown() -> None:
        ...     async with ClusterClient("http://127.0.0.1:8081") as cluster:
        ...         for job in (await cluster.jobs()).jobs:
        ...             print(job.name, job.state)
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        transport: httpx2.AsyncBaseTransport | None = None,
        *,
        token: Secret = _NO_TOKEN,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """
        Args:
            addresses: `http://host:port` of one or several dispatchers, also in one string, separated by commas.
            token: what they demand, if they do.
            transport: instead of the network, for tests.
            tls: which certificates of `https://` are trusted; None: those that public authorities have signed.

        Raises:
            UsageError: one of them is no address.
        """
        parts = addresses.split(",") if isinstance(addresses, str) else addresses
        self._addresses = [part.strip().rstrip("/") for part in parts if part.strip()]
        if not self._addresses:
            raise UsageError("no dispatcher is named; set rest in the cluster's settings")
        for address in self._addresses:
            if not _is_address(address):
                raise UsageError(f"{address!r} is no address of a dispatcher; write http://HOST:PORT")
        timeout = httpx2.Timeout(ANSWER_S, connect=CONNECT_S)
        verify = tls if tls is not None else True
        headers = {"X-Requested-With": "penstock"}
        if token:
            headers["Authorization"] = f"Bearer {token.reveal()}"
        self._http = httpx2.AsyncClient(
            timeout=timeout, transport=transport, trust_env=False, headers=headers, verify=verify
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give back connections."""
        await self._http.aclose()

    # -- looking --------------------------------------------------------------------------------------------------------

    async def whoami(self) -> WhoAmI:
        """Who the dispatcher takes this client for, and what it may do."""
        return await self._get("/whoami", WhoAmI)

    async def overview(self) -> Overview:
        """The cluster in short."""
        return await self._get("/overview", Overview)

    async def jobs(self) -> JobList:
        """All jobs."""
        return await self._get("/jobs", JobList)

    async def job(self, job: str) -> JobDetail:
        """One job, by id, by the beginning of its id, or by name."""
        return await self._get(f"/jobs/{_quoted(job)}", JobDetail)

    async def checkpoints(self, job: str) -> CheckpointList:
        """The checkpoints of a job."""
        return await self._get(f"/jobs/{_quoted(job)}/checkpoints", CheckpointList)

    async def failures(self, job: str) -> Failures:
        """What went wrong in a job."""
        return await self._get(f"/jobs/{_quoted(job)}/failures", Failures)

    async def log(self, job: str) -> JobLog:
        """The log of a job."""
        return await self._get(f"/jobs/{_quoted(job)}/log", JobLog)

    async def worker_logs(self, job: str, lines: int) -> WorkerLogList:
        """The last `lines` that each worker of a job has logged, those that have ended among them."""
        return await self._get(f"/jobs/{_quoted(job)}/workers/logs", WorkerLogList, {"lines": str(lines)})

    async def artifact(self, job: str) -> bytes:
        """The zip of the sources of a job."""
        return (await self._ask("GET", f"/jobs/{_quoted(job)}/artifact")).content

    async def collected(self, job: str) -> CollectedList:
        """What the sinks of a job that gather rows in memory have so far: the names of the parts."""
        return await self._get(f"/jobs/{_quoted(job)}/collected", CollectedList)

    async def collected_part(self, job: str, name: str) -> CollectedPart:
        """One part."""
        return await self._get(f"/jobs/{_quoted(job)}/collected/{quote(name)}", CollectedPart)

    async def workers(self) -> WorkerList:
        """The worker processes."""
        return await self._get("/taskmanagers", WorkerList)

    async def savepoints(self, job: str = "") -> SavepointList:
        """The savepoints of a job, or of all."""
        return await self._get("/savepoints", SavepointList, {"job": job} if job else {})

    async def savepoint(self, name: str) -> SavepointSummary:
        """The savepoint of that name: the key of its manifest, the id of the request for it, or a job (its newest)."""
        return await self._get("/savepoints/find", SavepointSummary, {"name": name})

    # -- acting ---------------------------------------------------------------------------------------------------------
    #
    # `request` is the id of what is asked, 32 hexadecimal digits: the cluster does nothing twice for the same one.

    async def submit(
        self, submission: Submission, sources: bytes, *, waiting: Callable[[str], None] | None = None
    ) -> Requested:
        """Run a job; it exists once its leader has looked at it (`request_state` of its own id).

        Where no coordinator leads, as just after a start, one is waited for, `LEADER_S` seconds at most; `waiting` is
        told once that it is. `NoLeaderError` if none comes.
        """
        submission = msgspec.structs.replace(submission, job=submission.job or uuid.uuid4().hex)
        files = {
            "job": ("job.json", msgspec.json.encode(submission), "application/json"),
            "sources": ("sources.zip", sources, "application/zip"),
        }
        return _decoded(await self._with_leader(lambda: self._upload("/jobs", files), waiting or _warn), Requested)

    async def _upload(self, path: str, files: Mapping[str, tuple[str, bytes, str]]) -> httpx2.Response:
        """Submit something; dispatchers that are busy with others are asked again, for `LEADER_S` seconds at most."""
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + LEADER_S
        while True:
            try:
                return await self._ask("POST", path, files=files, timeout_s=UPLOAD_S)
            except BusyError as error:
                if clock() + error.again_s > deadline_s:
                    raise
                await asyncio.sleep(error.again_s)

    async def _with_leader(
        self, ask: Callable[[], Awaitable[httpx2.Response]], waiting: Callable[[str], None]
    ) -> httpx2.Response:
        clock = asyncio.get_running_loop().time
        deadline_s, told = clock() + LEADER_S, False
        while True:
            try:
                return await ask()
            except NoLeaderError:
                if clock() >= deadline_s:
                    raise
            if not told:
                waiting(f"no coordinator leads the cluster yet; waiting up to {LEADER_S:g} s for one")
                told = True
            await asyncio.sleep(LEADER_POLL_S)

    async def cancel(self, job: str, *, request: str = "") -> Requested:
        """Publish what is complete, then end."""
        return await self._post(f"/jobs/{_quoted(job)}/cancel", SavepointBody(request or uuid.uuid4().hex))

    async def stop(self, job: str, *, drain: bool = False, request: str = "") -> Requested:
        """Take a savepoint and end."""
        return await self._post(f"/jobs/{_quoted(job)}/stop", StopBody(drain, request or uuid.uuid4().hex))

    async def take_savepoint(self, job: str, *, request: str = "") -> Requested:
        """Take a savepoint and go on."""
        return await self._post(f"/jobs/{_quoted(job)}/savepoints", SavepointBody(request or uuid.uuid4().hex))

    async def rescale(self, job: str, parallelism: int, *, wait: bool = False, request: str = "") -> Requested:
        """Go on at another parallelism; `wait`: where slots are missing, not before they are there."""
        body = RescaleBody(parallelism, request or uuid.uuid4().hex, wait)
        return await self._post(f"/jobs/{_quoted(job)}/rescale", body)

    async def dispose_savepoint(self, manifest: str, *, request: str = "") -> None:
        """Remove the savepoint whose manifest has this key; refused while a job needs it."""
        body = msgspec.json.encode({"savepoint-path": manifest, "triggerId": request or uuid.uuid4().hex})
        await self._ask("POST", "/savepoint-disposal", content=body, root="/v1")

    # -- runs on Spark --------------------------------------------------------------------------------------------------

    async def find(self, name: str) -> Located:
        """The job or the run of that id, beginning of an id, or name."""
        return await self._get("/find", Located, {"name": _quoted(name)})

    async def runs(self) -> RunList:
        """All runs."""
        return await self._get("/runs", RunList)

    async def run(self, run: str) -> RunDetail:
        """One run, by id, by the beginning of its id, or by name (its newest)."""
        return await self._get(f"/runs/{_quoted(run)}", RunDetail)

    async def run_log(self, run: str) -> RunLog:
        """The log of a run."""
        return await self._get(f"/runs/{_quoted(run)}/log", RunLog)

    async def submit_run(self, submission: RunSubmission, sources: bytes) -> Requested:
        """Execute a run; it exists once the pipeline service has looked at it (`run_outcome`)."""
        request = submission.request or uuid.uuid4().hex
        submission = msgspec.structs.replace(submission, run=submission.run or request, request=request)
        files = {
            "run": ("run.json", msgspec.json.encode(submission), "application/json"),
            "sources": ("sources.zip", sources, "application/zip"),
        }
        return _decoded(await self._upload("/runs", files), Requested)

    async def cancel_run(self, run: str) -> Requested:
        """End a run; nothing of it becomes visible unless that is decided already."""
        return await self._post(f"/runs/{_quoted(run)}/cancel", RunBody(uuid.uuid4().hex))

    async def run_outcome(self, requested: Requested, timeout_s: float) -> RequestState:
        """As `outcome`, of a request for a run."""
        path = f"/runs/{_quoted(requested.job)}/requests/{requested.request}"
        return await self._waited(lambda: self._get(path, RequestState), timeout_s)

    # -- schedules ------------------------------------------------------------------------------------------------------

    async def schedules(self) -> ScheduleList:
        """All schedules."""
        return await self._get("/schedules", ScheduleList)

    async def schedule(self, name: str) -> ScheduleDetail:
        """One schedule."""
        return await self._get(f"/schedules/{_quoted(name)}", ScheduleDetail)

    async def add_schedule(self, submission: ScheduleSubmission, sources: bytes) -> ScheduleDetail:
        """Add a schedule; one that is there with the same content stays as it is."""
        files = {
            "schedule": ("schedule.json", msgspec.json.encode(submission), "application/json"),
            "sources": ("sources.zip", sources, "application/zip"),
        }
        return _decoded(await self._upload("/schedules", files), ScheduleDetail)

    async def pause_schedule(self, name: str) -> ScheduleDetail:
        """Let no more runs of it begin; what is at work goes on."""
        return _decoded(await self._ask("POST", f"/schedules/{_quoted(name)}/pause", content=b""), ScheduleDetail)

    async def resume_schedule(self, name: str) -> ScheduleDetail:
        """Let it go on, after a pause or a stop."""
        return _decoded(await self._ask("POST", f"/schedules/{_quoted(name)}/resume", content=b""), ScheduleDetail)

    async def remove_schedule(self, name: str) -> ScheduleDetail:
        """Remove it; what is at work goes on."""
        return _decoded(await self._ask("DELETE", f"/schedules/{_quoted(name)}"), ScheduleDetail)

    # -- requests -------------------------------------------------------------------------------------------------------

    async def request_state(self, requested: Requested) -> RequestState:
        """What has become of a request."""
        return await self._get(f"/jobs/{requested.job}/requests/{requested.request}", RequestState)

    async def outcome(self, requested: Requested, timeout_s: float) -> RequestState:
        """Wait until a request is answered; `pending` if that takes longer than `timeout_s`.

        Dispatchers that do not answer for a while are waited for, too.
        """
        return await self._waited(lambda: self.request_state(requested), timeout_s)

    async def _waited(self, ask: Callable[[], Awaitable[RequestState]], timeout_s: float) -> RequestState:
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + timeout_s
        while True:
            try:
                state = await ask()
            except NoAnswerError:
                if clock() >= deadline_s:
                    raise
            else:
                if state.state != "pending" or clock() >= deadline_s:
                    return state
            await asyncio.sleep(min(POLL_S, max(0.01, deadline_s - clock())))

    # -- asking ---------------------------------------------------------------------------------------------------------

    async def _get(self, path: str, kind: type[T], query: Mapping[str, str] | None = None) -> T:
        return _decoded(await self._ask("GET", path, query=query), kind)

    async def _post(self, path: str, body: msgspec.Struct) -> Requested:
        return _decoded(await self._ask("POST", path, content=msgspec.json.encode(body)), Requested)

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        content: bytes | None = None,
        files: Any = None,
        timeout_s: float = ANSWER_S,
        root: str = "/penstock/v1",
    ) -> httpx2.Response:
        """Ask one dispatcher after the other; the one that answers comes first from then on."""
        problems: list[str] = []
        leaderless, again_s = False, 0.0
        for address in list(self._addresses):
            try:
                response = await self._http.request(
                    method, f"{address}{root}{path}", params=query, content=content, files=files,
                    timeout=httpx2.Timeout(timeout_s, connect=CONNECT_S),
                )  # fmt: skip
            except httpx2.TransportError as error:
                problems.append(f"{address}: {_transport_problem(error)}")
                continue
            if response.status_code in UNAVAILABLE:
                problems.append(f"{address}: {_reason(response)}")
                leaderless = leaderless or _reason(response).startswith(NO_COORDINATOR)
                again_s = max(again_s, _again_s(response))
                continue
            self._addresses.sort(key=lambda known, answered=address: known != answered)
            if response.status_code >= 400:
                raise RefusedError(_reason(response), response.status_code)
            return response
        if leaderless:
            raise NoLeaderError("; ".join(problems))
        raise BusyError("; ".join(problems), again_s) if again_s else NoAnswerError("; ".join(problems))


def _again_s(response: httpx2.Response) -> float:
    """In how many seconds to ask again, if the answer says so."""
    said = response.headers.get("Retry-After", "")
    return float(said) if said.isdecimal() else 0.0


def _is_address(text: str) -> bool:
    try:
        return httpx2.URL(text).scheme in ("http", "https")
    except httpx2.InvalidURL:
        return False


def client_of(settings: ClusterSettings) -> ClusterClient:
    """A client of the cluster that these settings describe; raises `UsageError` where they do not."""
    tls = settings.rest_trust() if "https://" in settings.rest else None
    return ClusterClient(settings.rest, token=settings.token, tls=tls)


def _warn(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _transport_problem(error: httpx2.TransportError) -> str:
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        why = text.partition("verify failed: ")[2].partition(" (_ssl")[0] or text
        return (
            f"its certificate is not trusted ({why}); rest_ssl_cafile of the settings (PENSTOCK_REST_SSL_CAFILE)"
            " names the file of the authority that has signed it"
        )
    if "WRONG_VERSION_NUMBER" in text or "record layer" in text:
        return "this speaks no TLS; write http:// in rest of the cluster's settings, if that is meant"
    if "SSL" in text:
        return f"no connection by TLS ({text}); the dispatcher's log may say more"
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return "no dispatcher answers there; start one with penstock up, or name another with --cluster"
    if isinstance(error, httpx2.TimeoutException):
        return "the dispatcher does not answer in time"
    if isinstance(error, httpx2.RemoteProtocolError | httpx2.ReadError) and error.request.url.scheme == "http":
        return f"the connection broke ({text}); a dispatcher that speaks TLS has https:// before its address"
    return f"the connection broke ({type(error).__name__}: {text})"


def _reason(response: httpx2.Response) -> str:
    try:
        return "; ".join(msgspec.json.decode(response.content, type=Problem).errors)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return f"HTTP {response.status_code} {response.reason_phrase}: {response.text[:200]}".rstrip(": ")


def _decoded(response: httpx2.Response, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(response.content, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CorruptDataError(
            f"{response.request.url}: this is no answer of a Penstock dispatcher of this version ({error})"
        ) from error


def _quoted(part: str) -> str:
    """A name as one part of a path.

    Raises:
        UsageError: no job can be called so, and a path made of it would lead elsewhere.
    """
    if not part or not all(character.isalnum() or character in "-_." for character in part) or part in (".", ".."):
        raise UsageError(f"{part!r} names no job: give its name, its id, or the first six or more digits of the id")
    return part
