"""One partition of the directory log as one process sees it: open files, appending, reading, compacting, trimming.

The descriptor of the `state` file carries the partition's lock; section titles say which methods need it held. Nothing
here waits or schedules: that is `log`. The layout of files is in `records`.
"""

from __future__ import annotations

import bisect
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from penstock.adapters.directory.file_lock import blocking_file_lock
from penstock.adapters.directory.records import (
    HEADER_BYTES,
    TornError,
    compacted_path,
    compactions,
    decode,
    encode,
    fsync_path,
    scan,
    segment_path,
    segments,
)
from penstock.adapters.directory.recovery import recovered
from penstock.adapters.directory.state import STATE_BYTES, PartitionState
from penstock.errors import CorruptDataError, ExternalError
from penstock.ports import LogRecord, NewRecord, OffsetOutOfRangeError, TopicNotFoundError

READ_BYTES: Final = 4 << 20
"""The most that one read takes from the page cache on the event loop."""
_MAX_PIECES: Final = 1_024
"""IOV_MAX of Linux."""
_ATTEMPTS: Final = 20
_OPEN_SEGMENTS: Final = 3


@dataclass(frozen=True, slots=True)
class LargeRecord:
    """A record too large to be read on the event loop: `PartitionFiles.read_large` fetches it in a thread."""

    path: Path
    position: int
    size: int
    offset: int


