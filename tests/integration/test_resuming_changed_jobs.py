"""A run that is resumed with another pipeline first publishes what the former one had complete."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.embedded_runs import Attempt, finish, interrupt, settings
from tests.integration.pipelines import Waiting, WaitingBatches, every_row, pair
from tests.integration.published import Destination, Sink

from penstock import Pipeline
from penstock.connectors import files, iterables
from penstock.errors import IncompatibleStateError

ROWS = 3_000


@dataclass
class Event:
    """A row that can be told from all others."""

    number: int


def _numbers() -> Iterable[Event]:
    return map(Event, range(ROWS))


def _pipeline(destination: Destination, *, rate: float, uid: str = "out") -> Pipeline:
    pipeline = Pipeline("numbers")
    source = iterables.Source(_numbers, schema=Event, rate=rate)
    pipeline.read(source).uid("numbers").key_by("number").write(Sink(destination)).uid(uid)
    return pipeline


def _interrupted(directory: Path, destination: Destination) -> None:
    """Two checkpoints are complete, and no row of them is published."""
    destination.refuses_rows = True
    attempt = Attempt(parallelism=1, interval_ms=50, after_s=0, after_checkpoints=2)
    assert interrupt(_pipeline(destination, rate=1_000), directory, attempt, resume=False) is None
    assert destination.rows == []
    destination.refuses_rows = False


@pytest.mark.parametrize(("parallelism", "rate"), [(2, 1_000), (1, 50_000)])
def test_what_is_complete_is_published_before_a_changed_graph_begins(
    tmp_path: Path, parallelism: int, rate: float
) -> None:
    """Another parallelism, another rate: nothing of the former generation is lost, nothing doubled."""
    destination = Destination()
    _interrupted(tmp_path, destination)
    finish(_pipeline(destination, rate=rate), tmp_path, settings(parallelism), resume=True)
    assert sorted(row["number"] for row in destination.rows) == list(range(ROWS))


def test_a_pipeline_without_the_sink_is_refused(tmp_path: Path) -> None:
    """Nobody could publish what waits for it."""
    destination = Destination()
    _interrupted(tmp_path, destination)
    other = _pipeline(destination, rate=1_000, uid="elsewhere")
    with pytest.raises(IncompatibleStateError, match=r"state of 'out' .* put it back"):
        finish(other, tmp_path, settings(2), resume=True)


@pytest.mark.parametrize("flavours", [(Waiting, WaitingBatches), (WaitingBatches, Waiting)])
def test_a_function_of_two_streams_goes_on_by_batches_or_by_rows(tmp_path: Path, flavours: tuple[type, type]) -> None:
    """State and timers of the one are those of the other; the results are those of a run without a change."""

    def declared(process: type, out: Path, rate: float | None) -> Pipeline:
        pipeline = Pipeline("pair")
        pair(pipeline, rate).process(process()).uid("waiting").write(files.Sink(out)).uid("out")
        return pipeline

    attempt = Attempt(parallelism=2, interval_ms=50, after_s=0, after_checkpoints=2)
    before, after = flavours
    assert interrupt(declared(before, tmp_path / "out", 400), tmp_path / "job", attempt, resume=False) is None
    finish(declared(after, tmp_path / "out", None), tmp_path / "job", settings(3), resume=True)
    finish(declared(before, tmp_path / "whole", None), tmp_path / "other", settings(1))
    assert every_row(tmp_path / "out") == every_row(tmp_path / "whole") != {}
