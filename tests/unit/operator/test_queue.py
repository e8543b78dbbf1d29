"""Which resource is looked at when."""

from __future__ import annotations

import asyncio

from penstock_operator.definitions import JOB, Kind
from penstock_operator.queue import Queue


async def test_a_resource_is_looked_at_whenever_it_changes_until_it_is_gone() -> None:
    """One pass after the other; a change during a pass is not overlooked."""
    passes: list[str] = []
    gone = asyncio.Event()

    async def look_after(kind: Kind, namespace: str, name: str) -> float | None:
        passes.append(f"{kind.name} {namespace}/{name}")
        if len(passes) == 1:
            queue.nudge(JOB, "here", "orders")
        if len(passes) == 3:
            gone.set()
            return None
        return 1_000 if len(passes) == 1 else 0.001  # the second pass is due at once, the third after a moment

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        queue = Queue(look_after, group)
        queue.nudge(JOB, "here", "orders")
        await gone.wait()
    assert passes == ["PenstockJob here/orders"] * 3
