"""Readers of one file: text formats by byte offset, columnar formats by row group (or batch) and row.

A position also tells the file apart from another one that may have taken its place: of a plain text file the bytes
before the position (it may grow meanwhile, and is read to where it ended when it was first opened), of a compressed or
columnar file its size and last bytes. Bytes are fetched in threads; a cancelled `read` loses nothing, because a fetch
that was under way is awaited by the next one.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.connectors.base import BadRow, EndOfSplit, Fetched, Position
from penstock.connectors.formats.decoding import LineDecoder
from penstock.connectors.formats.schema_matching import SchemaMatcher
from penstock.connectors.pacing import Pace
from penstock.errors import ExternalError, PipelineError
from penstock.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES: Final = 4 << 20
_WINDOW_BYTES: Final = 256
_MAX_RECORD_BYTES: Final = 256 << 20


# -- bytes --------------------------------------------------------------------------------------------------------------


class Content(Protocol):
    """The (decompressed) bytes of a file, read in a thread."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`, fewer only at the end. Offsets do not go back."""
        ...

    def identity(self, offset: int) -> Any:
        """A JSON value that differs if the file up to `offset` is another one."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class PlainContent:
    """A file that may grow; it is read to `end`."""

    def __init__(self, path: Path, end: int | None) -> None:
        self._path = path
        self._file = _opened(path)
        self.end = os.fstat(self._file.fileno()).st_size if end is None else end

    def read(self, offset: int, size: int) -> bytes:
        """See `Content.read`."""
        try:
            return os.pread(self._file.fileno(), max(0, min(size, self.end - offset)), offset)
        except OSError as error:
            raise ExternalError(f"cannot read {self._path}: {error}") from error

    def identity(self, offset: int) -> Any:
        """See `Content.identity`: a checksum of the first bytes and of those before the offset."""
        head = self.read(0, min(offset, _WINDOW_BYTES))
        start = max(0, offset - _WINDOW_BYTES)
        return zlib.crc32(self.read(start, offset - start), zlib.crc32(head))

    def close(self) -> None:
        """See `Content.close`."""
        self._file.close()


class GzipContent:
    """A compressed file: offsets are those of the decompressed bytes, and reaching one means reading up to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._raw = _opened(path)
        self._file = gzip.GzipFile(fileobj=self._raw)
        self._identity = whole_identity(path)

    def read(self, offset: int, size: int) -> bytes:
        """See `Content.read`."""
        try:
            if self._file.tell() != offset:
                self._file.seek(offset)
            return self._file.read(size)
        except (OSError, EOFError, zlib.error) as error:
            raise ExternalError(f"cannot decompress {self._path}: {error}") from error

    def identity(self, offset: int) -> Any:
        """See `Content.identity`."""
        return self._identity

    def close(self) -> None:
        """See `Content.close`."""
        self._file.close()
        self._raw.close()


def whole_identity(path: Path) -> list[int]:
    """Size and checksum of the last bytes of a file that is not to change."""
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        return [size, zlib.crc32(os.pread(file.fileno(), _WINDOW_BYTES, max(0, size - _WINDOW_BYTES)))]


def _opened(path: Path) -> Any:
    try:
        return open(path, "rb")
    except OSError as error:
        raise PipelineError(f"cannot open {path}: {error.strerror}") from error


def _changed(path: Path, where: str) -> PipelineError:
    return PipelineError(
        f"{path} is not the file that was read up to {where} before: it was replaced, cut or rewritten; put the "
        "former content back, or start the job without the snapshot"
    )


# -- text ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextFile:
    """What a `TextReader` reads."""

    path: Path
    name: str
    """The split's id, for messages."""
    content: Content
    decoder: LineDecoder
    begin: int
    """Offset of the first record, behind a header."""
    first_line: int
    """Number of lines before the first record."""


