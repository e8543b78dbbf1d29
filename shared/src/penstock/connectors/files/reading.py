"""Readers of one file: text formats by byte offset; `columnar` has those by row group (or batch) and row.

A position also tells the file apart from another one that may have taken its place: of a plain text file on a disk the
bytes before the position (it may grow meanwhile, and is read to where it ended when it was first opened), of a
compressed or columnar file its size and last bytes, of an object its size and the store's own tag. Bytes are fetched in
threads; a cancelled `read` loses nothing, because a fetch that was under way is awaited by the next one.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from penstock.connectors.base import BadRow, EndOfSplit, Fetched, Position, SplitReader
from penstock.connectors.files.ranges import FileRange, edges
from penstock.connectors.pacing import Pace
from penstock.errors import ExternalError, PipelineError
from penstock.formats.decoding import LineDecoder

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES: Final = 4 << 20
_MAX_RECORD_BYTES: Final = 256 << 20


# -- bytes --------------------------------------------------------------------------------------------------------------


class Content(Protocol):
    """The (decompressed) bytes of a file, read in a thread."""

    end: int | None
    """Where reading ends, of a file that may grow."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`, fewer only at the end. Offsets do not go back.

        Raises:
            PipelineError: the file was cut, so that it has no such bytes any more.
        """
        ...

    def identity(self, offset: int) -> Any:
        """A JSON value that differs if the file up to `offset` is another one."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class InputFile(Protocol):
    """One file, wherever it lies. As text it is its path or URL, for messages."""

    @property
    def may_grow(self) -> bool:
        """Whether bytes may come behind those that are there, as in logs."""
        ...

    @property
    def size(self) -> int:
        """In bytes, now. Raises `PipelineError` if it is not there."""
        ...

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

    def find(self, keeps: Callable[[str], bool] | None) -> list[tuple[str, int]]:
        """The files there are: names below the folder (before the pattern) and sizes in bytes.

        A folder that `keeps` refuses, by its path with a slash at the end, need not be looked into.

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


def changed(file: InputFile, where: str) -> PipelineError:
    """The error where a file is another one than before."""
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
    part: FileRange | None = None
    """The range that is read, if not everything."""


class TextReader:
    """Follows a text file. Position: `{"offset", "line", "identity", "end"}`, offset and line behind what was read; with
    `"range"` of a range of a file (see `ranges`)."""

    def __init__(self, file: TextFile, position: Position, pace: Pace) -> None:
        self._file = file
        self._pace = pace
        begun = position if position and "offset" in position else None
        self._offset: int = begun["offset"] if begun else file.begin
        self._line: int = begun["line"] if begun else file.first_line
        self._buffer = b""
        self._ends: list[int] = []
        self._next = 0
        self._start = 0
        self._at_end = False
        self._fetching: asyncio.Future[bytes] | None = None
        self._read_to: tuple[int, Any] | None = None
        """How far was fetched, and what the file's identity was up to there."""
        if begun and file.content.identity(self._offset) != begun["identity"]:
            raise changed(file.file, f"byte {self._offset}")

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
        return Fetched(decoded.frame, bad, len(block), misspelt=decoded.misspelt)

    def _where(self, record: int, ends: list[int]) -> str:
        begin = ends[record - 1] if record else self._start
        place = f"byte {self._offset + begin - self._start}"
        if self._file.part is not None and not self._file.part.knows_lines:
            return f"{self._file.name}, {place}"
        line = self._line + self._buffer.count(b"\n", self._start, begin) + 1
        return f"{self._file.name}, line {line} ({place})"

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
        chunk = await self._fetched(lambda: self._chunk(content, offset, wanted))
        self._buffer, self._start, self._next = rest + chunk, 0, 0
        self._at_end = len(chunk) < wanted
        self._ends = self._file.decoder.ends(self._buffer, last=self._at_end).tolist()
        if self._at_end and self._buffer and (not self._ends or self._ends[-1] < len(self._buffer)):
            self._ends.append(len(self._buffer))  # the last record needs no newline

    def _chunk(self, content: Content, offset: int, size: int) -> bytes:
        """Bytes of the file that was there before, which somebody may have rewritten meanwhile; blocks."""
        chunk = content.read(offset, size)
        behind = offset + len(chunk)
        if self._read_to is not None and content.identity(self._read_to[0]) != self._read_to[1]:
            raise changed(self._file.file, f"byte {self._read_to[0]}")
        self._read_to = behind, content.identity(behind)
        return chunk

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
        part = self._file.part
        of_range = part.position() | {"edges": edges(part, content)} if part is not None else {}
        return {"offset": self._offset, "line": self._line, "identity": identity, "end": content.end, **of_range}

    async def close(self) -> None:
        """See `SplitReader.close`."""
        if self._fetching is not None:
            await asyncio.wait([self._fetching])
            self._fetching.exception()
        self._file.content.close()
