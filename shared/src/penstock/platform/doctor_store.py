"""What snapshots and the job log need of the object store."""

from __future__ import annotations

import contextlib
import email.utils
import os
import ssl
import time
import uuid
from collections.abc import Iterable
from typing import Final

import httpx2

from penstock.adapters.conditional_put import ROUNDS, WRITERS, check_conditional_put
from penstock.adapters.s3_blobs import S3Blobs
from penstock.errors import ExternalError
from penstock.platform.doctor_checks import CheckFailedError, Checks, Finding, skew_finding
from penstock.ports import BlobNotFoundError
from penstock.settings import ClusterSettings, StoreSettings

# Above the size from which clients send in parts.
_LARGE_BYTES: Final = 6 * 1024 * 1024


async def check_store(settings: ClusterSettings) -> list[Finding]:
    """All findings on the object store."""
    checks = Checks("store")
    blobs = S3Blobs(settings.store, settings.name)
    try:
        if await checks.run(
            "bucket, put, get, list, delete",
            _objects(blobs),
            "check that the store runs, the settings of [store], and that its user may read, write, list and delete",
        ):
            await checks.run(
                "conditional PUT is atomic",
                _conditional(blobs),
                "use a store whose If-None-Match: * is atomic: AWS S3, MinIO",
            )
            await checks.run(
                "clock",
                _clock(settings.store),
                "synchronise the clocks of this machine and of the store (NTP)",
            )
    finally:
        await blobs.close()
    return checks.findings


async def _objects(blobs: S3Blobs) -> str:
    folder = f"probes/{uuid.uuid4().hex}"
    contents = {f"{folder}/small": b"0123456789", f"{folder}/large": os.urandom(_LARGE_BYTES)}
    started = time.monotonic()
    try:
        for key, content in contents.items():
            await blobs.put(key, content)
            if await blobs.get(key) != content:
                raise CheckFailedError(f"{key} is not what was written")
        if await blobs.get(f"{folder}/small", 2, 5) != b"234":
            raise CheckFailedError("a read of a range is not that range")
        if await blobs.list(f"{folder}/") != sorted(contents):
            raise CheckFailedError("the list lacks what was written just before")
    except BaseException:
        with contextlib.suppress(ExternalError):  # the first failure is the one to tell
            await _delete(blobs, contents)
        raise
    await _delete(blobs, contents)
    try:
        await blobs.get(f"{folder}/small")
    except BlobNotFoundError:
        return f"{time.monotonic() - started:.2f} s with an object of {_LARGE_BYTES // 1024 // 1024} MiB"
    raise CheckFailedError("a deleted object can still be read")


async def _delete(blobs: S3Blobs, keys: Iterable[str]) -> None:
    for key in keys:
        await blobs.delete(key)


async def _conditional(blobs: S3Blobs) -> str:
    await check_conditional_put(blobs)
    return f"{ROUNDS} times one of {WRITERS} racing writers won"


async def _clock(settings: StoreSettings) -> str:
    trusted = ssl.create_default_context(cafile=settings.ssl_cafile or None)
    async with httpx2.AsyncClient(timeout=10, verify=trusted) as client:
        before = time.time()
        date = (await client.head(settings.endpoint)).headers.get("date")
        after = time.time()
    if date is None:
        return "not told by this store"
    # The header has whole seconds, rounded down.
    return skew_finding(email.utils.parsedate_to_datetime(date).timestamp(), before - 1, after)
