"""One run at a time in a directory: a lock that the kernel gives back when its holder dies, however it dies.

Responsible for keeping a second run out, whose files would get mixed with those of the first. Who leads among several
coordinators is the lease's business, not this lock's.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.errors import ExternalError, UsageError

_FILE: Final = "run.lock"


@contextmanager
def claimed(directory: Path) -> Generator[None]:
    """Hold `directory`, which is created if need be.

    Raises:
        UsageError: another run holds it.
        ExternalError: it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / _FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ExternalError(f"cannot write in {directory}: {error.strerror}; name another folder with --dir") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode().strip()
            raise UsageError(
                f"{directory} is in use by another run (process {holder or 'unknown'}); wait for it, stop it, or use "
                "another folder with --dir"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
