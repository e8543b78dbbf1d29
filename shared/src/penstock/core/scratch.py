"""Temporary folders that do not outlive the process that made them for long, however it ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final


class Scratch:
    """A temporary folder of this process; those of processes that were killed are removed by the next one.

    Whoever lives holds a lock on its folder, which its death gives back.
    """

    def __init__(self, root: Path, prefix: str = "penstock-staged-") -> None:
        """A folder in `root` whose name begins with `prefix`, as those have that are removed if nobody holds them."""
        for left in root.glob(f"{prefix}*"):
            lock = _locked(left)
            if lock is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)
        folder, lock = root, None
        while lock is None or not folder.exists():  # somebody took it for one that was left, before it was locked
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
            lock = _locked(folder)
        self.folder: Final = folder
        self._lock: int | None = lock

    def close(self) -> None:
        """Remove it; nothing happens if that is done."""
        if self._lock is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _locked(folder: Path) -> int | None:
    """A descriptor that holds the lock of a folder; None if somebody else holds it, or it is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
