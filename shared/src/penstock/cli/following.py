"""Follows a job or a run on a cluster until it ends, and lets it go on where its user has seen enough."""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar

from rich.console import Console
from rich.text import Text

from penstock.client import ClusterClient, NoAnswerError
from penstock.client.documents import JobDetail
from penstock.client.run_documents import RunDetail

POLL_S: Final = 0.5

T = TypeVar("T")
Detail = TypeVar("Detail", JobDetail, RunDetail)


@dataclass
class Follower(ABC, Generic[Detail]):
    """Shows what changes: something that is kept current on a terminal, and everywhere a line per change."""

    cluster: ClusterClient
    followed: str
    """The id of the job or run."""
    console: Console
    _silent: bool = field(default=False, init=False)
    kind: ClassVar[str]
    ended: ClassVar[Container[str]]
    """States that it does not leave any more."""

    async def follow(self) -> Detail | None:
        """Watch it until it has ended; dispatchers that do not answer are waited for.

        Returns:
            How it is then; None if a signal to end came before, and the user was told how it goes on.
        """
        detail = await _until_interrupted(self._watch())
        if detail is None:
            self.say(f"detached: {self.kind} {self.followed} goes on; {self._goes_on()}")
        return detail

    async def _watch(self) -> Detail:
        with self._shown() as show:
            while True:
                detail = await self._look()
                if detail is not None:
                    self._say_changes(detail)
                    show(detail)
                    if detail.summary.state in self.ended:
                        return detail
                await asyncio.sleep(POLL_S)

    async def _look(self) -> Detail | None:
        try:
            detail = await self._read()
        except NoAnswerError as error:
            if not self._silent:
                self.say(f"waiting for a dispatcher to answer; the {self.kind} is not touched by that ({error})")
            self._silent = True
            return None
        self._silent = False
        return detail

    def say(self, *lines: str) -> None:
        """Print lines, above what is kept current."""
        for line in lines:
            self.console.print(Text(line), soft_wrap=True)

    @abstractmethod
    def outcome(self, detail: Detail) -> None:
        """Say how it ended."""

    @abstractmethod
    async def _read(self) -> Detail: ...

    @abstractmethod
    def _say_changes(self, detail: Detail) -> None: ...

    @abstractmethod
    def _shown(self) -> AbstractContextManager[Callable[[Detail], None]]:
        """What keeps its newest state on a terminal."""

    @abstractmethod
    def _goes_on(self) -> str:
        """How it is looked at and ended once nobody follows it."""


async def _until_interrupted(work: Coroutine[Any, Any, T]) -> T | None:
    """What the work comes to; None if a signal to end came first, which cancels it."""
    working = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, working.cancel)
    await asyncio.wait([working])
    return None if working.cancelled() else working.result()
