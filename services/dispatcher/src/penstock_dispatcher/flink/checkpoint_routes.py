"""Routes of checkpoints: history, configuration, details. What is asked of a job about them is in `operation_routes`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from penstock_dispatcher.flink import checkpoint_shapes as shapes
from penstock_dispatcher.flink.answers import get, sent
from penstock_dispatcher.flink.checkpoint_facts import KnownCheckpoint, checkpoints_of, with_manifest
from penstock_dispatcher.flink.lookup import Lookup, number, vertex_of
from penstock_dispatcher.jobs import Found
from penstock_dispatcher.refusing import RestError


class CheckpointRoutes:
    """The handlers."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    def add_to(self, router: APIRouter) -> None:
        """Add all routes."""
        checkpoints = "/jobs/{job_id}/checkpoints"
        get(router, checkpoints, self.checkpoints, shapes.FlinkCheckpoints)
        get(router, f"{checkpoints}/config", self.config, shapes.FlinkCheckpointConfig)
        detail = f"{checkpoints}/details/{{checkpoint}}"
        get(router, detail, self.detail, shapes.FlinkCompletedCheckpoint)
        get(router, f"{detail}/subtasks/{{vertex_id}}", self.subtasks, shapes.FlinkCheckpointSubtasks)

    async def checkpoints(self, job_id: str) -> Response:
        """Flink: counts, a summary and the newest checkpoints."""
        return sent(shapes.checkpoints(await self._lookup.job(job_id)))

    async def config(self, job_id: str) -> Response:
        """Flink: how checkpoints are taken."""
        return sent(shapes.checkpoint_config(await self._lookup.job(job_id)))

    async def detail(self, job_id: str, checkpoint: str) -> Response:
        """Flink: a checkpoint by vertices."""
        found = await self._lookup.job(job_id)
        one = await self._known(found, checkpoint)
        return sent(shapes.entry(one, found.vertices, detailed=True))

    async def subtasks(self, job_id: str, checkpoint: str, vertex_id: str) -> Response:
        """Flink: the part of a vertex in a checkpoint, by subtasks."""
        found = await self._lookup.job(job_id)
        vertex = vertex_of(found, vertex_id)
        return sent(shapes.subtasks(await self._known(found, checkpoint), vertex))

    async def _known(self, found: Found, given: str) -> KnownCheckpoint:
        wanted = number("checkpointid", given)
        one = next((one for one in checkpoints_of(found) if one.checkpoint == wanted), None)
        if one is None:
            raise RestError(404, f"Could not find checkpointing statistics for checkpoint {wanted}.")
        if one.acks or not one.manifest:
            return one
        return with_manifest(one, await self._lookup.cluster.manifest_sizes(one.manifest))
