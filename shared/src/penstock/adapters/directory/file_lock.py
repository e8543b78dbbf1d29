"""An exclusive lock on an open file (`flock`), taken without blocking the event loop.

`flock` belongs to the open file description: it excludes other processes and other descriptors, is given back by the
kernel when its holder dies, and does not exclude two tasks that share one descriptor (an `asyncio.Lock` does that).
"""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

_FIRST_PAUSE_S: Final = 0.0002
_LONGEST_PAUSE_S: Final = 0.005


@asynccontextmanager
async def file_lock(descriptor: int) -> AsyncGenerator[None]:
    """Hold the lock on `descriptor`; waits by polling, because a holder in another process may be suspended."""
    pause = _FIRST_PAUSE_S
    while not _try(descriptor):
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def blocking_file_lock(descriptor: int) -> Generator[None]:
    """Hold the lock on `descriptor`, waiting in the calling thread."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
