"""Which step of a job that runs in steps on Spark is next, what it is for, and what of earlier ones may go. Decides only.

A step is a bounded run: from the savepoint of the step before to what the sources hold when it begins. It is done when
everything of it is visible and its savepoint is whole; until then the same step is the next one, under the same run id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.connectors.base import Source
from penstock.errors import CorruptDataError
from penstock.spark.splits import RunBeginning, RunSplit

KEPT: Final = 2
"""How many steps are kept that are done: the newest, and one to go back to."""


class StepsJob(msgspec.Struct, frozen=True):
    """A job in a folder of steps."""

    id: str
    first: int
    """The number of its first step: numbers go on where the folder held the steps of another job."""
    start: str = ""
    """The savepoint that its first step starts from, as the user named it; empty if it starts with nothing."""

    def run_id(self, number: int) -> str:
        """The run id of a step."""
        return f"{self.id[:8]}-{number:08d}"


@dataclass(frozen=True)
class NextStep:
    """The step to be done."""

    number: int
    former: int | None
    """The step whose savepoint it starts from; None: it starts as the job does."""


def next_step(job: StepsJob, done: Mapping[int, bool]) -> NextStep:
    """The step to be done or repeated; `done` are the steps that have a folder, and whether they are done.

    Raises:
        CorruptDataError: a step was begun though the one before it is not done: its savepoint is not there.
    """
    newest = max((number for number in done if number >= job.first), default=None)
    if newest is None:
        return NextStep(job.first, None)
    if done[newest]:
        return NextStep(newest + 1, newest)
    if newest == job.first:
        return NextStep(newest, None)
    if not done.get(newest - 1, False):
        raise CorruptDataError(
            f"step {newest} was begun, and the savepoint of step {newest - 1}, which it starts from, is not there (any "
            "more); bring it back, or begin anew with --fresh --from-savepoint"
        )
    return NextStep(newest, newest - 1)


def obsolete(done: Mapping[int, bool]) -> list[int]:
    """The steps that nobody goes back to: all before the newest ones that are done."""
    newest = max((number for number, is_done in done.items() if is_done), default=0)
    return sorted(number for number in done if number <= newest - KEPT)


class Silence:
    """Since when splits bring nothing: a split is idle when that is as long as its source's `idle_after`.

    A bounded run takes a split without rows for idle, however short it was; a step may be a second long.
    """

    def __init__(self, sources: Mapping[str, Source[Any]]) -> None:
        """By operator."""
        self._sources = sources
        self._last_us: dict[tuple[str, str], int] = {}
        """When a split had rows, or was seen for the first time."""

    def with_awake_splits(self, beginning: RunBeginning, now_us: int) -> RunBeginning:
        """What a step that begins now reads, with the splits named that are not idle yet.

        `now_us` is of a clock that nobody sets.
        """
        splits = {
            operator: tuple(self._with_awake(operator, split, now_us) for split in found)
            for operator, found in beginning.splits.items()
        }
        return msgspec.structs.replace(beginning, splits=splits)

    def _with_awake(self, operator: str, split: RunSplit, now_us: int) -> RunSplit:
        source, key = self._sources[operator], (operator, split.split)
        news = not source.at_end(split.position)
        if news:
            self._last_us[key] = now_us
        since_us = now_us - self._last_us.setdefault(key, now_us)
        was_idle = split.former is not None and split.former.idle
        idle_after_us = source.event_time.idle_after_us if source.event_time is not None else None
        patient = idle_after_us is not None and since_us < idle_after_us
        return msgspec.structs.replace(split, awake=news or (patient and not was_idle))


def is_due(beginning: RunBeginning, sources: Mapping[str, Source[Any]]) -> bool:
    """Whether a step with this beginning (see `Silence.with_awake_splits`) changes anything.

    It does if it brings rows; if a split becomes idle by it, which lets event time come on; and if it is the first to
    meet a split, whose position must be remembered even where nothing has come yet.
    """
    return any(
        split.former is None or not sources[operator].at_end(split.position) or _becomes_idle(split, sources[operator])
        for operator, splits in beginning.splits.items()
        for split in splits
    )


def _becomes_idle(split: RunSplit, source: Source[Any]) -> bool:
    patience = source.event_time is not None and source.event_time.idle_after_us is not None
    return patience and not split.awake and not (split.former is not None and split.former.idle)
