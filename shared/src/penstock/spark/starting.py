"""The savepoint that a run starts from: a folder, a URL, or in the store of a cluster; and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.coordination.job_store import JobReader
from penstock.errors import IncompatibleStateError, UsageError
from penstock.graph.jobgraph import JobGraph
from penstock.ports import Blobs
from penstock.savepoint.objects import with_store
from penstock.savepoint.places import find_place
from penstock.savepoint.reading import Savepoint, read
from penstock.savepoint.transfer import IMPORTED
from penstock.settings import ClusterSettings, load_settings
from penstock.submission.admission import check_compatible
from penstock.task.sources import SplitEntry


@dataclass(frozen=True)
class StartingPoint:
    """The savepoint that a run starts from."""

    savepoint: Savepoint
    place: str | ClusterSettings
    """Its folder or URL, or the cluster in whose store it is."""

    @property
    def name(self) -> str:
        """Tells it from others."""
        return f"{self.savepoint.job}/{self.savepoint.checkpoint}"

    def splits(self) -> dict[str, list[SplitEntry]]:
        """Source operator to its splits."""
        return {
            operator.uid: self.savepoint.split_entries(operator.uid)
            for operator in self.savepoint.operators
            if operator.verb == "read"
        }


def starting_point(name: str, cluster: str | None = None) -> StartingPoint:
    """The savepoint of that name: a folder, its URL on an object store, or the key of a manifest in a cluster's store.

    Args:
        name: what the user gave.
        cluster: the file with the cluster's settings; the default one, if not given.

    Raises:
        UsageError: there is none.
        CorruptDataError: it is not what was written.
    """
    place = find_place(name)
    if place is not None:
        return StartingPoint(read(name), place.address)
    settings = load_settings(cluster)
    start = StartingPoint(read(name, store=settings), settings)
    if not name.startswith(IMPORTED) and not with_store(settings, lambda blobs: _is_published(blobs, name, start)):
        raise UsageError(
            f"{name}: a checkpoint, not a savepoint: rows that it covers may not be visible yet, and a run that starts "
            f"from it would lose them. Take a savepoint: penstock savepoint {start.savepoint.job[:8]}"
        )
    return start


async def _is_published(blobs: Blobs, key: str, start: StartingPoint) -> bool:
    """Whether a job has taken it as a savepoint, and made visible all that it covers."""
    history = await JobReader(blobs).history(start.savepoint.job)
    return any(record.manifest == key and record.published for record in history.savepoints.values())


def check_start(graph: JobGraph, start: StartingPoint) -> None:
    """Raise `IncompatibleStateError` naming every operator whose state does not fit the pipeline."""
    try:
        check_compatible(graph, start.savepoint.manifest)
    except IncompatibleStateError as error:
        raise IncompatibleStateError(f"--from-savepoint: {error}") from error
