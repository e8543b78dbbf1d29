"""What stands in the store about jobs: their logs and the manifests of their checkpoints. Tells what an answer means,
decides nothing: that is `penstock.protocol.joblog`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import Final, Literal

import msgspec
import structlog

from penstock.errors import CorruptDataError, ExternalError
from penstock.graph.jobgraph import published_by_splits
from penstock.ports import BlobExistsError, BlobNotFoundError, Blobs, Clock
from penstock.protocol.jobevents import ManifestStored, StoreManifest
from penstock.protocol.joblog import (
    AnyRecord,
    Begin,
    Compaction,
    JobHistory,
    LogKeys,
    Terminated,
    compaction_key,
    decode_compaction,
    decode_record,
    encode_record,
    log_key,
    log_prefix,
)
from penstock.protocol.manifests import (
    Manifest,
    checkpoints_prefix,
    decode_manifest,
    encode_manifest,
    objects_beside,
    with_beside,
)
from penstock.protocol.messages import BesideKeys, Handle, Restore

UNCERTAIN_PAUSE_MS: Final = 200
"""How long to wait before an uncertain write is repeated."""
READS: Final = 32
"""How many records of a job log are read at once."""
READ_AGAIN: Final = 10
"""How often the reading of a log begins anew because it was compacted meanwhile."""

Answer = Literal["created", "refused", "unknown"]

_log = structlog.get_logger("penstock.job_store")


class JobReader:
    """Job logs and manifests, as they stand there."""

    def __init__(self, blobs: Blobs, remembered: int = 0) -> None:
        """`remembered`: how many records, which never change, are not read again by who asks for histories often."""
        self._blobs = blobs
        self._remembered = remembered
        self._known: dict[str, AnyRecord] = {}

    async def history(self, job: str) -> JobHistory:
        """A job's log; empty if there is no such job."""
        for _ in range(READ_AGAIN):
            with contextlib.suppress(BlobNotFoundError):  # compacted meanwhile
                found = LogKeys.of(await self._blobs.list(log_prefix(job)))
                compaction, records = await self._records(found)
                if await self._is_as_it_was(job, found):
                    return JobHistory.of(records, compaction)
        raise CorruptDataError(f"job log: an object that stands in the list of {log_prefix(job)} cannot be found")

    async def _is_as_it_was(self, job: str, found: LogKeys) -> bool:
        """Whether nothing was compacted since: a leader that was replaced may have written anew what was deleted."""
        return LogKeys.of(await self._blobs.list(log_prefix(job))).through == found.through

    async def _records(self, found: LogKeys) -> tuple[Compaction | None, list[AnyRecord]]:
        """The newest compaction, and the records behind it."""
        compaction: Compaction | None = None
        if found.compactions:
            key = found.compactions[found.through]
            compaction = decode_compaction(await self._blobs.get(key), key)
        some = asyncio.Semaphore(READS)

        async def read(key: str) -> AnyRecord:
            if key not in self._known:
                async with some:
                    record = decode_record(await self._blobs.get(key), key)
                if not self._remembered:
                    return record
                self._known[key] = record
            return self._known[key]

        while len(self._known) > self._remembered:
            del self._known[next(iter(self._known))]
        keys = [found.records[seq] for seq in sorted(found.records) if seq > found.through]
        return compaction, await asyncio.gather(*map(read, keys))

    async def turn(self, job: str) -> Begin | Terminated | None:
        """Whose turn it is at this moment: the newest BEGIN, or the end. Reads the log from its end."""
        for _ in range(READ_AGAIN):
            with contextlib.suppress(BlobNotFoundError):  # compacted meanwhile
                found = LogKeys.of(await self._blobs.list(log_prefix(job)))
                turn = await self._turn(found)
                if await self._is_as_it_was(job, found):
                    return turn
        raise CorruptDataError(f"job log: an object that stands in the list of {log_prefix(job)} cannot be found")

    async def _turn(self, found: LogKeys) -> Begin | Terminated | None:
        for seq in sorted((seq for seq in found.records if seq > found.through), reverse=True):
            key = found.records[seq]
            record = decode_record(await self._blobs.get(key), key)
            if isinstance(record, Begin | Terminated):
                return record
        if not found.compactions:
            return None
        key = found.compactions[found.through]
        compacted = decode_compaction(await self._blobs.get(key), key).records
        return next((record for record in reversed(compacted) if isinstance(record, Begin | Terminated)), None)

    async def compacted(self, job: str) -> int:
        """Up to where the newest compaction goes, -1 if there is none."""
        return LogKeys.of(await self._blobs.list(log_prefix(job))).through

    async def record(self, job: str, seq: int) -> AnyRecord | None:
        """The record of that seq, None if there is none."""
        key = log_key(job, seq)
        try:
            return decode_record(await self._blobs.get(key), key)
        except BlobNotFoundError:
            return None

    async def manifest(self, restore: Restore) -> Manifest:
        """The manifest of a checkpoint.

        Raises:
            CorruptDataError: it is missing or not what was written. Nothing falls back to an older checkpoint silently.
        """
        try:
            data = await self._blobs.get(restore.manifest)
        except BlobNotFoundError as error:
            raise CorruptDataError(
                f"checkpoint {restore.checkpoint}: its manifest {restore.manifest} is missing"
            ) from error
        if hashlib.sha256(data).hexdigest() != restore.sha256:
            raise CorruptDataError(
                f"checkpoint {restore.checkpoint}: {restore.manifest} is not what was written (checksum)"
            )
        return await self.whole(decode_manifest(data, restore.manifest))

    async def published_beyond(self, manifest: str, job: str) -> frozenset[str]:
        """Sinks of a job of which rows are visible that this checkpoint of it does not cover.

        There are none behind a savepoint, unless the job went on from it and has failed before another checkpoint. They
        publish by the positions of their source's splits, and where those stand is in their marks.
        """
        if not manifest.startswith(checkpoints_prefix(job)):
            return frozenset()
        history = await self.history(job)
        left = history.retained is not None and history.retained.manifest == manifest
        if not left and any(s.published and s.manifest == manifest for s in history.savepoints.values()):
            return frozenset()
        return published_by_splits(history.graph)

    async def whole(self, manifest: Manifest) -> Manifest:
        """The manifest with what stands in objects beside it, because it was large.

        Raises:
            CorruptDataError: such an object is missing or not what was written.
        """
        handles = {handle.key: handle for handle in objects_beside(manifest)}
        some = asyncio.Semaphore(READS)

        async def read(handle: Handle) -> BesideKeys:
            async with some:
                return await self._beside(handle)

        found = dict(zip(handles, await asyncio.gather(*map(read, handles.values())), strict=True))
        return with_beside(manifest, found) if found else manifest

    async def _beside(self, handle: Handle) -> BesideKeys:
        try:
            data = await self._blobs.get(handle.key)
        except BlobNotFoundError as error:
            raise CorruptDataError(
                f"snapshot object {handle.key} is missing; restore an older savepoint explicitly"
            ) from error
        if hashlib.sha256(data).hexdigest() != handle.sha256:
            raise CorruptDataError(f"snapshot object {handle.key} is not what was written (its checksum differs)")
        return msgspec.json.decode(data, type=BesideKeys)


