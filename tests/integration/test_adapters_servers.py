"""Redis and the object store when they die, hang and come back: what needs servers of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from penstock.adapters.redis_metadata import TIMEOUT_S, RedisMetadata
from penstock.adapters.s3_blobs import S3Blobs
from penstock.errors import ExternalError
from penstock.platform.servers import Servers
from penstock.ports import BlobExistsError

pytestmark = pytest.mark.timeout(120)


async def test_redis_restarts(own_stores: Servers) -> None:
    """While Redis is away operations fail soon; once it is back the first one succeeds, with the same object."""
    settings = own_stores.settings("faults")
    metadata = RedisMetadata(settings.redis, settings.name)
    await metadata.put("k", b"v")
    await own_stores.redis.kill()
    with pytest.raises(ExternalError, match=r"key penstock:faults:lease.*redis\.url"):
        await metadata.acquire("lease", b"me", 1_000)
    await own_stores.redis.start()
    assert await metadata.acquire("lease", b"me", 60_000)
    await own_stores.redis.restart(by_force=True)  # an idle connection is broken unnoticed
    await metadata.put("k", b"w")
    assert await metadata.get("k") == b"w"
    await metadata.close()


async def test_redis_hangs(own_stores: Servers) -> None:
    """A Redis that does not answer is given up after the timeout, and no late answer is taken for a later one's."""
    settings = own_stores.settings("faults")
    metadata = RedisMetadata(settings.redis, settings.name)
    await metadata.put("a", b"1")
    await metadata.put("b", b"2")
    own_stores.redis.pause()
    started = time.monotonic()
    outcomes = await asyncio.gather(*(metadata.get("a") for _ in range(5)), return_exceptions=True)
    assert all(isinstance(outcome, ExternalError) for outcome in outcomes)
    assert time.monotonic() - started < 2 * TIMEOUT_S
    own_stores.redis.resume()
    for _ in range(20):
        assert await asyncio.gather(metadata.get("b"), metadata.get("a")) == [b"2", b"1"]
    await metadata.close()


async def test_redis_loses_no_cancellation(own_stores: Servers) -> None:
    """A task that is cancelled in the moment of an answer ends: a leader that steps down has such tasks."""
    metadata = RedisMetadata(own_stores.settings("faults").redis, "faults")

    async def put_for_ever() -> None:
        while True:
            await metadata.put("view", b"x" * 30_000)

    for turns in range(100):
        task = asyncio.create_task(put_for_ever())
        for _ in range(20 + turns):  # every point at which it can be met
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=10)
        assert done, f"it went on after a cancellation {20 + turns} turns of the event loop after its start"
    await metadata.close()


async def test_store_restarts(own_stores: Servers) -> None:
    """Short outages are ridden out by the client's retries; a create that is unsure says so and can be made again."""
    settings = own_stores.settings("faults")
    blobs = S3Blobs(settings.store, settings.name)
    await blobs.put("k", b"v")
    await own_stores.minio.kill()
    creating = asyncio.create_task(blobs.create("jobs/1", b"mine"))
    reading = asyncio.create_task(blobs.get("k"))
    await own_stores.minio.start()
    try:
        await creating
    except ExternalError:  # its connection was reset while it waited for the answer
        with contextlib.suppress(BlobExistsError):
            await blobs.create("jobs/1", b"mine")
    except BlobExistsError:
        pass
    assert await blobs.get("jobs/1") == b"mine"
    assert await reading == b"v"


async def test_store_stays_away(own_stores: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that refuses connections, or takes them and is silent, is an error with a bound and not a hang."""
    monkeypatch.setattr("penstock.adapters.s3_blobs.TIMEOUT_S", 3.0)
    monkeypatch.setattr("penstock.adapters.s3_blobs.LARGEST_GET_S", 3.0)
    settings = own_stores.settings("faults")
    blobs = S3Blobs(settings.store, settings.name)
    await blobs.put("k", b"v")
    own_stores.minio.pause()
    await _all_fail(blobs)
    own_stores.minio.resume()
    assert await blobs.get("k") in (b"v", b"w"), "what was asked for may still be done when the store goes on"
    await own_stores.minio.kill()
    await _all_fail(blobs)


async def _all_fail(blobs: S3Blobs) -> None:
    work = [blobs.get("k"), blobs.get("k", 0, 1), blobs.put("k", b"w"), blobs.create("n", b"1"), blobs.list("")]
    for outcome in await asyncio.wait_for(asyncio.gather(*work, return_exceptions=True), 10):
        assert isinstance(outcome, ExternalError)
        assert "127.0.0.1" in str(outcome)
