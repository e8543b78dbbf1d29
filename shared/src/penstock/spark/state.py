"""State in a task: where operators begin, and what they leave when event time stops before its end.

A savepoint is read a key group at a time, straight from its folder or the store where it is. What operators hold at the
end goes into objects per operator and attempt at a task, gathered key group by key group, each written at once; an
object's name holds execution and attempt, so attempts never meet, and the driver names in the manifest those of the
attempts that count.

A step of a job in steps may leave a delta upon objects of the step before (see `state_passthrough`). These become its own
under names of its own, without their bytes being written again, so that a savepoint has all objects that it refers to,
and any other savepoint may be deleted.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from penstock.core.times import MAX_WATERMARK
from penstock.protocol import incremental
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import Handle, OperatorHandles, SubtaskSnapshot
from penstock.protocol.restoring import watermarks_above
from penstock.savepoint.folder import SavepointPlace
from penstock.savepoint.objects import Objects, StoreObjects
from penstock.savepoint.places import place_of
from penstock.savepoint.segments import segments_of
from penstock.settings import ClusterSettings
from penstock.spark.state_passthrough import Segments, StatePassthrough
from penstock.state.deltas import is_by_key, merged
from penstock.task.chain import Chain
from penstock.task.operator import OperatorSnapshot, RestoredState
from penstock.task.snapshot_objects import OBJECT_BYTES, object_key
from penstock.task.snapshots import restored_beside_keys, safe_name

OBJECTS: Final = "objects"
"""The folder of state objects in the folder of a savepoint."""
ADOPTED_AT_ONCE: Final = 8
"""So many objects of a former savepoint a task has the store copy at a time: it waits for answers, not for bytes."""


@dataclass(frozen=True)
class SavedState:
    """A savepoint as tasks are told of it."""

    manifest: bytes
    """JSON; only what the operators of the task's vertex have in it."""
    place: str | ClusterSettings
    """Its folder or URL, or the cluster in whose store it is."""
    unchanged: frozenset[str] = frozenset()
    """The operators whose state has the form that they give it now."""

    def objects(self) -> Objects:
        """Where its bytes are."""
        return place_of(self.place).objects() if isinstance(self.place, str) else StoreObjects(self.place)


@dataclass(frozen=True)
class StageState:
    """State in and out of the tasks of a stage."""

    saved: SavedState | None = None
    folder: str = ""
    """The savepoint's folder or URL to write objects into; empty if state is not kept."""
    watermark: int | None = MAX_WATERMARK
    """How far event time comes by the end of the input; None where nobody needs to know (sources of a run that keeps
    state)."""
    checkpoint: int = 1
    """One above that of the savepoint it starts from: names of what sinks write are in the order of runs."""
    incremental: bool = False
    """Whether what is left may be a delta upon objects of the savepoint that it starts from."""


NO_STATE: Final = StageState()


Runs = tuple[tuple[Handle, ...], ...]
"""The objects of a full run of keyed state, then of each delta upon it, oldest first."""


def kept_runs(runs: Runs, checkpoint: int) -> int:
    """How many runs, the oldest ones, a savepoint names again; 0: it is to be a full one.

    A delta takes in the last deltas before it as a binary counter takes in ones: as many as the number of the checkpoint
    has zeros at its end. So rows are written again as often as the logarithm of the number of steps says, and as many
    deltas have to be read; and when they come to as many bytes as the full run, everything is written.
    """
    if not runs or not runs[0] or incremental.Chain(runs, 0).is_heavy:
        return 0
    return max(1, len(runs) - ((checkpoint & -checkpoint).bit_length() - 1))


