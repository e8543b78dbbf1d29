"""Which splits a run reads, from where to where: fixed once in the life of a run.

"All that is there now" means something else a minute later. So what a run is about to read stands in
`<folder of runs>/<run id>.begin` before anything is computed, and an execution of the same run that comes later, because
the one before died, reads the same. It also says which savepoint the run started from and where it leaves its own: the
same run cannot have another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from penstock.connectors.base import Position, Source, Split
from penstock.errors import CorruptDataError, UsageError
from penstock.graph.jobgraph import JobGraph
from penstock.plan.logical import LogicalPlan, Node
from penstock.plan.operations.read import Read
from penstock.plan.passes.reading import narrowed
from penstock.spark.archives import archive_of
from penstock.spark.binding import differing_settings
from penstock.spark.committing import create_once
from penstock.task.sources import SplitEntry


class RunSplit(msgspec.Struct, frozen=True):
    """A split of a run."""

    split: str
    position: Position = None
    """Where it begins, and where it ends if it has no end of its own."""
    archive: str = ""
    """The files of which it is one, where a backfill reads them before the source itself."""
    former: SplitEntry | None = None
    """What an earlier run or a job left of it."""
    size_bytes: int | None = None
    """How much there is of it, if that is known."""
    part: int = 0
    """Which part of it is read here, if it is read in parts (see `packing`)."""
    awake: bool = False
    """Whether it holds event time back even if it brings no row: it has not been silent for `idle_after` yet."""


class RunBeginning(msgspec.Struct, frozen=True):
    """What a run starts from."""

    splits: dict[str, tuple[RunSplit, ...]]
    """Source operator to the splits that are read."""
    carried: dict[str, tuple[SplitEntry, ...]] = {}
    """Source operator to the splits that were over before."""
    restored: str = ""
    """Job and checkpoint of the savepoint it started from; empty if there was none."""
    target: str = ""
    """Folder or URL of the savepoint it leaves; empty if it leaves none."""
    archives: dict[str, str] = {}
    """Source operator to the files that are read before it."""
    sources: dict[str, dict[str, Any]] = {}
    """Source operator to its settings; empty where a version of Penstock began that did not put them down."""


@dataclass(frozen=True)
class Asked:
    """What of a run's beginning is the user's choice."""

    restored: str = ""
    target: str = ""
    archives: Mapping[str, str] = field(default_factory=dict[str, str])
    """Source operator to the files that are read before it."""
    until_now: bool = False
    """Whether splits without an end are read up to what is there now."""
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Source operator to its settings."""


def find_beginning(
    graph: JobGraph, plan: LogicalPlan, asked: Asked, former: Mapping[str, Sequence[SplitEntry]]
) -> RunBeginning:
    """Look at every source of a graph now; `former` is what a savepoint holds of their splits."""
    splits: dict[str, tuple[RunSplit, ...]] = {}
    carried: dict[str, tuple[SplitEntry, ...]] = {}
    alone = not (asked.restored or asked.target)  # no other run has to do with how far event time comes in this one
    for operator in sources_of(graph, plan):
        source = narrowed(plan, _node_of(plan, operator), time_per_split=alone)
        source = source.at(source.moment())
        entries = {entry.split: entry for entry in former.get(operator, ())}
        archive = asked.archives.get(operator, "")
        splits[operator] = (*_archived(source, archive), *_found(source, entries, asked.until_now))
        carried[operator] = tuple(entry for entry in entries.values() if entry.finished)
    sources = {operator: dict(settings) for operator, settings in asked.sources.items()}
    return RunBeginning(splits, carried, asked.restored, asked.target, dict(asked.archives), sources)


def sources_of(graph: JobGraph, plan: LogicalPlan) -> dict[str, Source[Any]]:
    """Operator id to source, of every source whose splits are read: a DataFrame's rows come from Spark."""
    found: dict[str, Source[Any]] = {}
    for vertex in graph.vertices:
        operation = plan.node(vertex.operators[0].node).operation
        if isinstance(operation, Read) and not operation.source.on_spark_alone:
            found[vertex.operators[0].id] = operation.source
    return found


def _node_of(plan: LogicalPlan, operator: str) -> Node:
    found = plan.by_operator(operator)
    assert found is not None
    return found


def _archived(source: Source[Any], archive: str) -> Iterable[RunSplit]:
    if archive:
        for split in archive_of(source, archive).discover():
            yield RunSplit(split.id, archive=archive, size_bytes=split.size_bytes)


def _found(source: Source[Any], entries: Mapping[str, SplitEntry], until_now: bool) -> Iterable[RunSplit]:
    """As `SourceDriver` finds them: those that are there, then those of the savepoint that are not to be found."""
    known = {split.id: split for split in source.discover()}
    for split in (*known.values(), *(Split(name) for name in entries if name not in known)):
        entry = entries.get(split.id)
        if entry is not None and entry.finished:
            continue
        position = source.resolve(split, late=bool(entries)) if entry is None else entry.position
        if until_now or (entry is not None and source.ends_on_request):
            position = source.until_now(split, position)
        yield RunSplit(split.id, position, former=entry, size_bytes=split.size_bytes)


class RunBeginnings:
    """The beginnings of one pipeline's runs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begun(self, run: str) -> RunBeginning | None:
        """How a run began, whatever is asked for now; raises `CorruptDataError`."""
        path = self._path(run)
        try:
            return msgspec.json.decode(path.read_bytes(), type=RunBeginning)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise CorruptDataError(f"{path}: not the beginning of a run: {error}") from error

    def find(self, run: str, asked: Asked) -> RunBeginning | None:
        """How a run began, if it did.

        Raises:
            UsageError: it began from another savepoint or other sources, or was to leave its own elsewhere.
        """
        found = self.begun(run)
        if found is None:
            return None
        for what, before, now in (
            ("started from savepoint", found.restored, asked.restored),
            ("left its savepoint in", found.target, asked.target),
            ("read by --source", _shown(found.archives), _shown(asked.archives)),
        ):
            if before != now:
                raise UsageError(
                    f"--run-id {run}: that run {what} {before or 'none'}, this one is to use {now or 'none'}; give a new "
                    "run another id"
                )
        other = list(differing_settings(found.sources, asked.sources)) if found.sources else []
        if other:
            raise UsageError(
                f"--run-id {run}: that run reads what it found when it began, and is to read something else now: "
                f"{'; '.join(other)}. Give a new run another id"
            )
        return found

    def fix(self, run: str, beginning: RunBeginning) -> None:
        """Put down how a run begins, before anything of it is computed."""
        create_once(self._path(run), msgspec.json.encode(beginning))

    def _path(self, run: str) -> Path:
        return self._folder / f"{run}.begin"


def _shown(archives: Mapping[str, str]) -> str:
    return ", ".join(f"{operator}={path}" for operator, path in sorted(archives.items()))
