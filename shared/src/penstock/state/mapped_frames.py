"""Frames on the local disk: written once, then mapped, and used like others; the system keeps in memory what it can.

Each lies in a file without a name, as streams of Arrow's IPC format: it takes room, and a file descriptor, as long as
somebody has its frame or a part of it, and is gone then, whatever dies.
"""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import polars as pl

from penstock.errors import ExternalError


class FrameWriter:
    """Takes the parts of one frame, one after the other; a context manager.

    Args:
        folder: where the file is; made if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - what is mapped outlives it
        except OSError as error:
            raise self._unusable(error) from error
        self._ends = [0]
        """Where each part ends: a stream of its own."""
        self._none: pl.DataFrame | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # of what is left to write, which nobody wants
            self._file.close()

    def add(self, frame: pl.DataFrame) -> None:
        """Write the next rows, with the columns of those before.

        Raises:
            ExternalError: the disk is full or broken.
        """
        self._none = frame.clear() if self._none is None else self._none
        if not frame.height:
            return
        try:
            frame.write_ipc_stream(self._file, compression="uncompressed", compat_level=pl.CompatLevel.newest())
            self._ends.append(self._file.tell())
        except OSError as error:
            raise self._unusable(error) from error

    def mapped(self) -> pl.DataFrame:
        """All rows, in order; nothing is added afterwards.

        Raises:
            ExternalError: the disk is full or broken.
        """
        import pyarrow as pa

        assert self._none is not None
        if len(self._ends) == 1:
            return self._none
        try:
            self._file.flush()
            content = pa.py_buffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise self._unusable(error) from error
        parts = [pa.ipc.open_stream(content[begin:end]).read_all() for begin, end in pairwise(self._ends)]
        return cast("pl.DataFrame", pl.from_arrow(pa.concat_tables(parts), rechunk=False))

    def _unusable(self, error: OSError) -> ExternalError:
        return ExternalError(
            f"state cannot be kept in the local folder {self._folder}: {error}; look whether the disk is full or broken"
        )
