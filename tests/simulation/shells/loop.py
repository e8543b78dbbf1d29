"""An event loop in virtual time whose processes can be killed or stopped, and whose threads take turns.

Production's coroutines run on it unchanged. What a task schedules belongs to the process that is set in its context:
while that is stopped nothing of it runs, and after its death nothing ever does, no `finally` either. A call in a thread
runs from one step (`step`) to the next, and between two of them anything else may happen, the cancellation of the task
that waits for it and the death of its process among it. One thread runs at a time, so a seed says everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import selectors
import threading
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any

from tests.simulation.kernel import Violation

from penstock.testing.virtual_time import _JumpingSelector

FOREVER_S = 1e6


class Process:
    """A process of the operating system, as far as one event loop can hold several."""

    def __init__(self, loop: SeededLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.stopped = False
        self.ran_again_at = 0.0
        """When it went on after it had been stopped."""
        self._loop = loop
        self._held: list[tuple[list[asyncio.Handle], Callable[..., object], tuple[Any, ...], Context]] = []

    @property
    def runs(self) -> bool:
        """Whether it comes to its turn."""
        return self.alive and not self.stopped

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in this process, as the first of its tasks."""
        token = _current.set(self)
        try:
            return self._loop.create_task(work)
        finally:
            _current.reset(token)

    def kill(self) -> None:
        """SIGKILL."""
        self.alive = False

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def go_on(self) -> None:
        """SIGCONT."""
        self.stopped, self.ran_again_at = False, self._loop.time()
        self.let_go()

    def hold(self, cell: list[asyncio.Handle], callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Keep a callback until this process goes on."""
        self._held.append((cell, callback, args, copy_context()))

    def let_go(self) -> None:
        """What was held is due now."""
        held, self._held = self._held, []
        for cell, callback, args, context in held:
            self._loop.call_soon(_unless_cancelled, cell[0], callback, args, context=context)


def _unless_cancelled(handle: asyncio.Handle, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
    """What runs before may cancel it, as on any loop."""
    if not handle.cancelled():
        callback(*args)


_current: ContextVar[Process | None] = ContextVar("simulated_process", default=None)
_turn = threading.local()


def current() -> Process | None:
    """The process that the running code belongs to; None: the world's."""
    return _current.get()


def step(what: str) -> None:
    """In a thread: here it may stand still for as long as it likes, or for ever."""
    call: _Call | None = getattr(_turn, "call", None)
    if call is not None:
        call.pause(what)


class _Over(BaseException):
    """The history is over: the thread is to end."""


class SeededLoop(asyncio.SelectorEventLoop):
    """Everything is decided by `random`; time begins at 0."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.over = False
        self.now_s = 0.0
        self.stepped: Callable[[Process | None, str], None] = lambda process, what: None
        """Told of every step of a thread before it is taken."""
        self.thread_delay_s: Callable[[], float] = lambda: self.random.uniform(0, 0.005)
        self._calls: dict[_Call, None] = {}
        self._threads: list[_Thread] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        """What a dead process was about to do is kept: its end would run `finally` blocks."""
        super().__init__(_JumpingSelector(selectors.DefaultSelector(), self._pass_time))
        self._clock_resolution = 1e-7
        self.set_task_factory(self._kept)

    def _kept(self, loop: asyncio.AbstractEventLoop, work: Any, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def time(self) -> float:
        """Virtual seconds."""
        return self.now_s

    def _pass_time(self, selector: selectors.BaseSelector, timeout_s: float | None) -> list[Any]:
        if found := selector.select(0):
            return found
        if timeout_s is None:
            raise Violation("I10: nothing will ever happen in this history any more")
        self.now_s += timeout_s
        return []

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """See `asyncio.AbstractEventLoop.call_soon`."""
        process = _process_of(context)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        cell: list[asyncio.Handle] = []
        handle = super().call_soon(self._gated, cell, process, callback, args, context=context)
        cell.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See `asyncio.AbstractEventLoop.call_at`."""
        process = _process_of(context)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        cell: list[asyncio.Handle] = []
        handle = super().call_at(when, self._gated, cell, process, callback, args, context=context)
        cell.append(handle)
        return handle

    def _gated(
        self, cell: list[asyncio.Handle], process: Process, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        if process.runs:
            callback(*args)
        else:
            process.hold(cell, callback, args)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """See `asyncio.AbstractEventLoop.run_in_executor`: the call is not ended by the cancellation of who waits."""
        future: asyncio.Future[Any] = self.create_future()
        call = _Call(self, func, args, future)
        self._calls[call] = None
        self.call_later(self.random.uniform(0, 0.001), call.go)
        return future

    def ended(self, call: _Call) -> None:
        """A call in a thread is over."""
        self._calls.pop(call, None)

    def thread(self) -> _Thread:
        """One that has nothing to do."""
        return self._threads.pop() if self._threads else _Thread()

    def give_back(self, thread: _Thread) -> None:
        """It has nothing to do any more."""
        self._threads.append(thread)

    def finish(self, processes: list[Process]) -> None:
        """End everything that is under way: what runs now changes nothing that anybody looks at."""
        self.over = True
        for call in list(self._calls):
            call.abandon()
        for process in processes:
            process.alive, process.stopped = True, False
            process.let_go()
        while tasks := asyncio.all_tasks(self):
            for task in tasks:
                task.cancel()
            self.run_until_complete(asyncio.wait(tasks))
        for thread in self._threads:
            thread.end()
        self.close()


def _process_of(context: Context | None) -> Process | None:
    return _current.get() if context is None else context.get(_current)


class _Thread:
    """Runs one call after another, as far as it is told to."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.came_back = threading.Semaphore(0)
        self.call: _Call | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self.go.acquire()
            if self.call is None:
                return
            _turn.call = self.call
            self.call.work()
            self.came_back.release()

    def end(self) -> None:
        self.call = None
        self.go.release()
        self._thread.join()


class _Call:
    """A call in a thread."""

    def __init__(
        self, loop: SeededLoop, func: Callable[..., Any], args: tuple[Any, ...], future: asyncio.Future[Any]
    ) -> None:
        self._loop, self._func, self._args, self._future = loop, func, args, future
        self._thread: _Thread | None = None
        self._done = False
        self._abandoned = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._at = ""

    def go(self) -> None:
        """In the loop: run until the next step."""
        if self._done:
            return
        if self._thread is None:
            self._thread = self._loop.thread()
            self._thread.call = self
        elif not self._abandoned:
            self._loop.stepped(current(), self._at)
            process = current()
            if process is not None and not process.runs:  # what was told stopped it
                process.hold([asyncio.Handle(self.go, (), self._loop)], self.go, ())
                return
        self._thread.go.release()
        self._thread.came_back.acquire()
        if not self._done:
            self._loop.call_later(self._loop.thread_delay_s(), self.go)
            return
        self._loop.give_back(self._thread)
        self._loop.ended(self)
        if self._future.done():
            return
        if self._error is not None:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._result)

    def abandon(self) -> None:
        """End it at the step where it stands."""
        self._abandoned = True
        if self._thread is not None:
            while not self._done:
                self.go()
        else:
            self._done = True
            self._loop.ended(self)
        self._future.cancel()

    def pause(self, what: str) -> None:
        """In the thread: wait for the next turn."""
        thread = self._thread
        assert thread is not None
        if self._abandoned:
            raise _Over
        self._at = what
        thread.came_back.release()
        thread.go.acquire()
        if self._abandoned:
            raise _Over

    def work(self) -> None:
        """In the thread."""
        try:
            self._result = self._func(*self._args)
        except _Over as over:
            self._error = RuntimeError(str(over))
        except BaseException as error:
            self._error = error
        self._done = True


@contextlib.contextmanager
def installed(loop: SeededLoop) -> Generator[None]:
    """The loop as this thread's running one, where production asks for it before it runs."""
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
