"""Savepoints written by Spark: the rows of a DataFrame in place of a state of another savepoint.

    totals.write.format("penstock").option("from", "kept").option("uid", "totals").option("state", "total") \
        .mode("append").save("edited")

Tasks check and encode their rows as `EditedSavepoint.replace` does, and put them beside the new savepoint, by key group;
the driver puts the parts of a key group together, one at a time, and writes the savepoint. So what a driver holds is a
key group, whatever the size of the table. A task that is repeated has files of its own, of which only those of the
attempt that counts are read.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from penstock.errors import ExternalError, UsageError, nearest
from penstock.savepoint import encoding, tables
from penstock.savepoint.editing import EditedSavepoint
from penstock.savepoint.folder import check_target
from penstock.savepoint.places import LocalPlace
from penstock.savepoint.reading import Savepoint, read
from penstock.savepoint.replacing import Replacement, StateRows

_OPTIONS: Final = ("path", "from", "uid", "state", "table", "cluster")
_TABLES: Final = ("state", "timers", "splits")
_SPLITS: Final = "splits"
_NO_SPLITS: Final = pl.DataFrame(schema={"split": pl.String(), "position": pl.String()})


@dataclass(frozen=True)
class WriteOptions:
    """What is to be replaced, of which savepoint, and where the new one is to be."""

    target: str
    base: str
    uid: str
    state: str | None
    table: str
    cluster: str | None

    def open(self) -> Savepoint:
        """The savepoint as it is."""
        return read(self.base, store=self.cluster)

    def replacement(self, edited: EditedSavepoint) -> Replacement:
        """What rows become."""
        return edited.replacement(self.uid, self.state, table=self.table)


def write_options(options: Any) -> WriteOptions:
    """The options of a writer, checked.

    Raises:
        UsageError: one is missing, or there is none of that name.
    """
    for name in options:
        if name not in _OPTIONS:
            raise UsageError(f"penstock: there is no option {name!r}; {nearest(name, _OPTIONS)}")
    for name, what in (("path", ".save(PATH), a new folder"), ("from", '.option("from", PATH), the savepoint to edit')):
        if name not in options:
            raise UsageError(f"penstock: write {what}")
    table = options.get("table", "state")
    if table not in _TABLES:
        raise UsageError(f"penstock: there is no table {table!r} to write; {nearest(table, _TABLES)}")
    if "uid" not in options:
        raise UsageError(f'penstock: whose {table}? write .option("uid", ...)')
    if "://" in options["path"]:
        raise UsageError(
            f"penstock: .save({options['path']}): tables are written as savepoints into folders that all machines share; "
            "penstock.savepoint reads one from there, and writes it to a URL: read(PATH).edit().write(URL)"
        )
    path = os.path.abspath(options["path"])
    return WriteOptions(path, options["from"], options["uid"], options.get("state"), table, options.get("cluster"))


@dataclass(frozen=True)
class _Part(WriterCommitMessage):
    """What one task has written."""

    file: str
    groups: Mapping[str, Mapping[int, list[tuple[int, int]]]]
    """Where it stands in a segment and key group to the places in the file, first byte and the one behind the last."""


class SavepointWriter(DataSourceArrowWriter):
    """Writes one savepoint. Made on the driver, pickled to tasks."""

    def __init__(self, options: WriteOptions) -> None:
        """Raises `UsageError` if it cannot be: a folder that is not new, no such operator or state."""
        check_target(LocalPlace(Path(options.target)), "penstock: ")
        self._options = options
        target = Path(options.target)
        sp = options.open()
        if options.table == _SPLITS:
            sp.require_verb(options.uid, "read", "splits")
        elif not sp.operator(options.uid).keys.fields:
            raise UsageError(f"{options.uid}: its state has no key: it is small; use penstock.savepoint")
        else:
            options.replacement(sp.edit())
        self._parts = Path(_folder_beside(target))

    # -- in tasks -------------------------------------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Part:
        """Encode the rows of one partition into a file."""
        try:
            opened, file = tempfile.mkstemp(".rows", dir=self._parts)
            with os.fdopen(opened, "wb") as out:
                return _Part(file, self._written(iterator, out))
        except OSError as error:
            raise ExternalError(
                f"{self._parts}: cannot be written: {error.strerror}; the folder of the savepoint must be one that the "
                "driver and all executors share"
            ) from error

    def _written(self, batches: Iterator[pa.RecordBatch], out: Any) -> dict[str, dict[int, list[tuple[int, int]]]]:
        sp = self._options.open()
        index: dict[str, dict[int, list[tuple[int, int]]]] = {}
        for batch in batches:
            frame = pl.DataFrame(batch)
            for name, by_group in self._encoded(sp, frame).items():
                for group, rows in by_group.items():
                    start = out.tell()
                    rows.write_ipc(out)
                    index.setdefault(name, {}).setdefault(group, []).append((start, out.tell()))
        return index

    def _encoded(self, sp: Savepoint, frame: pl.DataFrame) -> Mapping[str, Mapping[int, pl.DataFrame]]:
        if self._options.table == _SPLITS:
            return {_SPLITS: {0: frame}}
        replacement = self._options.replacement(sp.edit())
        _check_numbered(replacement, frame)
        keys = sp.operator(self._options.uid).keys.names
        return {
            name: encoding.by_key_group(rows, keys, sp.max_parallelism)
            for name, rows in replacement.rows(frame).items()
        }

    # -- on the driver --------------------------------------------------------------------------------------------------

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write the savepoint."""
        parts = [message for message in messages if isinstance(message, _Part)]
        edited = self._options.open().edit()
        try:
            if self._options.table == _SPLITS:
                frames = [frame for part in parts for frame in _frames(part, _SPLITS, 0)]
                edited.replace_splits(self._options.uid, pl.concat(frames) if frames else _NO_SPLITS)
            else:
                replacement = self._options.replacement(edited)
                edited.put(replacement, {name: _KeyGroups(replacement, name, parts) for name in replacement.names})
            edited.write(self._options.target)
        finally:
            self._remove()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave nothing behind."""
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._parts, ignore_errors=True)


def _folder_beside(target: Path) -> str:
    """A folder of this writer's own, that only its owner may read."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.mkdtemp(".parts", f".{target.name}-", target.parent)
    except OSError as error:
        raise ExternalError(f"{target.parent}: cannot be written: {error.strerror}") from error


