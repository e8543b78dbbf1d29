"""Where the reading of a table's changes stands, and which changes the rows have in them that were read before."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

_XID_BITS = 32


class Part(msgspec.Struct, frozen=True):
    """Rows that were read as they were in one snapshot of the table."""

    snapshot: str
    """As `pg_current_snapshot()` has it: `xmin:xmax:xid,...`"""
    lsn: int
    """Whatever commits from here on is not in it."""
    upto: tuple[str, ...] | None
    """The key of its last row as text, in the order of the index; None: to the end of the table."""

    def sees(self, xid: int) -> bool:
        """Whether the snapshot has what a transaction did that has been committed; of its id, 32 bits are known.

        As Postgres' function pg_visible_in_snapshot. No transaction that matters is half of all 32-bit ids away from it.
        """
        xmin, xmax, running = self.snapshot.split(":")
        newest = int(xmax)
        half, whole = 1 << (_XID_BITS - 1), 1 << _XID_BITS
        full = newest + (xid - newest + half) % whole - half
        return full < int(xmin) or (full < newest and str(full) not in running.split(","))


class ChangePosition(msgspec.Struct, frozen=True):
    """Behind what was handed out. JSON, as every position."""

    lsn: int
    """All transactions whose commit is before it in the log were handed out."""
    table: int
    """The oid of the table: one that is made anew is another one."""
    owner: str
    """Tells the sessions of this job."""
    fence: int
    """See `made_slot`."""
    read: bool = False
    """Whether all rows were read that were there; the changes follow then."""
    parts: tuple[Part, ...] = ()
    """Of these rows, in the order of the key, as long as they may have changes in them that come from the log again."""
    commit: int = 0
    """The commit of the transaction that was handed out in part; 0 if there is none."""
    done: int = 0
    """How many of its changes were."""

    def with_rows(self, part: Part) -> ChangePosition:
        """Behind rows of one more part, or more rows of the last one."""
        before = self.parts[:-1] if self.parts and self.parts[-1].snapshot == part.snapshot else self.parts
        return msgspec.structs.replace(self, parts=(*before, part), read=part.upto is None)

    def with_changes(self, lsn: int, commit: int = 0, done: int = 0) -> ChangePosition:
        """Behind more of the log."""
        parts = self.parts if lsn < self.settled_lsn else ()
        return msgspec.structs.replace(self, lsn=lsn, commit=commit, done=done, parts=parts)

    @property
    def settled_lsn(self) -> int:
        """No change that commits from here on is in the rows that were read."""
        return max((part.lsn for part in self.parts), default=0)

    @property
    def last_key(self) -> Sequence[str] | None:
        """Of the rows that were read; None at the beginning."""
        return self.parts[-1].upto if self.parts else None
