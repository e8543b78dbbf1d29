"""The join with a lookup: rows beside those that another system has for their key, asked for many at once.

Queue, calls and pending rows are those of `AsyncOperator`. Here is what a call asks, what of answers is remembered, and
the rows that come of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, cast

import polars as pl

from penstock.connectors.lookups import ATTEMPT_S, Key, Lookup, LookupClient
from penstock.errors import BadRecordError, ExternalError
from penstock.formats.decoding import JsonDecoder
from penstock.plan.logical import Node
from penstock.plan.operations.lookup_join import LookupJoin
from penstock.state.columns import to_python
from penstock.task.operators.async_calls import Call
from penstock.task.operators.map_async import AsyncOperator, by_chunk
from penstock.task.rows import RowReader, RowWriter
from penstock.types import Field, Schema, row_class

Answer = tuple[Any, ...]
"""The rows of a key, as objects."""
_NONE: Final[Answer] = ()


class LookupJoinOperator(AsyncOperator):
    """`join` with a lookup: a row per match; the left one's event time."""

    def __init__(self, node: Node) -> None:
        operation = cast("LookupJoin", node.operation)
        source, lookup = node.inputs[0], operation.lookup
        where = f"join ({node.operator_id}): {lookup.name}"
        self._left = source.schema
        self._keys = Schema(tuple(Field(other, source.schema.field(own).type) for own, other in operation.on))
        self._key_columns = [own for own, _ in operation.on]
        columns = Schema(tuple(Field(name, *_kind(lookup.schema.field(other))) for name, other in operation.columns))
        asked = Schema(tuple(lookup.schema.field(other) for _, other in operation.columns))
        self._writer = RowWriter(columns, where=where)
        self._inner = operation.how == "inner"
        asker = _Asker(lookup, asked, columns, self._keys)
        super().__init__(node, where, asker, operation.calls, rows_per_call=lookup.calls.rows_per_call)

    def _calls(self, chunk: pl.DataFrame) -> Iterable[Call]:
        parts = [to_python(chunk[name], field.type) for name, field in zip(self._key_columns, self._keys, strict=True)]
        keys = list(zip(*parts, strict=True))
        names, size = self._keys.names, self._rows_per_call
        for first in range(0, len(keys), size):
            piece = keys[first : first + size]
            yield Call(chunk, first, len(piece), _Asked(names, piece))

    def _results(self, calls: Sequence[Call]) -> pl.DataFrame:
        """The left rows as often as they met one, and what they met."""
        made = [self._beside(chunk, group) for chunk, group in by_chunk(calls)]
        return made[0] if len(made) == 1 else pl.concat(made, how="diagonal")

    def _beside(self, chunk: pl.DataFrame, calls: Sequence[Call]) -> pl.DataFrame:
        left: list[int] = []
        right: list[int | None] = []
        met: list[Any] = []
        for call in calls:
            for row, answer in enumerate(call.result, call.first):
                if answer:
                    left += [row] * len(answer)
                    right += range(len(met), len(met) + len(answer))
                    met += answer
                elif not self._inner:
                    left.append(row)
                    right.append(None)
        found = self._writer.frame(met).select(pl.all().gather(pl.Series(right, dtype=pl.UInt32)))
        own = chunk[left]
        hidden = [name for name in own.columns if name not in self._left]
        return own.drop(hidden).hstack(found).hstack(own.select(hidden))


def _kind(field: Field) -> tuple[Any, bool]:
    return field.type, field.nullable


@dataclass(frozen=True)
class _Asked:
    """The keys of some rows; in an error by the first of them."""

    names: Sequence[str]
    keys: Sequence[tuple[Any, ...]]

    def __repr__(self) -> str:
        others = len(set(self.keys)) - 1
        more = f" and {others} other{'s' if others > 1 else ''}" if others else ""
        return f"key {shown(self.names, self.keys[0])}{more}"


def shown(names: Sequence[str], key: Sequence[Any]) -> str:
    """A key in an error: `id=5`."""
    return ", ".join(f"{name}={value!r:.100}" for name, value in zip(names, key, strict=True))


class _Asker:
    """Answers for rows: from what is remembered, else from the system. One per subtask."""

    def __init__(self, lookup: Lookup[Any], asked: Schema, columns: Schema, keys: Schema) -> None:
        self._lookup = lookup
        self._asked = asked
        self._columns = columns
        self._keys = keys
        self._client: LookupClient
        self._connecting: asyncio.Lock
        self._is_connected = False
        self._decoder: JsonDecoder
        self._reader: RowReader
        self._known: dict[Key, tuple[float, Answer]] = {}
        """Until when, in the loop's seconds. The one that was not needed for the longest time is the first."""

    async def open(self) -> None:
        """Before the first call."""
        self._decoder = JsonDecoder(self._asked)
        self._reader = RowReader(self._columns, row_class(self._columns))
        self._client = self._lookup.client(self._asked, self._keys)
        self._connecting = asyncio.Lock()

    async def close(self) -> None:
        """After the last call."""
        await self._client.close()

    async def _connected(self) -> None:
        """Within the first call, so that it is tried again like one."""
        async with self._connecting:
            if not self._is_connected:
                await self._client.open()
                self._is_connected = True

    async def __call__(self, asked: _Asked) -> list[Answer]:
        wanted = dict.fromkeys(key for key in asked.keys if None not in key)
        answers = {key: answer for key in wanted if (answer := self._remembered(key)) is not None}
        missing = [key for key in wanted if key not in answers]
        if missing:
            found = self._rows(missing, await self._ask(missing))
            self._remember(found)
            answers |= found
        return [answers.get(key, _NONE) for key in asked.keys]

    async def _ask(self, keys: Sequence[Key]) -> Sequence[Sequence[bytes]]:
        deadline = asyncio.timeout(ATTEMPT_S)
        try:
            async with deadline:
                await self._connected()
                return await self._client.ask(keys)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise ExternalError(f"no answer within {ATTEMPT_S:g} s") from error

    def _rows(self, keys: Sequence[Key], documents: Sequence[Sequence[bytes]]) -> dict[Key, Answer]:
        owners = [key for key, of_key in zip(keys, documents, strict=True) for _ in of_key]
        decoded = self._decoder.decode_values([document for of_key in documents for document in of_key])
        if decoded.bad:
            bad = decoded.bad[0]
            raise BadRecordError(
                f"the row of {shown(self._keys.names, owners[bad.index])} is none of the schema: {bad.error}; "
                f"it is {bad.raw[:200]!r}"
            )
        names = dict(zip(self._asked.names, self._columns.names, strict=True))
        rows = zip(owners, self._reader.rows(decoded.frame.rename(names)), strict=True)
        found = dict.fromkeys(keys, _NONE)
        for key, of_key in groupby(rows, key=lambda pair: pair[0]):
            found[key] = tuple(row for _, row in of_key)
        return found

    # -- what is remembered ---------------------------------------------------------------------------------------------

    def _remembered(self, key: Key) -> Answer | None:
        known = self._known.pop(key, None)
        if known is None or known[0] <= asyncio.get_running_loop().time():
            return None
        self._known[key] = known
        return known[1]

    def _remember(self, found: dict[Key, Answer]) -> None:
        calls = self._lookup.calls
        if calls.cache_ttl_us is None:
            return
        until_s = asyncio.get_running_loop().time() + calls.cache_ttl_us / 1_000_000
        for key, answer in found.items():
            self._known.pop(key, None)  # another call may have asked for it meanwhile
            self._known[key] = until_s, answer
        while len(self._known) > calls.cache_keys:
            del self._known[next(iter(self._known))]
