"""The state block of one partition of the directory log: what is confirmed, synced, compacted and trimmed.

It is 72 bytes at the head of the partition's `state` file, written in one `pwrite` under the partition's file lock and
read by everyone through shared memory. The block, not the length of a segment file, says where the log ends: bytes
behind `end` are a torn tail. It trusts the machine's memory only within one boot (`boot`): after another boot,
everything behind `synced` is validated again.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BLOCK: Final = struct.Struct("<4sI16sQQQQQQ")
_MAGIC: Final = b"PSL1"
STATE_BYTES: Final = _BLOCK.size


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Offsets of one partition; all are byte positions in the partition's endless sequence of records."""

    boot: bytes
    """Boot of the machine during which the block was written."""
    start: int = 0
    """Nothing below is kept."""
    end: int = 0
    """Behind the last confirmed record."""
    synced: int = 0
    """Everything below was fsynced."""
    active: int = 0
    """Start of the segment that takes appends."""
    compacted: int = 0
    """Everything below is in the one compacted file."""
    deleted: bool = False

    def pack(self) -> bytes:
        """The block, with its checksum."""
        numbers = (self.start, self.end, self.synced, self.active, self.compacted, int(self.deleted))
        checksum = zlib.crc32(_BLOCK.pack(_MAGIC, 0, self.boot, *numbers))
        return _BLOCK.pack(_MAGIC, checksum, self.boot, *numbers)

    @staticmethod
    def unpack(block: bytes) -> PartitionState | None:
        """The state, or None if the block is none or was read while it was being written."""
        if len(block) != STATE_BYTES:
            return None
        magic, checksum, boot, start, end, synced, active, compacted, deleted = _BLOCK.unpack(block)
        if magic != _MAGIC or zlib.crc32(block[:4] + b"\0\0\0\0" + block[8:]) != checksum:
            return None
        return PartitionState(boot, start, end, synced, active, compacted, bool(deleted))


def current_boot() -> bytes:
    """16 bytes that change when the machine boots; zeros where the system (not Linux) does not say.

    Without it a log that lost unsynced records in a power loss is reported as corrupt instead of being cut. The time of
    the boot would not do: it moves when the clock is set.
    """
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)
