"""`EditedSavepoint`: a savepoint with other state, written as a new one for migrations and repairs.

Only what was replaced is written anew; everything else is copied as it is. Replaced rows go to the key group that the
engine's hash gives them, within the object of the subtask that owns it, so a job starts from the copy as from the
original, at any parallelism.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from penstock.errors import ExternalError, UsageError
from penstock.protocol.keygroups import key_group_range
from penstock.protocol.messages import Handle, OperatorHandles
from penstock.savepoint import encoding, tables
from penstock.savepoint.folder import check_target, open_private, seal_folder, with_operators, write_file
from penstock.savepoint.operators import parts_of
from penstock.state.declarations import State, describe_states
from penstock.state.segments import decode_segment, encode_segments
from penstock.task.opening import SPLITS
from penstock.task.sources import SplitEntry
from penstock.times import MIN_WATERMARK, to_micros
from penstock.types import schema_from_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.savepoint.reading import Savepoint

_Change = Callable[[int, tables.Segment], tables.Segment]
"""What becomes of the segment of a key group."""


class EditedSavepoint:
    """A savepoint to be changed; nothing is written until `write`. Made by `Savepoint.edit`.

    A change that is refused changes nothing; one that is taken returns the object itself.
    """

    def __init__(self, savepoint: Savepoint, read: Callable[[Path], Savepoint]) -> None:
        """`read` opens the folder that was written."""
        self._savepoint = savepoint
        self._read = read
        self._changes: dict[str, dict[str, _Change]] = {}
        """Operator and state to what becomes of its segments."""
        self._added: dict[str, dict[str, set[int]]] = {}
        """The key groups in which there are new rows."""
        self._lists: dict[str, dict[str, tuple[bytes, ...]]] = {}
        """Operator and list to its elements."""
        self._templates: dict[str, tables.Segment] = {}
        self._signatures = dict(savepoint.manifest.operators)

    # -- changes --------------------------------------------------------------------------------------------------------

    def replace(
        self, uid: str, state: str | None, frame: pl.DataFrame, *, declared: State | None = None
    ) -> EditedSavepoint:
        """Put the rows of a table in place of a state; keys that are not in it have no such state any more.

        Args:
            uid: the operator.
            state: one of its states, or None for windows and aggregates.
            frame: a table like the one that `Savepoint.table(uid, state)` gives: the same columns of the same types.
                `index` and `expires` may be left out: elements are in order of rows, times to live begin anew.
            declared: the state as the pipeline will declare it (`ValueState(Account)`), if that is another type than the
                savepoint has, or a state that it has not. The frame is checked against it.

        Raises:
            UsageError: there is no such operator or state, or a column or value does not fit; names it.
        """
        operator = self._savepoint.operator(uid)
        where = f"operator {uid!r}" if state is None else f"operator {uid!r}, state {state!r}"
        if state is None:
            return self._replace_aggregates(uid, frame, where)
        described = self._described(uid, state, declared)
        if operator.keys.fields:
            entries = encoding.entries_of_frame(frame, operator.keys, described, where)
            self._replace_rows(uid, state, entries, described, where)
        else:
            self._lists.setdefault(uid, {})[state] = tuple(encoding.list_elements(frame, described, where))
        if declared is not None:
            signature = json.loads(self._signatures[uid])
            signature.setdefault("states", {})[state] = described
            self._signatures[uid] = json.dumps(signature, sort_keys=True)
        return self

    def replace_timers(self, uid: str, frame: pl.DataFrame) -> EditedSavepoint:
        """Put the rows of a table like that of `Savepoint.timers` in place of all timers of a keyed process.

        Raises:
            UsageError: there is no such operator, or a column or value does not fit; names it.
        """
        self._savepoint.require_timers(uid)
        where = f"operator {uid!r}, timers"
        timers = encoding.timer_entries(frame, self._savepoint.operator(uid).keys, where)
        for name, entries in timers.items():
            self._replace_rows(uid, name, entries, None, where)
        return self

    def replace_splits(self, uid: str, frame: pl.DataFrame) -> EditedSavepoint:
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
        frame = encoding.checked_columns(frame, {"split": text, "position": text}, optional, where)
        if frame["split"].is_duplicated().any() or frame["split"].null_count():
            raise UsageError(f"{where}: column 'split' names a split twice, or none")
        former = {entry.split: entry for entry in self._savepoint.split_entries(uid)}
        entries = [_split_entry(row, former.get(row["split"]), where) for row in frame.iter_rows(named=True)]
        self._lists.setdefault(uid, {})[SPLITS] = tuple(map(msgspec.json.encode, entries))
        return self

    def write(self, folder: str | Path) -> Savepoint:
        """Write the savepoint into a new folder, from which a job starts with `submit --from-savepoint`.

        Raises:
            UsageError: there is something in the folder.
            CorruptDataError: the original is damaged.
            ExternalError: the folder cannot be written.
        """
        folder = Path(folder)
        check_target(folder, "")
        numbers: dict[tuple[str, int], int] = {}

        def written(uid: str, subtask: int, operator: OperatorHandles) -> OperatorHandles:
            number = numbers.setdefault((uid, subtask), len(numbers))
            key = f"objects/{number:06d}-{_safe(uid)}.state"
            return self._written(uid, subtask, operator, folder, key)

        manifest = with_operators(self._savepoint.manifest, written)
        seal_folder(folder, msgspec.structs.replace(manifest, operators=self._signatures))
        return self._read(folder)

    # -- how ------------------------------------------------------------------------------------------------------------

    def _described(self, uid: str, state: str, declared: State | None) -> dict[str, Any]:
        if declared is None:
            return self._savepoint.described(uid, state)
        self._savepoint.require_verb(uid, "process", "declared states")
        keyed = bool(self._savepoint.operator(uid).keys.fields)
        if declared.keyed != keyed:
            kind, key = type(declared).__name__, "a key" if keyed else "no key"
            raise UsageError(f"operator {uid!r}, state {state!r}: it has {key}, where {kind} does not belong")
        # A class of its own, because a declaration has its name from the class that it stands in.
        return describe_states(type(uid, (), {state: copy.copy(declared)}))[state]

    def _replace_aggregates(self, uid: str, frame: pl.DataFrame, where: str) -> EditedSavepoint:
        operator = self._savepoint.operator(uid)
        if operator.verb not in ("window", "agg"):
            names = ", ".join(operator.states) or "none"
            raise UsageError(f"{where}: a {operator.verb} has states by name: {names}; say which one to replace")
        found = next(self._savepoint.segments(uid), None)
        if found is None:
            raise UsageError(f"{where}: it held nothing, so its columns are not known; there is nothing to replace")
        _, header, rows = found
        shown = tables.aggregate_table((header, rows))
        frame = encoding.checked_columns(frame, {name: (kind,) for name, kind in shown.schema.items()}, {}, where)
        keys = list(operator.keys.names)
        plain = [name for name in frame.columns if name not in keys and not name.startswith("__")]
        for name in plain:
            if frame[name].null_count():
                raise UsageError(f"{where}: column {name!r} has a null")
        encoding.check_once(frame, keys, plain, where)
        try:
            stored = tables.stored_aggregates(header, frame).select(rows.columns)
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from error
        by_group = encoding.by_key_group(stored, keys, self._savepoint.max_parallelism)
        none = rows.clear()
        self._changes[uid] = {"": lambda group, segment: (segment[0], by_group.get(group, none))}
        self._added[uid] = {"": set(by_group)}
        return self

    def _replace_rows(
        self, uid: str, name: str, entries: pl.DataFrame, described: dict[str, Any] | None, where: str
    ) -> None:
        keys = self._savepoint.operator(uid).keys.names
        by_group = encoding.by_key_group(entries, keys, self._savepoint.max_parallelism)
        none = entries.clear()

        def change(group: int, segment: tables.Segment) -> tables.Segment:
            return encoding.with_state(segment, name, by_group.get(group, none), described, where)

        self._changes.setdefault(uid, {})[name] = change
        self._added.setdefault(uid, {})[name] = set(by_group)

    def _written(self, uid: str, subtask: int, operator: OperatorHandles, folder: Path, key: str) -> OperatorHandles:
        """What an operator of a subtask puts into the new savepoint; its object is in the folder then."""
        replace = msgspec.structs.replace
        operator = replace(operator, beside=None)  # the savepoint was read with it in its places
        for name, elements in self._lists.get(uid, {}).items():
            # A restore deals lists out anew, so it is the same whose they are.
            mine = elements if subtask == 0 else ()
            if name == SPLITS or json.loads(self._signatures[uid])["states"][name]["kind"] == "union_list":
                operator = replace(operator, unions={**operator.unions, name: mine})
            else:
                operator = replace(operator, lists={**operator.lists, name: mine})
        if uid in self._changes:
            return replace(operator, keyed=self._write_changed(uid, subtask, operator.keyed, folder, key))
        if operator.keyed is None or operator.keyed.inline:
            return operator
        write_file(folder / key, self._savepoint.objects.whole(operator.keyed))
        return replace(operator, keyed=replace(operator.keyed, key=key))

    def _write_changed(self, uid: str, subtask: int, before: Handle | None, folder: Path, key: str) -> Handle | None:
        """Write the object of an operator of a subtask with its changes, a key group at a time."""
        owned = key_group_range(subtask, len(parts_of(self._savepoint.manifest, uid)), self._savepoint.max_parallelism)
        added = set[int]().union(*self._added[uid].values())
        stored = before.key_groups if before is not None else {}
        index: dict[int, tuple[int, int]] = {}
        digest, position = hashlib.sha256(), 0
        path = folder / key
        try:
            with open_private(path) as file:
                for group in sorted(stored.keys() | {group for group in added if group in owned}):
                    for found, data in self._changed(uid, group, before if group in stored else None):
                        file.write(data)
                        digest.update(data)
                        index[found] = (position, position + len(data))
                        position += len(data)
        except OSError as error:
            raise ExternalError(f"{path}: cannot be written: {error.strerror}") from error
        return Handle(key, digest.hexdigest(), position, index) if index else None

    def _changed(self, uid: str, group: int, before: Handle | None) -> Sequence[tuple[int, bytes]]:
        """The new segment of a key group; none if nothing is left in it."""
        if before is not None:
            header, rows = decode_segment(self._savepoint.objects.segment(before, group), uid)
        else:
            header, rows = self._template(uid)
        for change in self._changes[uid].values():
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
