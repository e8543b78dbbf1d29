"""What a job leaves in the log and in the store, and when it is deleted. Everything here may be done twice."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

import structlog

from penstock.coordination.collected_rows import collected_prefix
from penstock.coordination.job_store import JobStore
from penstock.coordination.start_positions import start_positions_prefix
from penstock.errors import CorruptDataError
from penstock.graph.executiongraph import ExecutionGraph, credits_topic, exchange_prefix, exchange_topic, generation_of
from penstock.graph.jobgraph import graph_from_json
from penstock.jobmanager.leadership import ControlPorts
from penstock.ports import BlobNotFoundError
from penstock.protocol.incremental import named_objects
from penstock.protocol.joblog import Complete, JobHistory, Savepoint
from penstock.protocol.manifests import checkpoint_of, checkpoints_prefix, decode_manifest
from penstock.protocol.retention import retired_objects

COMPACT_AFTER: Final = 200
"""How many records a job log grows by until it is compacted."""

DELETED_AT_ONCE: Final = 32

CleanSinks = Callable[[str, JobHistory], Awaitable[None]]
"""Removes what the sinks of an ended job keep outside the store, such as positions on Kafka."""

_log = structlog.get_logger("penstock.coordinator")


class JobCleanup:
    """Those of one job, under one leader."""

    def __init__(self, job: str, ports: ControlPorts, store: JobStore, clean_sinks: CleanSinks | None) -> None:
        """`ports` and `store` wait until the world answers (`penstock.coordination.retrying_ports`)."""
        self._job = job
        self._ports = ports
        self._store = store
        self._clean_sinks = clean_sinks
        self._cleaned = 0
        """The generation whose predecessors' exchanges are deleted."""

    async def replaced(self, complete: int, history: JobHistory, live: Callable[[], Collection[str]]) -> None:
        """Delete what nobody goes back to since this checkpoint is COMPLETE.

        Args:
            complete: number of the checkpoint.
            history: the job's log; compacted if it has become long.
            live: tells which objects of older checkpoints newer ones refer to.
        """
        keys = await self._ports.blobs.list(checkpoints_prefix(self._job))
        needed = await self._needed(history)
        if needed is not None:
            await self._delete_objects(retired_objects(keys, complete, _savepoints(history), needed.union(live())))
        await self._delete_old_generations(history)
        if history.next_seq - history.compacted > COMPACT_AFTER:
            await self._store.compact(self._job, history)

    async def ended(self, history: JobHistory) -> None:
        """Delete what an ended job needs no more: its log stays, so that it never runs again."""
        terminated = history.terminated
        assert terminated is not None
        await self._delete_topics(history)
        if self._clean_sinks is not None and not terminated.unpublished:
            await self._clean_sinks(self._job, history)
        for key in await self._ports.blobs.list(start_positions_prefix(self._job)):
            await self._ports.blobs.delete(key)
        if terminated.state == "CANCELED":
            for key in await self._ports.blobs.list(collected_prefix(self._job)):
                await self._ports.blobs.delete(key)
        await self._delete_checkpoints(history)

    async def _delete_objects(self, keys: Iterable[str]) -> None:
        """Some at a time: a checkpoint has as many as subtasks keep state."""
        some = asyncio.Semaphore(DELETED_AT_ONCE)

        async def delete(key: str) -> None:
            async with some:
                await self._ports.blobs.delete(key)

        await asyncio.gather(*map(delete, keys))

    async def _delete_topics(self, history: JobHistory) -> None:
        """All topics of the job, but for exchanges that hold rows which are complete and could not be published."""
        log = self._ports.log
        kept: set[str] = set()
        begin, terminated = history.begin, history.terminated
        if begin is not None and terminated is not None and terminated.unpublished:
            publishers = ExecutionGraph(graph_from_json(history.graph)).topology().publishers
            kept = {exchange_topic(self._job, vertex, begin.generation) for vertex in publishers}
            _log.warning(
                "rows could not be published; their exchanges are kept", job=self._job[:8], topics=sorted(kept)
            )
        for topic in await log.topics():
            own = topic == credits_topic(self._job) or topic.startswith(exchange_prefix(self._job))
            if own and topic not in kept:
                await log.delete_topic(topic)

    async def _delete_old_generations(self, history: JobHistory) -> None:
        """With a COMPLETE of a new generation nobody goes back to the exchanges of the one before."""
        begin, complete = history.begin, history.complete
        if begin is None or complete is None or begin.attempt != complete.attempt or begin.generation == self._cleaned:
            return
        for topic in await self._ports.log.topics():
            generation = generation_of(topic)
            own = topic.startswith(exchange_prefix(self._job))
            if own and generation is not None and generation < begin.generation:
                await self._ports.log.delete_topic(topic)
        self._cleaned = begin.generation

    async def _delete_checkpoints(self, history: JobHistory) -> None:
        """Savepoints stay, and the checkpoint that somebody may go on from."""
        kept = _savepoints(history)
        if history.retained is not None:
            kept.add(history.retained.checkpoint)
        keys = await self._ports.blobs.list(checkpoints_prefix(self._job))
        needed = await self._needed(history)
        if needed is not None:
            await self._delete_objects(key for key in keys if checkpoint_of(key) not in kept and key not in needed)

    async def _needed(self, history: JobHistory) -> frozenset[str] | None:
        """What kept checkpoints name of others' objects; None if nobody knows, so that nothing may be deleted."""
        kept: list[Complete | Savepoint] = [record for record in history.records if isinstance(record, Savepoint)]
        kept += [history.retained] if history.retained is not None else []
        named = [await self._named_by(record) for record in kept if record.refers]
        return None if None in named else frozenset[str]().union(*(keys for keys in named if keys is not None))

    async def _named_by(self, record: Complete | Savepoint) -> frozenset[str] | None:
        """The objects of a kept checkpoint; none if it was disposed of, None if its manifest cannot be read."""
        try:
            data = await self._ports.blobs.get(record.manifest)
            if hashlib.sha256(data).hexdigest() != record.sha256:
                raise CorruptDataError(f"{record.manifest}: not what was written (checksum)")
            return named_objects(decode_manifest(data, record.manifest))
        except BlobNotFoundError:
            return frozenset()
        except CorruptDataError as error:
            _log.warning("no objects are deleted: what a kept checkpoint needs is unknown", reason=str(error))
            return None


def _savepoints(history: JobHistory) -> set[int]:
    return {record.checkpoint for record in history.records if isinstance(record, Savepoint)}
