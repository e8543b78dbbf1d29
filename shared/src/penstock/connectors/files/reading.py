"""Readers of one file: text formats by byte offset, columnar formats by row group (or batch) and row.

A position also tells the file apart from another one that may have taken its place: of a plain text file on a disk the
bytes before the position (it may grow meanwhile, and is read to where it ended when it was first opened), of a
compressed or columnar file its size and last bytes, of an object its size and the store's own tag. Bytes are fetched in
threads; a cancelled `read` loses nothing, because a fetch that was under way is awaited by the next one.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from penstock.connectors.base import BadRow, EndOfSplit, Fetched, Position, SplitReader
from penstock.connectors.formats.decoding import LineDecoder
from penstock.connectors.formats.schema_matching import SchemaMatcher
from penstock.connectors.pacing import Pace
from penstock.errors import ExternalError, PipelineError
from penstock.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES: Final = 4 << 20
_MAX_RECORD_BYTES: Final = 256 << 20
_PARQUET: Final = b"PAR1"
_IPC_FILE: Final = b"ARROW1"


# -- bytes --------------------------------------------------------------------------------------------------------------


class Content(Protocol):
    """The (decompressed) bytes of a file, read in a thread."""

    end: int | None
    """Where reading ends, of a file that may grow."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`, fewer only at the end. Offsets do not go back."""
        ...

    def identity(self, offset: int) -> Any:
        """A JSON value that differs if the file up to `offset` is another one."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class InputFile(Protocol):
    """One file, wherever it lies. As text it is its path or URL, for messages."""

    def open(self) -> IO[bytes]:
        """Its bytes, to be sought and read. Raises `PipelineError` if it cannot be opened."""
        ...

    def arrow(self) -> pa.NativeFile:
        """The same for Arrow."""
        ...

    def identity(self) -> Any:
        """A JSON value that differs if the file, which is not to change, is another one."""
        ...

    def content(self, end: int | None) -> Content:
        """Its bytes for a reader of text, up to `end` if that is given."""
        ...


class InputFiles(Protocol):
    """What a source's path, folder, pattern or URL names."""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder: of its files only those count whose format is known."""
        ...

    def find(self) -> list[tuple[str, int]]:
        """The files there are: names below the folder (before the pattern) and sizes in bytes.

        Raises:
            PipelineError: there is nothing of that name.
        """
        ...

    def file(self, name: str) -> InputFile:
        """The file that `find` named so."""
        ...


class GzipContent:
    """A compressed file: offsets are those of the decompressed bytes, and reaching one means reading up to it."""

    end: int | None = None

    def __init__(self, file: InputFile) -> None:
        self._name = str(file)
        self._raw = file.open()
        self._file = gzip.GzipFile(fileobj=self._raw)
        self._identity = file.identity()

    def read(self, offset: int, size: int) -> bytes:
        """See `Content.read`."""
        try:
            if self._file.tell() != offset:
                self._file.seek(offset)
            return self._file.read(size)
        except (OSError, EOFError, zlib.error) as error:
            raise ExternalError(f"cannot decompress {self._name}: {error}") from error

    def identity(self, offset: int) -> Any:
        """See `Content.identity`."""
        return self._identity

    def close(self) -> None:
        """See `Content.close`."""
        self._file.close()
        self._raw.close()


def _changed(file: InputFile, where: str) -> PipelineError:
    return PipelineError(
        f"{file} is not the file that was read up to {where} before: it was replaced, cut or rewritten; put the "
        "former content back, or start the job without the snapshot"
    )


class RemoteReader:
    """A reader that is opened by its first `read`, in a thread, because to open a file of a store takes its time."""

    def __init__(self, open: Callable[[], SplitReader], position: Position) -> None:
        self._open = open
        self._position = position
        self._reader: SplitReader | None = None
        self._opening: asyncio.Future[SplitReader] | None = None

    async def read(self, max_rows: int) -> Fetched | None:
        """See `SplitReader.read`."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(asyncio.to_thread(self._open))
        reader = await asyncio.shield(self._opening)
        self._reader = reader
        return await reader.read(max_rows)

    def position(self) -> Position:
        """See `SplitReader.position`."""
        return self._position if self._reader is None else self._reader.position()

    async def close(self) -> None:
        """See `SplitReader.close`."""
        if self._opening is None:
            return
        await asyncio.wait([self._opening])
        if self._opening.exception() is None:
            await self._opening.result().close()


# -- text ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextFile:
    """What a `TextReader` reads."""

    file: InputFile
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
            raise _changed(file.file, f"byte {self._offset}")

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
                f"{self._file.file}: the record at byte {self._offset} has no end within {_MAX_RECORD_BYTES} bytes; "
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
        identity = content.identity(self._offset)
        return {"offset": self._offset, "line": self._line, "identity": identity, "end": content.end}

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
        self, file: InputFile, name: str, schema: Schema, timezone: str | None, position: Position, pace: Pace
    ) -> None:
        self._name = name
        self._pace = pace
        self._identity = file.identity()
        if position and position["identity"] != self._identity:
            raise _changed(file, f"row {position['row']} of row group {position['group']}")
        self._group: int = position["group"] if position else 0
        self._row: int = position["row"] if position else 0
        self._conformer = SchemaMatcher(schema, arrow_schema(file), str(file), timezone)
        self._batches = _batches(file, self._group, self._conformer.names)
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
                return parquet.read_schema(opened)
            reader: Any = ipc.open_file(opened) if magic == _IPC_FILE else ipc.open_stream(opened)
            return reader.schema
    except (OSError, pa.ArrowException) as error:
        raise PipelineError(f"{file} is neither a Parquet nor an Arrow file: {error}") from error


def _batches(file: InputFile, first: int, names: list[str]) -> Iterator[pa.RecordBatch]:
    """The row groups (batches) of a file from the one with number `first`; each `next` blocks."""
    import pyarrow as pa

    try:
        magic = _magic(file)
        with file.arrow() as opened:
            if magic.startswith(_PARQUET):
                yield from _parquet_groups(opened, first, names)
            else:
                yield from _ipc_batches(opened, first, of_file=magic == _IPC_FILE)
    except (OSError, pa.ArrowException) as error:
        raise ExternalError(f"cannot read {file}: {error}") from error


def _parquet_groups(opened: pa.NativeFile, first: int, names: list[str]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyarrow import parquet

    with parquet.ParquetFile(opened, pre_buffer=True) as file:
        for group in range(first, file.num_row_groups):
            table = file.read_row_group(group, columns=names, use_threads=False)
            chunks = table.combine_chunks().to_batches()
            yield chunks[0] if chunks else pa.RecordBatch.from_pylist([], schema=table.schema)


def _ipc_batches(opened: pa.NativeFile, first: int, *, of_file: bool) -> Iterator[pa.RecordBatch]:
    from pyarrow import ipc

    if of_file:
        reader = ipc.open_file(opened)
        for number in range(first, reader.num_record_batches):
            yield reader.get_batch(number)
    else:
        for number, batch in enumerate(ipc.open_stream(opened)):
            if number >= first:
                yield batch


def _magic(file: InputFile) -> bytes:
    """How the file begins: with `_PARQUET`, with `_IPC_FILE`, or as a stream of Arrow batches."""
    with file.open() as opened:
        return opened.read(len(_IPC_FILE))
