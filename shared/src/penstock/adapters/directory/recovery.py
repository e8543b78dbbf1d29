"""Finding the end of a partition after the machine went down: what was synced, and whole records behind it.

Within one boot the state block is exact and nothing needs to be found (a killed process loses no page of the kernel's
cache). After another boot, pages that were not synced may be missing in any order, so the first damage behind what was
synced is where the log ends; damage below is a `CorruptDataError`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from penstock.adapters.directory.records import TornError, compactions, decode, segment_path, segments
from penstock.adapters.directory.state import PartitionState
from penstock.errors import CorruptDataError

_CHUNK_BYTES = 8 << 20


def recovered(folder: Path, state: PartitionState | None, boot: bytes) -> PartitionState:
    """The state of this boot; files are cut to it. The caller holds the partition's lock.

    Args:
        state: the state block as it was found, None if there was none or it did not reach the disk.

    Raises:
        CorruptDataError: bytes are missing or damaged that had been synced.
    """
    bases = segments(folder)
    if state is None:
        state = _presumed(folder, bases, boot)
    first = [base for base in bases if base <= state.synced][-1:]
    end, active = state.synced, first[0] if first else state.synced
    for base in first + [base for base in bases if base > state.synced]:
        path = segment_path(folder, base)
        if base > end:
            path.unlink()
            continue
        end, active = _valid_end(path, base, end), base
        os.truncate(path, end - base)
    return replace(state, boot=boot, end=end, synced=end, active=active)


def _presumed(folder: Path, bases: list[int], boot: bytes) -> PartitionState:
    """What the names of the files say."""
    compacted = max(compactions(folder), default=0)
    start = 0 if compacted else min(bases, default=0)
    return PartitionState(boot, start=start, synced=max(start, compacted), compacted=compacted)


def _valid_end(path: Path, base: int, offset: int) -> int:
    """Behind the last whole record of the unbroken run that begins at `offset`."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < offset - base:
            raise CorruptDataError(
                f"{path} ends before position {offset - base}, which had been synced to disk; "
                "restore the file from a copy, or start the job from a savepoint with a new log"
            )
        wanted = _CHUNK_BYTES
        while True:
            file.seek(offset - base)
            buffer = file.read(wanted)
            position, damaged, needed = _whole_records(buffer, offset, path)
            offset += position
            if damaged or len(buffer) < wanted or (position == 0 and needed <= wanted):
                return offset
            wanted = max(_CHUNK_BYTES, needed)


def _whole_records(buffer: bytes, offset: int, path: Path) -> tuple[int, bool, int]:
    """Position behind the whole records of the buffer, whether damage follows, bytes that the next record needs."""
    position = 0
    while position < len(buffer):
        try:
            _, position = decode(buffer, position, offset + position, path)
        except CorruptDataError:
            return position, True, 0
        except TornError as torn:
            return position, False, torn.needed
    return position, False, 0
