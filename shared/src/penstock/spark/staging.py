"""Rows of exactly-once sinks between a task and the driver: encoded, and staged in files that both of them reach.

A task writes the rows as the sink's own encoder makes them, so that a row that cannot be published fails the task (or is
skipped) before anything is visible. What stands in a file is published by the driver (see `publishing`), and only of the
attempts that the run's manifest names; the other files are removed. The files are Arrow's, in batches of a few MiB: the
number of a batch is a position from which publishing can go on. They lie where a files sink has its staged ones, in the
folder of the pipeline's runs or, where executors do not share that with the driver, on an object store:

    <folder of the pipeline's runs>/.staging/<operator>--<subtask>-<execution>-<attempt>.arrow
    <URL>/<pipeline>/<an id of that folder>/.staging/<the same>
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import msgspec
import pyarrow as pa

from penstock.connectors.base import Prepared, PublishedSink, Sink, SinkEncoder, WriteContext
from penstock.connectors.files.local import LocalParts
from penstock.connectors.files.object_store import StoredParts
from penstock.connectors.files.store_clients import location
from penstock.connectors.files.writing import PartFolder
from penstock.errors import CorruptDataError, ExternalError, PipelineError
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl

BATCH_BYTES: Final = 2 << 20
"""About how large a batch is: a transaction publishes whole batches."""
BATCH_ROWS: Final = 65_536


class StagedFileError(ExternalError):
    """What a run staged and its manifest names cannot be read: to try again at once is of no use."""

    retryable = False


class StagedPart(msgspec.Struct, frozen=True):
    """What a task staged for one sink: its committable."""

    file: str
    partition: int
    """Which publisher publishes it: parts of one partition follow each other in the order of the manifest."""
    batches: int
    rows: int


class RecordStager:
    """The writer of an exactly-once sink in a task; see `SinkWriter`. What it stages is committed by the driver alone."""

    def __init__(
        self, folder: PartFolder, encoder: SinkEncoder, encoded: Schema, context: WriteContext, partition: int
    ) -> None:
        """`folder` is that of staged files, `encoded` the schema of what the encoder returns."""
        folder.open()
        self._folder = folder
        self._name = f"{_quoted(context.operator)}--{context.subtask}-{context.attempt}.arrow"
        self._path = folder.writable(self._name)
        self._encoder = encoder
        self._arrow = encoded.arrow()
        self._partition = partition
        self._writer: Any = None
        self._frames: list[pl.DataFrame] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._batches = self._rows = 0
        self.skipped = 0

    def write(self, frame: pl.DataFrame) -> None:
        """See `SinkWriter.write`."""
        encoded = self._encoder.encode(frame)
        self.skipped += encoded.skipped
        self._frames.append(encoded.frame)
        self._waiting_rows += encoded.frame.height
        self._waiting_bytes += int(encoded.frame.estimated_size())
        if self._waiting_rows >= BATCH_ROWS or self._waiting_bytes >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Write what waits, in batches of about the size."""
        import polars as pl

        rows, size = self._waiting_rows, self._waiting_bytes
        frames, self._frames = self._frames, []
        self._waiting_rows = self._waiting_bytes = 0
        if not rows:
            return
        try:
            if self._writer is None:
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                self._writer = pa.ipc.new_file(str(self._path), self._arrow, options=options)
            table = pl.concat(frames).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(self._arrow)
            largest = max(1, min(BATCH_ROWS, rows * BATCH_BYTES // max(size, 1)))
            for batch in table.combine_chunks().to_batches(max_chunksize=largest):
                self._writer.write_batch(batch)
                self._batches += 1
            self._rows += rows
        except OSError as error:
            raise ExternalError(f"cannot write {self._path}: {error}") from error

    def prepare(self, checkpoint: int) -> Prepared:
        """See `SinkWriter.prepare`; called once. Without rows there is no part."""
        self._flush()
        if self._writer is None:
            return Prepared()
        writer, self._writer = self._writer, None
        part = StagedPart(self._name, self._partition, self._batches, self._rows)
        try:
            writer.close()
        except OSError as error:
            raise ExternalError(f"cannot write {self._path}: {error}") from error
        return Prepared([msgspec.to_builtins(part)], lambda: self._folder.persist(self._name))

    def commit(self, committable: Any) -> None:
        """Nothing: the driver publishes."""

    def discard(self, committable: Any) -> None:
        """Nothing: the driver removes what the manifest does not name."""

    def close(self) -> None:
        """See `SinkWriter.close`."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._path.unlink(missing_ok=True)
        self._folder.close()


def staging_folder(place: str) -> PartFolder:
    """The folder of staged files at a path or a URL, whose store is reached as the environment says.

    Raises:
        PipelineError: a URL names no bucket, or obstore is missing.
    """
    stored = location(place, None, "--staging")
    return LocalParts(Path(place)) if stored is None else StoredParts(stored)


def publishes(sink: Sink) -> TypeGuard[PublishedSink]:
    """Whether the driver publishes the sink's rows, exactly once, instead of tasks writing them."""
    return isinstance(sink, PublishedSink) and sink.guarantee == "exactly-once"


def read_batches(
    folder: PartFolder, parts: Sequence[StagedPart], start: int
) -> Iterator[tuple[int, pl.DataFrame, int]]:
    """The batches of parts that follow each other, from number `start` on: number, rows, size in bytes.

    Raises:
        StagedFileError: a file cannot be read.
        CorruptDataError: a file is not what was staged.
    """
    import polars as pl

    first = 0
    for part in parts:
        if start < first + part.batches:
            staged = folder.staged_file(part.file)
            try:
                with staged.arrow() as source, pa.ipc.open_file(source) as file:
                    if file.num_record_batches != part.batches:
                        raise CorruptDataError(
                            f"{staged}: {file.num_record_batches} batches instead of {part.batches}: somebody changed it"
                        )
                    for number in range(max(start - first, 0), part.batches):
                        frame = pl.from_arrow(file.get_batch(number))
                        assert isinstance(frame, pl.DataFrame)
                        yield first + number, frame, int(frame.estimated_size())
            except pa.ArrowInvalid as error:
                raise CorruptDataError(f"{staged}: not what was staged: {error}") from error
            except (OSError, PipelineError) as error:
                raise StagedFileError(
                    f"cannot read {staged}, whose rows are to be published: {error}; make it readable, then give the run "
                    "again by its id"
                ) from error
        first += part.batches


def check_shared(folder: PartFolder, parts: Sequence[StagedPart]) -> None:
    """Raise `ExternalError` if a part was staged where this process cannot see it."""
    there = set(folder.staged()) if parts else set[str]()
    missing = next((part.file for part in parts if part.file not in there), None)
    if missing is not None:
        raise ExternalError(
            f"{folder.staged_file(missing)}: a task staged it, and it is not here: the driver publishes what tasks stage "
            "for an exactly-once sink, so it must be where all machines see it; name a place on an object store with "
            "--staging s3://bucket/folder, run from a folder that all machines share, or say "
            'delivery="at-least-once"'
        )


def remove_staged(folder: PartFolder, needed: set[str]) -> None:
    """Remove all staged files but those named."""
    for name in folder.staged():
        if name not in needed:
            folder.remove_staged(name)


def _quoted(operator: str) -> str:
    return urllib.parse.quote(operator, safe="")
