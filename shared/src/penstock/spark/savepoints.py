"""State in and out of one run, on the driver: what every stage is told, and the savepoint that comes of it.

The manifest that is built here says what a streaming job's coordinator says: vertex, subtask, what its operators left,
how far event time had come. It becomes part of the run's manifest, which decides; sealing the savepoint comes after that
and may be repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.connectors.base import Source
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import CorruptDataError, ExternalError, UsageError
from penstock.graph.jobgraph import JobGraph, JobVertex
from penstock.protocol.keygroups import key_group_range
from penstock.protocol.manifests import Manifest, decode_manifest, encode_manifest
from penstock.protocol.messages import OperatorHandles, SubtaskSnapshot
from penstock.savepoint.folder import SavepointPlace, handles_of, is_sealed, read_folder, seal_folder
from penstock.savepoint.places import LocalPlace, place_of
from penstock.spark.progress import Progress, SplitReport, combined, source_progress, split_reports
from penstock.spark.starting import StartingPoint
from penstock.spark.state import OBJECTS, SavedState, StageState
from penstock.task.committer import STAGED
from penstock.task.opening import SPLITS
from penstock.task.snapshots import restored_beside_keys
from penstock.task.sources import SplitEntry, owner_of

_KEPT: Final = "state"
"""Kind of the reports that hold what a task's operators left."""


