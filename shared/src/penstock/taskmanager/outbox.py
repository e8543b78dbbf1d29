"""What a task manager still has to say to the leader: bounded, however long the brokers are away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from penstock.protocol.messages import AnyEvent, Heartbeat

LIMIT: Final = 20_000
"""So many events may wait; then those who have more to say wait, and with them what they read from."""
TOGETHER_S: Final = 0.05
"""How long heartbeats wait for those of other workers, which come at about the same moment: each append costs the
broker, and whoever reads events, as much as ten of them in one."""


class Outbox:
    """Events in the order in which they were said, but for heartbeats that a newer one of the worker makes worthless: one
    says everything about its worker, so a day without brokers leaves one of each."""

    def __init__(self, limit: int = LIMIT) -> None:
        """`limit` is exceeded by no more than one batch."""
        self._limit = limit
        self._next = 0
        self._waiting: dict[int, AnyEvent] = {}
        """By the order of their coming."""
        self._beats: dict[str, int] = {}
        """Worker to its heartbeat among them."""
        self._urgent = False
        """Whether there is more among them than heartbeats of workers that live."""
        self._some = asyncio.Event()
        self._room = asyncio.Event()
        self._nothing = asyncio.Event()
        self._nothing.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, events: Sequence[AnyEvent]) -> None:
        """Say something at once; for heartbeats of workers that live, of which there are few."""
        for event in events:
            if isinstance(event, Heartbeat):
                former = self._beats.pop(event.worker, None)
                if former is not None:
                    del self._waiting[former]
                self._beats[event.worker] = self._next
            self._urgent |= not isinstance(event, Heartbeat) or bool(event.leaving)
            self._waiting[self._next] = event
            self._next += 1
        self._nothing.clear()
        self._some.set()

    async def put(self, events: Sequence[AnyEvent]) -> None:
        """Say something, once there is room."""
        while len(self._waiting) >= self._limit:
            self._room.clear()
            await self._room.wait()
        self.add(events)

    async def take(self) -> list[AnyEvent]:
        """All that waits, once there is something; `appended` is to follow."""
        await self._until(lambda: bool(self._waiting))
        if not self._urgent:
            with suppress(TimeoutError):
                async with asyncio.timeout(TOGETHER_S):
                    await self._until(lambda: self._urgent)
        taken = list(self._waiting.values())
        self._waiting.clear()
        self._beats.clear()
        self._urgent = False
        self._room.set()
        return taken

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._some.clear()
            await self._some.wait()

    def appended(self) -> None:
        """What was taken stands in the log."""
        if not self._waiting:
            self._nothing.set()

    async def join(self) -> None:
        """Until everything stands in the log."""
        await self._nothing.wait()
