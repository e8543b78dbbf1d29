"""Routes of one vertex: its subtasks, where they run, their times, backpressure, watermarks and metrics."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from penstock_dispatcher.flink import vertex_shapes as shapes
from penstock_dispatcher.flink.answers import get, sent
from penstock_dispatcher.flink.facts import Subtask
from penstock_dispatcher.flink.lookup import FoundVertex, Lookup, number
from penstock_dispatcher.flink.metrics import aggregated, by_subtask, listed, metrics_of
from penstock_dispatcher.refusing import RestError


class VertexRoutes:
    """The handlers."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    def add_to(self, router: APIRouter) -> None:
        """Add all routes."""
        vertex = "/jobs/{job_id}/vertices/{vertex_id}"
        get(router, vertex, self.vertex, shapes.FlinkVertex)
        get(router, f"{vertex}/taskmanagers", self.taskmanagers, shapes.FlinkVertexTaskManagers)
        get(router, f"{vertex}/subtasktimes", self.times, shapes.FlinkVertexTimes)
        get(router, f"{vertex}/backpressure", self.backpressure, shapes.FlinkBackPressure)
        get(router, f"{vertex}/watermarks", self.watermarks)
        get(router, f"{vertex}/accumulators", self.accumulators, shapes.FlinkVertexAccumulators)
        get(router, f"{vertex}/flamegraph", self.flames, shapes.FlinkFlames)
        get(router, f"{vertex}/metrics", self.metrics)
        get(router, f"{vertex}/jm-operator-metrics", self.coordinator_metrics)
        subtasks = f"{vertex}/subtasks"
        get(router, f"{subtasks}/accumulators", self.all_accumulators, shapes.FlinkSubtasksAccumulators)
        get(router, f"{subtasks}/metrics", self.aggregated_metrics)
        subtask = f"{subtasks}/{{index}}"
        get(router, subtask, self.subtask, shapes.FlinkSubtask)
        get(router, f"{subtask}/metrics", self.subtask_metrics)
        attempt = f"{subtask}/attempts/{{attempt}}"
        get(router, attempt, self.attempt, shapes.FlinkSubtask)
        get(router, f"{attempt}/accumulators", self.attempt_accumulators, shapes.FlinkAttemptAccumulators)

    async def vertex(self, job_id: str, vertex_id: str) -> Response:
        """Flink: the subtasks of a vertex."""
        page = await self._lookup.vertex(job_id, vertex_id)
        return sent(shapes.vertex(page.vertex, page.subtasks, page.now_us))

    async def taskmanagers(self, job_id: str, vertex_id: str) -> Response:
        """Flink: the workers that run a vertex."""
        page = await self._lookup.vertex(job_id, vertex_id)
        return sent(shapes.taskmanagers(page.vertex, page.subtasks, page.now_us))

    async def times(self, job_id: str, vertex_id: str) -> Response:
        """Flink: when subtasks came into their states."""
        page = await self._lookup.vertex(job_id, vertex_id)
        return sent(shapes.times(page.vertex, page.subtasks, page.now_us))

    async def backpressure(self, job_id: str, vertex_id: str) -> Response:
        """Flink: where the time of subtasks goes."""
        page = await self._lookup.vertex(job_id, vertex_id)
        return sent(shapes.backpressure(page.subtasks, page.now_us))

    async def watermarks(self, job_id: str, vertex_id: str) -> Response:
        """Flink: watermarks of subtasks."""
        page = await self._lookup.vertex(job_id, vertex_id)
        return sent(shapes.watermarks(page.vertex, page.subtasks))

    async def flames(self, job_id: str, vertex_id: str) -> Response:
        """Flink: a flame graph; there is none."""
        await self._lookup.vertex(job_id, vertex_id)
        return sent(shapes.FlinkFlames())

    # -- metrics --------------------------------------------------------------------------------------------------------

    async def metrics(self, job_id: str, vertex_id: str, get: str | None = None) -> Response:
        """Flink: metrics of all subtasks, by number."""
        page = await self._lookup.vertex(job_id, vertex_id)
        return sent(listed(by_subtask(page.vertex, page.subtasks), get))

    async def aggregated_metrics(
        self, job_id: str, vertex_id: str, get: str | None = None, agg: str | None = None, subtasks: str | None = None
    ) -> Response:
        """Flink: metrics summed up over the subtasks; `subtasks`: over these only, as `0,3,5-7`."""
        page = await self._lookup.vertex(job_id, vertex_id)
        chosen = [task for task in page.subtasks if task.index in _chosen(page, subtasks)]
        return sent(aggregated([metrics_of(page.vertex, one.task) for one in chosen], get, agg))

    async def subtask_metrics(self, job_id: str, vertex_id: str, index: str, get: str | None = None) -> Response:
        """Flink: metrics of a subtask."""
        page = await self._lookup.vertex(job_id, vertex_id)
        return sent(listed(metrics_of(page.vertex, page.subtask(index).task), get))

    async def coordinator_metrics(self, job_id: str, vertex_id: str) -> Response:
        """Flink: metrics of the coordinators of operators; there are none."""
        await self._lookup.vertex(job_id, vertex_id)
        return sent(())

    # -- subtasks -------------------------------------------------------------------------------------------------------

    async def subtask(self, job_id: str, vertex_id: str, index: str) -> Response:
        """Flink: a subtask."""
        page = await self._lookup.vertex(job_id, vertex_id)
        return sent(shapes.subtask(page.vertex, page.subtask(index)))

    async def attempt(self, job_id: str, vertex_id: str, index: str, attempt: str) -> Response:
        """Flink: an attempt of a subtask; of earlier ones nothing is kept but why they failed."""
        page = await self._lookup.vertex(job_id, vertex_id)
        return sent(shapes.subtask(page.vertex, _newest(page, index, attempt)))

    async def accumulators(self, job_id: str, vertex_id: str) -> Response:
        """Flink: accumulators of a vertex; there are none."""
        await self._lookup.vertex(job_id, vertex_id)
        return sent(shapes.FlinkVertexAccumulators(vertex_id.lower()))

    async def all_accumulators(self, job_id: str, vertex_id: str) -> Response:
        """Flink: accumulators by subtask; there are none."""
        page = await self._lookup.vertex(job_id, vertex_id)
        return sent(shapes.accumulators(page.vertex, page.subtasks))

    async def attempt_accumulators(self, job_id: str, vertex_id: str, index: str, attempt: str) -> Response:
        """Flink: accumulators of an attempt; there are none."""
        page = await self._lookup.vertex(job_id, vertex_id)
        return sent(shapes.attempt_accumulators(page.found.job, page.vertex, _newest(page, index, attempt)))


def _newest(page: FoundVertex, index: str, attempt: str) -> Subtask:
    subtask = page.subtask(index)
    if number("attempt", attempt) != subtask.attempt:
        raise RestError(404, f"Attempt {attempt} of subtask {index} is not known; the newest is {subtask.attempt}")
    return subtask


def _chosen(page: FoundVertex, given: str | None) -> range | set[int]:
    if given is None:
        return range(len(page.subtasks))
    found: set[int] = set()
    for part in given.split(","):
        first, dash, last = part.partition("-")
        start = number("subtasks", first)
        end = min(number("subtasks", last) if dash else start, len(page.subtasks))
        found.update(range(start, end + 1))
    return found
