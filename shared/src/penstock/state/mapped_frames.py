"""Frames on the local disk: written once, then mapped, and used like others; the system keeps in memory what it can.

Each lies in a file without a name, as streams of Arrow's IPC format: it takes room, and a file descriptor, as long as
somebody has its frame or a part of it, and is gone then, whatever dies.

Systems read far around what is asked of a mapped file (128 KiB on most, megabytes on some). That pays for rows in order;
rows here and there have a mapping of their own, for which a page is read alone, and parts far from each other are read.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Sequence
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
        together: of how many bytes parts are written as one. Rows here and there are found faster in few large parts.
    """

    def __init__(self, folder: Path, together: int = 0) -> None:
        self._folder = folder
        self._together = together
        self._waiting: list[pl.DataFrame] = []
        self._waiting_bytes = 0
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
        if frame.height:
            self._waiting.append(frame)
            self._waiting_bytes += int(frame.estimated_size())
        if self._waiting_bytes >= self._together:
            self._write()

    def _write(self) -> None:
        """What waits, as one part."""
        if not self._waiting:
            return
        part = pl.concat(self._waiting, rechunk=True)
        self._waiting, self._waiting_bytes = [], 0
        try:
            part.write_ipc_stream(self._file, compression="uncompressed", compat_level=pl.CompatLevel.newest())
            self._ends.append(self._file.tell())
        except OSError as error:
            raise self._unusable(error) from error

    def mapped(self, *, at_random: bool = False) -> pl.DataFrame:
        """All rows, in order; nothing is added afterwards.

        Args:
            at_random: whether rows here and there will be asked for.

        Raises:
            ExternalError: the disk is full or broken.
        """
        assert self._none is not None
        self._write()
        if len(self._ends) == 1:
            return self._none
        try:
            self._file.flush()
            there = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            if at_random:
                there.madvise(mmap.MADV_RANDOM)
        except OSError as error:
            raise self._unusable(error) from error
        content = memoryview(there)
        return _frame([content[begin:end] for begin, end in pairwise(self._ends)])

    def read(self, parts: Sequence[int]) -> pl.DataFrame:
        """The rows of those parts, counted from zero and in the order they were added, into memory.

        Raises:
            ExternalError: the disk is full or broken.
        """
        try:
            self._file.flush()
            read = [self._read(self._ends[part], self._ends[part + 1]) for part in parts]
        except OSError as error:
            raise self._unusable(error) from error
        return _frame(read)

    def _read(self, begin: int, end: int) -> bytes:
        content = os.pread(self._file.fileno(), end - begin, begin)
        if len(content) < end - begin:
            raise OSError(f"{end - begin} bytes were written there, {len(content)} are left")
        return content

    def _unusable(self, error: OSError) -> ExternalError:
        return ExternalError(
            f"state cannot be kept in the local folder {self._folder}: {error}; look whether the disk is full or broken"
        )


def _frame(streams: Sequence[bytes | memoryview]) -> pl.DataFrame:
    """The rows of streams, without a copy."""
    import pyarrow as pa

    parts = [pa.ipc.open_stream(pa.py_buffer(content)).read_all() for content in streams]
    return cast("pl.DataFrame", pl.from_arrow(pa.concat_tables(parts), rechunk=False))