def _check_numbered(replacement: Replacement, frame: pl.DataFrame) -> None:
    if isinstance(replacement, StateRows) and replacement.described["kind"] == "list":
        index = tables.Columns(replacement.keys.names).index
        if index not in frame.columns:
            raise UsageError(f"{replacement.where}: column {index!r} is missing: rows of a DataFrame have no order")


class _KeyGroups(Mapping[int, pl.DataFrame]):
    """The rows of every key group, read when they are wanted."""

    def __init__(self, replacement: Replacement, name: str, parts: list[_Part]) -> None:
        self._replacement = replacement
        self._name = name
        self._parts: dict[int, list[_Part]] = {}
        for part in parts:
            for group in part.groups.get(name, ()):
                self._parts.setdefault(group, []).append(part)

    def __getitem__(self, group: int) -> pl.DataFrame:
        frames = [frame for part in self._parts[group] for frame in _frames(part, self._name, group)]
        return self._replacement.whole(frames)

    def __iter__(self) -> Iterator[int]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def _frames(part: _Part, name: str, group: int) -> Iterator[pl.DataFrame]:
    """What a task has written of a key group."""
    try:
        with open(part.file, "rb") as file:
            for start, end in part.groups.get(name, {}).get(group, ()):
                file.seek(start)
                yield pl.read_ipc(io.BytesIO(file.read(end - start)))
    except FileNotFoundError as error:
        raise ExternalError(
            f"{part.file}: a task wrote it, and the driver does not find it: the folder of the savepoint must be one "
            "that the driver and all executors share"
        ) from error
