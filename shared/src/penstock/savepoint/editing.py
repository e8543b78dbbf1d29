"""`EditedSavepoint`: a savepoint with other state, written as a new one for migrations and repairs.

Only what was replaced is written anew; everything else is copied as it is. Replaced rows go to the key group that the
engine's hash gives them, within the object of the subtask that owns it, so a job starts from the copy as from the
original, at any parallelism.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from penstock.core.times import MIN_WATERMARK, to_micros
from penstock.errors import UsageError
from penstock.protocol.keygroups import key_group_range
from penstock.protocol.messages import Handle, OperatorHandles
from penstock.savepoint import encoding, tables
from penstock.savepoint.encoding import as_frame
from penstock.savepoint.folder import SavepointPlace, check_target, seal_folder, with_operators
from penstock.savepoint.operators import parts_of
from penstock.savepoint.places import place_of
from penstock.savepoint.replacing import AggregateRows, Replacement, StateRows, TimerRows, described_state
from penstock.savepoint.segments import segments_of, table_of
from penstock.state.declarations import BroadcastState, State
from penstock.state.segments import encode_segments
from penstock.task.opening import SPLITS
from penstock.task.snapshot_objects import object_key, objects_of
from penstock.task.sources import SplitEntry
from penstock.types import schema_from_json

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from penstock.savepoint.reading import Savepoint

    Frame = pl.DataFrame | pd.DataFrame | pa.Table
    """A table as users have it."""

_Change = Callable[[int, tables.Segment], tables.Segment]
"""What becomes of the segment of a key group."""


class EditedSavepoint:
    """A savepoint to be changed; nothing is written until `write`. Made by `Savepoint.edit`.

    A change that is refused changes nothing; one that is taken returns the object itself.
    """

    def __init__(self, savepoint: Savepoint, read: Callable[[str | Path], Savepoint]) -> None:
        """`read` opens what was written."""
        self._savepoint = savepoint
        self._read = read
        self._changes: dict[str, dict[str, _Change]] = {}
        """Operator and state to what becomes of its segments."""
        self._added: dict[str, dict[str, set[int]]] = {}
        """The key groups in which there are new rows."""
        self._lists: dict[str, dict[str, tuple[bytes, ...]]] = {}
        """Operator and list to its elements."""
        self._broadcast: dict[str, dict[str, bytes]] = {}
        """Operator and broadcast state to what it is in every subtask."""
        self._templates: dict[str, tables.Segment] = {}
        self._signatures = dict(savepoint.manifest.operators)

    # -- changes --------------------------------------------------------------------------------------------------------

    def replace(self, uid: str, state: str | None, frame: Frame, *, declared: State | None = None) -> EditedSavepoint:
        """Put the rows of a table in place of a state; keys that are not in it have no such state any more.

        Args:
            uid: the operator.
            state: one of its states, or None for windows and aggregates.
            frame: a table like the one that `Savepoint.table(uid, state)` gives: the same columns of the same types, as a
                DataFrame of Polars' or pandas', or of Arrow's. Whole numbers and times may be of another width or unit.
                `index` and `expires` may be left out: elements are in order of rows, times to live begin anew.
            declared: the state as the pipeline will declare it (`ValueState(Account)`), if that is another type than the
                savepoint has, or a state that it has not. The frame is checked against it.

        Raises:
            UsageError: there is no such operator or state, or a column or value does not fit; names it.
        """
        table = as_frame(frame)
        if state is not None and self._is_broadcast(uid, state, declared):
            described = described_state(self._savepoint, uid, state, declared)
            whole = encoding.broadcast_state(table, described, f"operator {uid!r}, state {state!r}")
            self._broadcast.setdefault(uid, {})[state] = whole
            self._describe(uid, state, described)
        elif state is not None and not self._savepoint.operator(uid).keys.fields:
            described = described_state(self._savepoint, uid, state, declared)
            elements = encoding.list_elements(table, described, f"operator {uid!r}, state {state!r}")
            self._lists.setdefault(uid, {})[state] = tuple(elements)
            self._describe(uid, state, described)
        else:
            self._replace(self.replacement(uid, state, declared), table)
        return self

    def replace_timers(self, uid: str, frame: Frame) -> EditedSavepoint:
        """Put the rows of a table like that of `Savepoint.timers` in place of all timers of a keyed process.

        Raises:
            UsageError: there is no such operator, or a column or value does not fit; names it.
        """
        self._replace(self.replacement(uid, table="timers"), as_frame(frame))
        return self

    def replacement(
        self, uid: str, state: str | None = None, declared: State | None = None, *, table: str = "state"
    ) -> Replacement:
        """How the rows of a table become those of a keyed operator, for who computes them elsewhere; see `put`.

        Raises:
            UsageError: there is no such operator or state, or it has no key.
        """
        keys = self._savepoint.operator(uid).keys
        if table == "timers":
            self._savepoint.require_timers(uid)
            return TimerRows(uid, keys, f"operator {uid!r}, timers")
        if state is None:
            return AggregateRows.of(self._savepoint, uid, f"operator {uid!r}")
        if self._is_broadcast(uid, state, declared):
            raise UsageError(
                f"operator {uid!r}, state {state!r}: broadcast state belongs to no key; replace it as a whole, here: "
                "edit().replace(uid, state, frame)"
            )
        described = described_state(self._savepoint, uid, state, declared)
        return StateRows(uid, keys, f"operator {uid!r}, state {state!r}", state, described)

    def put(self, replacement: Replacement, rows: Mapping[str, Mapping[int, pl.DataFrame]]) -> None:
        """Take what was computed: by where it stands in a segment, and key group. Rows are looked up when they are
        written, a key group at a time."""
        if isinstance(replacement, StateRows):
            self._describe(replacement.uid, replacement.state, replacement.described)
        for name, by_group in rows.items():

            def change(
                group: int, segment: tables.Segment, name: str = name, found: Mapping[int, pl.DataFrame] = by_group
            ) -> tables.Segment:
                return replacement.changed(name, segment, found.get(group))

            self._changes.setdefault(replacement.uid, {})[name] = change
            self._added.setdefault(replacement.uid, {})[name] = set(by_group)

    def replace_splits(self, uid: str, frame: Frame) -> EditedSavepoint:
        """Put the rows of a table like that of `Savepoint.splits` in place of all splits of a source.

        Splits that are not in it are new ones to the source. Beside `split` and `position` columns may be left out: a
        split that was there keeps what it had.

        Raises:
            UsageError: there is no such source, or a column or value does not fit; names it.
        """
        self._savepoint.require_verb(uid, "read", "splits")
        where = f"operator {uid!r}, splits"
        text, truth = (pl.String(),), (pl.Boolean(),)
        optional = {
            "uid": text, "watermark": (tables.UTC_MICROS,), "finished": truth, "idle": truth, "generator": text,
        }  # fmt: skip
        table = encoding.checked_columns(as_frame(frame), {"split": text, "position": text}, optional, where)
        if table["split"].is_duplicated().any() or table["split"].null_count():
            raise UsageError(f"{where}: column 'split' names a split twice, or none")
        former = {entry.split: entry for entry in self._savepoint.split_entries(uid)}
        entries = [_split_entry(row, former.get(row["split"]), where) for row in table.iter_rows(named=True)]
        self._lists.setdefault(uid, {})[SPLITS] = tuple(map(msgspec.json.encode, entries))
        return self

    def write(self, folder: str | Path) -> Savepoint:
        """Write the savepoint into a new folder, from which a job starts with `submit --from-savepoint`; it may be one on
        an object store (`s3://bucket/folder`, reached as the environment says).

        Raises:
            UsageError: there is something in the folder.
            CorruptDataError: the original is damaged.
            ExternalError: the folder cannot be written.
        """
        place = place_of(folder)
        check_target(place, "")
        numbers: dict[tuple[str, int], int] = {}

        def written(uid: str, subtask: int, operator: OperatorHandles) -> OperatorHandles:
            number = numbers.setdefault((uid, subtask), len(numbers))
            key = f"objects/{number:06d}-{_safe(uid)}.state"
            return self._written(uid, subtask, operator, place, key)

        manifest = with_operators(self._savepoint.manifest, written)
        seal_folder(place, msgspec.structs.replace(manifest, operators=self._signatures))
        return self._read(folder)

    # -- how ------------------------------------------------------------------------------------------------------------

    def _replace(self, replacement: Replacement, frame: pl.DataFrame) -> None:
        keys = self._savepoint.operator(replacement.uid).keys.names
        groups = self._savepoint.max_parallelism
        found = {name: replacement.whole([rows]) for name, rows in replacement.rows(frame).items()}
        self.put(replacement, {name: encoding.by_key_group(rows, keys, groups) for name, rows in found.items()})

    def _is_broadcast(self, uid: str, state: str, declared: State | None) -> bool:
        if declared is not None:
            return isinstance(declared, BroadcastState)
        return state in self._savepoint.operator(uid).broadcast

    def _describe(self, uid: str, state: str, described: dict[str, Any]) -> None:
        """Say in the signature of an operator what a state is, if it says otherwise."""
        if self._savepoint.operator(uid).states.get(state) != described:
            signature = json.loads(self._signatures[uid])
            signature.setdefault("states", {})[state] = described
            self._signatures[uid] = json.dumps(signature, sort_keys=True)

    def _written(
        self, uid: str, subtask: int, operator: OperatorHandles, place: SavepointPlace, key: str
    ) -> OperatorHandles:
        """What an operator of a subtask puts into the new savepoint; its object is in the folder then."""
        replace = msgspec.structs.replace
        operator = replace(operator, beside=None)  # the savepoint was read with it in its places
        operator = replace(operator, broadcast={**operator.broadcast, **self._broadcast.get(uid, {})})
        for name, elements in self._lists.get(uid, {}).items():
            # A restore deals lists out anew, so it is the same whose they are.
            mine = elements if subtask == 0 else ()
            if name == SPLITS or json.loads(self._signatures[uid])["states"][name]["kind"] == "union_list":
                operator = replace(operator, unions={**operator.unions, name: mine})
            else:
                operator = replace(operator, lists={**operator.lists, name: mine})
        if uid in self._changes or operator.incremental:
            written = self._write_changed(uid, subtask, operator, place, key)
            return replace(operator, incremental=False, deltas=()).with_parts(written)
        parts: list[Handle] = []
        for handle in operator.parts:
            copy = handle if handle.inline else replace(handle, key=object_key(key, len(parts)))
            if not handle.inline:
                place.write(copy.key, self._savepoint.objects.whole(handle))
            parts.append(copy)
        return operator.with_parts(parts)

    def _write_changed(
        self, uid: str, subtask: int, before: OperatorHandles, place: SavepointPlace, key: str
    ) -> list[Handle]:
        """Write the objects of an operator of a subtask with its changes, a key group at a time, as one full run."""
        owned = key_group_range(subtask, len(parts_of(self._savepoint.manifest, uid)), self._savepoint.max_parallelism)
        groups = set[int]().union(*self._added.get(uid, {}).values()) & set(range(owned.start, owned.end))
        groups.update(*(handle.key_groups for run in before.runs for handle in run))
        segments = (segment for group in sorted(groups) for segment in self._changed(uid, group, before))
        written: list[Handle] = []
        for found in objects_of(lambda: segments):
            written.append(found.handle(object_key(key, len(written))))
            place.write(written[-1].key, found.data)
        return written

    def _changed(self, uid: str, group: int, before: OperatorHandles) -> Sequence[tuple[int, bytes]]:
        """The new segment of a key group; none if nothing is left in it."""
        stored = [data for _, data in segments_of(self._savepoint.objects, uid, before, (group,))]
        if stored:
            ((header, rows),) = tables.merged(table_of(data, uid) for data in stored)
        else:
            header, rows = self._template(uid)
        for change in self._changes.get(uid, {}).values():
            header, rows = change(group, (header, rows))
        if rows.height == 0:
            return ()
        keys = schema_from_json(header["keys"])
        return list(encode_segments(header, [rows], keys, self._savepoint.max_parallelism))

    def _template(self, uid: str) -> tables.Segment:
        """A segment without rows, for a key group that held nothing."""
        if uid not in self._templates:
            found = next(self._savepoint.segments(uid), None)
            self._templates[uid] = (
                (found[1], found[2].clear())
                if found is not None
                else tables.empty_segment(self._savepoint.operator(uid))
            )
        return self._templates[uid]


def _safe(uid: str) -> str:
    """The uid as a part of a file's name."""
    return "".join(character if character.isalnum() or character in "-_." else "_" for character in uid)[:100]


def _split_entry(row: Mapping[str, Any], former: SplitEntry | None, where: str) -> SplitEntry:
    """The entry of a split; what a table does not say, or says null, stays what it was."""

    def said(name: str, otherwise: Any) -> Any:
        value = row.get(name)
        return otherwise if value is None else value

    begin = former or SplitEntry(
        row["split"], None, finished=False, watermark=MIN_WATERMARK, idle=False, generator=None
    )
    try:
        position = msgspec.json.decode(said("position", "null"))
        generator = msgspec.json.decode(row["generator"]) if row.get("generator") else begin.generator
    except msgspec.DecodeError as error:
        raise UsageError(f"{where}, split {row['split']!r}: position or generator is no JSON: {error}") from error
    watermark = row.get("watermark")
    return SplitEntry(
        split=row["split"],
        position=position,
        finished=said("finished", begin.finished),
        watermark=begin.watermark if watermark is None else to_micros(watermark),
        idle=said("idle", begin.idle),
        generator=generator,
    )
