"""What waits to be handled by a job's shell: bounded, however long the shell waits for the store or the brokers.

Backpressure would hold up the reader of `events`, and with it all other jobs and the judgement about who lives. So what
says only the same as a waiting event is not queued. What is left is finite while nothing is decided: a subtask goes
through few states, and acknowledges only checkpoints whose markers stand in `commands`; a worker dies once; a request
waits for the store before it comes here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from penstock.protocol.jobevents import JobEvent, SlotsOffered, StatusReported, TasksListed, Ticked, WorkerGone
from penstock.protocol.messages import SubtaskId

_Said = tuple[str, ...] | frozenset[SubtaskId]


class JobInbox:
    """Events in the order in which they happened."""

    def __init__(self) -> None:
        self._events: Final[deque[JobEvent]] = deque()
        self._said: Final[dict[SubtaskId | str, _Said]] = {}
        """What the newest waiting report says: of each subtask, and of each worker's list of subtasks."""
        self._offers: Final[deque[SlotsOffered]] = deque()
        """What each offer that waits says: the newest takes the place of one that waits, unless a worker died since."""
        self._offers_newest = False
        """Whether the last of them may still be replaced."""
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: JobEvent) -> None:
        """Add an event, unless what waits says the same."""
        match event:
            case Ticked() if self._events:
                return
            case SlotsOffered():
                if self._offers and self._offers_newest:
                    self._offers[-1] = event
                    return
                self._offers.append(event)
                self._offers_newest = True
            case WorkerGone():
                self._offers_newest = False  # behind its death its slots may be offered anew
            case StatusReported() | TasksListed():
                about, said = _about(event)
                if self._said.get(about) == said:
                    return
                self._said[about] = said
                if isinstance(event, StatusReported):  # a list that comes behind it says more than one before it
                    self._said.pop(event.worker, None)
            case _:
                pass
        self._events.append(event)
        self._some.set()

    async def get(self) -> JobEvent:
        """The oldest event, once there is one."""
        while not self._events:
            self._some.clear()
            await self._some.wait()
        event = self._events.popleft()
        match event:
            case SlotsOffered():
                event = self._offers.popleft()
            case StatusReported() | TasksListed():
                about, said = _about(event)
                if self._said.get(about) == said:
                    del self._said[about]
            case _:
                pass
        return event


def _about(event: StatusReported | TasksListed) -> tuple[SubtaskId | str, _Said]:
    """Whom it is about, and what it says that the master decides by; counters are for people, and come again."""
    if isinstance(event, TasksListed):
        return event.worker, event.subtasks
    status = event.status
    return status.subtask, (event.worker, status.attempt, status.state, str(status.published), status.error)
