"""The writer of tables: rows go to a file on this machine, a checkpoint makes it data files that are staged.

Data files lie where the table has its own, and nothing names them until they are appended (see `appending`), so no reader
sees them. Those of a process that was killed before its checkpoint are what Iceberg calls orphans, and are removed by its
removal of orphan files: file systems of tables cannot be listed by every catalog's clients.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.base import Prepared, WriteContext
from penstock.connectors.files.writing import StagedFile, staged_file
from penstock.connectors.iceberg.appending import append, list_files, proof_of, remove, remove_staged
from penstock.connectors.iceberg.catalogs import TablePlace
from penstock.connectors.iceberg.columns import check_columns
from penstock.connectors.iceberg.null_parts import keep_null_parts
from penstock.core.scratch import Scratch
from penstock.errors import ExternalError, PipelineError
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

_NEWEST_FORMAT: Final = 2
_CHUNK_BYTES: Final = 128 << 20
"""So much of a checkpoint is in memory at a time when it becomes data files; tables may ask for smaller ones."""


class TableWriter:
    """Writes the rows of one subtask; see `SinkWriter`."""

    def __init__(self, place: TablePlace, schema: Schema, context: WriteContext) -> None:
        self._place = place
        self._schema = schema
        self._context = context
        self._scratch = Scratch(Path(tempfile.gettempdir()))
        self._open: tuple[Path, StagedFile] | None = None
        self._number = 0
        self._forgotten: set[str] = set()

    def write(self, frame: pl.DataFrame) -> None:
        """See `SinkWriter.write`."""
        if not frame.height:
            return
        try:
            if self._open is None:
                self._number += 1
                path = self._scratch.folder / f"{self._number}.arrow"
                self._open = (path, staged_file(path, self._schema, "arrow", "", ""))
            self._open[1].write(frame)
        except OSError as error:
            raise ExternalError(f"cannot write {self._scratch.folder}: {error}") from error

    def prepare(self, checkpoint: int) -> Prepared:
        """See `SinkWriter.prepare`. Without rows there is nothing to append."""
        if self._open is None:
            return Prepared()
        path, file = self._open
        self._open = None
        try:
            file.close()
        except OSError as error:
            raise ExternalError(f"cannot write {path}: {error}") from error
        part = self._part()
        return Prepared([{"id": part}], _once(lambda: self._stage(path, part)))

    def _part(self) -> str:
        """A name that no other part has, of whichever job, as far as attempts have names of their own."""
        context = self._context
        owner = f"{context.operator} {context.subtask} {context.attempt_number} {context.attempt} {self._number}"
        return hashlib.sha256(owner.encode()).hexdigest()[:32]

    def _stage(self, path: Path, part: str) -> None:
        """Make data files of the rows, and list them; blocks."""
        table = self._place.load()
        check_table(table, self._schema, self._place)
        files: list[DataFile] = []
        try:
            with self._place.asking("write data files of"):
                files.extend(self._data_files(table, path))
                list_files(table, files, part)
        except BaseException:
            for file in files:
                with suppress(ExternalError):  # what stays is an orphan
                    remove(self._place, table.io, file.file_path)
            raise
        path.unlink(missing_ok=True)

    def _data_files(self, table: Table, path: Path) -> Iterator[DataFile]:
        """Those of `data_files`; what pyiceberg has no way to write is refused, for it never will."""
        try:
            yield from data_files(table, path)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise PipelineError(
                f"{self._place.what}: cannot write data files of {self._place}: {error}; change the columns, or how the "
                "table is partitioned"
            ) from error

    def commit(self, committable: Any) -> None:
        """See `SinkWriter.commit`."""
        self.commit_together([committable])

    def commit_together(self, committables: Sequence[Any]) -> None:
        """See `CommitsTogether`."""
        parts = [committable["id"] for committable in committables]
        forgotten = set(self._forgotten)
        summary = {"penstock.operator": self._context.operator, "penstock.parts": str(len(parts))}
        append(self._place, parts, summary, forgotten, self._context.clock_us())
        self._forgotten -= forgotten

    def forget(self, committable: Any) -> None:
        """See `ForgetsCommits.forget`: the proof goes with the next commit."""
        self._forgotten.add(proof_of([committable["id"]]))

    def discard(self, committable: Any) -> None:
        """See `SinkWriter.discard`."""
        remove_staged(self._place, committable["id"])

    def close(self) -> None:
        """See `SinkWriter.close`."""
        if self._open is not None:
            with suppress(Exception):  # such as a full disk, which what is removed here may have filled
                self._open[1].close()
            self._open = None
        self._scratch.close()


def check_table(table: Table, schema: Schema, place: TablePlace) -> None:
    """Whether rows of the schema can be appended to it.

    Raises:
        PipelineError: columns do not fit, or pyiceberg cannot write such a table; says what.
    """
    version = table.metadata.format_version
    if version > _NEWEST_FORMAT:
        raise PipelineError(f"{place.what}: {place} is of format {version}; pyiceberg writes up to {_NEWEST_FORMAT}")
    kind = table.properties.get("write.format.default", "parquet")
    if kind != "parquet":
        raise PipelineError(f"{place.what}: {place} wants its files as {kind}; set write.format.default to parquet")
    unknown = [str(each.transform) for each in table.spec().fields if str(each.transform) == "unknown"]
    if unknown:
        raise PipelineError(f"{place.what}: {place} has a partition of a kind that pyiceberg does not know")
    check_columns(schema, table.schema(), f"{place.what}: {place}")


def data_files(table: Table, path: Path) -> Iterator[DataFile]:
    """The rows of a file of Arrow batches as data files of a table, partitioned as it says."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import _dataframe_to_data_files  # pyright: ignore[reportPrivateUsage]

    keep_null_parts()
    kinds = {each.name: each for each in table.schema().as_arrow()}
    for chunk in _chunks(path):
        wanted = pa.schema([kinds[each.name].with_nullable(each.nullable) for each in chunk.schema])
        yield from _dataframe_to_data_files(table.metadata, chunk.cast(wanted), table.io)


def _chunks(path: Path) -> Iterator[pa.Table]:
    """The rows, so many at a time as fit into memory."""
    import pyarrow as pa
    from pyarrow import ipc

    batches, size = list[pa.RecordBatch](), 0
    with pa.memory_map(str(path)) as opened:
        reader = ipc.open_file(opened)
        for number in range(reader.num_record_batches):
            batches.append(reader.get_batch(number))
            size += batches[-1].nbytes
            if size >= _CHUNK_BYTES:
                yield pa.Table.from_batches(batches)
                batches, size = [], 0
        if batches:
            yield pa.Table.from_batches(batches)


def _once(work: Callable[[], None]) -> Callable[[], None]:
    """The work, done once however often and by whichever threads it is called, until it has succeeded."""
    lock, done = threading.Lock(), list[bool]()

    def run() -> None:
        with lock:
            if not done:
                work()
                done.append(True)

    return run