class RunState:
    """The state of one run. `stage` may be asked for a vertex when its sources were `read`."""

    def __init__(
        self,
        graph: JobGraph,
        start: StartingPoint | None,
        target: SavepointPlace | None,
        warn: Callable[[str], None],
        *,
        incremental: bool = False,
    ) -> None:
        """`incremental`: the savepoint that the run leaves may have objects of the one that it starts from."""
        self._incremental = incremental
        self._graph = graph
        self._start = start
        self._target = target
        self._warn = warn
        self._progress: dict[str, Progress] = {}
        self._splits: dict[str, list[SplitEntry]] = {}
        """Source operator to its splits as they stand now."""

    @property
    def keeps(self) -> bool:
        """Whether the run leaves a savepoint."""
        return self._target is not None

    def stage(self, vertex: JobVertex) -> StageState:
        """What the tasks of a vertex are told."""
        folder = self._target.address if self._target is not None else ""
        if vertex.is_source:
            return StageState(None, folder, None if self.keeps else MAX_WATERMARK, self._checkpoint)
        watermark = self._progress_of(vertex).watermark if self.keeps else MAX_WATERMARK
        return StageState(self._saved(vertex), folder, watermark, self._checkpoint, self._incremental)

    @property
    def _checkpoint(self) -> int:
        return (self._start.savepoint.checkpoint if self._start is not None else 0) + 1

    def read(
        self,
        vertex: JobVertex,
        source: Source[Any],
        reports: Iterable[dict[str, Any]],
        carried: Sequence[SplitEntry],
    ) -> None:
        """The tasks of a source have read their splits; `carried` are splits that were over before."""
        operator = vertex.operators[0]
        found = split_reports(reports, source)
        self._progress[vertex.id] = source_progress(found, carried, self._reached(operator.id))
        self._splits[operator.id] = [*(report.entry for report in found if not report.archive), *carried]
        if operator.event_time:
            self._warn_of_empty(operator.id, found)

    def _warn_of_empty(self, operator: str, reports: Sequence[SplitReport]) -> None:
        empty = [
            report.entry.split
            for report in reports
            if report.entry.watermark == MIN_WATERMARK and not (report.entry.finished or report.entry.idle)
        ]
        if empty:
            self._warn(
                f"{operator}: no row has come from {', '.join(empty)} yet, which holds event time back as it does when "
                "streaming: what is open stays open. Give the source idle_after= if a part of it may be silent"
            )

    def _progress_of(self, vertex: JobVertex) -> Progress:
        if vertex.id not in self._progress:
            inputs = [self._progress_of(self._graph.vertex(edge.vertex)) for edge in vertex.inputs]
            self._progress[vertex.id] = combined(inputs)
        return self._progress[vertex.id]

    def _reached(self, operator: str) -> int:
        """How far a source had come in the savepoint."""
        if self._start is None:
            return MIN_WATERMARK
        marks = [
            snapshot.watermark
            for subtasks in self._start.savepoint.manifest.subtasks.values()
            for snapshot in subtasks.values()
            if operator in snapshot.operators and snapshot.operators[operator].unions.get(SPLITS)
        ]
        return min(marks, default=MIN_WATERMARK)

    def _saved(self, vertex: JobVertex) -> SavedState | None:
        """What the savepoint holds of a vertex's operators; None if nothing."""
        if self._start is None:
            return None
        wanted = {operator.id for operator in vertex.operators if operator.verb != "write"}
        manifest = self._start.savepoint.manifest
        subtasks = {
            name: {index: _only(snapshot, wanted) for index, snapshot in snapshots.items()}
            for name, snapshots in manifest.subtasks.items()
            if any(wanted & snapshot.operators.keys() for snapshot in snapshots.values())
        }
        if not subtasks:
            return None
        own = msgspec.structs.replace(manifest, subtasks=subtasks, operators={}, intervals={})
        unchanged = (each.id for each in vertex.operators if manifest.operators.get(each.id) == each.state)
        return SavedState(msgspec.json.encode(own), self._start.place, frozenset(unchanged))

    def reached(self, vertex: JobVertex) -> dict[int, int]:
        """How far event time had come for the key groups of a vertex's head in the savepoint."""
        saved = self._saved(vertex)
        if saved is None:
            return {}
        manifest = msgspec.json.decode(saved.manifest, type=Manifest)
        restored = restored_beside_keys(
            manifest, vertex.operators[0].id, key_group_range(0, 1, vertex.max_parallelism), 0, 1
        )
        return dict(restored.watermarks) if restored is not None else {}

    # -- the savepoint that the run leaves ------------------------------------------------------------------------------

    def manifest(self, run: str, reports: Iterable[Mapping[str, Any]]) -> Manifest:
        """What the savepoint of a run consists of, from the reports of the tasks that count."""
        kept: dict[str, dict[int, SubtaskSnapshot]] = {}
        for report in reports:
            if report["kind"] == _KEPT:
                snapshot = msgspec.convert(report["snapshot"], SubtaskSnapshot, str_keys=True)
                kept.setdefault(report["vertex"], {})[report["subtask"]] = snapshot
        graph = self._graph
        return Manifest(
            job=hashlib.sha256(f"{graph.name}\0{run}".encode()).hexdigest()[:32],
            checkpoint=self._checkpoint,
            attempt=hashlib.sha256(f"attempt\0{graph.name}\0{run}".encode()).hexdigest()[:32],
            parallelism=graph.parallelism,
            max_parallelism=graph.max_parallelism,
            subtasks={vertex.id: self._subtasks(vertex, kept.get(vertex.id, {})) for vertex in graph.vertices},
            operators={operator.id: operator.state for operator in graph.operators() if operator.state},
            attempt_number=1,
        )

    def _subtasks(self, vertex: JobVertex, kept: Mapping[int, SubtaskSnapshot]) -> dict[int, SubtaskSnapshot]:
        """All subtasks of a vertex: how many there are says which key groups each had."""
        watermark = self._progress_of(vertex).watermark
        whole = SubtaskSnapshot(watermark=watermark)
        return {
            index: _filled(vertex, kept.get(index, whole), self._entries(vertex, index))
            for index in range(vertex.parallelism)
        }

    def _entries(self, vertex: JobVertex, subtask: int) -> tuple[bytes, ...]:
        """The splits that a subtask of a source owns."""
        entries = self._splits.get(vertex.operators[0].id, ())
        mine = (entry for entry in entries if owner_of(entry.split, vertex.parallelism) == subtask)
        return tuple(msgspec.json.encode(entry) for entry in sorted(mine, key=lambda entry: entry.split))


