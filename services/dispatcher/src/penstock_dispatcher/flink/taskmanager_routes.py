"""Routes of task managers: workers, their slots, metrics and logs."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from penstock.coordination.cluster_view import ClusterView, WorkerView
from penstock.coordination.worker_logs import KEPT_LINES
from penstock_dispatcher.flink import taskmanager_shapes as shapes
from penstock_dispatcher.flink.answers import get, sent, text
from penstock_dispatcher.flink.lookup import Lookup
from penstock_dispatcher.flink.metrics import aggregated, listed, worker_metrics
from penstock_dispatcher.refusing import RestError


class TaskManagerRoutes:
    """The handlers."""

    def __init__(self, lookup: Lookup) -> None:
        self._cluster = lookup.cluster

    def add_to(self, router: APIRouter) -> None:
        """Add all routes."""
        get(router, "/taskmanagers", self.taskmanagers, shapes.FlinkTaskManagers)
        get(router, "/taskmanagers/metrics", self.all_metrics)
        one = "/taskmanagers/{worker_id}"
        get(router, one, self.taskmanager, shapes.FlinkTaskManagerDetail)
        get(router, f"{one}/metrics", self.metrics)
        get(router, f"{one}/log", self.log)
        get(router, f"{one}/logs", self.logs, shapes.FlinkLogFiles)
        get(router, f"{one}/logs/{{name}}", self.named_log)
        for name in ("stdout", "thread-dump"):
            get(router, f"{one}/{name}", self.not_kept)

    async def taskmanagers(self) -> Response:
        """Flink: task managers."""
        return sent(shapes.taskmanagers(await self._cluster.leading_view()))

    async def taskmanager(self, worker_id: str) -> Response:
        """Flink: a task manager with its slots."""
        worker, view = await self._worker(worker_id)
        return sent(shapes.taskmanager(worker, view))

    async def all_metrics(
        self, get: str | None = None, agg: str | None = None, taskmanagers: str | None = None
    ) -> Response:
        """Flink: metrics summed up over task managers; `taskmanagers`: over these only."""
        chosen = taskmanagers.split(",") if taskmanagers else None
        workers = (await self._cluster.leading_view()).workers
        found = [worker_metrics(worker) for worker in workers if chosen is None or worker.worker in chosen]
        return sent(aggregated(found, get, agg))

    async def metrics(self, worker_id: str, get: str | None = None) -> Response:
        """Flink: metrics of a task manager."""
        worker, _ = await self._worker(worker_id)
        return sent(listed(worker_metrics(worker), get))

    async def log(self, worker_id: str) -> Response:
        """Flink: the log of a task manager: the last lines of this worker."""
        await self._worker(worker_id)
        return text("".join(f"{line}\n" for line in await self._lines(worker_id)))

    async def logs(self, worker_id: str) -> Response:
        """Flink: the log files of a task manager: one."""
        worker, view = await self._worker(worker_id)
        return sent(shapes.log_files(worker_id, await self._lines(worker_id), worker.heard_us or view.seen_us))

    async def named_log(self, worker_id: str, name: str) -> Response:
        """Flink: a log file."""
        if name != shapes.log_name(worker_id):
            raise RestError(404, f"there is no log {name!r}; there is {shapes.log_name(worker_id)!r}")
        return await self.log(worker_id)

    async def not_kept(self, worker_id: str, request: Request) -> Response:
        """Flink: what a task manager prints, or its stacks, which are not kept."""
        await self._worker(worker_id)
        raise RestError(
            404, f"{request.url.path}: this is not kept; what a worker logs is at /taskmanagers/{worker_id}/log"
        )

    async def _worker(self, worker_id: str) -> tuple[WorkerView, ClusterView]:
        view = await self._cluster.leading_view()
        for worker in view.workers:
            if worker.worker == worker_id:
                return worker, view
        raise RestError(404, f"No TaskExecutor registered under {worker_id}.")

    async def _lines(self, worker_id: str) -> tuple[str, ...]:
        found = await self._cluster.worker_logs("", KEPT_LINES, worker_id)
        for log in found.workers:
            if log.worker == worker_id:
                return log.lines
        if found.missing:
            raise RestError(503, "; ".join(found.missing))
        return ()