class TextReader:
    """Follows a text file. Position: `{"offset", "line", "identity", "end"}`, offset and line behind what was read."""

    def __init__(self, file: TextFile, position: Position, pace: Pace) -> None:
        self._file = file
        self._pace = pace
        self._offset: int = position["offset"] if position else file.begin
        self._line: int = position["line"] if position else file.first_line
        self._buffer = b""
        self._ends: list[int] = []
        self._next = 0
        self._start = 0
        self._at_end = False
        self._fetching: asyncio.Future[bytes] | None = None
        if position and file.content.identity(self._offset) != position["identity"]:
            raise _changed(file.path, f"byte {self._offset}")

    async def read(self, max_rows: int) -> Fetched | None:
        """See `SplitReader.read`."""
        allowed = await self._pace.allowed(max_rows)
        if not allowed:
            return None
        while self._next == len(self._ends):
            if self._at_end:
                raise EndOfSplit
            await self._fill()
        taken = self._ends[self._next : self._next + allowed]
        block = self._buffer[self._start : taken[-1]]
        decoded = self._file.decoder.decode(block)
        bad = [BadRow(line.error, line.raw, self._where(line.index, taken)) for line in decoded.bad]
        self._next += len(taken)
        self._start = taken[-1]
        self._offset += len(block)
        self._line += block.count(b"\n")
        self._pace.take(len(taken))
        return Fetched(decoded.frame, bad, len(block))

    def _where(self, record: int, ends: list[int]) -> str:
        begin = ends[record - 1] if record else self._start
        line = self._line + self._buffer.count(b"\n", self._start, begin) + 1
        return f"{self._file.name}, line {line} (byte {self._offset + begin - self._start})"

    async def _fill(self) -> None:
        """Add a chunk to the buffer, which has no whole record left."""
        rest = self._buffer[self._start :]
        if len(rest) > _MAX_RECORD_BYTES:
            raise PipelineError(
                f"{self._file.path}: the record at byte {self._offset} has no end within {_MAX_RECORD_BYTES} bytes; "
                "is it the right format?"
            )
        wanted = max(CHUNK_BYTES, len(rest))
        content, offset = self._file.content, self._offset + len(rest)
        chunk = await self._fetched(lambda: content.read(offset, wanted))
        self._buffer, self._start, self._next = rest + chunk, 0, 0
        self._ends = self._file.decoder.ends(self._buffer).tolist()
        self._at_end = len(chunk) < wanted
        if self._at_end and self._buffer and (not self._ends or self._ends[-1] < len(self._buffer)):
            self._ends.append(len(self._buffer))  # the last record needs no newline

    async def _fetched(self, work: Callable[[], bytes]) -> bytes:
        if self._fetching is None:
            self._fetching = asyncio.ensure_future(asyncio.to_thread(work))
        chunk = await asyncio.shield(self._fetching)
        self._fetching = None
        return chunk

    def position(self) -> Position:
        """See `SplitReader.position`."""
        content = self._file.content
        end = content.end if isinstance(content, PlainContent) else None
        return {
            "offset": self._offset,
            "line": self._line,
            "identity": content.identity(self._offset),
            "end": end,
        }

    async def close(self) -> None:
        """See `SplitReader.close`."""
        if self._fetching is not None:
            await asyncio.wait([self._fetching])
            self._fetching.exception()
        self._file.content.close()


# -- columnar -----------------------------------------------------------------------------------------------------------


