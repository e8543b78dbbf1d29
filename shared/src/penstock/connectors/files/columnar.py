"""Readers of Parquet and Arrow files, by row group (or batch) and row.

Where a pipeline does not need all columns and rows (`ScanRequest`), a row group of a Parquet file is read in part or not
at all, as far as its statistics prove that nobody can tell: no row of it is bad for what is not read.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.base import BadRow, EndOfSplit, Fetched, Position, ScanRequest
from penstock.connectors.files.ranges import FileRange
from penstock.connectors.files.reading import InputFile, changed
from penstock.connectors.files.statistics import GroupFacts
from penstock.connectors.pacing import Pace
from penstock.core.batches import only_batch
from penstock.errors import ExternalError, PipelineError
from penstock.formats.schema_matching import SchemaMatcher
from penstock.types import Schema, polars_type

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from pyarrow import parquet

    from penstock.connectors.event_times import EventTimeForm

_PARQUET: Final = b"PAR1"
_IPC_FILE: Final = b"ARROW1"
_INT96: Final = "us"
"""The unit of INT96 timestamps of Parquet. Arrow's default, nanoseconds, overflows before 1677 and after 2262."""


@dataclass(frozen=True)
class Rows:
    """What rows of a file are, and what of them the pipeline looks at."""

    schema: Schema
    timezone: str | None = None
    scan: ScanRequest = field(default_factory=ScanRequest)
    event_time: EventTimeForm | None = None


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group (or batch) as far as it is read."""

    batch: pa.RecordBatch | pa.Table
    """A table of several chunks where a text column holds more than 2 GiB, which is all that one chunk of Arrow's can."""
    matcher: SchemaMatcher
    is_narrow: bool = False
    """Whether columns were left out, which are not needed unless a row turns out to be bad."""


class ColumnarReader:
    """Follows a Parquet or Arrow file. Position: `{"group", "row", "identity"}`, a row group or batch and a row in it;
    with `"until"` of a part of a file, the row group behind it. A range (see `ranges`) begins at its first row group."""

    def __init__(self, file: InputFile, name: str, rows: Rows, position: Position, pace: Pace) -> None:
        self._file = file
        self._name = name
        self._pace = pace
        self._schema = rows.schema
        self._identity = file.identity()
        if (part := FileRange.of(position)) is not None:
            part.check(file, may_grow=False)
        self._groups = _Groups(file, rows)
        if part is not None:
            position = self._groups.within(part) | {"identity": self._identity}
        if position and position["identity"] != self._identity:
            raise changed(file, f"row {position['row']} of row group {position['group']}")
        self._number: int = position["group"] if position else 0
        self._row: int = position["row"] if position else 0
        self._until: int | None = position.get("until") if position else None
        self._reading = self._groups.read(self._number, self._until)
        self._group: _Group | None = None
        self._fetching: asyncio.Future[_Group | None] | None = None

    async def read(self, max_rows: int) -> Fetched | None:
        """See `SplitReader.read`."""
        allowed = await self._pace.allowed(max_rows)
        if not allowed:
            return None
        while self._group is None or self._row >= self._group.batch.num_rows:
            if self._group is not None:
                self._group, self._number, self._row = None, self._number + 1, 0
            self._group = await self._next()
            if self._group is None:
                raise EndOfSplit
        piece = self._group.batch.slice(self._row, allowed)
        frame, failed = self._group.matcher.frame(piece)
        if failed and self._group.is_narrow:  # a bad row is shown with all that it has
            self._group = await asyncio.to_thread(self._groups.whole, self._number)
            return await self.read(max_rows)
        bad = [BadRow(reason, raw, self._where(row)) for row, reason, raw in failed]
        self._row += piece.num_rows
        self._pace.take(piece.num_rows)
        return Fetched(_filled(frame, self._schema), bad, piece.nbytes, misspelt=self._groups.misspelt)

    def _where(self, row: int) -> str:
        return f"{self._name}, row {self._row + row + 1} of row group {self._number + 1}"

    async def _next(self) -> _Group | None:
        if self._fetching is None:
            self._fetching = asyncio.ensure_future(asyncio.to_thread(next, self._reading, None))
        group = await asyncio.shield(self._fetching)
        self._fetching = None
        return group

    def position(self) -> Position:
        """See `SplitReader.position`."""
        until = {} if self._until is None else {"until": self._until}
        return {"group": self._number, "row": self._row, "identity": self._identity, **until}

    async def close(self) -> None:
        """See `SplitReader.close`."""
        if self._fetching is not None:
            await asyncio.wait([self._fetching])
            self._fetching.exception()
        self._group = None


