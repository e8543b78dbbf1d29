"""What a user function raises in `close` behind the last row fails the attempt."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import KeyedProcess, Pipeline, Process, ValueState
from penstock.connectors import files, iterables
from penstock.errors import UserCodeError


@dataclass
class Row:
    id: int


class Marks:
    """How often a job did what, over all its attempts: instances are copied per subtask."""

    def __init__(self, folder: Path, failing: int) -> None:
        self._folder, self._failing = folder, failing

    def closed(self) -> None:
        """Fails the first times."""
        count = len(list(self._folder.glob("closed-*")))
        (self._folder / f"closed-{count}").touch()
        if count < self._failing:
            raise OSError("the last part could not be sent")


class Plain(Process[Row, Row]):
    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def on_row(self, row: Row, ctx: Any) -> None:
        ctx.emit(row)

    def close(self) -> None:
        self._marks.closed()


class Keyed(KeyedProcess[Row, Row]):
    """Has a timer of wall time that is not due before the end."""

    seen = ValueState(int)

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def on_row(self, row: Row, ctx: Any) -> None:
        ctx.processing_timer(ctx.processing_time + timedelta(hours=1))
        ctx.emit(row)

    def on_timer(self, at: Any, ctx: Any) -> None:
        raise AssertionError("a timer of wall time fires behind the end of the input")

    def close(self) -> None:
        self._marks.closed()


class Asked:
    """A function of `map_async` that begins and ends."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    async def __call__(self, row: Row) -> Row:
        return row

    async def close(self) -> None:
        self._marks.closed()


def with_process(p: Pipeline, marks: Marks) -> Any:
    return p.read(iterables.Source(rows, schema=Row)).process(Plain(marks))


def with_keyed_process(p: Pipeline, marks: Marks) -> Any:
    return p.read(iterables.Source(rows, schema=Row)).key_by("id").process(Keyed(marks))


def with_map_async(p: Pipeline, marks: Marks) -> Any:
    return p.read(iterables.Source(rows, schema=Row)).map_async(Asked(marks))


def rows() -> Any:
    return (Row(number) for number in range(50))


WAYS = [with_process, with_keyed_process, with_map_async]


def written(folder: Path) -> list[int]:
    return sorted(json.loads(line)["id"] for part in folder.glob("part-*") for line in part.read_text().splitlines())


@pytest.mark.parametrize("way", WAYS)
def test_an_error_in_close_fails_the_job(way: Callable[..., Any], tmp_path: Path) -> None:
    p = Pipeline("closing")
    way(p, Marks(tmp_path, failing=10)).write(files.Sink(str(tmp_path / "out")))
    with pytest.raises(UserCodeError, match=r"close raised OSError: the last part could not be sent"):
        p.run()


@pytest.mark.parametrize("way", WAYS)
def test_close_is_called_again_by_the_attempt_that_follows(way: Callable[..., Any], tmp_path: Path) -> None:
    """And once per subtask by the one that ends well, whose rows are all there, each once."""
    p = Pipeline("closing")
    way(p, Marks(tmp_path, failing=1)).write(files.Sink(str(tmp_path / "out")))
    result = p.run(restart="fixed-delay:3:10ms", parallelism=1)
    assert result.state == "FINISHED"
    assert written(tmp_path / "out") == list(range(50))
    assert len(list(tmp_path.glob("closed-*"))) == 2
