"""Removes savepoints: nothing that a job needs, or may come to need, and nothing by halves that could pass for whole.

It is no longer listed, then its manifest goes: no job starts from a savepoint of which objects are missing, and one that
was interrupted is carried on by the next try. Who starts a job from it meanwhile finds all of it, or gets an error.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import CorruptDataError
from penstock.protocol.incremental import named_objects
from penstock.protocol.joblog import JobHistory, Savepoint
from penstock.protocol.manifests import checkpoint_of, checkpoints_prefix
from penstock.protocol.messages import Restore
from penstock_dispatcher.cluster import Cluster, disposed_key
from penstock_dispatcher.reading import for_each_concurrently
from penstock_dispatcher.refusing import RestError

IMPORTED: Final = "imported/"


class SavepointDisposal:
    """The savepoints of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def is_done(self, trigger: str) -> bool:
        """Whether this removal was carried out lately, by whichever dispatcher."""
        return await self._cluster.is_noted(_noted(trigger))

    async def dispose(self, path: str, trigger: str) -> None:
        """Remove the savepoint whose manifest has this key.

        Raises:
            RestError: there is none, or a job needs it.
        """
        if await self.is_done(trigger):
            return
        keys = await self._keys(path)
        await self._check_unused(frozenset(keys))
        await self._cluster.put_marker(disposed_key(path))
        await self._cluster.delete([path])
        await self._cluster.delete([key for key in keys if key != path])
        await self._cluster.note(_noted(trigger))

    async def _keys(self, path: str) -> list[str]:
        """The objects of the savepoint, as far as they are there."""
        parts = path.split("/")
        if path.startswith(IMPORTED) and len(parts) > 2 and parts[1].isalnum():
            folder = f"{IMPORTED}{parts[1]}/"
            keys = await self._cluster.keys(folder)
            if path == f"{folder}manifest.json" and keys and (path in keys or path in await self._cluster.disposed()):
                return keys
        elif parts[0] == "jobs" and len(parts) > 2 and parts[1].isalnum():
            history = await self._cluster.history(parts[1])
            record = next((one for one in history.savepoints.values() if one.manifest == path), None)
            if record is not None:
                return await self._keys_of(parts[1], history, record)
        raise _no_savepoint(path)

    async def _keys_of(self, job: str, history: JobHistory, record: Savepoint) -> list[str]:
        complete, terminated = history.complete, history.terminated
        if terminated is None and complete is not None and complete.checkpoint <= record.checkpoint:
            raise RestError(
                409, f"job {job} would go on from this savepoint if it failed now; try again after its next checkpoint"
            )
        keys = await self._cluster.keys(checkpoints_prefix(job))
        found = [key for key in keys if checkpoint_of(key) == record.checkpoint]
        if not found:
            raise _no_savepoint(record.manifest)
        return found

    async def _check_unused(self, keys: frozenset[str]) -> None:
        """A job may go on from it, or its newest checkpoint name objects of it that have not changed since."""
        active, _ = await self._cluster.ids()
        await for_each_concurrently(list(active), lambda job: self._check_not_needed(job, keys))

    async def _check_not_needed(self, job: str, keys: frozenset[str]) -> None:
        try:
            history = await self._cluster.history(job)
            restore = history.restore
            needed = restore is not None and history.terminated is None and await self._needs(restore, keys)
        except CorruptDataError as error:
            raise RestError(409, f"job {job} may need it, which cannot be told: {error}") from error
        if needed:
            raise RestError(409, f"job {job} needs it: its newest checkpoint is, or names objects of, this savepoint")

    async def _needs(self, restore: Restore, keys: frozenset[str]) -> bool:
        if restore.manifest in keys:
            return True
        found = await self._cluster.manifest(restore.manifest)
        if found is None:
            return False
        return not named_objects(found[1]).isdisjoint(keys)


def _no_savepoint(path: str) -> RestError:
    return RestError(404, f"there is no savepoint {path!r} in this cluster's store; see penstock savepoints")


def _noted(trigger: str) -> str:
    return f"disposed-{trigger}"
