"""What rows of a table become in an operator's segments, one class per kind of state.

`rows` is pure and knows of no other frame, so a table may come in parts that are computed anywhere; `whole` puts those of
a key group together and sees that no key is there twice.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from penstock.errors import UsageError
from penstock.savepoint import encoding, tables
from penstock.state.declarations import BroadcastState, State, describe_states
from penstock.types import Schema

if TYPE_CHECKING:
    from penstock.savepoint.reading import Savepoint


class Replacement(Protocol):
    """Other rows for a state of a keyed operator."""

    @property
    def uid(self) -> str:
        """The operator."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """Where they stand in a segment."""
        ...

    def rows(self, frame: pl.DataFrame) -> Mapping[str, pl.DataFrame]:
        """What a table says, by where it stands in a segment; raises `UsageError` for what does not fit."""
        ...

    def whole(self, parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """What several tables say of one key group; raises `UsageError` if an entry is there twice."""
        ...

    def changed(self, name: str, segment: tables.Segment, rows: pl.DataFrame | None) -> tables.Segment:
        """A segment with these rows in place of those it has; None: without any."""
        ...


@dataclass(frozen=True)
class _Entries:
    """Rows that stand beside others in a segment of object state."""

    uid: str
    keys: Schema
    where: str

    def whole(self, parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """See `Replacement`."""
        together = pl.concat(parts)
        encoding.check_once(together, self.keys.names, [encoding.INDEX, "__subkey"], self.where)
        return together

    def _with(
        self, segment: tables.Segment, name: str, rows: pl.DataFrame | None, described: dict[str, Any] | None
    ) -> tables.Segment:
        rows = encoding.no_entries(self.keys) if rows is None else rows
        return encoding.with_state(segment, name, rows, described, self.where)


@dataclass(frozen=True)
class StateRows(_Entries):
    """The entries of a declared state."""

    state: str
    described: dict[str, Any]

    @property
    def names(self) -> Sequence[str]:
        """See `Replacement`."""
        return (self.state,)

    def rows(self, frame: pl.DataFrame) -> Mapping[str, pl.DataFrame]:
        """See `Replacement`."""
        return {self.state: encoding.entries_of_frame(frame, self.keys, self.described, self.where)}

    def whole(self, parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """See `Replacement`; the elements of a list in the order of their numbers."""
        together = super().whole(parts)
        if len(parts) > 1 and self.described["kind"] == "list":
            return together.sort(encoding.INDEX, maintain_order=True)
        return together

    def changed(self, name: str, segment: tables.Segment, rows: pl.DataFrame | None) -> tables.Segment:
        """See `Replacement`."""
        return self._with(segment, name, rows, self.described)


@dataclass(frozen=True)
class TimerRows(_Entries):
    """The timers of a keyed process."""

    @property
    def names(self) -> Sequence[str]:
        """See `Replacement`."""
        return tuple(tables.DOMAINS.values())

    def rows(self, frame: pl.DataFrame) -> Mapping[str, pl.DataFrame]:
        """See `Replacement`."""
        return encoding.timer_entries(frame, self.keys, self.where)

    def whole(self, parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """See `Replacement`."""
        together = pl.concat(parts)
        encoding.check_once(together, self.keys.names, ["__time_us"], self.where)
        return together

    def changed(self, name: str, segment: tables.Segment, rows: pl.DataFrame | None) -> tables.Segment:
        """See `Replacement`."""
        return self._with(segment, name, rows, None)


@dataclass(frozen=True)
class AggregateRows:
    """The partial results of windows or aggregates: all that a segment holds."""

    uid: str
    keys: Schema
    where: str
    template: tables.Segment
    """A segment of the operator, for its columns."""

    @property
    def names(self) -> Sequence[str]:
        """See `Replacement`."""
        return ("",)

    @classmethod
    def of(cls, savepoint: Savepoint, uid: str, where: str) -> AggregateRows:
        """Those of an operator; raises `UsageError` if it has none, or its columns are not known."""
        operator = savepoint.operator(uid)
        if operator.states:
            names = ", ".join(operator.states)
            raise UsageError(f"{where}: a {operator.verb} has states by name: {names}; say which one to replace")
        if operator.verb not in ("window", "agg"):
            raise UsageError(f"{where}: the state of a {operator.verb} cannot be replaced")
        found = next(savepoint.segments(uid), None)
        if found is None:
            raise UsageError(f"{where}: it held nothing, so its columns are not known; there is nothing to replace")
        return cls(uid, operator.keys, where, (found[1], found[2]))

    def rows(self, frame: pl.DataFrame) -> Mapping[str, pl.DataFrame]:
        """See `Replacement`."""
        header, stored = self.template
        shown = tables.aggregate_table((header, stored))
        frame = encoding.checked_columns(frame, {name: (kind,) for name, kind in shown.schema.items()}, {}, self.where)
        plain = self._plain(frame)
        for name in plain:
            if frame[name].null_count():
                raise UsageError(f"{self.where}: column {name!r} has a null")
        encoding.check_once(frame, self.keys.names, plain, self.where)
        try:
            return {"": tables.stored_aggregates(header, frame).select(stored.columns)}
        except ValueError as error:
            raise UsageError(f"{self.where}: {error}") from error

    def whole(self, parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """See `Replacement`."""
        if len(parts) == 1:
            return parts[0]
        together = pl.concat(parts)
        shown = tables.aggregate_table((self.template[0], together))
        encoding.check_once(shown, self.keys.names, self._plain(shown), self.where)
        return together

    def changed(self, name: str, segment: tables.Segment, rows: pl.DataFrame | None) -> tables.Segment:
        """See `Replacement`."""
        return segment[0], segment[1].clear() if rows is None else rows

    def _plain(self, frame: pl.DataFrame) -> list[str]:
        """What tells the rows of a key apart."""
        return [name for name in frame.columns if name not in self.keys.names and not name.startswith("__")]


def described_state(savepoint: Savepoint, uid: str, state: str, declared: State | None) -> dict[str, Any]:
    """What a state is to be: as it is, or as the pipeline will declare it."""
    if declared is None:
        return savepoint.described(uid, state)
    savepoint.require_verb(uid, "process", "declared states")
    keyed = bool(savepoint.operator(uid).keys.fields)
    if declared.keyed != keyed and not isinstance(declared, BroadcastState):
        kind, key = type(declared).__name__, "a key" if keyed else "no key"
        raise UsageError(f"operator {uid!r}, state {state!r}: it has {key}, where {kind} does not belong")
    # A class of its own, because a declaration has its name from the class that it stands in.
    return describe_states(type(uid, (), {state: copy.copy(declared)}))[state]
