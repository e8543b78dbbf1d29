"""The writer of file sinks: rows go to a staged file, a checkpoint closes it, its completion renames it.

    <folder>/.staging/<operator>--<subtask>-attempt<number>-<attempt>-<n>.<format>
    <folder>/.staging/<name of the staged file>.committed
    <folder>/part-<checkpoint>-<operator>-<subtask>-<attempt>.<format>

The order of names is the order of time, so that of the updates of a key the last one counts: between two checkpoints a
key belongs to one subtask, later perhaps to another.

A commit is one rename, and its proof is an empty file that stands beside the staged one, durably, before that is
renamed. Nobody removes a staged file that a complete checkpoint lists, so where there is a proof and no staged file the
rename has happened: a repeated commit has only to make it durable, even if somebody has consumed the visible file since,
which never appears twice. Where there is neither, rows are lost, and the commit fails. A proof goes when no checkpoint
lists the file any more.
"""

from __future__ import annotations

import importlib
import os
import re
import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.connectors.base import LostPartError, Prepared, Removal, WriteContext
from penstock.connectors.formats.encoding import encode_csv, encode_jsonl
from penstock.connectors.formats.names import Format
from penstock.errors import ExternalError
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl

STAGING: Final = ".staging"
PROOF: Final = ".committed"
"""Ends the name of the file that proves a commit."""
_NUMBER: Final = re.compile(r"\d+-attempt(\d+)-")
_GROUP_ROWS: Final = 100_000
"""Rows of a row group (record batch) of columnar formats, at least, the last one aside."""


class StagedFile(Protocol):
    """A file being written."""

    def write(self, frame: pl.DataFrame) -> None:
        """Append rows."""
        ...

    def close(self) -> None:
        """Write what is missing and close the file."""
        ...


class FileWriter:
    """Writes the rows of one subtask; see `SinkWriter`."""

    def __init__(
        self, folder: Path, extension: str, context: WriteContext, create: Callable[[Path], StagedFile]
    ) -> None:
        self._folder = folder
        self._extension = extension
        self._context = context
        self._create = create
        self._file: StagedFile | None = None
        self._path: Path | None = None
        self._number = 0
        try:
            (folder / STAGING).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExternalError(f"cannot create {folder / STAGING}: {error}") from error

    def write(self, frame: pl.DataFrame) -> None:
        """See `SinkWriter.write`."""
        if not frame.height:
            return
        try:
            if self._file is None:
                self._path = self._folder / STAGING / self._staged_name()
                self._file = self._create(self._path)
            self._file.write(frame)
        except OSError as error:
            raise ExternalError(f"cannot write {self._path}: {error}") from error

    def _staged_name(self) -> str:
        self._number += 1
        context = self._context
        owner = f"{_quoted(context.operator)}--{context.subtask}-attempt{context.attempt_number}-{context.attempt}"
        return f"{owner}-{self._number}.{self._extension}"

    def prepare(self, checkpoint: int) -> Prepared:
        """See `SinkWriter.prepare`. Without rows there is no file."""
        if self._file is None or self._path is None:
            return Prepared()
        path, file = self._path, self._file
        self._file = self._path = None
        try:
            file.close()
        except OSError as error:
            raise ExternalError(f"cannot write {path}: {error}") from error
        context = self._context
        operator, attempt = _quoted(context.operator), context.attempt[:8]
        visible = f"part-{checkpoint:08d}-{operator}-{context.subtask}-{attempt}.{self._extension}"
        committable = {"staged": path.name, "visible": visible, "proof": path.name + PROOF}
        return Prepared([committable], lambda: _persist(path))

    def commit(self, committable: Any) -> None:
        """See `SinkWriter.commit`."""
        staged, visible = self._folder / STAGING / committable["staged"], self._folder / committable["visible"]
        proof = self._proof(committable)
        try:
            if proof is not None and staged.exists():
                proof.touch()
                _persist(proof)
            os.rename(staged, visible)
        except FileNotFoundError:
            if proof is not None and not proof.exists():
                raise LostPartError(
                    f"{staged} is gone, and nothing says that it became {visible.name}: the rows of a completed "
                    "checkpoint are lost; if they were taken away on purpose, create the empty file "
                    f"{proof.name} there"
                ) from None
        except OSError as error:
            raise ExternalError(f"cannot rename {staged} to {visible}: {error}") from error
        # Only now may the checkpoint's list of staged files forget it: a power loss must not bring it back to staging.
        # Also where it was renamed before: whoever did that may have been killed before it synced.
        _fsync(self._folder)
        _fsync(self._folder / STAGING)

    def _proof(self, committable: Any) -> Path | None:
        """None for a part that a version of Penstock staged which kept no proofs: where it is gone, it is visible."""
        name = committable.get("proof")
        return None if name is None else self._folder / STAGING / name

    def forget(self, committable: Any) -> None:
        """See `ForgetsCommits.forget`."""
        proof = self._proof(committable)
        if proof is not None:
            _unlink(proof)

    def discard(self, committable: Any) -> None:
        """See `SinkWriter.discard`."""
        _unlink(self._folder / STAGING / committable["staged"])

    def close(self) -> None:
        """See `SinkWriter.close`."""
        if self._file is not None and self._path is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)
            self._file = self._path = None


def leftovers(
    folder: Path, needed: Sequence[Any], operator: str | None, attempt: str, attempt_number: int | None
) -> list[Path]:
    """The staged files and proofs (of one operator) that `Sink.recover` is to remove."""
    keep = {committable["staged"] for committable in needed}
    return [
        path
        for path in (folder / STAGING).glob("*")
        if path.name.removesuffix(PROOF) not in keep and _is_older(path.name, operator, attempt, attempt_number)
    ]


def _is_older(name: str, operator: str | None, attempt: str, attempt_number: int | None) -> bool:
    """Whether a file in the staging folder is of that operator, and of an attempt before this one."""
    owner, _, rest = name.rpartition("--")
    if operator is not None and owner != _quoted(operator):
        return False
    if attempt and f"-{attempt}-" in rest:
        return False
    number = _NUMBER.match(rest)
    return attempt_number is None or number is None or int(number[1]) <= attempt_number


def visible_files(folder: Path) -> list[Path]:
    """The visible files of earlier jobs."""
    return list(folder.glob("part-*"))


def removal(paths: Iterable[Path]) -> Removal:
    """Removes these files."""

    def remove() -> None:
        for path in paths:
            _unlink(path)

    return remove


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

    def close(self) -> None:
        self._file.close()


class _ColumnarFile:
    """Parquet or Arrow: gathers small frames into row groups of a useful size."""

    def __init__(self, path: Path, schema: Schema, kind: Format) -> None:
        from pyarrow import ipc, parquet

        # A cast imports this at its first use, which would be when a barrier waits: `prepare` is to return at once.
        importlib.import_module("pyarrow.compute")
        self._schema = schema
        self._arrow = schema.arrow()
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

    def _flush(self) -> None:
        import polars as pl

        if self._frames:
            self._writer.write_table(pl.concat(self._frames).to_arrow().cast(self._arrow).combine_chunks())
        self._frames, self._rows = [], 0

    def close(self) -> None:
        self._flush()
        self._writer.close()
        self._file.close()


def _quoted(operator: str) -> str:
    return urllib.parse.quote(operator, safe="")


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ExternalError(f"cannot remove {path}: {error}") from error


def _persist(path: Path) -> None:
    _fsync(path)
    _fsync(path.parent)


def _fsync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ExternalError(f"cannot sync {path}: {error}") from error
