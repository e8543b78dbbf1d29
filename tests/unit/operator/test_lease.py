"""Who of two operators works."""

from __future__ import annotations

import asyncio

import pytest

from penstock.adapters.system_clock import SystemClock
from penstock.errors import ExternalError
from penstock_operator import lease as module
from penstock_operator.lease import HELD_S, Lease

from .small_kubernetes import NAMESPACE, SmallKubernetes


class SetClock(SystemClock):
    """Time that tests set."""

    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> SetClock:
    """At 0."""
    return SetClock()


@pytest.fixture
def two(clock: SetClock, monkeypatch: pytest.MonkeyPatch) -> tuple[Lease, Lease]:
    """Of which neither has the lease yet."""
    monkeypatch.setattr(module, "TRY_S", 0)
    monkeypatch.setattr(module, "RENEW_S", 0)
    kubernetes = SmallKubernetes()
    return Lease(kubernetes.api(), clock, NAMESPACE, "one"), Lease(kubernetes.api(), clock, NAMESPACE, "other")


async def test_one_works_and_the_other_takes_over(two: tuple[Lease, Lease], clock: SetClock) -> None:
    """Not before the first was silent for its time; which then ends, if it was only slow."""
    one, other = two
    await one.take()
    waiting = asyncio.create_task(other.take())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not waiting.done()
    clock.now_ms = HELD_S * 1_000 + 1
    async with asyncio.timeout(5):
        await waiting
    with pytest.raises(ExternalError, match="lease is lost: another operator has it"):
        await one.keep()
    assert (one.held, other.held) == (False, True)


async def test_a_lease_that_is_given_back_is_not_waited_for(two: tuple[Lease, Lease]) -> None:
    """An upgrade of the operator takes no time."""
    one, other = two
    await one.take()
    await one.give_back()
    async with asyncio.timeout(5):
        await other.take()
    assert (one.held, other.held) == (False, True)
