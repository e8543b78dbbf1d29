"""What an operation gives: columns, and rows in pages. Flink's scheme of tokens, which makes every page repeatable.

A page is asked for by its number. The page that was given last may be asked for again, as somebody does who has lost the
answer; earlier ones are gone, and later ones do not exist yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from penstock.errors import UsageError
from penstock.gateway.buffers import RowBuffer
from penstock.sql.watching import Row
from penstock.types import STRING, Field

ResultType = Literal["NOT_READY", "PAYLOAD", "EOS"]
ResultKind = Literal["SUCCESS", "SUCCESS_WITH_CONTENT"]
WAIT_S: Final = 0.5
"""So long a page waits for its first row, so that a client that asks again and again asks seldom."""


@dataclass(frozen=True)
class Page:
    """Some rows of a result."""

    kind: ResultType
    next_token: int | None
    """None: nothing follows."""
    rows: Sequence[Row] = ()


@dataclass
class Results:
    """The rows of one operation."""

    columns: tuple[Field, ...]
    rows: RowBuffer
    kind: ResultKind = "SUCCESS_WITH_CONTENT"
    is_query: bool = False
    job: str | None = None
    """The run that makes them."""
    wait_s: float = WAIT_S
    _token: int = 0
    _last: Sequence[Row] = ()
    _ended: bool = False
    _fetching: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def page(self, token: int) -> Page:
        """The page of that number.

        Raises:
            UsageError: it is neither the next page nor the one that was given last.
            Exception: the run has failed, and its rows have all been given.
        """
        async with self._fetching:
            if token == self._token:
                return await self._next()
            if token == self._token - 1 >= 0:
                return Page("PAYLOAD", self._token, self._last)
            expected = f"{self._token} or {self._token - 1}" if self._token else "0"
            raise UsageError(f"Expecting token to be {expected}, but found {token}.")

    async def _next(self) -> Page:
        rows = None if self._ended else await self.rows.take(self.wait_s)
        if rows is None:
            self._ended = True
            return Page("EOS", None)
        self._last = rows
        self._token += 1
        return Page("PAYLOAD", self._token, rows)


def done() -> Results:
    """The result of a statement that shows nothing."""
    return Results((Field("result", STRING, nullable=True),), RowBuffer.of([("OK",)]), "SUCCESS")


def texts(names: Sequence[str], rows: Sequence[tuple[Any, ...]], job: str | None = None) -> Results:
    """A table of texts."""
    return Results(tuple(Field(name, STRING, nullable=True) for name in names), RowBuffer.of(rows), job=job)
