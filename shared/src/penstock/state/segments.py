"""Segments: the bytes of keyed state in a snapshot, one or more per key group, the same for every backend.

A segment is self-describing::

    4 bytes  magic "PSK" and the version of the format, 1
    4 bytes  little endian: length of the header
    n bytes  header: JSON object; "kind" says whose state it is, "keys" are the key columns as a schema
    rest     an Arrow IPC stream with the key columns first (typed, readable by any Arrow reader)

Object state (kind "objects") has one row per value, list, map entry or timer: the key columns, then `__state` (index
into the header's list "names"), `__subkey` (binary: the map key as msgpack, else null), `__value` (binary: msgpack) and
`__time_us` (int64: when the value expires, or when the timer fires). Aggregates have their partial columns instead.

Responsible for framing, and for cutting frames into key groups. What stands in the frames is the operators' business.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import numpy as np
import polars as pl

from penstock.errors import CorruptDataError, IncompatibleStateError
from penstock.state.hashing import key_groups
from penstock.state.mapped_frames import FrameWriter
from penstock.types import Schema, schema_to_json

if TYPE_CHECKING:
    from pathlib import Path

VERSION: Final = 1
PENDING: Final = "pending"
"""List state of rows that wait for their results, without a key, and the kind of its segments."""
_MAGIC: Final = b"PSK"
_PIECE_ROWS: Final = 65_536
_PIECES_IN_MEMORY: Final = 4
"""Of what is put in order on disk, if there are more."""
_WRITTEN_BYTES: Final = 64 << 20
"""At once, of what is put in order on disk, each key group together."""


def encode_segments(
    header: Mapping[str, Any],
    frames: Iterable[pl.DataFrame],
    keys: Schema,
    max_parallelism: int,
    folder: Path | None = None,
) -> Iterator[tuple[int, bytes]]:
    """The frames' rows as one segment per key group that has any, with rising key groups.

    With a folder many are put in that order on disk: no more than some pieces and a segment are in memory.
    """
    prefix = _prefix({**header, "keys": schema_to_json(keys)})
    pieces = _pieces(frames, keys.names, max_parallelism)
    first = list(islice(pieces, _PIECES_IN_MEMORY + 1)) if folder is not None else []
    pieces = chain(first, pieces)
    if folder is not None and len(first) > _PIECES_IN_MEMORY:
        groups = _on_disk(pieces, folder)
    else:
        groups = ((group, pl.concat(parts)) for group, parts in sorted(_by_key_group(pieces).items()))
    for group, rows in groups:
        yield group, _encoded(prefix, rows.rechunk())


def encode_segment(header: Mapping[str, Any], rows: pl.DataFrame) -> bytes:
    """The inverse of `decode_segment`; `header` is as that returns it."""
    return _encoded(_prefix(header), rows)


def _encoded(prefix: bytes, rows: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    buffer.write(prefix)
    # The oldest layout of Arrow: every reader knows it, whatever Polars uses inside.
    rows.write_ipc_stream(buffer, compat_level=pl.CompatLevel.oldest())
    return buffer.getvalue()


_Piece: TypeAlias = tuple[pl.DataFrame, dict[int, tuple[int, int]]]
"""Rows, those of a key group together, in order; and where in them each group begins and ends."""


def _pieces(frames: Iterable[pl.DataFrame], keys: Sequence[str], max_parallelism: int) -> Iterator[_Piece]:
    """The rows in pieces.

    Rows are sorted in pieces that fit into the processor's caches: ten million sorted at once take two to three times
    as long.
    """
    for frame in frames:
        for begin in range(0, frame.height, _PIECE_ROWS):
            piece = frame.slice(begin, _PIECE_ROWS)
            groups = key_groups(piece, keys, max_parallelism).to_numpy()
            piece = piece[np.argsort(groups, kind="stable")]
            ends = np.cumsum(np.bincount(groups, minlength=max_parallelism))
            starts = np.concatenate([[0], ends[:-1]])
            yield piece, {group: (int(starts[group]), int(ends[group])) for group in np.unique(groups).tolist()}


def _by_key_group(pieces: Iterable[_Piece]) -> dict[int, list[pl.DataFrame]]:
    """The rows of each key group, in order."""
    parts: dict[int, list[pl.DataFrame]] = {}
    for piece, groups in pieces:
        for group, (begin, end) in groups.items():
            parts.setdefault(group, []).append(piece.slice(begin, end - begin))
    return parts


def _on_disk(pieces: Iterator[_Piece], folder: Path) -> Iterator[tuple[int, pl.DataFrame]]:
    """The rows of each key group, put together in a file; a group is read in few long stretches."""
    parts: dict[int, list[int]] = {}
    written = 0
    with FrameWriter(folder) as writer:
        while together := list(_some(pieces)):
            for group, rows in sorted(_by_key_group(together).items()):
                writer.add(pl.concat(rows, rechunk=True))
                parts.setdefault(group, []).append(written)
                written += 1
        for group, there in sorted(parts.items()):
            yield group, writer.read(there)


def _some(pieces: Iterator[_Piece]) -> Iterator[_Piece]:
    """As many as are written at once."""
    size = 0
    for piece, groups in pieces:
        yield piece, groups
        size += piece.estimated_size()
        if size >= _WRITTEN_BYTES:
            return


def _prefix(header: Mapping[str, Any]) -> bytes:
    encoded = msgspec.json.encode(header)
    return _MAGIC + bytes([VERSION]) + len(encoded).to_bytes(4, "little") + encoded


def is_segment(data: bytes) -> bool:
    """Whether these are the bytes of a segment."""
    return data[:3] == _MAGIC


def segment_header(data: bytes, operator: str) -> dict[str, Any]:
    """The header of a segment; raises as `decode_segment`."""
    return _header(data, operator)[0]


def _header(data: bytes, operator: str) -> tuple[dict[str, Any], int]:
    """The header, and where the rows begin."""
    if not is_segment(data):
        raise CorruptDataError(f"operator {operator!r}: a part of its keyed state is no segment of a snapshot")
    if data[3] != VERSION:
        raise IncompatibleStateError(
            f"operator {operator!r}: its keyed state has format {data[3]}, this Penstock reads format {VERSION}; "
            "restore it with the version that wrote it or a later one"
        )
    end = 8 + int.from_bytes(data[4:8], "little")
    try:
        return msgspec.json.decode(data[8:end], type=dict[str, Any]), end
    except msgspec.DecodeError as error:
        raise _damaged(operator, error) from error


def decode_segment(data: bytes, operator: str) -> tuple[dict[str, Any], pl.DataFrame]:
    """Header and rows of a segment.

    Raises:
        CorruptDataError: these are not the bytes of a segment.
        IncompatibleStateError: a later version of Penstock wrote it.
    """
    header, end = _header(data, operator)
    try:
        return header, pl.read_ipc_stream(io.BytesIO(memoryview(data)[end:]))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _damaged(operator, error) from error


def _damaged(operator: str, error: Exception) -> CorruptDataError:
    return CorruptDataError(f"operator {operator!r}: a segment of its keyed state is damaged: {error}")


def decode_segments(
    segments: Iterable[tuple[int, bytes]], operator: str, kind: str, keys: Schema
) -> Iterator[tuple[int, dict[str, Any], pl.DataFrame]]:
    """Key group, header and rows of each segment, checked to be of this kind and these keys.

    Raises:
        CorruptDataError: a segment is damaged.
        IncompatibleStateError: another kind of operator wrote it, or the key is another.
    """
    expected = schema_to_json(keys)
    for group, data in segments:
        header, rows = decode_segment(data, operator)
        if header["kind"] != kind:
            raise IncompatibleStateError(
                f"operator {operator!r}: the snapshot holds the state of a {header['kind']} operator, the pipeline has "
                f"a {kind} operator there; give the new operator another uid"
            )
        stored = [(part["name"], part["type"]) for part in header["keys"]]
        if stored != [(part["name"], part["type"]) for part in expected]:
            raise IncompatibleStateError(
                f"operator {operator!r}: the snapshot is keyed by {_columns(header['keys'])}, the pipeline by "
                f"{_columns(expected)}; restore it with the same key_by, or give the operator another uid"
            )
        yield group, header, rows


def _columns(described: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{part['name']}: {part['type']}" for part in described)
