"""Iterables as sources: lists, functions, iterators; positions, bad rows, errors of user code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.connectors import iterables
from penstock.errors import PipelineError, UserCodeError


@dataclass
class Row:
    id: int
    at: datetime


class Other(msgspec.Struct):
    id: int


AT = datetime(2001, 1, 1, tzinfo=UTC)
ROWS = [Row(number, AT) for number in range(25)]


async def test_list_of_objects(read_split: Callable[..., Any]) -> None:
    """A list of objects brings its schema; read in pieces and reopened it gives the same rows."""
    source = iterables.Source(ROWS, event_time="at")
    assert source.row_type is Row
    assert source.bounded
    assert source.replayable
    for reopen in (False, True):
        found = await read_split(source, pieces=[1, 5, 7] * 9, reopen=reopen)
        assert [row["id"] for row in found.rows] == list(range(25))
    assert (await read_split(source, position=20)).rows[0] == {"id": 20, "at": AT}


async def test_functions_are_called_again(read_split: Callable[..., Any]) -> None:
    """A function is called at every opening and what had been read is skipped; dicts are rows too."""
    calls: list[int] = []

    def generate() -> Iterator[dict[str, Any]]:
        calls.append(1)
        for number in range(10):
            yield {"id": number, "unknown": 1}

    source = iterables.Source(generate, schema=Other)
    found = await read_split(source, pieces=[3] * 9, reopen=True)
    assert [row["id"] for row in found.rows] == list(range(10))
    assert len(calls) == len(found.positions) + 1
    assert source.replayable


async def test_iterators_are_not_replayable(read_split: Callable[..., Any]) -> None:
    """A bare iterator works but says that it cannot be read again."""
    source = iterables.Source(iter(ROWS), schema=Row)
    assert not source.replayable
    assert len((await read_split(source)).rows) == 25


async def test_bad_rows(read_split: Callable[..., Any]) -> None:
    """What does not fit the schema is a bad row with its number; naive datetimes need a zone."""
    naive = datetime(2001, 1, 1)  # noqa: DTZ001
    rows: list[Any] = [{"id": 1, "at": AT}, {"id": "x", "at": AT}, {"id": 2}, 7, Row(3, naive), Row(4, AT)]
    found = await read_split(iterables.Source(rows, schema=Row), pieces=[3])
    assert [row["id"] for row in found.rows] == [1, 4]
    assert [bad.where for bad in found.bad] == ["row 2", "row 3", "row 4", "row 5"]
    for bad, expected in zip(found.bad, ("expected int64, got 'x'", "missing", "no row", "timezone="), strict=True):
        assert expected in bad.error
    zoned = await read_split(iterables.Source([Row(3, naive)], timezone="UTC"))
    assert zoned.rows == [{"id": 3, "at": AT}]


async def test_errors_of_the_iterable(read_split: Callable[..., Any]) -> None:
    """What the user's code raises is told with the row at which it happened."""

    def breaks() -> Iterator[Other]:
        yield Other(1)
        raise OSError("gone")

    with pytest.raises(UserCodeError, match="row 2: the iterable raised OSError: gone"):
        await read_split(iterables.Source(breaks, schema=Other))

    def refuses() -> Iterator[Other]:
        raise ValueError("no")

    with pytest.raises(UserCodeError, match="the function raised ValueError"):
        await read_split(iterables.Source(lambda: list(refuses()), schema=Other))


async def test_slow_iterables_are_left_in_time(time: Any) -> None:
    """A read takes rows for about 20 ms, so that a slow iterable does not hold up barriers."""

    def slow() -> Iterator[Other]:
        for number in range(10):
            time.ms += 8
            yield Other(number)

    source = iterables.Source(slow, schema=Other, bounded=False)
    reader = source.open(source.discover()[0], None, time.context())
    fetched = await reader.read(100)
    assert fetched is not None
    assert fetched.frame["id"].to_list() == [0, 1, 2]
    assert not source.bounded
    await reader.close()


def test_declaration_errors() -> None:
    """What is no iterable, or does not tell its schema, is refused."""
    with pytest.raises(PipelineError, match="data= takes a list or another iterable or a function"):
        iterables.Source(5, schema=Row)  # type: ignore[arg-type]
    for untyped in ([{"id": 1}], [], list):
        with pytest.raises(PipelineError, match="give schema="):
            iterables.Source(untyped)
    assert iterables.Source([], schema=pa.schema([("a", pa.int8())])).schema.names == ("a",)
    assert iterables.Source([Other(1)]).row_type is Other
