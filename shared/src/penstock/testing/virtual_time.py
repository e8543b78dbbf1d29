"""Time that passes only when nothing else is left to do: an event loop whose clock jumps, and the `Clock` on top of it.

As long as anything is ready to run the clock stands still. When everything waits, it moves on to the next moment at
which something is due, and nothing has to wait for it. Which moment that is depends on who waits:

* A source that is silent for a while *holds* the input open until a moment (`hold`). Until then the timers of subtasks
  are due one by one, in their order; work that merely looks around now and then (heartbeats, leases, polling) does not
  count, and runs late, as after a process stood still. So an hour costs as many steps as there are timers in it.
* While no source holds, every timer counts, the one of a poll included: what the services still have to settle among
  themselves, such as the last checkpoint, is settled before any later timer of a subtask. The same for a while after
  every jump and after everything that one service told another (`stirred`): rows on their way arrive, and checkpoints
  are completed, before time jumps on.

What runs in threads stops the clock until it is done. While sockets are watched (user code that talks to a server) time
passes as it really does, because nobody can know when an answer comes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import heapq
import itertools
import math
import selectors
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any, Final, ParamSpec

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

_THREAD_S: Final = 0.05
"""How long a call in a thread is waited for at once: those that are over by then come back in the order of the calls."""
_SETTLING_US: Final = 100_000
"""How long nothing may happen before time jumps: longer than services wait between two looks, and than rows wait."""
_OWN_FILES: Final = 1
"""What the loop watches for itself: the pipe by which threads wake it."""

_P = ParamSpec("_P")

_counts: ContextVar[bool] = ContextVar("penstock_timers_count", default=False)


def timers_count() -> None:
    """From now on the timers of this task, and of those that it starts, are moments that time stops at."""
    _counts.set(True)


@contextlib.contextmanager
def timers_do_not_count() -> Generator[None]:
    """Inside, timers are those of a poll: time does not stop for them while a source holds."""
    token = _counts.set(False)
    try:
        yield
    finally:
        _counts.reset(token)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, which begins at 0."""

    def __init__(self) -> None:
        self._now_us = 0
        self._due: list[tuple[float, int, asyncio.TimerHandle]] = []
        """Timers that count, the earliest first."""
        self._numbers = itertools.count()
        self._holds: dict[object, float] = {}
        self._settled_us = _SETTLING_US
        self._in_threads = 0
        self._threads = concurrent.futures.ThreadPoolExecutor(4, "penstock-virtual-time")
        super().__init__(_JumpingSelector(selectors.DefaultSelector(), self._pass_time))
        # asyncio's own nanosecond is below the precision of a float that counts the seconds of a year
        self._clock_resolution = 5e-7

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_us / 1_000_000

    def hold(self, who: object, until_s: float | None) -> None:
        """The input goes on at `until_s` at the latest, as far as `who` is concerned; None: it says nothing any more."""
        if until_s is None:
            self._holds.pop(who, None)
        else:
            self._holds[who] = until_s

    def stirred(self) -> None:
        """Something has happened that others have still to react to."""
        self._settled_us = self._now_us + _SETTLING_US

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See `asyncio.AbstractEventLoop.call_at`."""
        handle = super().call_at(when, callback, *args, context=context)
        if _counts.get():
            heapq.heappush(self._due, (when, next(self._numbers), handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See `asyncio.AbstractEventLoop.call_later`."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def run_in_executor(
        self, executor: concurrent.futures.Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """See `asyncio.AbstractEventLoop.run_in_executor`. A short call is over when this returns."""
        work = (executor or self._threads).submit(func, *args)
        concurrent.futures.wait([work], _THREAD_S)
        self._in_threads += 1
        future = asyncio.wrap_future(work, loop=self)
        future.add_done_callback(self._back_from_thread)
        return future

    def _back_from_thread(self, _: asyncio.Future[Any]) -> None:
        self._in_threads -= 1

    def _pass_time(self, selector: selectors.BaseSelector, timeout_s: float | None) -> list[Any]:
        """Nothing is ready: what happens outside, or the next moment."""
        if self._in_threads or timeout_s is None:
            return selector.select(None)
        if len(selector.get_map() or {}) > _OWN_FILES:
            started = time.monotonic_ns()
            found = selector.select(timeout_s)
            self._now_us += (time.monotonic_ns() - started) // 1_000
            return found
        if found := selector.select(0):
            return found
        self._go_on_to(self.time() + timeout_s)
        return []

    def _go_on_to(self, earliest_s: float) -> None:
        """To the next moment; `earliest_s` is that of the first timer of all."""
        held_until_s = min(self._holds.values(), default=-math.inf)
        jumps = self._now_us >= self._settled_us and held_until_s > self.time()
        then_s = min(held_until_s, self._next_that_counts()) if jumps else earliest_s
        self._now_us = max(self._now_us, math.ceil(then_s * 1_000_000 - 1e-3))
        if jumps:
            self.stirred()

    def _next_that_counts(self) -> float:
        while self._due and (self._due[0][2].cancelled() or self._due[0][0] < self.time()):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else math.inf

    def close(self) -> None:
        """See `asyncio.AbstractEventLoop.close`."""
        super().close()
        self._threads.shutdown(wait=False)


class _JumpingSelector(selectors.BaseSelector):
    """Watches files as another selector does; where that would wait, `wait` decides."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        wait: Callable[[selectors.BaseSelector, float | None], list[tuple[selectors.SelectorKey, int]]],
    ) -> None:
        self._selector = selector
        self._wait = wait

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._selector.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return self._selector.unregister(fileobj)

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._selector.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return self._selector.select(0)
        return self._wait(self._selector, timeout)

    def close(self) -> None:
        self._selector.close()

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return self._selector.get_map() or {}


class VirtualClock:
    """A `Clock` on the running `VirtualLoop`: wall time begins at `start_us` and never jumps back."""

    def __init__(self, start_us: int) -> None:
        self._start_us = start_us

    def now_us(self) -> int:
        """See `Clock.now_us`."""
        return self._start_us + self.monotonic_us()

    def monotonic_ms(self) -> int:
        """See `Clock.monotonic_ms`."""
        return self.monotonic_us() // 1_000

    def monotonic_us(self) -> int:
        """See `Clock.monotonic_us`."""
        return round(asyncio.get_running_loop().time() * 1_000_000)

    async def sleep_ms(self, duration_ms: float) -> None:
        """See `Clock.sleep_ms`."""
        await asyncio.sleep(duration_ms / 1_000)


def in_virtual_time(test: Callable[_P, Coroutine[Any, Any, None]]) -> Callable[_P, None]:
    """A test that runs so: however busy the machine is, a lease lasts as long as it says."""

    @functools.wraps(test)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run