class ColumnarReader:
    """Follows a Parquet or Arrow file. Position: `{"group", "row", "identity"}`, a row group or batch and a row in it."""

    def __init__(
        self, path: Path, name: str, schema: Schema, timezone: str | None, position: Position, pace: Pace
    ) -> None:
        self._name = name
        self._pace = pace
        self._identity = whole_identity(path)
        if position and position["identity"] != self._identity:
            raise _changed(path, f"row {position['row']} of row group {position['group']}")
        self._group: int = position["group"] if position else 0
        self._row: int = position["row"] if position else 0
        self._conformer = SchemaMatcher(schema, arrow_schema(path), str(path), timezone)
        self._batches = _batches(path, self._group, self._conformer.names)
        self._batch: pa.RecordBatch | None = None
        self._fetching: asyncio.Future[pa.RecordBatch | None] | None = None

    async def read(self, max_rows: int) -> Fetched | None:
        """See `SplitReader.read`."""
        allowed = await self._pace.allowed(max_rows)
        if not allowed:
            return None
        while self._batch is None or self._row >= self._batch.num_rows:
            if self._batch is not None:
                self._batch, self._group, self._row = None, self._group + 1, 0
            self._batch = await self._next()
            if self._batch is None:
                raise EndOfSplit
        piece = self._batch.slice(self._row, allowed)
        frame, failed = self._conformer.frame(piece)
        bad = [BadRow(reason, raw, self._where(row)) for row, reason, raw in failed]
        self._row += piece.num_rows
        self._pace.take(piece.num_rows)
        return Fetched(frame, bad, piece.nbytes)

    def _where(self, row: int) -> str:
        return f"{self._name}, row {self._row + row + 1} of row group {self._group + 1}"

    async def _next(self) -> pa.RecordBatch | None:
        if self._fetching is None:
            self._fetching = asyncio.ensure_future(asyncio.to_thread(next, self._batches, None))
        batch = await asyncio.shield(self._fetching)
        self._fetching = None
        return batch

    def position(self) -> Position:
        """See `SplitReader.position`."""
        return {"group": self._group, "row": self._row, "identity": self._identity}

    async def close(self) -> None:
        """See `SplitReader.close`."""
        if self._fetching is not None:
            await asyncio.wait([self._fetching])
            self._fetching.exception()
        self._batch = None


def arrow_schema(path: Path) -> pa.Schema:
    """The Arrow schema of a Parquet or Arrow file.

    Raises:
        PipelineError: it is neither.
    """
    import pyarrow as pa
    from pyarrow import ipc, parquet

    try:
        if is_parquet(path):
            return parquet.read_schema(path)
        with pa.OSFile(str(path), "rb") as file:
            reader: Any = ipc.open_file(file) if _is_ipc_file(path) else ipc.open_stream(file)
            return reader.schema
    except (OSError, pa.ArrowException) as error:
        raise PipelineError(f"{path} is neither a Parquet nor an Arrow file: {error}") from error


def _batches(path: Path, first: int, names: list[str]) -> Iterator[pa.RecordBatch]:
    """The row groups (batches) of a file from the one with number `first`; each `next` blocks."""
    import pyarrow as pa

    made = _parquet_groups(path, first, names) if is_parquet(path) else _ipc_batches(path, first)
    try:
        yield from made
    except (OSError, pa.ArrowException) as error:
        raise ExternalError(f"cannot read {path}: {error}") from error


def _parquet_groups(path: Path, first: int, names: list[str]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        for group in range(first, file.num_row_groups):
            table = file.read_row_group(group, columns=names, use_threads=False)
            chunks = table.combine_chunks().to_batches()
            yield chunks[0] if chunks else pa.RecordBatch.from_pylist([], schema=table.schema)


def _ipc_batches(path: Path, first: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyarrow import ipc

    with pa.OSFile(str(path), "rb") as file:
        if _is_ipc_file(path):
            reader = ipc.open_file(file)
            for number in range(first, reader.num_record_batches):
                yield reader.get_batch(number)
        else:
            for number, batch in enumerate(ipc.open_stream(file)):
                if number >= first:
                    yield batch


def is_parquet(path: Path) -> bool:
    """Whether the file begins as Parquet files do."""
    return _magic(path, 4) == b"PAR1"


def _is_ipc_file(path: Path) -> bool:
    return _magic(path, 6) == b"ARROW1"


def _magic(path: Path, size: int) -> bytes:
    with _opened(path) as file:
        return file.read(size)
