"""Finds what Flink's paths name: jobs and vertices by ids, never by names or beginnings."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.coordination.cluster_view import ClusterView
from penstock.graph.jobgraph import JobVertex
from penstock_dispatcher.cluster import Cluster
from penstock_dispatcher.flink.answers import hex_id, path_id
from penstock_dispatcher.flink.facts import Subtask, subtasks_of
from penstock_dispatcher.flink.job_shapes import graph_of
from penstock_dispatcher.jobs import Found, Jobs
from penstock_dispatcher.refusing import RestError


@dataclass(frozen=True)
class FoundVertex:
    """A vertex of a job with its subtasks, as they are now."""

    found: Found
    vertex: JobVertex
    subtasks: list[Subtask]
    now_us: int

    def subtask(self, given: str) -> Subtask:
        """The subtask of that number; raises `RestError`."""
        index = number("subtaskindex", given)
        if index >= len(self.subtasks):
            raise RestError(404, f"Subtask {index} does not exist: {self.vertex.name} has {len(self.subtasks)}")
        return self.subtasks[index]


class Lookup:
    """What there is, read anew for every answer."""

    def __init__(self, cluster: Cluster, jobs: Jobs) -> None:
        self.cluster = cluster
        self.jobs = jobs

    async def job(self, job_id: str) -> Found:
        """The job of this id; raises `RestError` 400 or 404."""
        return await self.jobs.look(path_id("jobid", job_id))

    async def view(self) -> ClusterView | None:
        """What the leader shows."""
        return await self.cluster.view.if_any()

    async def vertex(self, job_id: str, vertex_id: str) -> FoundVertex:
        """A vertex of a job; raises `RestError` 400 or 404."""
        found = await self.job(job_id)
        vertex = vertex_of(found, vertex_id)
        now_us = self.cluster.now_us()
        return FoundVertex(found, vertex, subtasks_of(found, vertex, await self.view(), now_us), now_us)


def vertex_of(found: Found, vertex_id: str) -> JobVertex:
    """The vertex of this id; raises `RestError` 400 or 404."""
    wanted = path_id("vertexid", vertex_id)
    for vertex in graph_of(found).vertices:
        if hex_id(vertex.id) == wanted:
            return vertex
    raise RestError(404, f"JobVertex {wanted} not found")


def number(name: str, given: str) -> int:
    """A number in a path or query, from 0; raises `RestError` 400."""
    if not given.isascii() or not given.isdecimal() or len(given) > 18:
        raise RestError(400, f'Cannot resolve parameter ({name}) from value "{given}": a whole number from 0 is wanted')
    return int(given)
