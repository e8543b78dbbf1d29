"""What operators make of their batches is the same in every process that runs them: see `double_run`."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path

import double_run
import pipelines
import pytest
from double_run import ANSWERED, SETTINGS, Record

import penstock.task.operators  # noqa: F401 (it loads every operation)
from penstock.plan.operation import Operation

_CASES = (*pipelines.CASES, double_run.CASES[0])
PARTS = [_CASES[part::4] for part in range(4)]


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In some twenty batches each."""
    monkeypatch.setattr(pipelines, "ROWS", 600)
    pipelines.source.cache_clear()
    yield
    pipelines.source.cache_clear()


def recorded(cases: Sequence[pipelines.Case], folder: Path) -> list[Record]:
    """What the subtasks of these pipelines are given."""
    records: list[Record] = []
    for case in cases:
        pipelines.write_files(folder / case.name / "in")
        records += double_run.record(case, folder / case.name)
    return records


def compared(records: Sequence[Record], folder: Path) -> list[str]:
    """Where subtasks did something else when they were run again."""
    path = folder / "records"
    path.write_bytes(pickle.dumps(records))
    return double_run.differences(records, [setting.run(path) for setting in SETTINGS])


@pytest.mark.parametrize("part", range(4))
def test_what_is_run_again_gives_the_same_rows(part: int, tmp_path: Path) -> None:
    """Batch by batch, whatever the hash seed, the threads, the state backend and the restores in between."""
    assert compared(recorded(PARTS[part], tmp_path), tmp_path) == []


def test_what_does_not_follow_from_the_batches_is_found(tmp_path: Path) -> None:
    """Or the test above could not fail."""
    found = compared(recorded(double_run.UNDETERMINED, tmp_path), tmp_path)
    assert {line.partition(",")[0] for line in found} == {case.name for case in double_run.UNDETERMINED}


def operations(of: type[Operation] = Operation) -> Iterator[type[Operation]]:
    """All that can be part of a plan."""
    for each in of.__subclasses__():
        yield from operations(each)
        if not each.__abstractmethods__:
            yield each


def test_every_operation_is_run_again(tmp_path: Path) -> None:
    """But for those that wait for answers from outside, which say that theirs are not determined."""
    plans = [case.declare(tmp_path / case.name, None).plan for case in _CASES if case.name != "files"]
    nodes = [node for plan in plans for node in plan]
    of_streams = [each for each in operations() if each.__name__ != "DeadLetters"]  # it has no operator
    assert {type(node.operation) for node in nodes} >= {*of_streams}
    assert all(node.traits.undetermined for node in nodes if isinstance(node.operation, ANSWERED))
