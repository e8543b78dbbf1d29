"""Before the writers of a sink open: make room for a new job, and remove what attempts that died had staged."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.graph.logical import LogicalPlan, Write
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import Deploy
from penstock.runtime.committer import STAGED, decode_staged


def staged_parts(manifest: Manifest | None) -> dict[str, list[Any]]:
    """Sink operator to the parts that a checkpoint lists: they are complete, and perhaps not visible."""
    needed: dict[str, list[Any]] = {}
    if manifest is None:
        return needed
    for subtasks in manifest.subtasks.values():
        for snapshot in subtasks.values():
            for operator, handles in snapshot.operators.items():
                staged = decode_staged(handles.lists.get(STAGED, ()))
                needed.setdefault(operator, []).extend(part.committable for part in staged)
    return needed


async def prepare_sink(operator: str, node: str, plan: LogicalPlan, deploy: Deploy, manifest: Manifest | None) -> None:
    """What the first subtask of a sink does for all of them, before it runs; until then there is no checkpoint.

    Nothing of a job without a complete checkpoint is visible, so what is visible then was there before the job.
    """
    operation = plan.node(node).operation
    if deploy.subtask.index != 0 or not isinstance(operation, Write):
        return
    if deploy.restore is None:
        await asyncio.to_thread(operation.sink.begin)
    needed = staged_parts(manifest).get(operator, [])
    await asyncio.to_thread(operation.sink.recover, needed, operator, deploy.attempt)
