"""Records and files as the directory log stores them.

    <offset:020d>.log         segment that begins at that offset; a record's place in it is its offset minus that
    <offset:020d>.compacted   what compaction kept of everything below that offset
    state                     see `state`

A record is a header (checksum, lengths, own offset), key, value. It carries its own offset, so that it keeps it when a
compaction rewrites its file, and so that a read from a position that is no record's beginning is recognised.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from penstock.errors import CorruptDataError, PipelineError
from penstock.ports import LogRecord, NewRecord

_HEADER: Final = struct.Struct("<IIiQ")  # crc32 of all that follows, value length, key length (-1: no key), offset
_CHECKED: Final = struct.Struct("<IiQ")
HEADER_BYTES: Final = _HEADER.size
MAX_RECORD_BYTES: Final = 1 << 30


class TornError(Exception):
    """The bytes end within a record that needs `needed` bytes in all."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


def encode(records: Sequence[NewRecord], offset: int) -> tuple[list[bytes], int]:
    """The pieces to write at `offset`, and the offset behind them."""
    pieces: list[bytes] = []
    for record in records:
        key = record.key or b""
        size = HEADER_BYTES + len(key) + len(record.value)
        if size > MAX_RECORD_BYTES:
            raise PipelineError(f"a record of {size} bytes is larger than the log takes ({MAX_RECORD_BYTES} bytes)")
        head = _CHECKED.pack(len(record.value), -1 if record.key is None else len(key), offset)
        checksum = zlib.crc32(record.value, zlib.crc32(key, zlib.crc32(head)))
        pieces.append(checksum.to_bytes(4, "little") + head + key)
        pieces.append(record.value)
        offset += size
    return pieces, offset


def decode(buffer: bytes, position: int, offset: int | None, path: Path, origin: int = 0) -> tuple[LogRecord, int]:
    """The record at `position` of `buffer` and the position behind it.

    Args:
        offset: what the record's offset must be, None in a compacted file, where only the record knows.
        path: names the file in the error.
        origin: where in the file the buffer begins.

    Raises:
        TornError: the buffer ends before the record does.
        CorruptDataError: the checksum or the offset does not match.
    """
    body = position + HEADER_BYTES
    if body > len(buffer):
        raise TornError(HEADER_BYTES)
    checksum, value_length, key_length, own = _HEADER.unpack_from(buffer, position)
    value = body + key_length if key_length > 0 else body
    behind = value + value_length
    size = behind - position
    if size > MAX_RECORD_BYTES or key_length < -1 or (offset is not None and own != offset):
        raise CorruptDataError(
            f"{path}, position {origin + position}: no record begins here, or its header is damaged; "
            "restore the file from a copy, or start the job from a savepoint with a new log"
        )
    if behind > len(buffer):
        raise TornError(size)
    if zlib.crc32(memoryview(buffer)[position + 4 : behind]) != checksum:
        raise CorruptDataError(
            f"{path}, position {origin + position}: the checksum of the record does not match its {size} bytes; "
            "restore the file from a copy, or start the job from a savepoint with a new log"
        )
    key = None if key_length < 0 else buffer[body:value]
    return LogRecord(own, own + size, buffer[value:behind], key), behind


def scan(path: Path, offset: int | None, size: int | None = None) -> Iterator[LogRecord]:
    """All records of a file, read at once; for a thread.

    Args:
        offset: that of the first record, None in a compacted file.
        size: how many bytes of the file count, None for all.

    Raises:
        CorruptDataError: a record is damaged or ends behind the end.
    """
    buffer = path.read_bytes()[:size]
    position = 0
    while position < len(buffer):
        try:
            record, position = decode(buffer, position, None if offset is None else offset + position, path)
        except TornError as torn:
            raise CorruptDataError(f"{path} ends within the record at position {position}") from torn
        yield record


def segment_path(folder: Path, base: int) -> Path:
    """The segment that begins at `base`."""
    return folder / f"{base:020d}.log"


def compacted_path(folder: Path, end: int) -> Path:
    """What compaction kept below `end`."""
    return folder / f"{end:020d}.compacted"


def segments(folder: Path) -> list[int]:
    """Where the segments in the folder begin, in order."""
    return _listed(folder, ".log")


def compactions(folder: Path) -> list[int]:
    """The ends of the compacted files in the folder, in order; all but the last are leftovers."""
    return _listed(folder, ".compacted")


def _listed(folder: Path, suffix: str) -> list[int]:
    return sorted(int(name[: -len(suffix)]) for name in os.listdir(folder) if name.endswith(suffix))


def fsync_path(path: Path) -> None:
    """Make a file's content, or a folder's names, survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
