"""How far event time has come by the end of a run that keeps state, from the splits on to every vertex.

The same rules as in streaming (`runtime.sources`, `protocol.channels`): a source is as far as the least of its splits
that are neither idle nor over, a vertex as far as the least of its inputs. Splits that are over hold nothing back while
others go on. Where all are over, the next run may bring more of their kind, so event time is not at its end: it is where
the least of those that were read now came to.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgspec

from penstock.connectors.base import Source, Split
from penstock.connectors.files.ranges import behind
from penstock.core.times import MIN_WATERMARK
from penstock.task.sources import SplitEntry


class Activity(IntEnum):
    """What a watermark is worth: those of the most active inputs decide."""

    OVER = 0
    IDLE = 1
    AWAKE = 2


@dataclass(frozen=True)
class Progress:
    """How far an input has come."""

    watermark: int
    activity: Activity


class SplitReport(msgspec.Struct, frozen=True):
    """What a task says of a split that it read to its end."""

    entry: SplitEntry
    """As streaming would snapshot it there."""
    rows: int
    archive: bool
    """Whether it is a file of a backfill: nothing that a stream goes on with."""
    part: int = 0
    """Which part of it, where it was read in parts."""
    misspelt: dict[str, str] = {}
    """See `OperatorMetrics.misspelt`."""


def source_progress(reports: Sequence[SplitReport], carried: Iterable[SplitEntry], former: int) -> Progress:
    """How far a source has come.

    Args:
        reports: of the splits that were read now.
        carried: other splits, as an earlier run left them.
        former: how far the source had come before.
    """
    read = [report.entry for report in reports if not report.archive]
    going_on = [entry for entry in (*read, *carried) if not entry.finished]
    awake = [entry.watermark for entry in going_on if not entry.idle]
    if awake:
        return Progress(max(former, min(awake)), Activity.AWAKE)
    if going_on:
        return Progress(max(former, *(entry.watermark for entry in going_on)), Activity.IDLE)
    came_to = [report.entry.watermark for report in reports if report.entry.watermark != MIN_WATERMARK]
    return Progress(max(former, min(came_to, default=MIN_WATERMARK)), Activity.OVER)


def combined(inputs: Sequence[Progress]) -> Progress:
    """How far a vertex with these inputs has come."""
    activity = max(progress.activity for progress in inputs)
    marks = [progress.watermark for progress in inputs if progress.activity == activity]
    return Progress(max(marks) if activity is Activity.IDLE else min(marks), activity)


def split_reports(reports: Iterable[dict[str, Any]], source: Source[Any]) -> list[SplitReport]:
    """Those among the reports of a source's tasks that speak of splits, by split; parts of a split as one.

    Raises:
        PipelineError: parts of a split were read while it was replaced.
    """
    found = [msgspec.convert(report["split"], SplitReport) for report in reports if report["kind"] == "split"]
    found.sort(key=lambda report: (report.entry.split, report.archive, report.part))
    grouped = itertools.groupby(found, key=lambda report: (report.entry.split, report.archive))
    return [_joined(list(parts), source) for _, parts in grouped]


def misspelt_fields(reports: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Source operator to the optional fields that its records seem to spell otherwise; see `OperatorMetrics.misspelt`."""
    found: dict[str, dict[str, str]] = {}
    for report in reports:
        if report["kind"] == "split":
            misspelt = msgspec.convert(report["split"], SplitReport).misspelt
            found[report["source"]] = misspelt | found.get(report["source"], {})
    return found


def _joined(parts: Sequence[SplitReport], source: Source[Any]) -> SplitReport:
    """A split whose parts were read side by side: as far as the furthest of them, as watermarks never fall."""
    if len(parts) == 1:
        return parts[0]
    furthest = max(parts, key=lambda part: part.entry.watermark)
    positions = [part.entry.position for part in parts]
    split = Split(furthest.entry.split)
    position = behind(split.id, positions) if furthest.archive else source.behind(split, positions)
    entry = msgspec.structs.replace(furthest.entry, position=position, idle=all(part.entry.idle for part in parts))
    return SplitReport(entry, sum(part.rows for part in parts), furthest.archive)
