"""Which resource is looked at when: each by a task of its own, one pass after the other, at once when it has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock_operator.definitions import Kind

LookAfter = Callable[[Kind, str, str], Awaitable[float | None]]
Key = tuple[Kind, str, str]


class Queue:
    """The tasks; they live in the group that is given."""

    def __init__(self, look_after: LookAfter, group: asyncio.TaskGroup) -> None:
        self._look_after, self._group = look_after, group
        self._changed: dict[Key, asyncio.Event] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    def nudge(self, kind: Kind, namespace: str, name: str) -> None:
        """Something has happened to a resource."""
        key = (kind, namespace, name)
        if key in self._changed:
            self._changed[key].set()
        else:
            self._changed[key] = asyncio.Event()
            self._tasks[key] = self._group.create_task(self._follow(key))

    def end(self) -> None:
        """No more passes begin; those at work are interrupted."""
        for task in self._tasks.values():
            task.cancel()

    async def _follow(self, key: Key) -> None:
        """Until there is no such resource any more; if it is made anew meanwhile, go on."""
        changed = self._changed[key]
        while True:
            changed.clear()
            delay_s = await self._look_after(*key)
            if delay_s is None:
                if changed.is_set():
                    continue
                del self._changed[key], self._tasks[key]
                return
            try:
                async with asyncio.timeout(delay_s):
                    await changed.wait()
            except TimeoutError:
                pass