class Restoring:
    """The state that the operators of one task begin with."""

    def __init__(self, saved: SavedState, subtask: int, parallelism: int) -> None:
        self._manifest = msgspec.json.decode(saved.manifest, type=Manifest)
        self.unchanged: Final = saved.unchanged
        self._objects = saved.objects()
        self._subtask = subtask
        self._parallelism = parallelism
        self._parts: dict[str, list[OperatorHandles]] = {}
        """By operator what its subtasks left."""
        for subtasks in self._manifest.subtasks.values():
            for _, snapshot in sorted(subtasks.items()):
                for operator, handles in snapshot.operators.items():
                    self._parts.setdefault(operator, []).append(handles)

    def sizes(self, owned: KeyGroupRange) -> dict[int, int]:
        """Those of `owned` in which there is state, with its bytes."""
        sizes: dict[int, int] = {}
        parts = itertools.chain.from_iterable(self._parts.values())
        for handle in (handle for part in parts for run in part.runs for handle in run):
            for group, (start, end) in handle.key_groups.items():
                if group in owned:
                    sizes[group] = sizes.get(group, 0) + end - start
        return sizes

    def operator(self, operator: str, groups: KeyGroupRange) -> RestoredState | None:
        """What an operator begins with, for these key groups.

        Raises:
            CorruptDataError: an object is missing or not what was written.
        """
        beside = self.beside_keys(operator, groups)
        if beside is None:
            return None
        found = (segments_of(self._objects, operator, part, groups) for part in self._parts.get(operator, ()))
        keyed = sorted(itertools.chain.from_iterable(found), key=lambda segment: segment[0])
        return replace(beside, keyed=keyed)

    def stored(self, operator: str, groups: KeyGroupRange) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
        """The key groups of `groups` that have state, and the segments of each with the numbers of their runs.

        Runs that a job left behind an incremental checkpoint are put together: they are none of a step.
        """
        in_runs = any(part.incremental for part in self._parts.get(operator, ()))
        for group in range(groups.start, groups.end):
            handles = [
                (number, handle)
                for part in self._parts.get(operator, ())
                for number, run in enumerate(part.runs)
                for handle in run
                if group in handle.key_groups
            ]
            segments = [(number, self._objects.segment(handle, group)) for number, handle in handles]
            if segments and in_runs and not is_by_key(operator, [data for _, data in segments]):
                segments = [(0, merged(operator, [data for _, data in segments]))]
            if segments:
                yield group, segments

    def runs(self, operator: str, owned: KeyGroupRange) -> Runs:
        """The full run and the deltas of an operator, if they are those of a subtask that had just these key groups."""
        mine = [
            part.runs
            for part in self._parts.get(operator, ())
            if any(group in owned for run in part.runs for handle in run for group in handle.key_groups)
        ]
        if len(mine) != 1:
            return ()
        groups = (group for run in mine[0] for handle in run for group in handle.key_groups)
        return mine[0] if all(group in owned for group in groups) else ()

    def beside_keys(self, operator: str, groups: KeyGroupRange) -> RestoredState | None:
        """The same without keyed state."""
        return restored_beside_keys(self._manifest, operator, groups, self._subtask, self._parallelism)


@dataclass
class _Object:
    """An object that is being gathered."""

    key: str
    data: bytearray = field(default_factory=bytearray)
    key_groups: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    def has_room(self, group: int, segment: bytes) -> bool:
        return group not in self.key_groups and len(self.data) + len(segment) <= OBJECT_BYTES

    def append(self, group: int, segment: bytes) -> None:
        start = len(self.data)
        self.data += segment
        self.key_groups[group] = (start, len(self.data))

    def handle(self) -> Handle:
        return Handle(self.key, hashlib.sha256(self.data).hexdigest(), len(self.data), self.key_groups)


