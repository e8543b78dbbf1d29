"""Readers of tables: the files of a snapshot, then those that the snapshots behind it appended.

Position: `{"snapshot", "whole", "file", "row", "done"}`, the snapshot that is read (`whole`: all of the table there, else
what it appended), of this split's files in it the number of the one that is read and how many of its rows were, or that
the snapshot is `done`; beside them `"ends"`, and where: `"until"` which snapshot. Snapshots and their files never change,
so reading from a position continues exactly there; rows of the file in front of it are read again and left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.base import BadRow, EndOfSplit, Fetched, Position
from penstock.connectors.iceberg.scanning import Changes, History, TableScanSpec, appends, plan
from penstock.formats.schema_matching import SchemaMatcher
from penstock.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class _Piece:
    """Rows that were read, and the position in front of them; without rows a snapshot that is done."""

    at: dict[str, Any]
    batch: pa.RecordBatch | None = None


_END: Final = _Piece({})


class Watched:
    """The history of a table, looked at again when it was long ago; one for all readers of a subtask."""

    def __init__(self, spec: TableScanSpec, every_ms: int, monotonic_ms: Callable[[], int]) -> None:
        self._place = spec.place
        self._every_ms = every_ms
        self._monotonic_ms = monotonic_ms
        self._history: History | None = None
        self._looked_ms = 0

    def history(self, *, newer: bool) -> History:
        """What is known; `newer`: there should be more by now."""
        now_ms = self._monotonic_ms()
        if self._history is None or (newer and now_ms - self._looked_ms >= self._every_ms):
            self._history, self._looked_ms = History(self._place, self._place.load()), now_ms
        return self._history


class TableReader:
    """Follows the files of one split; see `SplitReader`."""

    def __init__(
        self,
        spec: TableScanSpec,
        schema: Schema,
        timezone: str | None,
        mine: Callable[[str], bool],
        position: Position,
        watched: Watched,
        changes: Changes,
    ) -> None:
        self._spec = spec
        self._schema = schema
        self._timezone = timezone
        self._mine = mine
        self._at: dict[str, Any] = dict(position)
        self._watched = watched
        self._changes: Changes = changes
        self._pieces = self._read(dict(position))
        self._piece: _Piece | None = None
        self._matcher: tuple[pa.Schema, SchemaMatcher] | None = None
        self._fetching: asyncio.Future[_Piece | None] | None = None

    async def read(self, max_rows: int) -> Fetched | None:
        """See `SplitReader.read`."""
        while self._piece is None:
            if self._fetching is None:
                self._fetching = asyncio.ensure_future(asyncio.to_thread(self._next))
            done, _ = await asyncio.wait([self._fetching], timeout=None if self._at["ends"] else 0.05)
            if not done:
                return None
            fetching, self._fetching = self._fetching, None
            piece = fetching.result()
            if piece is None:
                return None
            self._at = piece.at
            self._piece = piece if piece.batch is not None else None
        return self._next_rows(max_rows)

    def _next_rows(self, max_rows: int) -> Fetched:
        """Some rows of what was read."""
        piece = self._piece
        assert piece is not None
        assert piece.batch is not None
        batch = piece.batch.slice(self._at["row"] - piece.at["row"], max_rows)
        frame, failed = self._match(batch)
        where = f"{self._spec.place}, snapshot {self._at['snapshot']}, file {self._at['file'] + 1} of this split, row "
        bad = [BadRow(reason, raw, f"{where}{self._at['row'] + row + 1}") for row, reason, raw in failed]
        self._at = self._at | {"row": self._at["row"] + batch.num_rows}
        if self._at["row"] == piece.at["row"] + piece.batch.num_rows:
            self._piece = None
        return Fetched(frame, bad, batch.nbytes)

    def _match(self, batch: pa.RecordBatch) -> Any:
        batch = plain(batch)
        if self._matcher is None or self._matcher[0] != batch.schema:
            where = str(self._spec.place)
            self._matcher = (batch.schema, SchemaMatcher(self._schema, batch.schema, where, self._timezone))
        return self._matcher[1].frame(batch)

    def _next(self) -> _Piece | None:
        try:
            with self._spec.place.asking("read"):
                piece = next(self._pieces, _END)
        except BaseException:
            self._pieces = self._read(dict(self._at))  # a generator that raised would say that it is at its end
            raise
        if piece is _END:
            raise EndOfSplit
        return piece

    def _read(self, at: dict[str, Any]) -> Iterator[_Piece | None]:
        """What there is from a position on; None while there is nothing new. Blocks."""
        while True:
            if not at["done"]:
                if at["snapshot"] is not None:
                    yield from self._rows(at)
                at = at | {"file": 0, "row": 0, "done": True}
                yield _Piece(at)
            if at["ends"] and at["snapshot"] == at["until"]:
                return
            behind = self._watched.history(newer=False).next(at["snapshot"])
            if behind is None:
                behind = self._watched.history(newer=True).next(at["snapshot"])
            if behind is None:
                yield None
            else:
                brings = appends(self._spec.place, behind, self._changes)
                at = at | {"snapshot": behind.snapshot_id, "whole": False, "done": not brings}
                if not brings:
                    yield _Piece(at)

    def _rows(self, at: dict[str, Any]) -> Iterator[_Piece]:
        planned = plan(self._spec, at["snapshot"], whole=at["whole"])
        paths = [path for path in planned.files if self._mine(path)]
        for number in range(at["file"], len(paths)):
            begin, row = (at["row"] if number == at["file"] else 0), 0
            for batch in planned.batches(paths[number]):
                rest = batch.slice(max(0, begin - row))
                if rest.num_rows:
                    yield _Piece(at | {"file": number, "row": max(begin, row)}, rest)
                row += batch.num_rows

    def position(self) -> Position:
        """See `SplitReader.position`."""
        return dict(self._at)

    async def close(self) -> None:
        """See `SplitReader.close`."""
        if self._fetching is not None:
            await asyncio.wait([self._fetching])
            self._fetching.exception()
        self._piece = None


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fixed-size bytes and UUIDs as bytes: Penstock has one type for them."""
    import pyarrow as pa

    schema = plain_schema(batch.schema)
    if schema == batch.schema:
        return batch
    columns = [
        _storage(column).cast(field.type) if pa.types.is_binary(field.type) else column
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _storage(column: Any) -> Any:
    import pyarrow as pa

    return column.storage if isinstance(column, pa.ExtensionArray) else column


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The same for a schema."""
    import pyarrow as pa

    def kind(found: Any) -> Any:
        fixed = pa.types.is_fixed_size_binary(found) or isinstance(found, pa.UuidType)
        return pa.binary() if fixed else found

    return pa.schema([field.with_type(kind(field.type)) for field in schema])
