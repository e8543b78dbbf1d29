"""The services of a cluster in one process, on ports in memory: coordinators, workers, and clients' requests.

What tests of clusters share: coordinators and workers are started and ended one by one, jobs are submitted as a
dispatcher would do it. Everything runs in the event loop that uses it; `penstock.testing.cluster` is its face for users.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec

from penstock.adapters.memory import MemoryBlobs, MemoryLog, MemoryMetadata
from penstock.adapters.system_clock import SystemClock
from penstock.coordination.control_topics import EVENTS, REQUESTS, create_control_topics
from penstock.coordination.job_catalog import JobCatalog
from penstock.coordination.job_store import JobStore
from penstock.errors import ExternalError
from penstock.graph.jobgraph import graph_from_json
from penstock.jobmanager.autoscaling import Scaling
from penstock.jobmanager.coordinator import CoordinatorService, CoordinatorTimeouts
from penstock.jobmanager.leadership import ControlPorts
from penstock.observability.user_frames import describe_error
from penstock.plan.logical import LogicalPlan
from penstock.ports import Clock, NewRecord
from penstock.protocol.job_observer import JobObserver
from penstock.protocol.joblog import JobHistory, JobSettings
from penstock.protocol.messages import Deploy, Heartbeat, Restore, encode
from penstock.protocol.requests import Answer, AnyRequest
from penstock.protocol.worker import LEADER_SILENCE_MS
from penstock.submission.options import JobOptions, job_request
from penstock.task.environment import Services, SubtaskSettings
from penstock.taskmanager.job_loading import LoadedJob
from penstock.taskmanager.worker import WorkerService
from penstock.testing.virtual_time import timers_count

QUICK: Final = CoordinatorTimeouts(lease_ttl_ms=3_000, takeover_ms=300, worker_ms=1_500)
"""Patience for services that share an event loop."""
_LOOK_S: Final = 0.01


class MemoryCluster:
    """Ports that all services share, and the services that run.

    Args:
        clock: time for all of them; the system's if not given.
        timeouts: how patient coordinators are.
        data: settings of the data path.
        collects: whether rows that a sink gathers in memory go into the store too.
        log: another log in memory.
        blobs: another store in memory.
        new_id: fresh ids of 32 hex digits.
        leader_silence_ms: how long workers go on without a leader.
        plan_of: the code of a job, if jobs are submitted in other ways than by `submit`.
    """

    bound_to: str = ""
    """See `JobLoader`: a worker here runs any job."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        timeouts: CoordinatorTimeouts = QUICK,
        data: SubtaskSettings | None = None,
        collects: bool = False,
        log: MemoryLog | None = None,
        blobs: MemoryBlobs | None = None,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        leader_silence_ms: int = LEADER_SILENCE_MS,
        plan_of: Callable[[str], LogicalPlan] | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.log = log or MemoryLog()
        self.blobs = blobs or MemoryBlobs()
        self.metadata = MemoryMetadata(self.clock)
        self.store = JobStore(self.blobs, self.clock)
        self.catalog = JobCatalog(self.blobs)
        self.workers: dict[str, WorkerService] = {}
        """All workers that were ever started, by name: what their subtasks raised is kept."""
        self.tasks: dict[str, asyncio.Task[None]] = {}
        """Services that were started, by name."""
        self._timeouts = timeouts
        self._data = data or SubtaskSettings()
        self._collects = collects
        self._new_id = new_id
        self._leader_silence_ms = leader_silence_ms
        self._plans: dict[str, LogicalPlan] = {}
        self._plan_of = plan_of or self._plans.__getitem__
        self._names = itertools.count()

    # -- services -------------------------------------------------------------------------------------------------------

    def coordinator(
        self,
        *,
        address: str = "",
        observe: Callable[[str], JobObserver] | None = None,
        scaling: Scaling | None = None,
    ) -> CoordinatorService:
        """Start a coordinator; one of them leads. `observe` gives every job that it masters somebody who looks on."""
        ports = ControlPorts(self.log, self.blobs, self.metadata, self.clock, self._new_id)
        name = f"leader-{next(self._names)}"
        service = CoordinatorService(name, ports, self._timeouts, address=address, observe=observe, scaling=scaling)
        self._start(service.name, service.run())
        return service

    def worker(self, slots: int = 1, *, host: str = "") -> WorkerService:
        """Start a worker process, as far as one process can."""
        services = Services(self.log, self.blobs, self.clock, self._data, collects=self._collects)
        name = f"worker-{next(self._names)}"
        worker = WorkerService(name, slots, services, self, self._leader_silence_ms, host=host)
        self.workers[name] = worker
        self._start(name, worker.run())
        return worker

    def _start(self, name: str, service: Coroutine[Any, Any, None]) -> None:
        self.tasks[name] = asyncio.ensure_future(service)

    async def end(self, name: str) -> None:
        """End a service as if it had been killed: it tells nobody."""
        task = self.tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def kill_worker(self, name: str) -> None:
        """Kill a worker; its supervisor says that it is gone."""
        await self.end(name)
        gone = Heartbeat(worker=name, slots=0, leaving="killed by the test")
        await self.log.append(EVENTS, 0, [NewRecord(encode(gone))])

    async def stop(self) -> None:
        """End everything."""
        tasks = list(self.tasks.values())
        self.tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def live_workers(self) -> list[WorkerService]:
        """Those that run."""
        return [worker for name, worker in self.workers.items() if name in self.tasks]

    def raised(self, reason: str) -> BaseException | None:
        """The newest error that a subtask here raised and that a failed job gives as its reason."""
        errors = [error for worker in self.workers.values() for error in worker.failures]
        return next((error for error in reversed(errors) if describe_error(error) in reason), None)

    # -- jobs -----------------------------------------------------------------------------------------------------------

    async def load(self, deploy: Deploy) -> LoadedJob:
        """See `JobLoader`. The graph is as the job log has it: it differs after a rescale."""
        timers_count()
        manifest = await self.store.manifest(deploy.restore) if deploy.restore else None
        graph = graph_from_json((await self.history(deploy.job)).graph)
        return LoadedJob(graph, self._plan_of(deploy.job), manifest)

    async def submit(
        self, plan: LogicalPlan, settings: JobSettings, *, parallelism: int = 1, restored_from: Restore | None = None
    ) -> str:
        """Ask for a job to be run; its id."""
        job = self._new_id()
        self._plans[job] = plan
        options = JobOptions(parallelism=parallelism, settings=settings, restored_from=restored_from)
        request = msgspec.structs.replace(job_request(plan, options, job=job), issued_us=self.clock.now_us())
        await self.request(request)
        return job

    async def request(self, request: AnyRequest) -> None:
        """Ask, as a dispatcher does it."""
        await create_control_topics(self.log)
        await self.log.append(REQUESTS, 0, [NewRecord(encode(request))])

    async def answer(self, job: str, request: str, deadline_s: float = 30) -> Answer:
        """The answer to a request."""
        found: list[Answer] = []

        async def answered() -> bool:
            answer = await self.catalog.answer_to(job, request)
            found.extend([answer] if answer is not None else [])
            return answer is not None

        await until(answered, f"request {request} is answered", deadline_s)
        return found[0]

    async def history(self, job: str) -> JobHistory:
        """The log of a job."""
        return await self.store.history(job)


async def until(condition: Callable[[], Awaitable[object]], what: str, deadline_s: float = 30) -> None:
    """Wait until a condition holds.

    Raises:
        ExternalError: it does not within `deadline_s` seconds; names `what`.
    """
    end_s = asyncio.get_running_loop().time() + deadline_s
    while not await condition():
        if asyncio.get_running_loop().time() > end_s:
            raise ExternalError(f"not within {deadline_s:g} s: {what}")
        await asyncio.sleep(_LOOK_S)
