"""The writer of file sinks: rows go to a staged file, a checkpoint closes it, its completion renames it.

    <folder>/.staging/<operator>--<subtask>-attempt<number>-<attempt>-<n>.<format>
    <folder>/.staging/<name of the staged file>.committed
    <folder>/<column>=<value>/part-<checkpoint>-<operator>-<subtask>-<attempt>.<format>

The order of names is the order of time, so that of the updates of a key the last one counts: between two checkpoints a
key belongs to one subtask, later perhaps to another. Of a checkpoint there is one file per subtask and folder, and
another one, numbered behind the name, where that becomes large. How a staged file becomes visible, once, is the business
of the folder it lies in: see `local` and `object_store`.
"""

from __future__ import annotations

import importlib
import threading
import urllib.parse
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.connectors.base import Prepared, Removal, WriteContext
from penstock.connectors.files.partitions import folder_of
from penstock.errors import ExternalError
from penstock.formats.encoding import encode_csv, encode_jsonl
from penstock.formats.names import Format
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl

    from penstock.connectors.files.reading import InputFile

STAGING: Final = ".staging"
PROOF: Final = ".committed"
"""Ends the name of the file that proves a commit."""
_GROUP_ROWS: Final = 100_000
"""Rows of a row group (record batch) of columnar formats, at least, the last one aside."""
LARGEST_FILE_BYTES: Final = 1 << 30
"""Another file begins behind it: object stores copy no more than 5 GB at once, and readers share work by files."""
MOST_OPEN_FILES: Final = 200
"""Of one writer; where rows go to more folders, files that wait longest for rows are closed."""


class StagedFile(Protocol):
    """A file being written."""

    def write(self, frame: pl.DataFrame) -> None:
        """Append rows."""
        ...

    def size_bytes(self) -> int:
        """About how large it has become."""
        ...

    def close(self) -> None:
        """Write what is missing and close the file."""
        ...


class PartFolder(Protocol):
    """The folder of a sink. Names are below it, those of staged files below its `.staging`. Everything here blocks."""

    def open(self) -> None:
        """Make ready for `writable`."""
        ...

    def close(self) -> None:
        """Give back what `open` took."""
        ...

    def writable(self, staged: str) -> Path:
        """Where the rows of a staged file are to be written, on this machine."""
        ...

    def persist(self, staged: str) -> None:
        """Make a staged file, which was written and closed, durable; called until it was done, then no more."""
        ...

    def publish(self, staged: str, visible: str, proof: str | None) -> None:
        """Make a staged file visible; see `SinkWriter.commit`."""
        ...

    def staged(self) -> list[str]:
        """All staged files and proofs."""
        ...

    def remove_staged(self, name: str) -> None:
        """Remove a staged file or a proof, if it is there."""
        ...

    def staged_file(self, name: str) -> InputFile:
        """A staged file that is durable, to be read."""
        ...

    def visible(self) -> list[str]:
        """All files in it and below."""
        ...

    def remove_visible(self, name: str) -> None:
        """Remove a visible file, if it is there."""
        ...


@dataclass
class _Open:
    """A staged file that is being written."""

    name: str
    file: StagedFile


