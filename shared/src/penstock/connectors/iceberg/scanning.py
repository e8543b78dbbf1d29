"""What a table holds at a snapshot, and what each snapshot behind it appended: data files, and their rows as Arrow.

A snapshot never changes, so what was planned once is kept for the readers of this process.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from penstock.connectors.iceberg.catalogs import TablePlace
from penstock.connectors.iceberg.far_moments import keep_far_moments
from penstock.connectors.iceberg.null_parts import keep_null_parts
from penstock.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io.pyarrow import ArrowScan
    from pyiceberg.schema import Schema as TableSchema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot

Changes = Literal["fail", "skip"]
_PLANS: Final = 64
"""How many plans a process keeps; a stream needs those of the newest snapshots."""


@dataclass(frozen=True)
class TableScanSpec:
    """Which columns and rows of a table are read, and by which schema."""

    place: TablePlace
    columns: tuple[str, ...]
    row_filter: str
    snapshot: int | None
    """Whose schema counts; None: that of the table as it is now."""


@dataclass(frozen=True)
class Plan:
    """Data files to be read, by their paths, and how."""

    files: dict[str, FileScanTask]
    scan: ArrowScan

    def batches(self, path: str) -> Iterator[pa.RecordBatch]:
        """The rows of a file, without deleted ones and those that the filter leaves out; always in the same order."""
        from pyiceberg.io.pyarrow import _read_all_delete_files  # pyright: ignore[reportPrivateUsage]

        keep_null_parts()
        keep_far_moments()
        task = self.files[path]
        deletes = _read_all_delete_files(self.scan._io, [task])  # pyright: ignore[reportPrivateUsage]
        # Its public way holds all rows of a file in memory.
        yield from self.scan._record_batches_from_scan_tasks_and_deletes([task], deletes)  # pyright: ignore[reportPrivateUsage]


def table_columns(place: TablePlace, table: Table, snapshot: int | None) -> TableSchema:
    """The schema of a table, or that of its snapshot.

    Raises:
        PipelineError: there is no such snapshot.
    """
    if snapshot is not None:
        _check_there(place, table, snapshot)
    return table.schema() if snapshot is None else table.scan(snapshot_id=snapshot).projection()


@functools.lru_cache(maxsize=_PLANS)
def plan(spec: TableScanSpec, snapshot: int, *, whole: bool) -> Plan:
    """The files of the table at a snapshot (`whole`), or those that the snapshot appended; sorted by path.

    Raises:
        PipelineError: the snapshot is gone, or holds what pyiceberg cannot read.
    """
    table = spec.place.load()
    with spec.place.asking("read"):
        _check_there(spec.place, table, snapshot)
        found = _files(spec, table, snapshot) if whole else _added(table, snapshot)
        files = {task.file.file_path: task for task in sorted(found, key=lambda task: task.file.file_path)}
        return Plan(files, _scan(spec, table))


def _scan(spec: TableScanSpec, table: Table) -> ArrowScan:
    from pyiceberg.io.pyarrow import ArrowScan

    columns = table_columns(spec.place, table, spec.snapshot).select(*spec.columns)
    return ArrowScan(table.metadata, table.io, columns, _expression(spec))


def _expression(spec: TableScanSpec) -> BooleanExpression:
    from pyiceberg.expressions import AlwaysTrue, parser

    return parser.parse(spec.row_filter) if spec.row_filter else AlwaysTrue()


def _files(spec: TableScanSpec, table: Table, snapshot: int) -> list[FileScanTask]:
    scan = table.scan(snapshot_id=snapshot, row_filter=_expression(spec))
    try:
        return list(scan.plan_files())
    except (ValueError, NotImplementedError) as error:
        if "equality delete" not in str(error).lower():
            raise
        raise PipelineError(
            f"{spec.place.what}: {spec.place} has equality deletes, which pyiceberg cannot read; let Spark or Flink "
            "rewrite its data files (rewrite_data_files), or read it on Spark as a DataFrame"
        ) from None


def _added(table: Table, snapshot: int) -> list[FileScanTask]:
    from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
    from pyiceberg.table import FileScanTask

    found = table.metadata.snapshot_by_id(snapshot)
    assert found is not None
    return [
        FileScanTask(entry.data_file)
        for manifest in found.manifests(table.io)
        if manifest.added_snapshot_id == snapshot and manifest.content == ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot
    ]


def _check_there(place: TablePlace, table: Table, snapshot: int) -> None:
    if table.metadata.snapshot_by_id(snapshot) is None:
        raise PipelineError(
            f"{place.what}: {place} has no snapshot {snapshot} (any more): it was expired, or the table is another one; "
            "keep snapshots for longer than a job that reads them stands still, or begin the job anew"
        )


def newest(table: Table) -> int | None:
    """The id of the snapshot that a table is at; None if it never had rows."""
    found = table.current_snapshot()
    return None if found is None else found.snapshot_id


class History:
    """The snapshots of a table, in the order in which they followed each other."""

    def __init__(self, place: TablePlace, table: Table) -> None:
        self._place = place
        known = {each.snapshot_id: each for each in table.metadata.snapshots}
        self._newest = newest(table)
        self._behind: dict[int | None, Snapshot] = {}
        each = known.get(self._newest) if self._newest is not None else None
        while each is not None:
            self._behind[each.parent_snapshot_id] = each
            each = known.get(each.parent_snapshot_id) if each.parent_snapshot_id is not None else None
        first = self._behind.get(None)
        if first is not None and (first.sequence_number or 1) > 1:
            del self._behind[None]  # others were before it: expiry takes their ids out of it, too

    def next(self, snapshot: int | None) -> Snapshot | None:
        """The snapshot that followed; None if there is none yet.

        Raises:
            PipelineError: nobody knows any more what followed.
        """
        if snapshot == self._newest:
            return None
        if snapshot not in self._behind:
            raise PipelineError(
                f"{self._place.what}: what followed snapshot {snapshot or '(none)'} in {self._place} is not known any "
                "more: snapshots were expired before they were read, or the table was rolled back; keep them for "
                "longer, or begin the job anew"
            )
        return self._behind[snapshot]


def appends(place: TablePlace, snapshot: Snapshot, changes: Changes) -> bool:
    """Whether a snapshot brings rows to a stream. One that only rewrites files has none that are new.

    Raises:
        PipelineError: it takes rows away or replaces them.
    """
    from pyiceberg.table.snapshots import Operation

    operation = snapshot.summary.operation if snapshot.summary is not None else Operation.OVERWRITE
    if operation in (Operation.APPEND, Operation.REPLACE):
        return operation is Operation.APPEND
    if changes == "skip":
        return False
    raise PipelineError(
        f"{place.what}: snapshot {snapshot.snapshot_id} of {place} is an {operation.value!r}: it takes rows away, "
        "which a stream of appended rows cannot tell; read on without what it did by changes='skip', or begin anew"
    )