def _only(snapshot: SubtaskSnapshot, operators: set[str]) -> SubtaskSnapshot:
    kept = {operator: handles for operator, handles in snapshot.operators.items() if operator in operators}
    return msgspec.structs.replace(snapshot, operators=kept)


def _filled(vertex: JobVertex, snapshot: SubtaskSnapshot, splits: tuple[bytes, ...]) -> SubtaskSnapshot:
    """With the operators that had nothing to leave: sources have splits, sinks nothing that is not visible."""
    operators = dict(snapshot.operators)
    for operator in vertex.operators:
        if operator.state and operator.id not in operators:
            lists = {STAGED: ()} if operator.verb == "write" else {}
            unions = {SPLITS: splits} if operator.verb == "read" else {}
            operators[operator.id] = OperatorHandles(lists=lists, unions=unions)
    return msgspec.structs.replace(snapshot, operators=operators)


# -- the place ----------------------------------------------------------------------------------------------------------


class KeptState(msgspec.Struct, frozen=True):
    """The savepoint of a run that is decided."""

    folder: str
    """Its absolute path or URL."""
    manifest: Manifest


def check_free(place: SavepointPlace, execution: str) -> None:
    """Raise `UsageError` if there is something at the place that no execution of this run has left."""
    own = _own(execution)
    foreign = [name for name in place.sizes() if not name.startswith(own)]
    if foreign or (isinstance(place, LocalPlace) and place.folder.is_file()):
        raise UsageError(f"--to-savepoint {place}: there is something already; name a new folder")


def _own(execution: str) -> str:
    """What the names of the objects of all executions of a run begin with."""
    return f"{OBJECTS}/{execution[:8]}-"


def check_written(kept: KeptState) -> None:
    """Before a run is decided: raise `ExternalError` if the driver does not find what its tasks left."""
    place = place_of(kept.folder)
    sizes = place.sizes()
    for handle in handles_of(kept.manifest):
        if sizes.get(handle.key) != handle.size_bytes:
            raise ExternalError(
                f"--to-savepoint {place}: a task wrote {handle.key} there, and the driver does not find it: it must be a "
                "folder that the driver and all executors share, or a place on an object store, s3://bucket/folder. "
                "Nothing of the run is visible"
            )


def _check_ours(place: SavepointPlace, manifest: Manifest) -> None:
    """Raise `UsageError` if a savepoint is there that is not that of this run, as it was decided here."""
    found, stored = read_folder(place)[0], encode_manifest(msgspec.structs.replace(manifest, intervals={}))
    if found != decode_manifest(stored, str(place)):  # which has the version that it was written in
        whose = "the same run, begun in another folder," if found.job == manifest.job else "another run"
        raise UsageError(
            f"--to-savepoint {place}: {whose} has left its savepoint there meanwhile, so this run has its results and no "
            "savepoint; give runs that go on at the same time places of their own"
        )


def seal(kept: KeptState, execution: str) -> None:
    """Make the savepoint of a decided run whole, unless it is: vouch for it, and remove what other executions left.

    In this order: of two drivers of one run only the one whose manifest is there knows which objects nobody needs.

    Raises:
        CorruptDataError: objects are missing.
        UsageError: another savepoint is there meanwhile.
    """
    place = place_of(kept.folder)
    wanted, found = {handle.key for handle in handles_of(kept.manifest)}, place.sizes()
    if is_sealed(place):
        _check_ours(place, kept.manifest)
    else:
        if missing := sorted(wanted - found.keys()):
            raise CorruptDataError(
                f"{place}: the run was computed, but of its savepoint {missing[0]} is not there (any more); if it was "
                "moved before it was whole, move it back"
            )
        seal_folder(place, kept.manifest)
    for name in found:
        if name.startswith(_own(execution)) and name not in wanted:
            place.remove(name)
