"""Coroutines for programs that have none: scripts, and notebooks, whose loop already runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
LoopFactory = Callable[[], asyncio.AbstractEventLoop] | None
"""What makes the loop; None: asyncio's own."""


def run_blocking(work: Coroutine[Any, Any, T], loop_factory: LoopFactory = None) -> T:
    """What `work` comes to; Ctrl-C cancels it. Where a loop runs in this thread already, as in a notebook, another thread
    does it while this one waits."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(work, loop_factory)
    return run_in_thread(work, loop_factory)


def run_in_thread(work: Coroutine[Any, Any, T], loop_factory: LoopFactory = None) -> T:
    """What `work` comes to in another thread, where no signal interrupts it, while this one waits."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_run, work, loop_factory).result()


def _run(work: Coroutine[Any, Any, T], loop_factory: LoopFactory) -> T:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(work)
