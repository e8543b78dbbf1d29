"""Frames on the local disk: written once, then mapped, and used like any other; how much is in memory is up to the system.

Each lies in a file of Arrow's IPC format that has no name: it takes room, and a file descriptor, as long as somebody has
its frame or a part of it, and is gone then, whatever dies.
"""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

import polars as pl

from penstock.errors import ExternalError

if TYPE_CHECKING:
    import pyarrow as pa


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
        self._writer: pa.RecordBatchFileWriter | None = None
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
        import pyarrow as pa

        self._none = frame.clear() if self._none is None else self._none
        if not frame.height:
            return
        table = frame.to_arrow(compat_level=pl.CompatLevel.newest())
        try:
            if self._writer is None:
                self._writer = pa.ipc.new_file(self._file, table.schema)
            self._writer.write_table(table)
        except OSError as error:
            raise self._unusable(error) from error

    def mapped(self) -> pl.DataFrame:
        """All rows, in order; nothing is added afterwards."""
        import pyarrow as pa

        assert self._none is not None
        if self._writer is None:
            return self._none
        try:
            self._writer.close()
            self._file.flush()
            content = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise self._unusable(error) from error
        table = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(content))).read_all()
        return cast("pl.DataFrame", pl.from_arrow(table, rechunk=False))

    def _unusable(self, error: OSError) -> ExternalError:
        return ExternalError(
            f"state cannot be kept in the local folder {self._folder}: {error}; look whether the disk is full or broken"
        )
