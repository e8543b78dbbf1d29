"""One pipeline service per cluster."""

from __future__ import annotations

import asyncio
import os

import msgspec
import pytest
from small_pipeline import until

from penstock.adapters.memory import MemoryMetadata
from penstock.errors import ExternalError, UsageError
from penstock.platform.processes import ProcessId, identify
from penstock.testing.virtual_time import VirtualClock, in_virtual_time
from penstock_pipeline.lease import LEASE, TTL_MS, Holder, Lease

CLOCK = VirtualClock(0)
ME = identify(os.getpid())
assert ME is not None
HOLDER = Holder("one", "here", ME, "this namespace")
GONE = Holder("gone", "here", ProcessId(os.getpid(), "long ago"), "this namespace")


@in_virtual_time
async def test_a_second_service_is_refused_while_the_first_lives() -> None:
    """With the place and the process of the first; given back, the lease is free at once."""
    metadata = MemoryMetadata(CLOCK)
    first = Lease(metadata, CLOCK, HOLDER)
    await first.take()
    keeping = asyncio.ensure_future(first.keep())
    second = Lease(metadata, CLOCK, replaced(name="two", host="there"))
    with pytest.raises(
        UsageError, match=f"process {os.getpid()} on here is the pipeline service of this cluster already"
    ):
        await second.take()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await second.take()


@in_virtual_time
async def test_a_dead_one_is_not_waited_for_where_its_death_can_be_seen() -> None:
    """In the same PID namespace at once, from another one when the lease is over."""
    for elsewhere in (False, True):
        metadata = MemoryMetadata(CLOCK)
        await metadata.acquire(LEASE, msgspec.json.encode(GONE), TTL_MS if elsewhere else 3_600_000)
        async with asyncio.timeout(60):
            await Lease(metadata, CLOCK, replaced(pid_namespace="another" if elsewhere else "this namespace")).take()


@pytest.mark.parametrize("namespace", ["another", ""])
@in_virtual_time
async def test_a_service_in_another_container_is_not_dead_because_its_process_cannot_be_seen_here(
    namespace: str,
) -> None:
    """A pod that is cut off, whose host name another one has by now, or a service of an earlier version: its lease runs
    out before anybody takes it."""
    metadata = MemoryMetadata(CLOCK)
    held = msgspec.json.encode(msgspec.structs.replace(GONE, pid_namespace=namespace))
    await metadata.acquire(LEASE, held, 3_600_000)
    with pytest.raises(UsageError, match="on here is the pipeline service of this cluster already"):
        await Lease(metadata, CLOCK, replaced(name="two")).take()
    assert await metadata.get(LEASE) == held


@in_virtual_time
async def test_a_lost_lease_is_taken_again_unless_another_one_has_it() -> None:
    """The metadata store may forget; two services at a time must not go on."""
    metadata = MemoryMetadata(CLOCK)
    lease = Lease(metadata, CLOCK, HOLDER)
    await lease.take()
    keeping = asyncio.ensure_future(lease.keep())
    value = msgspec.json.encode(HOLDER)
    assert await metadata.release(LEASE, value)

    async def there_again() -> bool:
        return await metadata.get(LEASE) == value

    await until(there_again, "the lease is taken again")
    assert await metadata.release(LEASE, value)
    await metadata.acquire(LEASE, b"{}", 3_600_000)
    with pytest.raises(ExternalError, match="another pipeline service has taken over"):
        await asyncio.wait_for(keeping, 60)


def replaced(**changes: object) -> Holder:
    """Another holder."""
    return msgspec.structs.replace(HOLDER, **changes)
