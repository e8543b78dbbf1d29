"""Rows of an iterable, a slice of time at a time.

What is at hand is taken where the pipeline runs. A generator may wait between its rows: a thread takes them, so that
those that it gave go on, and all others with them.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

SLICE_MS: Final = 20
"""How long rows are taken before they go on; also how long they wait for one that does not come."""


class Rows(Protocol):
    """What gives the rows of a reader, in order."""

    async def take(self, count: int) -> list[Any]:
        """The next rows, `count` at most; none if there are none right now. Cancelled, it loses none.

        Raises:
            StopAsyncIteration: there are no more.
            Exception: what the iterable raised, behind the rows before it.
        """
        ...

    def close(self) -> None:
        """Close a generator, so that its `finally` runs."""
        ...


class RowsAtHand:
    """Takes rows where it is called: of lists, and of iterators that may belong to this thread."""

    def __init__(self, rows: Iterator[Any], monotonic_ms: Callable[[], int]) -> None:
        self._rows = rows
        self._now_ms = monotonic_ms
        self._error: Exception | None = None

    async def take(self, count: int) -> list[Any]:
        """See `Rows.take`."""
        if self._error is not None:
            raise self._error
        rows: list[Any] = []
        try:
            take_slice(self._rows, count, self._now_ms, rows.append)
        except Exception as error:
            if not rows:
                raise
            self._error = error
        if not rows:
            raise StopAsyncIteration
        return rows

    def close(self) -> None:
        """See `Rows.close`."""
        _close(self._rows)


def take_slice(rows: Iterator[Any], count: int, now_ms: Callable[[], int], put: Callable[[Any], None]) -> bool:
    """Put up to `count` rows for `SLICE_MS`; False at their end."""
    deadline, taken = now_ms() + SLICE_MS, 0
    for row in itertools.islice(rows, count):
        put(row)
        taken += 1
        if now_ms() >= deadline:
            return True
    return taken == count


class RowThread:
    """Takes rows ahead of `rows`, as many as were asked for at once.

    One thread takes all of them, since what a generator holds (such as a cursor of sqlite3) may belong to the thread that
    made it. It is a daemon: a generator that waits for ever does not keep the process from ending.

    Args:
        open_rows: makes the iterator, in the thread.
        monotonic_ms: the clock of slices.
    """

    def __init__(self, open_rows: Callable[[], Iterator[Any]], monotonic_ms: Callable[[], int]) -> None:
        self._open_rows = open_rows
        self._now_ms = monotonic_ms
        self._taken: deque[Any] = deque()
        """Appended to by the thread, emptied by the loop."""
        self._wanted = 0
        self._go = threading.Event()
        self._closed = False
        self._slice: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: BaseException | None = None
        """What ended the rows; StopIteration if nothing went wrong."""

    async def take(self, count: int) -> list[Any]:
        """See `Rows.take`; waits for `SLICE_MS` at most."""
        if not self._taken:
            await self._slice_of(count)
        rows = [self._taken.popleft() for _ in range(min(count, len(self._taken)))]
        if not rows and self._ended is not None:
            raise StopAsyncIteration if isinstance(self._ended, StopIteration) else self._ended
        return rows

    def close(self) -> None:
        """Let the thread end, and close the generator as soon as it gives control back."""
        self._closed = True
        self._go.set()

    async def _slice_of(self, count: int) -> None:
        if self._slice is None or self._slice.done():
            if self._ended is not None:
                return
            self._begin_slice(count)
        assert self._slice is not None
        await asyncio.wait((self._slice,), timeout=SLICE_MS / 1_000)

    def _begin_slice(self, count: int) -> None:
        begun, self._loop = self._loop is not None, asyncio.get_running_loop()
        self._slice, self._wanted = self._loop.create_future(), count
        self._go.set()
        if not begun:
            threading.Thread(target=self._run, name="penstock-rows", daemon=True).start()

    def _run(self) -> None:
        rows: Iterator[Any] = iter(())
        try:
            rows = self._open_rows()
            while self._next_slice(rows):
                pass
        except BaseException as error:
            self._ended = error
            self._tell()
        finally:
            _close(rows)

    def _next_slice(self, rows: Iterator[Any]) -> bool:
        """Take a slice when asked; False when closed. Raises StopIteration at the end."""
        self._go.wait()
        self._go.clear()
        if self._closed:
            return False
        if not take_slice(rows, self._wanted, self._now_ms, self._taken.append):
            raise StopIteration
        self._tell()
        return True

    def _tell(self) -> None:
        loop, done = self._loop, self._slice
        if loop is None or done is None or loop.is_closed():
            return
        try:
            loop.call_soon_threadsafe(lambda: done.done() or done.set_result(None))
        except RuntimeError:
            return  # the loop was closed meanwhile: nobody waits


def _close(rows: Iterator[Any]) -> None:
    """Close a generator, so that its `finally` runs."""
    close = getattr(rows, "close", None)
    if callable(close):
        close()
