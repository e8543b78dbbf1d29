"""All of Flink's routes, with and without `/v1`."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter

from penstock_dispatcher.cluster import Cluster
from penstock_dispatcher.flink.checkpoint_routes import CheckpointRoutes
from penstock_dispatcher.flink.cluster_routes import ClusterRoutes
from penstock_dispatcher.flink.job_routes import JobRoutes
from penstock_dispatcher.flink.lookup import Lookup
from penstock_dispatcher.flink.operation_routes import OperationRoutes
from penstock_dispatcher.flink.savepoint_disposal import SavepointDisposal
from penstock_dispatcher.flink.taskmanager_routes import TaskManagerRoutes
from penstock_dispatcher.flink.vertex_routes import VertexRoutes
from penstock_dispatcher.jobs import Jobs
from penstock_dispatcher.penstock_routes import PenstockRoutes


class FlinkRoutes:
    """Flink's interface of a cluster."""

    def __init__(self, cluster: Cluster, jobs: Jobs, penstock: PenstockRoutes, settings: Mapping[str, str]) -> None:
        """`settings` are those of this process, as they may be shown."""
        lookup = Lookup(cluster, jobs)
        self._groups = (
            ClusterRoutes(lookup, settings),
            JobRoutes(lookup, settings),
            CheckpointRoutes(lookup),
            OperationRoutes(lookup, penstock, SavepointDisposal(cluster)),
            VertexRoutes(lookup),
            TaskManagerRoutes(lookup),
        )

    def router(self, prefix: str, *, shown: bool = True) -> APIRouter:
        """All routes, below `prefix`; `shown` in the documentation or not. What a path names by a word goes before what
        it names by an id."""
        router = APIRouter(prefix=prefix, tags=["flink"], include_in_schema=shown)
        for group in self._groups:
            group.add_to(router)
        return router
