"""What stands in the store about jobs: their logs and the manifests of their checkpoints. Tells what an answer means,
decides nothing: that is `penstock.protocol.joblog`.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Final, Literal

import structlog

from penstock.errors import CorruptDataError, ExternalError
from penstock.ports import BlobExistsError, BlobNotFoundError, Blobs, Clock
from penstock.protocol.jobevents import ManifestStored, StoreManifest
from penstock.protocol.joblog import AnyRecord, JobHistory, decode_record, encode_record, log_key, log_prefix
from penstock.protocol.manifests import Manifest, decode_manifest, encode_manifest
from penstock.protocol.messages import Restore

UNCERTAIN_PAUSE_MS: Final = 200
"""How long to wait before an uncertain write is repeated."""
READS: Final = 32
"""How many records of a job log are read at once."""

Answer = Literal["created", "refused", "unknown"]

_log = structlog.get_logger("penstock.job_store")


class JobStore:
    """Job logs and manifests."""

    def __init__(self, blobs: Blobs, clock: Clock) -> None:
        self._blobs = blobs
        self._clock = clock

    async def history(self, job: str) -> JobHistory:
        """A job's log; empty if there is no such job."""
        keys = await self._blobs.list(log_prefix(job))
        some = asyncio.Semaphore(READS)

        async def read(key: str) -> AnyRecord:
            async with some:
                return decode_record(await self._blobs.get(key), key)

        return JobHistory.of(await asyncio.gather(*map(read, keys)))

    async def record(self, job: str, seq: int) -> AnyRecord | None:
        """The record of that seq, None if there is none."""
        key = log_key(job, seq)
        try:
            return decode_record(await self._blobs.get(key), key)
        except BlobNotFoundError:
            return None

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
        return decode_manifest(data, restore.manifest)

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
