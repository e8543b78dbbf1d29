"""Appending staged data files to a table, once, whatever happens.

The proof of an append is a property of the table, set in the very commit that appends: so it is there exactly if the rows
are, and neither compaction nor the expiry of snapshots nor commits of others take it away. Every try looks for it in the
metadata that it then builds on, and a catalog accepts no commit that builds on anything but the newest snapshot: of two
who append the same files one is refused, looks again, and finds the proof. pyiceberg's own retries would not look.

The list of staged files (a manifest of Iceberg's) is removed behind the append. Without list and without proof nobody can
tell whether the rows are in the table: that is an error, and never a second append.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from penstock.connectors.base import LostPartError
from penstock.connectors.iceberg.catalogs import TablePlace
from penstock.errors import ExternalError

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.update import TableUpdate

    from penstock.connectors.iceberg.snapshots import SnapshotProducer

PROOF: Final = "penstock.committed."
"""Begins the names of properties that prove commits; the value is when that was, and by which snapshot."""
KEPT: Final = timedelta(days=30)
"""How long a proof is kept that nobody removed, because its process died: so long a job may stand still."""
PATIENCE_S: Final = 120.0
"""How long to try again while other writers are faster."""
_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0


def proof_of(parts: Sequence[str]) -> str:
    """The property that proves that these were appended, together."""
    return PROOF + (parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest()[:32])


def append(
    place: TablePlace, parts: Sequence[str], summary: Mapping[str, str], forgotten: Iterable[str], now_us: int
) -> None:
    """Make staged files part of the table by one commit, unless they are; blocks.

    Args:
        place: the table.
        parts: the ids of what was staged.
        summary: goes into the summary of the snapshot.
        forgotten: proofs that nobody needs any more; they go with the same commit.
        now_us: the time.

    Raises:
        LostPartError: the files or their list are gone, or the table is another one.
        ExternalError: the catalog or the store do not answer, or other writers were always faster.
    """
    from penstock.connectors.iceberg.snapshots import SnapshotProducer

    proof, gone, deadline, pause_s = proof_of(parts), set(forgotten), time.monotonic() + PATIENCE_S, _PAUSE_S
    refused: SnapshotProducer | None = None
    while True:
        table = place.load()
        with place.asking("append to"):
            by = table.properties.get(proof, "").rpartition(" ")[2]
            if refused is not None and by != str(refused.snapshot_id):  # else it was reported as refused and was not
                refused.undo()
            if by:
                break
            producer = SnapshotProducer(table, summary)
            proven = {proof: f"{_time(now_us).isoformat(timespec='seconds')} by {producer.snapshot_id}"}
            refused = _append_now(place, producer, table, parts, _properties(table, proven, gone, now_us))
            if refused is None:
                break
        if time.monotonic() > deadline:
            raise ExternalError(
                f"{place.what}: for {PATIENCE_S:.0f} seconds other writers of {place} were always faster; let fewer "
                "write at a time, or less often (a longer checkpoint interval)"
            )
        time.sleep(pause_s * (0.5 + zlib.crc32(f"{proof} {pause_s}".encode()) / 2**32))  # not all at the same time
        pause_s = min(1.7 * pause_s, _LONGEST_PAUSE_S)
    for part in parts:
        remove(place, table.io, list_of(table, part))


def _append_now(
    place: TablePlace, producer: SnapshotProducer, table: Table, parts: Sequence[str], also: list[TableUpdate]
) -> SnapshotProducer | None:
    """Append to the table if it still is what it was when it was loaded; what was refused if it is not."""
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update import AssertTableUUID

    for part in parts:
        for file in _there(place, table, part):
            producer.append_data_file(file)
    updates, requirements = producer.made()
    uuid = AssertTableUUID(uuid=table.metadata.table_uuid)
    try:
        table.catalog.commit_table(table, (uuid, *requirements), (*updates, *also))
    except CommitFailedException:
        return producer
    return None


def _properties(table: Table, proven: dict[str, str], forgotten: set[str], now_us: int) -> list[TableUpdate]:
    """Sets the proof, and removes those that nobody needs."""
    from pyiceberg.table.update import RemovePropertiesUpdate, SetPropertiesUpdate

    kept = {name: when for name, when in table.properties.items() if name.startswith(PROOF)}
    oldest = _time(now_us) - KEPT
    gone = [name for name, when in kept.items() if name in forgotten or _is_before(when, oldest)]
    set_it = SetPropertiesUpdate(updates=proven)
    return [set_it, RemovePropertiesUpdate(removals=gone)] if gone else [set_it]


def _time(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1e6, UTC)


def _is_before(when: str, moment: datetime) -> bool:
    try:
        return datetime.fromisoformat(when.partition(" ")[0]) < moment
    except (ValueError, TypeError):
        return False


# -- staged files -------------------------------------------------------------------------------------------------------


def list_of(table: Table, part: str) -> str:
    """Where the files of a part are listed. The name is of this table alone, though another one may take its place."""
    return table.location_provider().new_metadata_location(f"penstock-{table.metadata.table_uuid}-{part}.avro")


def list_files(table: Table, files: Sequence[DataFile], part: str) -> None:
    """Write the list of staged files."""
    from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, write_manifest

    output = table.io.new_output(list_of(table, part))
    with write_manifest(table.metadata.format_version, table.spec(), table.schema(), output, 0, "deflate") as writer:
        for file in files:
            writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=0, data_file=file))


def _listed_files(table: Table, part: str) -> list[DataFile]:
    """The files in such a list; raises `FileNotFoundError` if it is gone."""
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.manifest import ManifestFile

    path = list_of(table, part)
    with AvroFile(table.io.new_input(path)) as reader:
        spec = int(reader.header.meta["partition-spec-id"])
    listed = ManifestFile.from_args(
        manifest_path=path, partition_spec_id=spec, sequence_number=0, min_sequence_number=0, added_snapshot_id=0
    )
    return [entry.data_file for entry in listed.fetch_manifest_entry(table.io)]


def _there(place: TablePlace, table: Table, part: str) -> list[DataFile]:
    """The files of a part; raises `LostPartError` if not all are there."""
    try:
        files = _listed_files(table, part)
        missing = [file.file_path for file in files if not table.io.new_input(file.file_path).exists()]
    except FileNotFoundError:
        files, missing = [], [list_of(table, part)]
    if missing:
        raise LostPartError(
            f"{place.what}: {missing[0]} is gone, and {place} has no property {PROOF}{part} that says that it was "
            "appended: the rows of a completed checkpoint are lost, if the table was not dropped and made anew or the "
            "property removed; if they are in the table, or taken away on purpose, set it"
        )
    return files


def remove_staged(place: TablePlace, part: str) -> None:
    """Remove files that were staged and will not be appended, and their list."""
    table = place.load()
    with place.asking("remove staged files of"), suppress(FileNotFoundError):
        for file in _listed_files(table, part):
            remove(place, table.io, file.file_path)
        remove(place, table.io, list_of(table, part))


def remove(place: TablePlace, io: FileIO, path: str) -> None:
    """Remove a file, if it is there."""
    with place.asking(f"remove {path} of"), suppress(FileNotFoundError):
        io.delete(path)
