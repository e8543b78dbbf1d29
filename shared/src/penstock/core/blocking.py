"""Coroutines for programs that have none: scripts, and notebooks, whose loop already runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

T = TypeVar("T")
LoopFactory = Callable[[], asyncio.AbstractEventLoop] | None
"""What makes the loop; None: asyncio's own."""

BEGINS_S: Final = 10.0
"""A thread that was started begins its work before that."""


def run_blocking(work: Coroutine[Any, Any, T], loop_factory: LoopFactory = None) -> T:
    """What `work` comes to; Ctrl-C cancels it. Where a loop runs in this thread already, as in a notebook, another thread
    does it while this one waits."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(work, loop_factory)
    return run_in_thread(work, loop_factory)


def run_in_thread(work: Coroutine[Any, Any, T], loop_factory: LoopFactory = None) -> T:
    """What `work` comes to in another thread, while this one waits; Ctrl-C, which this one hears, cancels it there."""
    begun = Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]]()
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(_run, _told(work, begun), loop_factory).result()
        except KeyboardInterrupt:
            loop, task = begun.result(BEGINS_S)
            with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended by itself
                loop.call_soon_threadsafe(task.cancel)
            raise


async def _told(work: Coroutine[Any, Any, T], begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]]) -> T:
    task = asyncio.current_task()
    assert task is not None
    begun.set_result((asyncio.get_running_loop(), task))
    return await work


def _run(work: Coroutine[Any, Any, T], loop_factory: LoopFactory) -> T:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(work)
