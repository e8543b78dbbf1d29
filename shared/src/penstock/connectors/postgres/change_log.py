"""From messages of `pgoutput` to changes of one table, and how far they go. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.connectors.postgres.captured_table import Capture, CapturedTable
from penstock.connectors.postgres.change_positions import ChangePosition
from penstock.connectors.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Relation,
    RowChange,
    Truncate,
    Values,
    message_of,
)
from penstock.errors import PipelineError

_ALL: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Image:
    """A row that is added, or retracted."""

    key: tuple[str | None, ...]
    """As text, in the order of the index."""
    values: Values
    """Of the columns that are read; of a row that is retracted only those of the key, where changes are not complete."""
    retracted: bool
    has_former: bool = False
    """Whether it replaces a row of the same key, which may know large values that were not logged."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one entry of the log did."""

    commit_lsn: int
    xid: int
    number: int
    """Among the changes of its transaction, from 1."""
    images: Sequence[Image]
    truncates: bool = False


class ChangeLog:
    """Follows the log from a position on."""

    def __init__(self, capture: Capture, table: CapturedTable, position: ChangePosition) -> None:
        self.retyped: dict[str, tuple[int, int]] = {}
        """Columns whose types, by oid and modifier, are not those of the table as it was looked at, until they are."""
        self._capture = capture
        self._table = table
        self._from = position
        self._lsn = position.lsn
        self._names = capture.rows.names
        self._key_places = [self._names.index(name) for name in table.key]
        self._of_keys = [self._names.index(name) for name in capture.keys]
        self._places: Sequence[int] | None = None
        self._begin: Begin | None = None
        self._number = 0
        self._behind = 0
        """How many changes of the transaction were handed out before."""

    @property
    def position(self) -> ChangePosition:
        """Behind everything that was fed."""
        begin = self._begin
        if begin is None or not self._number or self._behind == _ALL:
            partial = (self._from.commit, self._from.done) if self._lsn <= self._from.commit else ()
            return self._from.with_changes(self._lsn, *partial)
        return self._from.with_changes(self._lsn, begin.commit_lsn, max(self._number, self._behind))

    def feed(self, lsn: int, data: bytes) -> Change | None:
        """The next message, at this place of the log; empty: the log was read up to there. The change, if it is one.

        Raises:
            PipelineError: the table has been altered so that its changes cannot be read any more.
            CorruptDataError: it is no message.
        """
        if not data:
            if self._begin is None:
                self._lsn = max(self._lsn, lsn)
            return None
        match message_of(data):
            case Begin() as begin:
                self._begins(begin)
            case Commit() as commit:
                self._begin, self._lsn = None, max(self._lsn, commit.end_lsn)
            case Relation() as relation:
                self._altered(relation)
            case RowChange(relation=oid) as change if oid == self._table.oid:
                return self._numbered(change)
            case Truncate(relations=oids) as truncate if self._table.oid in oids:
                return self._numbered(truncate)
            case _:
                pass
        return None

    def _begins(self, begin: Begin) -> None:
        self._begin, self._number, self._behind = begin, 0, 0
        if begin.commit_lsn < self._lsn:
            self._behind = _ALL
        elif begin.commit_lsn == self._from.commit:
            self._behind = self._from.done

    def _numbered(self, entry: RowChange | Truncate) -> Change | None:
        """The change, unless it was handed out before."""
        assert self._begin is not None
        self._number += 1
        if self._number <= self._behind:
            return None
        truncates = isinstance(entry, Truncate)
        images = () if isinstance(entry, Truncate) else self._images(entry)
        return Change(self._begin.commit_lsn, self._begin.xid, self._number, images, truncates)

    # -- the table ------------------------------------------------------------------------------------------------------

    def _altered(self, relation: Relation) -> None:
        where = self._capture.where
        if relation.oid != self._table.oid:
            if relation.name == self._table.name:
                raise PipelineError(f"{where}the table was made anew; start the job anew, without its former state")
            return
        there = {column.name: place for place, column in enumerate(relation.columns)}
        missing = [name for name in self._names if name not in there]
        if missing:
            raise PipelineError(
                f"{where}it was altered: there is no column {', '.join(missing)} any more (dropped, renamed, or left out "
                "of the publication). Nothing was skipped. Start the job anew with another schema="
            )
        if self._capture.complete and relation.identity != "f":
            raise PipelineError(
                f"{where}it was altered: replica identity is not full any more, which before_images= needs"
            )
        known_of_former = {column.name for column in relation.columns if column.of_identity}
        if relation.identity != "f" and known_of_former != set(self._table.key):
            logged, key = ", ".join(sorted(known_of_former)) or "nothing", ", ".join(self._table.key)
            raise PipelineError(
                f"{where}it was altered: of former rows {logged} is logged, and not its key ({key}). "
                "Nothing was skipped; start the job anew, without its former state"
            )
        self._places = [there[name] for name in self._names]
        for name, place in zip(self._names, self._places, strict=True):
            column, known = relation.columns[place], self._table.columns[name]
            if (column.type_oid, column.type_modifier) != (known.type_oid, known.type_modifier):
                self.retyped[name] = column.type_oid, column.type_modifier

    # -- rows -----------------------------------------------------------------------------------------------------------

    def _images(self, change: RowChange) -> Sequence[Image]:
        old, new = self._picked(change.old), self._picked(change.new)
        if old is not None and new is not None:
            known = range(len(new)) if change.old_is_whole else self._key_places
            for place in known:
                if new[place] == UNCHANGED:
                    new[place] = old[place]
        if self._capture.complete:
            return self._complete(change, old, new)
        images: list[Image] = []
        if old is not None and (new is None or self._key(old) != self._key(new)):
            images.append(Image(self._key(old), [old[place] for place in self._of_keys], retracted=True))
        if new is not None:
            images.append(Image(self._key(new), new, retracted=False, has_former=not images))
        return images

    def _complete(self, change: RowChange, old: Values | None, new: Values | None) -> Sequence[Image]:
        rows = [(old, True)] if old is not None and change.old_is_whole else []
        rows += [(new, False)] if new is not None else []
        if old == new:
            return ()
        return [Image(self._key(values), values, retracted) for values, retracted in rows]

    def _picked(self, values: Values | None) -> list[bytes | None] | None:
        assert self._places is not None
        return None if values is None else [values[place] for place in self._places]

    def _key(self, values: Values) -> tuple[str | None, ...]:
        return tuple([None if (value := values[place]) is None else value.decode() for place in self._key_places])
