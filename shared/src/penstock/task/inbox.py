"""What waits for a subtask."""

from __future__ import annotations

import asyncio
from collections import deque

from penstock.protocol.frames import FrameKind
from penstock.protocol.subtask import FrameRead, SubtaskEvent


class Inbox:
    """Frames, bounded by what is read ahead, and everything else, which goes first.

    Frames are taken only while there is credit to emit what comes of them, and room in the operators.
    """

    def __init__(self) -> None:
        self._events: deque[SubtaskEvent] = deque()
        self._frames: deque[FrameRead] = deque()
        self._barriers = 0
        self._wake = asyncio.Event()

    @property
    def has_barrier(self) -> bool:
        """Whether a barrier is among the frames."""
        return self._barriers > 0

    def put(self, event: SubtaskEvent) -> None:
        """Add an event and wake the subtask."""
        if isinstance(event, FrameRead):
            self._frames.append(event)
            self._barriers += event.frame.kind is FrameKind.BARRIER
        else:
            self._events.append(event)
        self._wake.set()

    def wake(self) -> None:
        """Something has changed that the subtask waits for."""
        self._wake.set()

    def take(self, *, frames: bool) -> SubtaskEvent | None:
        """The next event; the next frame only if `frames`."""
        if self._events:
            return self._events.popleft()
        if not (frames and self._frames):
            return None
        event = self._frames.popleft()
        self._barriers -= event.frame.kind is FrameKind.BARRIER
        return event

    def ready(self, *, frames: bool) -> bool:
        """Whether `take` would return something."""
        return bool(self._events) or (frames and bool(self._frames))

    async def wait(self, timeout_s: float) -> None:
        """Until something is put, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def clear(self) -> None:
        """Forget what was put so far as a reason to wake."""
        self._wake.clear()
