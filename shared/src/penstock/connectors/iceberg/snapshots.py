"""Snapshots that append data files, made by pyiceberg and committed by us: see `appending` for why.

What is used here of pyiceberg is not public, so the range of its versions is narrow. Imported only where pyiceberg is.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles  # pyright: ignore[reportPrivateUsage]

if TYPE_CHECKING:
    from pyiceberg.table.update import TableRequirement, TableUpdate


class SnapshotProducer(_FastAppendFiles):
    """An append to the table as it was loaded. Files may be of different partition specs."""

    def __init__(self, table: Table, summary: Mapping[str, str]) -> None:
        super().__init__(Operation.APPEND, Transaction(table), table.io, snapshot_properties=dict(summary))

    def made(self) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
        """What a catalog is asked to do, and on what condition: that the newest snapshot is still the one it had."""
        return self._commit()

    def undo(self) -> None:
        """Remove what was written for a commit that did not happen."""
        for path in (*self._written_manifests, *self._written_manifest_lists):
            with suppress(Exception):  # what stays is left to the removal of orphan files
                self._io.delete(path)

    def _manifests(self) -> list[ManifestFile]:
        def spec_of(file: Any) -> int:
            return file.spec_id

        manifests: list[ManifestFile] = []
        for spec, files in groupby(sorted(self._added_data_files, key=spec_of), spec_of):
            with self.new_manifest_writer(self.spec(spec)) as writer:
                for file in files:
                    writer.add(
                        ManifestEntry.from_args(
                            status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=file
                        )
                    )
            manifests.append(writer.to_manifest_file())
        return [*manifests, *self._existing_manifests()]