class EmptyFile:
    """A file of no bytes, which is neither Parquet nor Arrow: one bad record, and no row."""

    def __init__(self, file: InputFile, name: str, schema: Schema, position: Position) -> None:
        self._name = name
        self._schema = schema
        self._identity = file.identity()
        self._said = bool(position and position.get("group"))

    async def read(self, max_rows: int) -> Fetched:
        """See `SplitReader.read`."""
        import polars as pl

        if self._said:
            raise EndOfSplit
        self._said = True
        reason = "the file is empty (0 bytes): whoever wrote it was interrupted, or it is a mark; leave it out of path="
        return Fetched(pl.DataFrame(schema=self._schema.polars()), [BadRow(reason, b"", self._name)])

    def position(self) -> Position:
        """See `SplitReader.position`."""
        return {"group": int(self._said), "row": 0, "identity": self._identity}

    async def close(self) -> None:
        """Nothing is open."""


def _filled(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """All columns of the schema; those that were not read are null."""
    import polars as pl

    if frame.width == len(schema.names):
        return frame
    missing = [each for each in schema if each.name not in frame.columns]
    nulls = [pl.Series(each.name, [None], dtype=polars_type(each.type)) for each in missing]
    return frame.with_columns([null.new_from_index(0, frame.height) for null in nulls]).select(schema.names)


class _Groups:
    """The row groups (batches) of a file."""

    def __init__(self, file: InputFile, rows: Rows) -> None:
        self._file = file
        self._rows = rows
        self._found = arrow_schema(file)
        self._matcher = self._matching(rows.schema)
        self.misspelt: Final = self._matcher.misspelt

    def _matching(self, schema: Schema) -> SchemaMatcher:
        return SchemaMatcher(schema, self._found, str(self._file), self._rows.timezone)

    def read(self, first: int, until: int | None) -> Iterator[_Group]:
        """Those from the one with number `first`, up to `until`; each `next` blocks."""
        import pyarrow as pa

        try:
            magic = _magic(self._file)
            with self._file.arrow() as opened:
                if magic.startswith(_PARQUET):
                    yield from self._parquet_groups(opened, first, until)
                else:
                    for batch in _ipc_batches(opened, first, until, of_file=magic == _IPC_FILE):
                        yield _Group(batch, self._matcher)
        except (OSError, pa.ArrowException) as error:
            raise ExternalError(f"cannot read {self._file}: {error}") from error

    def within(self, part: FileRange) -> dict[str, int]:
        """The position of a range, but for the file's identity; blocks. A stream of Arrow batches, which does not say
        where they are, lies in its first range."""
        import pyarrow as pa
        from pyarrow import ipc, parquet

        try:
            magic = _magic(self._file)
            if not magic.startswith((_PARQUET, _IPC_FILE)):
                return {"group": 0, "row": 0} | ({"until": 0} if part.begin else {})
            with self._file.arrow() as opened:
                if magic == _IPC_FILE:
                    weights = [1] * ipc.open_file(opened).num_record_batches
                else:
                    footer = parquet.read_metadata(opened)
                    weights = [footer.row_group(number).total_byte_size for number in range(footer.num_row_groups)]
        except (OSError, pa.ArrowException) as error:
            raise ExternalError(f"cannot read {self._file}: {error}") from error
        first, until = part.groups(weights)
        return {"group": first, "row": 0, "until": until}

    def whole(self, number: int) -> _Group:
        """One of a Parquet file, with all columns; blocks."""
        self._rows = Rows(self._rows.schema, self._rows.timezone)
        return next(self.read(number, number + 1))

    def _parquet_groups(self, opened: pa.NativeFile, first: int, until: int | None) -> Iterator[_Group]:
        from pyarrow import parquet

        with parquet.ParquetFile(opened, pre_buffer=True, coerce_int96_timestamp_unit=_INT96) as file:
            end = file.num_row_groups if until is None else min(until, file.num_row_groups)
            for number in range(first, end):
                yield self._parquet_group(file, number)

    def _parquet_group(self, file: parquet.ParquetFile, number: int) -> _Group:
        import pyarrow as pa

        rows = self._rows
        if rows.scan.columns is None and rows.scan.predicate is None:
            return _Group(_row_group(file, number, self._matcher.names), self._matcher)
        facts = GroupFacts.of(file.metadata.row_group(number), self._found)
        if not facts.has_event_times(rows.event_time, rows.scan.window_reach_us):
            return _Group(_row_group(file, number, self._matcher.names), self._matcher)
        sound = {each.name for each in rows.schema if facts.is_sound(each)}
        if self._is_skipped(facts, sound):
            return _Group(pa.RecordBatch.from_pylist([], schema=pa.schema([])), self._matcher)
        kept = [name for name in rows.schema.names if name not in sound or self._is_scanned(name)]
        kept = kept or (self._matcher.names or rows.schema.names)[:1]  # so that there are rows
        if len(kept) == len(rows.schema.names):
            return _Group(_row_group(file, number, self._matcher.names), self._matcher)
        matcher = self._matching(rows.schema.select(kept))
        return _Group(_row_group(file, number, matcher.names), matcher, is_narrow=True)

    def _is_scanned(self, name: str) -> bool:
        return self._rows.scan.columns is None or name in self._rows.scan.columns

    def _is_skipped(self, facts: GroupFacts, sound: set[str]) -> bool:
        scan = self._rows.scan
        return (
            scan.predicate is not None
            and not scan.whole_splits
            and len(sound) == len(self._rows.schema.names)
            and not facts.may_be_true(scan.predicate, self._rows.schema)
        )


def _row_group(file: parquet.ParquetFile, number: int, names: list[str]) -> pa.RecordBatch | pa.Table:
    table = file.read_row_group(number, columns=names, use_threads=False)
    batch = only_batch(table)
    return table if batch is None else batch


def arrow_schema(file: InputFile) -> pa.Schema:
    """The Arrow schema of a Parquet or Arrow file.

    Raises:
        PipelineError: it is neither.
    """
    import pyarrow as pa
    from pyarrow import ipc, parquet

    try:
        magic = _magic(file)
        with file.arrow() as opened:
            if magic.startswith(_PARQUET):
                return parquet.ParquetFile(opened, coerce_int96_timestamp_unit=_INT96).schema_arrow
            reader: Any = ipc.open_file(opened) if magic == _IPC_FILE else ipc.open_stream(opened)
            return reader.schema
    except (OSError, pa.ArrowException) as error:
        raise PipelineError(f"{file} is neither a Parquet nor an Arrow file: {error}") from error


def _ipc_batches(opened: pa.NativeFile, first: int, until: int | None, *, of_file: bool) -> Iterator[pa.RecordBatch]:
    from pyarrow import ipc

    if of_file:
        reader = ipc.open_file(opened)
        for number in range(first, reader.num_record_batches if until is None else until):
            yield reader.get_batch(number)
    else:
        yield from itertools.islice(ipc.open_stream(opened), first, until)


def _magic(file: InputFile) -> bytes:
    """How the file begins: with `_PARQUET`, with `_IPC_FILE`, or as a stream of Arrow batches."""
    with file.open() as opened:
        return opened.read(len(_IPC_FILE))
