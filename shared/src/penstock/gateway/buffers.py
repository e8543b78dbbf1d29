"""Rows between a run and whoever fetches them: bounded, so that a run waits for a slow reader."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from penstock.errors import UsageError
from penstock.sql.watching import Row

MAX_ROWS: Final = 5_000
"""So many rows wait to be fetched, as in Flink's gateway; a page has no more."""


class RowBuffer:
    """Rows in order, from the thread of a run to an event loop.

    `put` blocks while the buffer is full, which holds back the pipeline that fills it. Rows that are put after `close`
    are dropped, because nobody will fetch them.
    """

    def __init__(self, capacity: int = MAX_ROWS) -> None:
        self._capacity = capacity
        self._rows: deque[Row] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._closed = False
        self._error: BaseException | None = None
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @classmethod
    def of(cls, rows: Sequence[tuple[Any, ...]]) -> RowBuffer:
        """A buffer of rows that are all there."""
        found = cls(max(len(rows), 1))
        found._rows.extend(("+I", row) for row in rows)
        found._ended = True
        return found

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        """Whether the next row has to wait."""
        return len(self._rows) >= self._capacity

    def put(self, rows: Sequence[Row]) -> None:
        """Append rows, as soon as there is room for them."""
        done = 0
        while done < len(rows):
            with self._changed:
                self._changed.wait_for(lambda: self._closed or not self.full)
                if self._closed:
                    return
                more = rows[done : done + self._capacity - len(self._rows)]
                self._rows.extend(more)
                self._wake()
            done += len(more)

    def end(self, error: BaseException | None = None) -> None:
        """Say that no row follows; where a run has failed, with its error, which is raised behind the last row."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            self._wake()

    def close(self) -> None:
        """Drop what is there and what follows; a run that waits for room continues."""
        with self._changed:
            self._closed = True
            self._rows.clear()
            self._changed.notify_all()
            self._wake()

    async def take(self, wait_s: float, most: int = MAX_ROWS) -> list[Row] | None:
        """The next rows; none if none come in time; None behind the last one.

        Raises:
            UsageError: the buffer is closed.
            Exception: the run has failed, and its rows have all been taken.
        """
        arrived = asyncio.Event()
        with self._changed:
            if not self._settled:
                self._waiting.append((asyncio.get_running_loop(), arrived))
            else:
                arrived.set()
        try:
            async with asyncio.timeout(wait_s):
                await arrived.wait()
        except TimeoutError:
            return []
        finally:
            with self._changed:
                self._waiting = [each for each in self._waiting if each[1] is not arrived]
        return self._taken(most)

    @property
    def _settled(self) -> bool:
        """Whether there is an answer at once."""
        return bool(self._rows) or self._ended or self._closed

    def _taken(self, most: int) -> list[Row] | None:
        with self._changed:
            rows = [self._rows.popleft() for _ in range(min(most, len(self._rows)))]
            self._changed.notify_all()
            if rows or not (self._ended or self._closed):
                return rows
            if self._closed:
                raise UsageError("the operation was canceled or closed while its rows were fetched")
            if self._error is not None:
                raise self._error
            return None

    def _wake(self) -> None:
        """Tell those who wait. The lock is held."""
        waiting, self._waiting = self._waiting, []
        for loop, arrived in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrived.set)
