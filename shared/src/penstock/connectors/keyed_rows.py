"""What sinks share that write rows by key: which columns there are, which rows delete, and what becomes of bad ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.connectors.base import Encoded, Sink
from penstock.errors import BadRecordError, PipelineError
from penstock.types import BOOLEAN, FLOATS, Field, Schema, can_be_key

if TYPE_CHECKING:
    import polars as pl

RETRACTED: Final = "retracted"
"""The column in which corrected sessions, and changes, say that a row is no more."""


@dataclass(frozen=True)
class KeyedRows:
    """How a stream is written where a row replaces the one that has the same key."""

    what: str
    """The sink, which leads errors."""
    key: tuple[str, ...]
    """Empty: rows are added."""
    changes: bool = False
    """Whether they say by `retracted` that there is no row of a key any more."""

    @property
    def deletes(self) -> bool:
        """Whether a row with `retracted` true deletes what its key has."""
        return self.changes and bool(self.key)

    def check(self, schema: Schema, *, updates: bool, instead: str) -> None:
        """Raise `PipelineError` if rows cannot be told apart by the key, or there is none and rows replace others.

        Args:
            schema: of the stream.
            updates: whether a row may replace an earlier one.
            instead: what to write then.
        """
        if updates and not self.key:
            raise PipelineError(
                f"{self.what}: a row of this stream may replace an earlier one, so every update would count as a row; "
                f"{instead}"
            )
        for name in self.key:
            kind = schema.field(name, f"{self.what}: key").type
            if not can_be_key(kind) or kind in FLOATS:
                raise PipelineError(
                    f"{self.what}: key: {name} is {kind}, by which rows are not told apart; choose another one"
                )

    def columns(self, schema: Schema) -> Schema:
        """Those that are written; those of the key are never null."""
        return Schema(
            tuple(
                Field(field.name, field.type, field.nullable and field.name not in self.key)
                for field in schema
                if not (self.deletes and field.name == RETRACTED)
            )
        )

    def newest(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Without the rows that a later one of the same frame replaces."""
        import polars as pl

        return frame.filter(pl.struct(self.key).is_last_distinct()) if self.key else frame

    def without_key(self, frame: pl.DataFrame) -> pl.Series:
        """Which rows lack a column of the key."""
        import polars as pl

        lacks = pl.repeat(value=False, n=frame.height, eager=True)
        for name in self.key:
            lacks = lacks | frame[name].is_null()
        return lacks

    def missing(self, row: dict[str, Any]) -> str:
        """What of the key a row lacks, in words; empty if nothing."""
        names = [name for name in self.key if row[name] is None]
        return f"a row has no key (column {', '.join(names)} is null)" if names else ""


COLUMN: Final = "c:"
"""Stands before the names of columns of encoded rows, so that `GONE` is none of them."""
GONE: Final = "gone"
"""Boolean column of encoded rows: whether the row of the key is deleted."""


def encoded_columns(values: Iterable[Field], *, deletes: bool) -> Schema:
    """The columns of encoded rows of a table.

    Args:
        values: what values are encoded as, by the names of their columns.
        deletes: whether rows say that the row of their key is deleted.
    """
    columns = [Field(f"{COLUMN}{field.name}", field.type, nullable=True) for field in values]
    return Schema((*columns, *((Field(GONE, BOOLEAN),) if deletes else ())))


@dataclass(frozen=True)
class TableRowEncoder:
    """The encoder of one subtask of a sink that writes to a table; see `SinkEncoder`."""

    where: str
    """What leads errors."""
    columns: Schema
    """Those that are written."""
    rows: KeyedRows
    skips: bool
    """Whether bad rows are counted instead of failing."""
    encoded: Callable[[pl.DataFrame, Field], pl.Series]
    """A column of rows of which none is unfit, as the table is given it."""
    unfit: Callable[[pl.DataFrame, Schema], pl.Series]
    """Which rows have a value that the table has no way to hold."""
    misfit: Callable[[dict[str, Any], Schema], str]
    """Why a row is unfit."""

    def encode(self, frame: pl.DataFrame) -> Encoded:
        """See `SinkEncoder.encode`."""
        import polars as pl

        frame = self.rows.newest(frame)
        bad = self.rows.without_key(frame) | self.unfit(frame, self.columns)
        kept = without_bad(self.where, frame.select(self.columns.names), frame, bad, self._reason, skips=self.skips)
        made = pl.DataFrame([self.encoded(kept.frame, field).alias(f"{COLUMN}{field.name}") for field in self.columns])
        if self.rows.deletes:
            made = made.with_columns(kept.frame[RETRACTED].fill_null(value=False).alias(GONE))
        return Encoded(made, kept.skipped)

    def _reason(self, row: dict[str, Any]) -> str:
        return self.rows.missing(row) or self.misfit(row, self.columns)


class TakesChanges(Sink):
    """A sink that deletes what changes take back, where it writes rows by a key."""

    _changes = False

    def of_changes(self) -> Self:
        """See `Sink.of_changes`: what is retracted is deleted."""
        if self.upsert_key is None:
            return self
        found = copy.copy(self)
        found._changes = True
        return found


def without_bad(
    where: str,
    rows: pl.DataFrame,
    encoded: pl.DataFrame,
    bad: pl.Series,
    reason: Callable[[dict[str, Any]], str],
    *,
    skips: bool,
) -> Encoded:
    """What is encoded of rows, without the bad ones.

    Args:
        where: the destination, which leads errors.
        rows: as they came.
        encoded: what was made of each.
        bad: which of them cannot be written.
        reason: why a row cannot.
        skips: whether bad rows are counted instead of failing.

    Raises:
        BadRecordError: there is one.
    """
    if not bad.any():
        return Encoded(encoded)
    if not skips:
        row = rows.filter(bad).row(0, named=True)
        raise BadRecordError(f"{where}: {reason(row)}: {str(row)[:200]}; say bad_rows='skip' to leave it out")
    return Encoded(encoded.filter(~bad), int(bad.sum()))


def key_of(key: str | Sequence[str] | None, what: str) -> tuple[str, ...]:
    """The columns of `key=`; raises `PipelineError` if it is given and names none."""
    if key is None:
        return ()
    found = (key,) if isinstance(key, str) else tuple(key)
    if not found:
        raise PipelineError(f"{what}: key= names no column; leave it out if rows are added")
    return found