class PartitionFiles:
    """One process's view of one partition.

    Args:
        folder: the partition's folder; its parent must exist, or the topic does not.
        segment_bytes: a segment of at least this size is closed before the next append.
        compacted: whether closed segments are compacted.
        boot: `current_boot()`.
    """

    def __init__(self, folder: Path, segment_bytes: int, *, compacted: bool, boot: bytes) -> None:
        self.folder = folder
        self._segment_bytes = segment_bytes
        self._compacts = compacted
        self._boot = boot
        self._descriptor = -1
        self._map: mmap.mmap | None = None
        self._writer = (-1, -1)
        self._readers: dict[int, int] = {}
        self._bases: list[int] = []
        self._kept: tuple[int, int, list[LogRecord]] = (-1, -1, [])
        self._folder_synced_for = -1

    # -- opening ------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether descriptors are held."""
        return self._map is not None

    def open(self) -> int:
        """Open if need be; the descriptor for the lock. Validates what another boot left unsynced.

        Raises:
            TopicNotFoundError: the topic's folder is gone.
        """
        if self._map is None:
            try:
                with suppress(FileExistsError):
                    self.folder.mkdir()
                self._descriptor = os.open(self.folder / "state", os.O_RDWR | os.O_CREAT, 0o644)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise TopicNotFoundError(f"there is no topic {self.folder.parent.name}") from error
            except OSError as error:
                raise ExternalError(f"cannot open {self.folder}: {error}") from error
            try:
                with blocking_file_lock(self._descriptor):
                    self._prepare_state()
            except BaseException:
                self.close()
                raise
            self._map = mmap.mmap(self._descriptor, STATE_BYTES, access=mmap.ACCESS_READ)
        return self._descriptor

    def _prepare_state(self) -> None:
        state = PartitionState.unpack(os.pread(self._descriptor, STATE_BYTES, 0))
        if state is None or (state.boot != self._boot and not state.deleted):
            self._write_state(recovered(self.folder, state, self._boot))

    def close(self) -> None:
        """Give back all descriptors; `open` works again."""
        for descriptor in (*self._readers.values(), self._writer[1], self._descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        if self._map is not None:
            self._map.close()
        self._readers, self._writer, self._descriptor, self._map = {}, (-1, -1), -1, None

    # -- state --------------------------------------------------------------------------------------------------------

    def version(self) -> bytes:
        """Bytes that change whenever the partition does."""
        assert self._map is not None
        return self._map[:STATE_BYTES]

    def is_deleted(self) -> bool:
        """Whether the topic was deleted since."""
        state = PartitionState.unpack(self.version())
        return state is not None and state.deleted

    def state(self) -> PartitionState:
        """The state now.

        Raises:
            TopicNotFoundError: the topic was deleted.
        """
        for _ in range(_ATTEMPTS):  # a block that is just being written does not match its checksum
            state = PartitionState.unpack(self.version())
            if state is not None:
                if state.deleted:
                    raise TopicNotFoundError(f"topic {self.folder.parent.name} was deleted")
                return state
        raise CorruptDataError(f"{self.folder / 'state'}: the state block does not match its checksum")

    def _write_state(self, state: PartitionState) -> None:
        os.pwrite(self._descriptor, state.pack(), 0)

    def mark_deleted(self) -> None:
        """Tell every process that holds the partition open. Takes the lock itself."""
        with blocking_file_lock(self.open()):
            state = PartitionState.unpack(self.version()) or PartitionState(self._boot)
            self._write_state(replace(state, deleted=True))

    # -- appending (under the lock) -----------------------------------------------------------------------------------

    @property
    def compacts(self) -> bool:
        """Whether `roll` takes long: it rewrites the closed segments."""
        return self._compacts

    def is_full(self) -> bool:
        """Whether `roll` is due before the next append."""
        state = self.state()
        return state.end - state.active >= self._segment_bytes

    def roll(self) -> None:
        """Close the active segment; compact the closed ones if the topic is compacted."""
        state = self.state()
        self._write_state(replace(state, active=state.end))
        if self._compacts:
            self._compact()

    def append(self, records: Sequence[NewRecord]) -> int:
        """Write the records and confirm them; the offset behind the last.

        Raises:
            ExternalError: the file system refused; nothing was confirmed.
        """
        state = self.state()
        pieces, end = encode(records, state.end)
        path = segment_path(self.folder, state.active)
        try:
            descriptor = self._writable(state.active)
            position = state.end - state.active
            if os.fstat(descriptor).st_size > position:
                os.ftruncate(descriptor, position)  # what a killed writer left
            _write_all(descriptor, pieces, position)
        except OSError as error:
            raise ExternalError(f"cannot append to {path}: {error}") from error
        self._write_state(replace(state, end=end))
        return end

    def _writable(self, base: int) -> int:
        if self._writer[0] != base:
            descriptor = os.open(segment_path(self.folder, base), os.O_RDWR | os.O_CREAT, 0o644)
            if self._writer[1] >= 0:
                os.close(self._writer[1])
            self._writer = (base, descriptor)
        return self._writer[1]

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int) -> list[LogRecord] | LargeRecord:
        """Confirmed records from `offset` on, as many as fit into `max_bytes` but at least one if there is any.

        Raises:
            OffsetOutOfRangeError: `offset` is trimmed or behind the end.
            CorruptDataError: a confirmed record is damaged.
        """
        for _ in range(_ATTEMPTS):  # a file may vanish by trimming or compaction between two looks at the state
            state = self.state()
            if not state.start <= offset <= state.end:
                raise OffsetOutOfRangeError(
                    f"{self.folder.parent.name}/{self.folder.name}: offset {offset} is outside of what is kept, "
                    f"{state.start} to {state.end}"
                )
            try:
                if offset < state.compacted:
                    if kept := self._read_compacted(offset, max_bytes, state):
                        return kept
                    offset = state.compacted
                return [] if offset == state.end else self._read_segment(offset, max_bytes, state)
            except FileNotFoundError:
                self._bases = []
        raise CorruptDataError(f"{self.folder}: the segment file that holds offset {offset} is missing")

    def _read_segment(self, offset: int, max_bytes: int, state: PartitionState) -> list[LogRecord] | LargeRecord:
        base, limit = self._segment_of(offset, state)
        descriptor = self._readable(base)
        wanted = min(max(max_bytes, HEADER_BYTES), READ_BYTES, limit - offset)
        buffer = os.pread(descriptor, wanted, offset - base)
        path = segment_path(self.folder, base)
        records: list[LogRecord] = []
        position = 0
        try:
            while position < len(buffer):
                record, position = decode(buffer, position, offset + position, path, offset - base)
                records.append(record)
        except TornError as torn:
            if not records:
                return self._read_one(descriptor, base, offset, limit, torn.needed)
        if not records:
            raise CorruptDataError(
                f"{path} ends at or before position {offset - base}, but {limit - base} was confirmed"
            )
        return records

    def _read_one(
        self, descriptor: int, base: int, offset: int, limit: int, size: int
    ) -> list[LogRecord] | LargeRecord:
        """The first record, which did not fit; `limit` is where confirmed bytes of the segment end."""
        path = segment_path(self.folder, base)
        while offset + size <= limit:
            if size > READ_BYTES:
                return LargeRecord(path, offset - base, size, offset)
            buffer = os.pread(descriptor, size, offset - base)
            if len(buffer) < size:
                break
            try:
                return [decode(buffer, 0, offset, path, offset - base)[0]]
            except TornError as torn:  # only the header had been there
                size = torn.needed
        raise CorruptDataError(f"{path}, position {offset - base}: the record does not end within the confirmed part")

    @staticmethod
    def read_large(record: LargeRecord) -> list[LogRecord]:
        """Read one large record; for a thread. An empty list says that its file is gone and the read must be repeated."""
        try:
            with open(record.path, "rb") as file:
                file.seek(record.position)
                return [decode(file.read(record.size), 0, record.offset, record.path, record.position)[0]]
        except FileNotFoundError:
            return []
        except TornError as torn:
            raise CorruptDataError(f"{record.path} ends within the record at position {record.position}") from torn

    def _segment_of(self, offset: int, state: PartitionState) -> tuple[int, int]:
        """Start of the segment that holds `offset` and the end of its confirmed part."""
        if offset >= state.active:
            return state.active, state.end
        if not self._bases or self._bases[-1] < state.active or self._bases[0] > offset:
            self._bases = [base for base in segments(self.folder) if base <= state.active] or [state.active]
            if self._bases[-1] < state.active:  # rolled, but nothing was written to the new segment yet
                self._bases.append(state.active)
        index = bisect.bisect_right(self._bases, offset) - 1
        if index < 0:
            raise FileNotFoundError(offset)
        return self._bases[index], self._bases[index + 1]

    def _readable(self, base: int) -> int:
        descriptor = self._readers.get(base, -1)
        if descriptor < 0:
            descriptor = os.open(segment_path(self.folder, base), os.O_RDONLY)
            while len(self._readers) >= _OPEN_SEGMENTS:
                os.close(self._readers.pop(next(iter(self._readers))))
            self._readers[base] = descriptor
        return descriptor

    def _read_compacted(self, offset: int, max_bytes: int, state: PartitionState) -> list[LogRecord]:
        # A compacted file holds one record per key and is read from its beginning, so it is kept in memory as a whole.
        if self._kept[:2] != (state.compacted, state.start):
            found = [
                record
                for record in scan(compacted_path(self.folder, state.compacted), None)
                if record.offset >= state.start
            ]
            self._kept = (state.compacted, state.start, found)
        records: list[LogRecord] = []
        size = 0
        kept = self._kept[2]
        for index in range(bisect.bisect_left(kept, offset, key=lambda record: record.offset), len(kept)):
            size += len(kept[index].value)
            if records and size > max_bytes:
                break
            records.append(kept[index])
        return records

    # -- compaction and trimming (under the lock, in a thread) --------------------------------------------------------

    def _compact(self) -> None:
        """Rewrite everything below the active segment into one file with the latest record of every key."""
        state = self.state()
        latest: dict[bytes, LogRecord] = {}
        keyless: list[LogRecord] = []
        for record in self._closed_records(state):
            if record.key is None:
                keyless.append(record)
            else:
                latest[record.key] = record
        kept = sorted([*keyless, *latest.values()], key=lambda record: record.offset)
        temporary = self.folder / "compacting"
        with open(temporary, "wb") as file:
            for record in kept:
                pieces, _ = encode([NewRecord(record.value, record.key)], record.offset)
                file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, compacted_path(self.folder, state.active))
        fsync_path(self.folder)
        self._change_durably(replace(state, compacted=state.active, synced=max(state.synced, state.active)))
        self._remove_below(state.active)

    def _closed_records(self, state: PartitionState) -> Iterator[LogRecord]:
        # Not by `read`: its open files belong to the event loop.
        if state.compacted > state.start:
            yield from scan(compacted_path(self.folder, state.compacted), None)
        bases = [base for base in segments(self.folder) if max(state.compacted, state.start) <= base < state.active]
        for base, behind in zip(bases, [*bases[1:], state.active], strict=True):
            yield from scan(segment_path(self.folder, base), base, behind - base)

    def trim(self, before: int) -> None:
        """Delete the segments that lie wholly below `before`; the rest stays readable."""
        state = self.state()
        if before >= state.end > state.active:
            state = replace(state, active=state.end)  # nobody needs the active segment either
            self._write_state(state)
        bases = (state.compacted, *segments(self.folder), state.active)
        start = max((base for base in bases if base <= before), default=0)
        if start > state.start:
            self._change_durably(replace(state, start=start))
            self._remove_below(start)

    def _change_durably(self, state: PartitionState) -> None:
        self._write_state(state)
        os.fsync(self._descriptor)

    def _remove_below(self, offset: int) -> None:
        """Remove segments that begin below `offset` and superseded compacted files."""
        for base in segments(self.folder):
            if base < offset:
                segment_path(self.folder, base).unlink(missing_ok=True)
        for base in compactions(self.folder):
            if base < offset or base <= self.state().start:
                compacted_path(self.folder, base).unlink(missing_ok=True)

    # -- syncing ------------------------------------------------------------------------------------------------------

    def sync(self) -> int:
        """Fsync everything that is confirmed now, in a thread, without the lock; how far it reaches."""
        state = self.state()
        bases = segments(self.folder)
        for base in bases[max(0, bisect.bisect_right(bases, state.synced) - 1) :]:
            with suppress(FileNotFoundError):  # trimmed meanwhile
                fsync_path(segment_path(self.folder, base))
        if self._folder_synced_for != state.active:
            fsync_path(self.folder)
            self._folder_synced_for = state.active
        return state.end

    def mark_synced(self, end: int) -> None:
        """Note, under the lock, what `sync` has reached."""
        state = self.state()
        if end > state.synced:
            self._write_state(replace(state, synced=end))


def _write_all(descriptor: int, pieces: list[bytes], position: int) -> None:
    for first in range(0, len(pieces), _MAX_PIECES):
        group = pieces[first : first + _MAX_PIECES]
        size = sum(map(len, group))
        written = os.pwritev(descriptor, group, position)
        if written < size:  # a full disk or a signal
            rest = b"".join(group)
            while written < size:
                written += os.pwrite(descriptor, rest[written:], position + written)
        position += size