class JobStore(JobReader):
    """Job logs and manifests, for who writes them: what has no certain answer is tried again after a pause."""

    def __init__(self, blobs: Blobs, clock: Clock) -> None:
        super().__init__(blobs)
        self._clock = clock

    async def compact(self, job: str, history: JobHistory) -> None:
        """Let a compaction stand for all records so far; whatever of it was not done, the next one does."""
        compaction = history.compaction()
        await self._blobs.put(compaction_key(job, compaction.through), msgspec.json.encode(compaction))
        for key in LogKeys.of(await self._blobs.list(log_prefix(job))).superseded(compaction):
            await self._blobs.delete(key)
        history.forget(compaction)

    async def create_record(self, job: str, record: AnyRecord) -> Answer:
        """Create a record's object conditionally; returns only after a pause if the outcome is unknown."""
        try:
            await self._blobs.create(log_key(job, record.seq), encode_record(record))
        except BlobExistsError:
            return "refused"
        except ExternalError as error:
            _log.warning("job log: no certain answer, trying again", job=job[:8], error=str(error))
            await self._clock.sleep_ms(UNCERTAIN_PAUSE_MS)
            return "unknown"
        return "created"

    async def put_manifest(self, command: StoreManifest) -> ManifestStored:
        """Write a manifest; the identical bytes again until that is certain."""
        data = encode_manifest(command.manifest)
        while True:
            try:
                await self._blobs.put(command.key, data)
                break
            except ExternalError as error:
                _log.warning("manifest: no certain answer, trying again", key=command.key, error=str(error))
                await self._clock.sleep_ms(UNCERTAIN_PAUSE_MS)
        digest = hashlib.sha256(data).hexdigest()
        return ManifestStored(command.manifest.checkpoint, command.nonce, command.key, digest)
