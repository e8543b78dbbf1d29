"""The log: topics of partitions, each one totally ordered, durable sequence of records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import ExternalError


class TopicNotFoundError(ExternalError):
    """The topic does not exist (any more)."""

    retryable = False


class TopicMismatchError(ExternalError):
    """The topic exists with another number of partitions, or is compacted where it should not be."""

    retryable = False


class OffsetOutOfRangeError(ExternalError):
    """The offset was trimmed away or lies beyond the end. It is never reset silently."""

    retryable = False


class RecordTooLargeError(ExternalError):
    """A record is larger than the log takes; nothing of the call was written."""

    retryable = False


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to append. `key` matters only in compacted topics: a newer record of a key may replace the older."""

    value: bytes
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record as read. Offsets rise along a partition but are not dense: continue at `next_offset`."""

    offset: int
    next_offset: int
    value: bytes
    key: bytes | None = None


class Log(Protocol):
    """Durable partitions.

    * `append` returns only after every record of the call is confirmed: it survives the death of any process. Records
      of one call, and of calls made one after another by one process, are in order; those of others may stand between.
      An error means *unknown*: any prefix of the records may have been written, or be written a while later. Calls
      under way together in one process are written in the order in which they began.
    * `read` sees every confirmed record at or after `offset` in order, and never a part of one. A torn tail left by a
      killed writer is invisible and is removed before the next append. Reads of any partitions, offsets and tasks may
      run beside each other and do not wait for each other. While the log cannot be reached a read tries on, beyond its
      timeout if need be, and then fails: an empty list always means that nothing was there.
    * The deletion of a topic ends the reads and appends of it that are under way with `TopicNotFoundError`.
    * `sync` makes what was confirmed before the call survive a power loss too (a no-op where confirmation already
      means that).
    * Offsets below `start_offset` raise `OffsetOutOfRangeError`, as do offsets beyond the end.
    """

    @property
    def largest_record_bytes(self) -> int:
        """How much key and value of a record may have together; a larger one is `RecordTooLargeError`."""
        ...

    async def create_topic(
        self, topic: str, partitions: int, *, compacted: bool = False, retention_ms: int | None = None
    ) -> None:
        """Create the topic; if it exists just so this does nothing, else it raises `TopicMismatchError`.

        `retention_ms`: records older than that may be trimmed by the log itself; None keeps them until `trim`.
        """
        ...

    async def delete_topic(self, topic: str) -> None:
        """Delete the topic and its records; nothing happens if there is none."""
        ...

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        ...

    async def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> int:
        """Append records and return the offset behind the last of them, once all are confirmed."""
        ...

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = 4 << 20, timeout_s: float = 0.0
    ) -> list[LogRecord]:
        """Records from `offset` on: at least one if there is any, at most about `max_bytes`.

        Waits up to `timeout_s` for a first record, then returns an empty list.
        """
        ...

    async def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """The offset of the first kept record and the offset behind the last confirmed one."""
        ...

    async def trim(self, topic: str, partition: int, before: int) -> None:
        """Allow the records below `before` to be deleted (they may stay readable for a while). Never fails for less."""
        ...

    async def sync(self) -> None:
        """Make all that was confirmed survive a power loss."""
        ...

    async def close(self) -> None:
        """Give back files and connections; confirmed records are kept."""
        ...
