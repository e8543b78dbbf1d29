"""What the tests of sources and sinks share: reading to the end in pieces, a clock of the test, writing contexts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
import pytest

from penstock.connectors.base import BadRow, EndOfSplit, ReadContext, Source, WriteContext


class ManualTime:
    """Monotonic milliseconds that the test moves."""

    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms

    def context(self) -> ReadContext:
        return ReadContext(lambda: self.ms * 1_000, self.now_ms)


class Reading:
    """Everything that reading a split brought."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.bad: list[BadRow] = []
        self.positions: list[Any] = []
        self.counts: list[int] = []


async def _read_split(
    source: Source[Any],
    split_id: str | None = None,
    *,
    pieces: Sequence[int] = (),
    position: Any = None,
    reopen: bool = False,
) -> Reading:
    """Read a split to its end; with `reopen` every piece is read by a new reader from the former one's position."""
    splits = source.discover()
    split = next(split for split in splits if split_id in (None, split.id))
    context = ManualTime().context()
    reader = source.open(split, position, context)
    found = Reading()
    sizes = iter(pieces)
    while True:
        try:
            fetched = await reader.read(next(sizes, 1_000))
        except EndOfSplit:
            await reader.close()
            return found
        except Exception:
            await reader.close()
            raise
        if fetched is not None:
            assert fetched.frame.schema == pl.Schema(source.schema.polars())
            found.rows += fetched.frame.to_dicts()
            found.bad += fetched.bad
            found.counts.append(fetched.frame.height + len(fetched.bad))
        found.positions.append(json.loads(json.dumps(reader.position())))
        if reopen:
            await reader.close()
            reader = source.open(split, found.positions[-1], context)


@pytest.fixture(scope="session")
def read_split() -> Callable[..., Any]:
    """See `_read_split`."""
    return _read_split


@pytest.fixture
def time() -> ManualTime:
    """A clock of the test."""
    return ManualTime()


@pytest.fixture(scope="session")
def write_context() -> Callable[..., WriteContext]:
    """Contexts for writers."""

    def make(operator: str = "sink", subtask: int = 0, attempt: str = "a" * 32, number: int = 1) -> WriteContext:
        return WriteContext(operator, subtask, attempt, number, lambda: 0)

    return make