class FileWriter:
    """Writes the rows of one subtask; see `SinkWriter`."""

    def __init__(
        self,
        folder: PartFolder,
        extension: str,
        context: WriteContext,
        create: Callable[[Path], StagedFile],
        partition_by: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._extension = extension
        self._context = context
        self._create = create
        self._partition_by = partition_by
        self._open: dict[str, _Open] = {}
        """By the folder of the partition; the one that was written last comes last."""
        self._closed: list[tuple[str, str]] = []
        """Folders and staged files of this checkpoint that are complete."""
        self._number = 0
        folder.open()

    def write(self, frame: pl.DataFrame) -> None:
        """See `SinkWriter.write`."""
        if not frame.height:
            return
        if not self._partition_by:
            self._write("", frame)
            return
        parts = frame.partition_by(self._partition_by, maintain_order=True, include_key=False, as_dict=True)
        for values, rows in parts.items():
            self._write(folder_of(self._partition_by, values), rows)

    def _write(self, folder: str, rows: pl.DataFrame) -> None:
        opened = self._open.pop(folder, None) or self._created()
        self._open[folder] = opened
        try:
            opened.file.write(rows)
        except OSError as error:
            raise ExternalError(f"cannot write {self._folder.writable(opened.name)}: {error}") from error
        if opened.file.size_bytes() >= LARGEST_FILE_BYTES:
            self._close(folder)
        elif len(self._open) > MOST_OPEN_FILES:
            self._close(next(iter(self._open)))

    def _created(self) -> _Open:
        self._number += 1
        context = self._context
        owner = f"{_quoted(context.operator)}--{context.subtask}-attempt{context.attempt_number}-{context.attempt}"
        name = f"{owner}-{self._number}.{self._extension}"
        try:
            return _Open(name, self._create(self._folder.writable(name)))
        except OSError as error:
            raise ExternalError(f"cannot write {self._folder.writable(name)}: {error}") from error

    def _close(self, folder: str) -> None:
        opened = self._open.pop(folder)
        self._closed.append((folder, opened.name))
        try:
            opened.file.close()
        except OSError as error:
            raise ExternalError(f"cannot write {self._folder.writable(opened.name)}: {error}") from error

    def prepare(self, checkpoint: int) -> Prepared:
        """See `SinkWriter.prepare`. Without rows there is no file."""
        for folder in list(self._open):
            self._close(folder)
        closed, self._closed = self._closed, []
        if not closed:
            return Prepared()
        context, counts = self._context, dict[str, int]()
        owner = f"{_quoted(context.operator)}-{context.subtask}-{context.attempt[:8]}"
        committables: list[dict[str, str]] = []
        for folder, name in closed:
            number = counts[folder] = counts.get(folder, -1) + 1
            visible = f"part-{checkpoint:08d}-{owner}{f'_{number:04d}' if number else ''}.{self._extension}"
            committables.append({"staged": name, "visible": folder + visible, "proof": name + PROOF})
        return Prepared(committables, _once_each(self._folder.persist, [name for _, name in closed]))

    def commit(self, committable: Any) -> None:
        """See `SinkWriter.commit`. Versions that kept no proofs named none."""
        self._folder.publish(committable["staged"], committable["visible"], committable.get("proof"))

    def forget(self, committable: Any) -> None:
        """See `ForgetsCommits.forget`."""
        if committable.get("proof") is not None:
            self._folder.remove_staged(committable["proof"])

    def discard(self, committable: Any) -> None:
        """See `SinkWriter.discard`."""
        self._folder.remove_staged(committable["staged"])

    def close(self) -> None:
        """See `SinkWriter.close`."""
        for folder, opened in self._open.items():
            self._closed.append((folder, opened.name))
            with suppress(Exception):  # such as a full disk, which what is removed here may have filled
                opened.file.close()
        self._open.clear()
        for _, name in self._closed:
            self._folder.writable(name).unlink(missing_ok=True)
        self._closed.clear()
        self._folder.close()


def _once_each(work: Callable[[str], None], names: list[str]) -> Callable[[], None]:
    """The work for each of the names. Called again, by any thread, it goes on with those for which it was not done: what
    was done may be gone by then."""
    lock = threading.Lock()

    def run() -> None:
        with lock:
            while names:
                work(names[0])
                del names[0]

    return run


def leftovers(
    folder: PartFolder, needed: Sequence[Any], operator: str | None, attempt: str, attempts: Collection[str] | None
) -> Removal:
    """Removes the staged files and proofs (of one operator) that are there now and `Sink.recover` does not keep."""
    keep = {committable["staged"] for committable in needed}
    found = [
        name
        for name in folder.staged()
        if name.removesuffix(PROOF) not in keep and _is_leftover(name, operator, attempt, attempts)
    ]

    def remove() -> None:
        for name in found:
            folder.remove_staged(name)

    return remove


def _is_leftover(name: str, operator: str | None, attempt: str, attempts: Collection[str] | None) -> bool:
    """Whether a file in the staging folder is of that operator, and of another attempt than this one (of `attempts`)."""
    owner, _, rest = name.rpartition("--")
    if operator is not None and owner != _quoted(operator):
        return False
    if attempt and f"-{attempt}-" in rest:
        return False
    return attempts is None or any(f"-{each}-" in rest for each in attempts)


def visible_parts(folder: PartFolder) -> list[str]:
    """The visible files of earlier jobs that are there now, whatever columns name their folders."""
    return [name for name in folder.visible() if _is_part(*name.split("/"))]


def remove_visible(folder: PartFolder, names: Sequence[str]) -> None:
    """Remove these of the visible files."""
    for name in names:
        folder.remove_visible(name)


def _is_part(*names: str) -> bool:
    return names[-1].startswith("part-") and all("=" in folder for folder in names[:-1])


def staged_file(path: Path, schema: Schema, kind: Format, delimiter: str, null: str) -> StagedFile:
    """A new file of the format."""
    if kind == "jsonl":
        return _TextFile(path, lambda frame, _: encode_jsonl(frame, schema))
    if kind == "csv":
        return _TextFile(
            path, lambda frame, first: encode_csv(frame, schema, header=first, delimiter=delimiter, null=null)
        )
    return _ColumnarFile(path, schema, kind)


class _TextFile:
    def __init__(self, path: Path, encode: Callable[[pl.DataFrame, bool], bytes]) -> None:
        self._file = open(path, "xb")  # noqa: SIM115 (closed by close)
        self._encode = encode
        self._empty = True

    def write(self, frame: pl.DataFrame) -> None:
        self._file.write(self._encode(frame, self._empty))
        self._empty = False

    def size_bytes(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class _ColumnarFile:
    """Parquet or Arrow: gathers small frames into row groups of a useful size."""

    def __init__(self, path: Path, schema: Schema, kind: Format) -> None:
        from pyarrow import ipc, parquet

        # A cast imports this at its first use, which would be when a barrier waits: `prepare` is to return at once.
        importlib.import_module("pyarrow.compute")
        self._schema = schema
        self._arrow = schema.stored_arrow()
        self._file = open(path, "xb")  # noqa: SIM115 (closed by close)
        self._writer: Any = (
            parquet.ParquetWriter(self._file, self._arrow)
            if kind == "parquet"
            else ipc.new_file(self._file, self._arrow)
        )
        self._frames: list[pl.DataFrame] = []
        self._rows = 0

    def write(self, frame: pl.DataFrame) -> None:
        self._frames.append(frame.select(self._schema.names))
        self._rows += frame.height
        if self._rows >= _GROUP_ROWS:
            self._flush()

    def size_bytes(self) -> int:
        return self._file.tell()

    def _flush(self) -> None:
        import polars as pl

        if self._frames:
            self._writer.write_table(pl.concat(self._frames).to_arrow().cast(self._arrow).combine_chunks())
        self._frames, self._rows = [], 0

    def close(self) -> None:
        with self._file, self._writer:
            self._flush()


def _quoted(operator: str) -> str:
    return urllib.parse.quote(operator, safe="")