class Keeping:
    """What the operators of one task leave behind."""

    def __init__(self, folder: str, prefix: str) -> None:
        """Objects are named `<folder>/objects/<prefix>-<operator>.state`."""
        self._place = place_of(folder)
        self._prefix = prefix
        self._objects: dict[str, _Object] = {}
        self._finished: dict[str, list[Handle]] = {}
        self._operators: dict[str, OperatorHandles] = {}
        self._named: dict[str, Runs] = {}
        """Operator to the runs that what is written is a delta upon."""
        self._former: SavepointPlace | None = None

    def build_on(self, operator: str, runs: Runs, former: SavepointPlace) -> None:
        """What is kept of an operator is a delta upon these runs of the savepoint in `former`."""
        self._named[operator] = runs
        self._former = former

    def keep(
        self, chain: Chain, passthrough: StatePassthrough | None = None, again: Callable[[Segments], Segments] = list
    ) -> None:
        """Take what the operators of a chain hold now; the chain is not used any more.

        Args:
            chain: where they are.
            passthrough: the state of the head that was not given to it.
            again: see `StatePassthrough.merge_back`.

        Raises:
            ExternalError: the place cannot be written.
        """
        for operator, link in chain.operators.items():
            snapshot = link.operator.snapshot()
            if snapshot is not None:
                segments = snapshot.keyed.segments() if snapshot.keyed is not None else ()
                if passthrough is not None and operator == passthrough.operator:
                    segments = passthrough.merge_back(segments, again)
                self._keep(operator, snapshot, segments)

    def _keep(self, operator: str, snapshot: OperatorSnapshot, segments: Segments) -> None:
        # Lists are those of a vertex without key, which has one chain.
        self._operators[operator] = OperatorHandles(
            lists={name: tuple(entries) for name, entries in snapshot.lists.items()},
            unions={name: tuple(entries) for name, entries in snapshot.unions.items()},
            broadcast=dict(snapshot.broadcast),
        )
        for group, segment in segments:
            self._append(operator, group, segment)

    def _append(self, operator: str, group: int, segment: bytes) -> None:
        current = self._objects.get(operator)
        if current is not None and not current.has_room(group, segment):
            self._finish(operator)
            current = None
        if current is None:
            number = len(self._finished.setdefault(operator, []))
            current = self._objects[operator] = _Object(self._key(operator, number))
        current.append(group, segment)

    def _finish(self, operator: str) -> None:
        finished = self._objects.pop(operator)
        self._place.put(finished.key, bytes(finished.data))
        self._finished[operator].append(finished.handle())

    def snapshot(self, watermark: int, restored: Mapping[str, RestoredState | None]) -> SubtaskSnapshot:
        """What the task acknowledges, as a subtask does at a barrier; `restored` is what its operators began with."""
        for operator in list(self._objects):
            self._finish(operator)
        written_bytes = sum(handle.size_bytes for own in self._finished.values() for handle in own)
        operators = {
            operator: self._with_objects(
                operator, msgspec.structs.replace(part, ahead=_ahead(restored.get(operator), watermark))
            )
            for operator, part in self._operators.items()
        }
        entries = [e for part in operators.values() for kept in (part.lists, part.unions) for e in kept.values()]
        beside_bytes = sum(len(entry) for some in entries for entry in some)
        handles = (handle for part in operators.values() for run in part.runs for handle in run)
        return SubtaskSnapshot(
            operators=operators,
            watermark=watermark,
            size_bytes=sum(handle.size_bytes for handle in handles) + beside_bytes,
            written_bytes=written_bytes + beside_bytes if self._named else None,
        )

    def _with_objects(self, operator: str, part: OperatorHandles) -> OperatorHandles:
        own = self._finished.get(operator, [])
        named, numbers = self._named.get(operator, ()), itertools.count(len(own))
        parts = [(handle, self._key(operator, next(numbers))) for run in named for handle in run]
        adopted = iter(self._adopted(parts))
        runs = [list(itertools.islice(adopted, len(run))) for run in named]
        if own or not runs:
            runs.append(own)
        return part.with_runs(runs) if len(runs) > 1 else part.with_parts(runs[0])

    def _adopted(self, parts: list[tuple[Handle, str]]) -> list[Handle]:
        """Objects of the former savepoint, each under a key of this one, several at a time."""
        if not parts:
            return []
        former, place = self._former, self._place
        assert former is not None

        def adopt(part: tuple[Handle, str]) -> Handle:
            handle, key = part
            place.adopt(key, former, handle.key)
            return msgspec.structs.replace(handle, key=key)

        with ThreadPoolExecutor(min(ADOPTED_AT_ONCE, len(parts))) as threads:
            return list(threads.map(adopt, parts))

    def _key(self, operator: str, number: int) -> str:
        return object_key(f"{OBJECTS}/{self._prefix}-{safe_name(operator)}.state", number)


def _ahead(restored: RestoredState | None, watermark: int) -> dict[int, int]:
    return watermarks_above(restored.watermarks, watermark) if restored is not None else {}
