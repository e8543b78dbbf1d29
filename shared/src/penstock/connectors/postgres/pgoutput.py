"""Messages of `pgoutput`, the plugin of logical replication, in version 1 of its protocol. Bytes in, values out.

See "Logical Replication Message Formats" in Postgres' documentation. Whole transactions come in the order of their
commits; values are text. What other plugins or versions would send is an error, never passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import CorruptDataError

UNCHANGED: Final = b"\x00unchanged"
"""Stands for a value out of line (TOAST) that an update left as it was. No text of Postgres has a zero byte."""
Values = Sequence[bytes | None]
"""A row's values as text, in the order of its relation's columns; None is null."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction, all of whose changes follow."""

    commit_lsn: int
    """Where its commit stands in the log."""
    xid: int
    """32 bits of it."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction."""

    end_lsn: int
    """Behind its commit in the log."""


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column that is published."""

    name: str
    type_oid: int
    type_modifier: int
    of_identity: bool
    """Whether former rows have it."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it is from here on; sent before the first change of it and when it was altered."""

    oid: int
    name: str
    """With its schema: `public.orders`."""
    identity: str
    """What is known of former rows: `d` the primary key, `f` all, `i` an index, `n` nothing."""
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row that was inserted (no former one), updated, or deleted (no new one)."""

    relation: int
    new: Values | None
    old: Values | None = None
    """The former row if it was logged: whole, or only the columns of its key, the others null."""
    old_is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    """All rows of these tables are gone."""

    relations: tuple[int, ...]


Message = Begin | Commit | Relation | RowChange | Truncate


class _Bytes:
    """Reads the parts of one message."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, code: str) -> int:
        """A big-endian number of this `struct` code."""
        (value,) = struct.unpack_from(f">{code}", self._data, self._at)
        self._at += struct.calcsize(code)
        return value

    def text(self) -> str:
        end = self._data.index(b"\x00", self._at)
        value = self._data[self._at : end].decode()
        self._at = end + 1
        return value

    def kind(self) -> bytes:
        self._at += 1
        return self._data[self._at - 1 : self._at]

    def values(self) -> Values:
        data, at, values = self._data, self._at + 2, list[bytes | None]()
        for _ in range(int.from_bytes(data[at - 2 : at])):
            kind = data[at]
            at += 1
            if kind == _TEXT:
                begin = at + 4
                at = begin + int.from_bytes(data[at:begin])
                if at > len(data):
                    raise ValueError("a value goes beyond its message")
                values.append(data[begin:at])
            elif kind in (_NULL, _SAME):
                values.append(None if kind == _NULL else UNCHANGED)
            else:
                raise ValueError(f"a value is of the unknown kind {chr(kind)!r}")
        self._at = at
        return values


_TEXT: Final = ord("t")
_NULL: Final = ord("n")
_SAME: Final = ord("u")


def message_of(data: bytes) -> Message | None:
    """The message; None if it says nothing of rows (a type, an origin, a logical message).

    Raises:
        CorruptDataError: it is none.
    """
    parts = _Bytes(data)
    try:
        return _message(parts.kind(), parts)
    except (ValueError, IndexError, struct.error) as error:
        said = f"Postgres sent what is no message of pgoutput in version 1 ({error}): {data[:40]!r}"
        raise CorruptDataError(said) from error


def _message(kind: bytes, parts: _Bytes) -> Message | None:
    match kind:
        case b"B":
            commit_lsn, _, xid = parts.number("Q"), parts.number("q"), parts.number("I")
            return Begin(commit_lsn, xid)
        case b"C":
            _, _, end_lsn = parts.number("B"), parts.number("Q"), parts.number("Q")
            return Commit(end_lsn)
        case b"R":
            return _relation(parts)
        case b"I" | b"U" | b"D":
            return _row_change(kind, parts)
        case b"T":
            count, _ = parts.number("I"), parts.number("B")
            return Truncate(tuple(parts.number("I") for _ in range(count)))
        case b"Y" | b"O" | b"M":
            return None
        case _:
            raise ValueError(f"it begins with {kind!r}")


def _relation(parts: _Bytes) -> Relation:
    oid, schema, name, identity = parts.number("I"), parts.text(), parts.text(), parts.kind().decode()
    columns: list[RelationColumn] = []
    for _ in range(parts.number("H")):
        of_identity = parts.kind() != b"\x00"
        columns.append(RelationColumn(parts.text(), parts.number("I"), parts.number("i"), of_identity))
    return Relation(oid, f"{schema or 'pg_catalog'}.{name}", identity, tuple(columns))


def _row_change(kind: bytes, parts: _Bytes) -> RowChange:
    relation, which = parts.number("I"), parts.kind()
    old, whole = None, which == b"O"
    if which in (b"K", b"O") and kind != b"I":
        old = parts.values()
        if kind == b"D":
            return RowChange(relation, None, old, whole)
        which = parts.kind()
    if which != b"N" or kind == b"D":
        raise ValueError(f"a row is of the unknown kind {which!r}")
    return RowChange(relation, parts.values(), old, whole)
