"""What every implementation of the Blobs port keeps. Another one joins by adding its factory to `FACTORIES`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.lanes import implementations

from penstock.adapters.conditional_put import check_conditional_put
from penstock.adapters.directory.blobs import DirectoryBlobs
from penstock.adapters.local_copies import LocalCopies
from penstock.adapters.memory import MemoryBlobs
from penstock.adapters.s3_blobs import S3Blobs
from penstock.connectors.files.store_clients import location
from penstock.errors import ExternalError, UsageError
from penstock.ports import BlobExistsError, BlobNotFoundError, Blobs
from penstock.savepoint.places import blobs_at
from penstock.settings import ClusterSettings


async def memory(_: Path, __: Callable[[], ClusterSettings]) -> AsyncIterator[Blobs]:
    yield MemoryBlobs()


async def directory(root: Path, _: Callable[[], ClusterSettings]) -> AsyncIterator[Blobs]:
    yield DirectoryBlobs(root / "blobs")


async def local_copies(root: Path, _: Callable[[], ClusterSettings]) -> AsyncIterator[Blobs]:
    (root / "copies").mkdir()
    yield LocalCopies(MemoryBlobs(), root / "copies", 1 << 30, copied=lambda _: True)


async def s3(_: Path, cluster: Callable[[], ClusterSettings]) -> AsyncIterator[Blobs]:
    settings = cluster()
    blobs = S3Blobs(settings.store, settings.name)
    yield blobs
    for key in await blobs.list(""):
        await blobs.delete(key)
    await blobs.close()


async def of_a_url(_: Path, cluster: Callable[[], ClusterSettings]) -> AsyncIterator[Blobs]:
    settings = cluster()
    store = settings.store
    options = {
        "endpoint_url": store.endpoint,
        "access_key_id": store.access_key,
        "secret_access_key": store.secret_key.reveal(),
    }
    place = location(f"s3://{store.bucket}/{settings.name}/below", options, "test")
    assert place is not None
    blobs = blobs_at(place)
    yield blobs
    for key in await blobs.list(""):
        await blobs.delete(key)


FACTORIES = {"of_a_url": of_a_url, "local_copies": local_copies, "memory": memory, "directory": directory, "s3": s3}


@pytest.fixture(params=implementations(FACTORIES, "s3", "of_a_url"))
async def blobs(
    request: pytest.FixtureRequest, tmp_path: Path, cluster: Callable[[], ClusterSettings]
) -> AsyncIterator[Blobs]:
    """A fresh, empty store."""
    async for made in FACTORIES[request.param](tmp_path, cluster):
        yield made


async def test_reads_what_was_written(blobs: Blobs) -> None:
    """The bytes come back, whole or by range; ranges are cut at the end."""
    await blobs.put("a/b/c", b"0123456789")
    assert await blobs.get("a/b/c") == b"0123456789"
    assert await blobs.get("a/b/c", 3) == b"3456789"
    assert await blobs.get("a/b/c", 3, 5) == b"34"
    assert await blobs.get("a/b/c", 8, 50) == b"89"
    assert await blobs.get("a/b/c", 20) == b""


async def test_put_replaces(blobs: Blobs) -> None:
    """A second put of a key wins."""
    await blobs.put("k", b"long old value")
    await blobs.put("k", b"new")
    assert await blobs.get("k") == b"new"


async def test_readers_never_see_a_part(blobs: Blobs) -> None:
    """While an object is replaced again and again, every read returns one of the written values whole."""
    values = [bytes([65 + number]) * 200_000 for number in range(5)]
    await blobs.put("k", values[0])

    async def write() -> None:
        for value in values:
            await blobs.put("k", value)

    writing = asyncio.create_task(write())
    while not writing.done():
        assert await blobs.get("k") in values
        await asyncio.sleep(0)
    await writing


async def test_create_does_not_replace(blobs: Blobs) -> None:
    """A create of a key that is taken fails and leaves the object."""
    await blobs.create("jobs/1", b"first")
    with pytest.raises(BlobExistsError):
        await blobs.create("jobs/1", b"second")
    assert await blobs.get("jobs/1") == b"first"


async def test_racing_creates_have_one_winner(blobs: Blobs) -> None:
    """Of many concurrent creates of a key exactly one returns, and its bytes are what is stored."""
    for key in map(str, range(20)):
        tries = [blobs.create(key, b"%d" % number) for number in range(8)]
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        winners = [number for number, outcome in enumerate(outcomes) if outcome is None]
        assert len(winners) == 1
        assert sum(isinstance(outcome, BlobExistsError) for outcome in outcomes) == 7
        assert await blobs.get(key) == b"%d" % winners[0]


async def test_missing_objects(blobs: Blobs) -> None:
    """Reading what is not there is a named error, also where only a longer or shorter key exists."""
    await blobs.put("a/b", b"1")
    for key in ("x", "a", "a/b/c"):
        with pytest.raises(BlobNotFoundError):
            await blobs.get(key)


async def test_list_by_prefix(blobs: Blobs) -> None:
    """All keys that begin with the prefix, which need not end at a slash, sorted."""
    for key in ("a/2", "a/10", "ab", "b/a/1", "a/x/y"):
        await blobs.put(key, b"")
    assert await blobs.list("a/") == ["a/10", "a/2", "a/x/y"]
    assert await blobs.list("a") == ["a/10", "a/2", "a/x/y", "ab"]
    assert await blobs.list("a/x") == ["a/x/y"]
    assert await blobs.list("nothing/here") == []
    assert await blobs.list("") == ["a/10", "a/2", "a/x/y", "ab", "b/a/1"]


async def test_delete(blobs: Blobs) -> None:
    """A deleted object is neither read nor listed; deleting again is harmless; the key is free for a create."""
    await blobs.put("a/b", b"1")
    await blobs.delete("a/b")
    await blobs.delete("a/b")
    await blobs.delete("never/there")
    assert await blobs.list("") == []
    with pytest.raises(BlobNotFoundError):
        await blobs.get("a/b")
    await blobs.create("a/b", b"2")


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../../b", ".", "a/./b", "a\x00", "a\\b"])
async def test_keys_that_are_refused(blobs: Blobs, key: str) -> None:
    """A key that is empty, absolute or could leave the store is refused."""
    with pytest.raises(UsageError):
        await blobs.put(key, b"")
    with pytest.raises(UsageError):
        await blobs.create(key, b"")


async def test_many_tasks(blobs: Blobs) -> None:
    """Concurrent writers of different keys in one folder do not disturb each other."""
    await asyncio.gather(*(blobs.put(f"deep/er/{number}", b"%d" % number) for number in range(50)))
    assert len(await blobs.list("deep/er/")) == 50
    assert await blobs.get("deep/er/49") == b"49"


async def test_unusual_keys(blobs: Blobs) -> None:
    """Blanks, signs with a meaning in addresses and letters of any language are kept as they are."""
    keys = ["a b", "%41", "x%2Fy", "a#b", "a?b=c&d", "a+b", "[x]", "ä/ö", "a*b|<>^`{}~", "日本"]
    for key in keys:
        await blobs.put(f"odd/{key}", key.encode())
    assert await blobs.list("odd/") == sorted(f"odd/{key}" for key in keys)
    for key in keys:
        assert await blobs.get(f"odd/{key}") == key.encode()
        with pytest.raises(BlobExistsError):
            await blobs.create(f"odd/{key}", b"")


async def test_large_objects(blobs: Blobs) -> None:
    """An object of many megabytes is stored whole by both ways of writing, and read in ranges."""
    data = bytes(range(256)) * (100 << 10)
    await blobs.put("large/put", data)
    await blobs.create("large/create", data)
    for key in ("large/put", "large/create"):
        assert await blobs.get(key) == data
        assert await blobs.get(key, 11 << 20, (12 << 20) + 5) == data[11 << 20 : (12 << 20) + 5]
    with pytest.raises(BlobExistsError):
        await blobs.create("large/put", data)


async def test_empty_objects_and_ranges(blobs: Blobs) -> None:
    """Nothing is something too: empty objects exist, empty ranges are empty, both fail only for missing objects."""
    await blobs.create("empty", b"")
    await blobs.put("k", b"0123")
    assert await blobs.get("empty") == await blobs.get("empty", 0, 10) == await blobs.get("k", 2, 2) == b""
    with pytest.raises(BlobExistsError):
        await blobs.create("empty", b"")
    for start, end in ((0, 3), (2, None), (2, 2)):
        with pytest.raises(BlobNotFoundError):
            await blobs.get("missing", start, end)


async def test_list_of_many(blobs: Blobs) -> None:
    """A list is complete beyond what a store returns in one answer."""
    keys = [f"many/{number:04}" for number in range(1_203)]
    for first in range(0, len(keys), 100):
        await asyncio.gather(*(blobs.put(key, b"") for key in keys[first : first + 100]))
    assert await blobs.list("many/") == keys
    assert await blobs.list("many/11") == keys[1_100:1_200]


async def test_conditional_put_is_found_atomic(blobs: Blobs) -> None:
    """The probe of start-up passes and leaves nothing behind."""
    await check_conditional_put(blobs)
    assert await blobs.list("") == []


class _Careless(MemoryBlobs):
    """A store that looks first and writes later, as some servers do."""

    async def create(self, key: str, data: bytes) -> None:
        taken = await self.list(key)
        await asyncio.sleep(0)
        if taken:
            raise BlobExistsError(key)
        await self.put(key, data)


async def test_conditional_put_is_found_careless() -> None:
    """A store that lets two creates of a key succeed is refused, and the probe leaves nothing behind."""
    store = _Careless()
    with pytest.raises(ExternalError, match=r"not atomic.*HA is refused"):
        await check_conditional_put(store)
    assert await store.list("") == []
