"""`Savepoint`: what a savepoint holds, as Polars frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from penstock.coordination.job_store import JobReader
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import CorruptDataError, UsageError, nearest
from penstock.protocol.keygroups import key_group_range
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import Restore
from penstock.savepoint import tables
from penstock.savepoint.editing import EditedSavepoint
from penstock.savepoint.folder import MANIFEST, read_folder
from penstock.savepoint.objects import Objects, StoreObjects, find_manifest, with_store
from penstock.savepoint.operators import (
    OperatorState,
    checked_uid,
    operators_of,
    parts_of,
    stored_broadcast,
)
from penstock.savepoint.places import find_place
from penstock.savepoint.results import result_maker
from penstock.savepoint.segments import segments_of, table_of
from penstock.settings import load_settings
from penstock.state.segments import PENDING, decode_segment
from penstock.task.opening import SPLITS
from penstock.task.sources import SplitEntry
from penstock.types import schema_from_json

if TYPE_CHECKING:
    from penstock.api.pipeline import DeclaredPipeline
    from penstock.ports import Blobs
    from penstock.settings import ClusterSettings

_SPLIT_COLUMNS: Final = {
    "uid": pl.String, "split": pl.String, "position": pl.String, "watermark": pl.Int64,
    "finished": pl.Boolean, "idle": pl.Boolean, "generator": pl.String,
}  # fmt: skip

KeyGroups = tuple[int, int]
"""The key groups from the first up to, and without, the second."""


def read(path: str | Path, *, store: ClusterSettings | Blobs | str | Path | None = None) -> Savepoint:
    """Open a savepoint; what it holds is read when it is asked for.

    Args:
        path: the folder of an exported savepoint (`penstock savepoint JOB --to FOLDER`), its URL on an object store
            (`s3://bucket/folder`, reached as the environment says), or the key of its manifest in a cluster's store
            (`penstock checkpoints JOB` shows it).
        store: where a key is looked up: a settings file of a cluster or what it says; the one that the commands use, if
            not given.

    Raises:
        UsageError: there is no savepoint.
        CorruptDataError: it is not what was written.

    Example:
        >>> sp = savepoint.read("backup/monday")  # doctest: +SKIP
        >>> sp.table("totals", "total")  # doctest: +SKIP
    """
    place = find_place(path)
    if place is not None:
        manifest, _ = read_folder(place)
        return Savepoint(manifest, place.objects())
    folder = Path(path)
    if folder.is_absolute() or folder.name != MANIFEST:
        raise UsageError(f"{path}: neither a folder that is there, nor the key of a savepoint's manifest in a store")
    if store is None or isinstance(store, str | Path):
        store = load_settings(store)
    manifest = with_store(store, lambda blobs: find_manifest(blobs, str(path)))
    return Savepoint(manifest, StoreObjects(store))


def read_restore(restore: Restore, store: ClusterSettings | Blobs) -> Savepoint:
    """Open the savepoint in a store that `restore` names, checked against what it says."""
    manifest = with_store(store, lambda blobs: JobReader(blobs).manifest(restore))
    return Savepoint(manifest, StoreObjects(store))


PENDING_ROWS: Final = ("map_async", "lookup_join")
"""Verbs whose state are the rows that waited for their results."""


class Savepoint:
    """A savepoint as tables. Nothing in it changes; `edit` makes another one of it."""

    def __init__(self, manifest: Manifest, objects: Objects) -> None:
        self.manifest: Final = manifest
        self.objects: Final = objects
        self.operators: Final[list[OperatorState]] = operators_of(manifest)
        """All operators that have state, by uid: verb, key columns, declared states, sizes."""

    @property
    def job(self) -> str:
        """The id of the job that wrote it."""
        return self.manifest.job

    @property
    def checkpoint(self) -> int:
        """Its number in that job."""
        return self.manifest.checkpoint

    @property
    def parallelism(self) -> int:
        """Of the job when it was written."""
        return self.manifest.parallelism

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""
        return self.manifest.max_parallelism

    def operator(self, uid: str) -> OperatorState:
        """The operator of that uid; raises `UsageError` naming the nearest one if there is none."""
        checked_uid(self.manifest, uid, "")
        return next(operator for operator in self.operators if operator.uid == uid)

    # -- tables ---------------------------------------------------------------------------------------------------------

    def table(self, uid: str, state: str | None = None, *, key_groups: KeyGroups | None = None) -> pl.DataFrame:
        """The state of an operator, key columns first.

        * Windows and aggregates: a row per key, or per key and window (`window_start`, `window_end`; panes of sliding
          windows: `pane_start`, `pane_end`; sessions: also `fired`), with the partial results `__p0`, `__p1`, ...
        * A process without `state`, and windows of counts (`count_window`) or with triggers: a row per key with a column
          for each of its states.
        * A process with `state`: a row per value (`value`), per list element (`index`, `value`) or per map entry
          (`map_key`, `value`); `expires` if the state has a time to live.
        * A process without key: a row per element of the list `state`: `subtask`, `index`, `value`.
        * A broadcast `state`, with key or without: a row per entry: `map_key`, `value`; `key_groups` changes nothing.
        * `map_async` and joins with a lookup: the rows that waited for their results.

        Args:
            uid: the operator.
            state: one of its declared states.
            key_groups: only these: the first, and the one behind the last.

        Raises:
            UsageError: there is no such operator or state; names the nearest.
            CorruptDataError: an object is missing or damaged.
        """
        if self.operator(uid).verb in PENDING_ROWS:
            return self._pending(uid)
        if state is not None and state in self.operator(uid).broadcast:
            return self._broadcast(uid, state)
        make = self._maker(uid, state)
        return self._gathered(uid, make, key_groups)

    def tables(
        self, uid: str, state: str | None = None, *, key_groups: KeyGroups | None = None
    ) -> Iterator[tuple[int, pl.DataFrame]]:
        """Key group and `table` of every key group that holds anything, one at a time, for state larger than memory."""
        make = self._maker(uid, state)
        self._require_keys(uid)
        groups = groupby(self.segments(uid, key_groups), lambda segment: segment[0])
        return (
            (group, pl.concat(map(make, tables.merged(segment[1:] for segment in segments)), how="diagonal_relaxed"))
            for group, segments in groups
        )

    def results(self, uid: str, pipeline: DeclaredPipeline, *, key_groups: KeyGroups | None = None) -> pl.DataFrame:
        """What windows and aggregates come to so far, by the names that the pipeline gives them, behind keys and bounds.

        Raises:
            UsageError: there is no such operator here or there.
            IncompatibleStateError: the pipeline has other aggregates than the savepoint.
        """
        self._require_keys(uid)
        return self._gathered(uid, result_maker(uid, pipeline), key_groups)

    def keys(self, uid: str, *, key_groups: KeyGroups | None = None) -> pl.DataFrame:
        """The keys of an operator that have state or timers, each once."""
        self._require_keys(uid)
        return self._gathered(uid, tables.keys_of, key_groups).unique(maintain_order=True)

    def timers(self, uid: str, *, key_groups: KeyGroups | None = None) -> pl.DataFrame:
        """The timers of a keyed process, or of windows of counts or with triggers.

        Columns: the key, `domain` (`event` or `processing`), `timestamp`.
        """
        self.require_timers(uid)
        return self._gathered(uid, tables.timers_table, key_groups)

    def splits(self, uid: str | None = None) -> pl.DataFrame:
        """The splits of one source or all: where each goes on.

        Columns: `uid`, `split`, `position` (JSON, as its connector writes it), `watermark` (null: none yet), `finished`,
        `idle`, `generator` (JSON: what the watermark generator remembers).
        """
        chosen = [operator for operator in self.operators if operator.verb == "read"]
        if uid is not None:
            self.require_verb(uid, "read", "splits")
            chosen = [self.operator(uid)]
        rows = [_split_row(operator.uid, entry) for operator in chosen for entry in self.split_entries(operator.uid)]
        return pl.DataFrame(rows, _SPLIT_COLUMNS, orient="row").with_columns(_shown_watermark())

    def split_entries(self, uid: str) -> list[SplitEntry]:
        """The splits of a source as they are stored; raises `CorruptDataError`."""
        stored = [data for part in parts_of(self.manifest, uid) for data in part.unions.get(SPLITS, ())]
        try:
            return [msgspec.json.decode(data, type=SplitEntry) for data in stored]
        except msgspec.MsgspecError as error:
            raise CorruptDataError(f"operator {uid!r}: the entry of a split is not readable: {error}") from error

    def watermarks(self) -> pl.DataFrame:
        """How far event time had come: `uid`, `subtask`, its `key_groups` as text, `watermark` (null: none yet).

        A key group that was further than its subtask (after a rescale) has a row of its own.
        """
        rows: list[tuple[str, int, str, int]] = []
        for subtasks in self.manifest.subtasks.values():
            for index, snapshot in sorted(subtasks.items()):
                owned = key_group_range(index, len(subtasks), self.max_parallelism)
                for uid, operator in sorted(snapshot.operators.items()):
                    rows.append((uid, index, f"{owned.start}-{owned.end - 1}", snapshot.watermark))
                    rows += [(uid, index, str(group), mark) for group, mark in sorted(operator.ahead.items())]
        schema = {"uid": pl.String, "subtask": pl.Int64, "key_groups": pl.String, "watermark": pl.Int64}
        return pl.DataFrame(rows, schema, orient="row").with_columns(_shown_watermark())

    # -- segments -------------------------------------------------------------------------------------------------------

    def segments(
        self, uid: str, key_groups: KeyGroups | None = None
    ) -> Iterator[tuple[int, dict[str, Any], pl.DataFrame]]:
        """Key group, header and rows of every segment, as they are stored; one at a time. A large group has several."""
        groups = range(*self._checked_groups(key_groups))
        parts = parts_of(self.manifest, checked_uid(self.manifest, uid, ""))
        return (
            (group, *table_of(data, uid))
            for part in parts
            for group, data in segments_of(self.objects, uid, part, groups)
        )

    def edit(self) -> EditedSavepoint:
        """A copy to be changed and written elsewhere."""
        return EditedSavepoint(self, read)

    # -- checks ---------------------------------------------------------------------------------------------------------

    def described(self, uid: str, state: str) -> dict[str, Any]:
        """What is declared of a state. Raises `UsageError` naming the nearest if there is none."""
        states = self.operator(uid).states
        if state not in states:
            raise UsageError(f"{uid}: it has no state {state!r}; {nearest(state, states)}")
        return states[state]

    def require_verb(self, uid: str, verb: str, what: str) -> None:
        """Raise `UsageError` unless the operator is of that verb."""
        found = self.operator(uid).verb
        if found != verb:
            others = [operator.uid for operator in self.operators if operator.verb == verb]
            raise UsageError(f"{uid}: a {found} has no {what}; {nearest(uid, others)}")

    def require_timers(self, uid: str) -> None:
        """Raise `UsageError` unless the operator is a keyed process, or windows that run as one."""
        operator = self.operator(uid)
        if operator.verb != "window" or not _has_objects(operator):
            self.require_verb(uid, "process", "timers")
        self._require_keys(uid)

    def _require_keys(self, uid: str) -> None:
        if not self.operator(uid).keys.fields:
            raise UsageError(f"{uid}: its state has no key")

    def _checked_groups(self, key_groups: KeyGroups | None) -> KeyGroups:
        if key_groups is None:
            return 0, self.max_parallelism
        first, end = key_groups
        if not 0 <= first < end <= self.max_parallelism:
            raise UsageError(
                f"key_groups={key_groups}: need the first and the one behind the last, from 0 to {self.max_parallelism}"
            )
        return key_groups

    # -- making tables --------------------------------------------------------------------------------------------------

    def _maker(self, uid: str, state: str | None) -> Callable[[tables.Segment], pl.DataFrame]:
        """The function from a segment of the operator to its table."""
        operator = self.operator(uid)
        if operator.verb in ("read", "write"):
            raise UsageError(f"{uid}: a {operator.verb} has no state of its own; the splits of sources are in splits()")
        if operator.verb == "with_processing_time":
            raise UsageError(f"{uid}: a {operator.verb} keeps nothing but how far the clock had come")
        if state is not None and state in operator.broadcast:
            raise UsageError(
                f"{uid}: state {state!r} is broadcast and belongs to no key; read it whole: table(uid, state)"
            )
        if state is not None:
            described, where = self.described(uid, state), f"operator {uid!r}, state {state!r}"
            if not operator.keys.fields:
                parts = [part.lists.get(state) or part.unions.get(state, ()) for part in parts_of(self.manifest, uid)]
                return lambda _: tables.list_table(parts, described, where)
            return lambda segment: tables.state_table(segment, state, _stored(segment, state, described), where)
        if not _has_objects(operator):
            return tables.aggregate_table
        if not operator.keys.fields:
            raise UsageError(f"{uid}: its states have no key in common; name one: {', '.join(operator.states)}")
        states = operator.keyed_states

        def wide(segment: tables.Segment) -> pl.DataFrame:
            stored = {name: _stored(segment, name, described) for name, described in states.items()}
            return tables.wide_table(segment, stored, f"operator {uid!r}")

        return wide

    def _gathered(
        self, uid: str, make: Callable[[tables.Segment], pl.DataFrame], key_groups: KeyGroups | None
    ) -> pl.DataFrame:
        segments = tables.merged((header, rows) for _, header, rows in self.segments(uid, key_groups))
        frames = [make(segment) for segment in segments] or [make(self._empty(uid))]
        return pl.concat(frames, how="diagonal_relaxed")

    def _broadcast(self, uid: str, state: str) -> pl.DataFrame:
        """A state that all subtasks have: that of the first is what a job starts with."""
        where = f"operator {uid!r}, state {state!r}"
        data = parts_of(self.manifest, uid)[0].broadcast.get(state)
        entries = stored_broadcast(data, where) if data is not None else []
        return tables.broadcast_table(entries, self.described(uid, state), where)

    def _pending(self, uid: str) -> pl.DataFrame:
        """The rows that waited when the savepoint was taken, as they came."""
        entries = (entry for part in parts_of(self.manifest, uid) for entry in part.lists.get(PENDING, ()))
        names = schema_from_json(self.operator(uid).schema["row"])
        frames = [pl.DataFrame(schema=names.polars()), *(decode_segment(entry, uid)[1] for entry in entries)]
        return pl.concat([frame.select(names.names) for frame in frames], how="vertical_relaxed")

    def _empty(self, uid: str) -> tables.Segment:
        operator = self.operator(uid)
        if _has_objects(operator):
            return tables.empty_segment(operator)
        return {"kind": "", "keys": operator.schema["keys"]}, pl.DataFrame(schema=operator.keys.polars())


def _has_objects(operator: OperatorState) -> bool:
    """Whether its state are values by name, as windows of counts and triggers have them, too, and not one table."""
    return operator.verb == "process" or bool(operator.states)


def _stored(segment: tables.Segment, name: str, described: dict[str, Any]) -> dict[str, Any]:
    """What the segment itself says of a state, which is how its values were written."""
    return segment[0].get("states", {}).get(name, described)


def _split_row(uid: str, entry: SplitEntry) -> tuple[Any, ...]:
    position, generator = (msgspec.json.encode(part).decode() for part in (entry.position, entry.generator))
    return uid, entry.split, position, entry.watermark, entry.finished, entry.idle, generator


def _shown_watermark() -> pl.Expr:
    """Watermarks as timestamps; null where event time has not begun, or has ended."""
    marks = pl.col("watermark")
    known = (marks != MIN_WATERMARK) & (marks != MAX_WATERMARK)
    return pl.when(known).then(marks).cast(tables.UTC_MICROS).alias("watermark")
