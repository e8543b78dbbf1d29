"""Before the writers of a sink open: make room for a new job, and remove what attempts that died had staged.

What a thread was told to remove it may remove long after its attempt was cancelled, or its process stopped and continued.
So what is to go is found first; then the job log is asked whether it is still this attempt's turn; only then it is
removed, by name. Whatever a newer attempt or a later job has written came after the question, and has no such name.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from penstock.connectors.base import Removal
from penstock.coordination.job_store import JobReader
from penstock.errors import ProtocolError
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.write import Write
from penstock.protocol.joblog import Begin
from penstock.protocol.manifests import Manifest, checkpoints_prefix
from penstock.protocol.messages import Deploy
from penstock.task.committer import STAGED, decode_staged


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


async def are_visible(manifest: Manifest, deploy: Deploy, store: JobReader) -> bool:
    """Whether all parts that the restored checkpoint lists are visible for certain: it is another job's savepoint.

    A savepoint is on record only once everything that it covers is visible, and only savepoints are imported. The proofs
    of its commits went with the next checkpoint of that job.
    """
    restore = deploy.restore
    if restore is None or manifest.job == deploy.job:
        return False
    if not restore.manifest.startswith(checkpoints_prefix(manifest.job)):
        return True
    savepoints = (await store.history(manifest.job)).savepoints.values()
    return any(savepoint.published and savepoint.manifest == restore.manifest for savepoint in savepoints)


async def prepare_sink(
    operator: str, node: str, plan: LogicalPlan, deploy: Deploy, manifest: Manifest | None, store: JobReader
) -> None:
    """What the first subtask of a sink does for all of them, before it runs; until then there is no checkpoint.

    Nothing of a job without a complete checkpoint is visible, so what is visible then was there before the job.
    """
    operation = plan.node(node).operation
    if deploy.subtask.index != 0 or not isinstance(operation, Write):
        return
    sink, needed = operation.sink, staged_parts(manifest).get(operator, [])
    recover = partial(sink.recover, needed, operator, deploy.attempt)
    first, *others = (sink.begin, recover) if deploy.restore is None else (recover,)

    def reached() -> Removal:
        sink.reach(plan.node(node).schema)
        return first()

    removals = [await asyncio.to_thread(find) for find in (reached, *others)]
    await _check_turn(deploy, store)
    for remove in removals:
        await asyncio.to_thread(remove)


async def _check_turn(deploy: Deploy, store: JobReader) -> None:
    turn = await store.turn(deploy.job)
    if not isinstance(turn, Begin) or turn.attempt != deploy.attempt:
        newest = f"attempt {turn.attempt_number} has begun" if isinstance(turn, Begin) else "the job has ended"
        raise ProtocolError(f"attempt {deploy.attempt_number} is no longer the newest: {newest}; it removes nothing")
