"""The frame: one record of an exchange, a fixed header and a payload.

Little endian, 64 bytes:

| bytes | field |
| --- | --- |
| 2 | magic `PF` |
| 1 | version: 3 if rows are combined, else 2 if they carry watermarks, else 1 |
| 1 | kind |
| 16 | attempt |
| 2 | input: which edge into the consuming vertex |
| 2 | producer: subtask index of the sender |
| 4 | row count |
| 8 | seq: dense per attempt, channel and partition, from 0 |
| 8 | row ordinal: rows of the channel before this frame |
| 8 | watermark, or checkpoint id of a barrier |
| 8 | nonce of a barrier |
| 1 | flavour of a barrier |
| 1 | of version 3: 1 if rows carry watermarks, else 0 |
| 2 | zero |

A DATA payload is an Arrow IPC record batch without its schema, which stands in the deployment. Where event time moves
within a frame its rows carry how far it had come (`Frame.timed`). Where rows were aggregated in part before the exchange,
it holds partial aggregates instead (`Frame.combined`).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import msgspec

from penstock.errors import CorruptDataError
from penstock.protocol.messages import Flavour

_HEADER: Final = struct.Struct("<2sBB16sHHIQQq8sBB2x")
HEADER_BYTES: Final = _HEADER.size
MAGIC: Final = b"PF"
VERSION: Final = 1
TIMED_VERSION: Final = 2
"""Of frames that a program of version 1 must refuse, because it knows no watermarks of rows."""
COMBINED_VERSION: Final = 3
"""Of frames that a program of version 2 must refuse, because it knows no combined rows."""
MAX_ROWS: Final = 65_536
"""A frame is flushed when it has this many rows, or `MAX_PAYLOAD_BYTES`."""
MAX_PAYLOAD_BYTES: Final = 1 << 20

_FLAVOURS: Final[tuple[Flavour, ...]] = ("aligned", "at_least_once", "canonical")


class FrameKind(IntEnum):
    """What a frame carries."""

    DATA = 0
    BARRIER = 1
    WATERMARK = 2
    IDLE = 3


class Channel(msgspec.Struct, frozen=True, order=True):
    """One producing subtask as a consuming subtask sees it."""

    input: int
    producer: int

    def __str__(self) -> str:
        return f"input {self.input} from subtask {self.producer}"


class Frame(msgspec.Struct, frozen=True):
    """The header of a frame."""

    kind: FrameKind
    attempt: str
    channel: Channel
    seq: int
    ordinal: int = 0
    rows: int = 0
    watermark: int = 0
    checkpoint: int = 0
    nonce: str = ""
    flavour: Flavour = "aligned"
    timed: bool = False
    """Of DATA: whether the payload has the column `penstock.core.batches.WATERMARK` as its last one."""
    combined: bool = False
    """Of DATA: whether the payload holds partial aggregates (`penstock.task.combining`)."""

    def encode(self, payload: bytes | memoryview = b"") -> bytes:
        """The record value."""
        version = COMBINED_VERSION if self.combined else TIMED_VERSION if self.timed else VERSION
        number = self.checkpoint if self.kind is FrameKind.BARRIER else self.watermark
        header = _HEADER.pack(
            MAGIC, version, self.kind, bytes.fromhex(self.attempt), self.channel.input, self.channel.producer,
            self.rows, self.seq, self.ordinal, number, bytes.fromhex(self.nonce), _FLAVOURS.index(self.flavour),
            self.combined and self.timed,
        )  # fmt: skip
        return b"".join((header, payload))


def decode_frame(value: bytes) -> tuple[Frame, memoryview]:
    """Header and payload of a record value.

    Raises:
        CorruptDataError: the bytes are no frame, or one of a version this program does not read.
    """
    if len(value) < HEADER_BYTES or value[:2] != MAGIC:
        raise CorruptDataError(
            f"not a frame: {value[:8]!r}... ({len(value)} bytes); the exchange holds foreign records"
        )
    _, version, kind, attempt, edge, producer, rows, seq, ordinal, number, nonce, flavour, timed = _HEADER.unpack_from(
        value
    )
    if version not in (VERSION, TIMED_VERSION, COMBINED_VERSION):
        raise CorruptDataError(f"frame version {version}: this program reads 1 to 3; use a newer Penstock")
    if kind > FrameKind.IDLE or flavour >= len(_FLAVOURS):
        raise CorruptDataError(f"frame of unknown kind {kind} or flavour {flavour}")
    barrier = kind == FrameKind.BARRIER
    frame = Frame(
        kind=FrameKind(kind),
        attempt=attempt.hex(),
        channel=Channel(edge, producer),
        seq=seq,
        ordinal=ordinal,
        rows=rows,
        watermark=0 if barrier else number,
        checkpoint=number if barrier else 0,
        nonce=nonce.hex() if barrier else "",
        flavour=_FLAVOURS[flavour],
        timed=version == TIMED_VERSION or bool(timed),
        combined=version == COMBINED_VERSION,
    )
    return frame, memoryview(value)[HEADER_BYTES:]
