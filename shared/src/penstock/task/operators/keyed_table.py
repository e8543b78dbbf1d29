"""State of columns by key: one row of plain columns per key, looked up and written as frames.

The keys live in a `Table`, so a batch costs what the keys it touches cost, however many there are, and a snapshot freezes
in constant time. Rows that come many at a time stay columns, in a `RowStore`, and the table has their ids; few are tuples
in the table itself, which costs less for each batch. Where state is on the local disk keys and rows are in a database.
`Expiry` finds the rows that nobody has touched for long without looking at the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from penstock.state.backend import ABSENT, FrozenTable, Table
from penstock.state.columns import key_frame, key_values
from penstock.state.deltas import BY_ROW, REMOVED
from penstock.state.freezes import BASE, EVERYTHING, Freeze, Freezes, FrozenAt
from penstock.state.number_columns import of_numbers, tuples_of
from penstock.state.rocks.table import FrozenRocksTable, RocksTable
from penstock.state.row_store import RowStore, RowView
from penstock.state.segments import encode_segments
from penstock.task.operator import OperatorContext
from penstock.types import Schema

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

INDEX: Final = "__index"
"""Int64: which of the keys that were asked for a row belongs to."""
WRITTEN: Final = "__written_us"
"""Int64: when a key was last written, in processing time."""
_ROWS_PER_FRAME: Final = 65_536
_LEAST_STORED: Final = 512
"""So many rows at once, or more, stay columns."""
_LEAST_UPKEEP: Final = 4_096
_BUCKETS: Final = 8


class Beside(NamedTuple):
    """Rows beside those of a table. What a delta has of them is added to what was there."""

    types: Mapping[str, pl.DataType]
    """Their columns, the keys and `COUNT` among them: in any order, and not in every frame alike."""
    frames: Sequence[tuple[int, Iterable[pl.DataFrame]]]
    """By the epochs in which they came; taken once, from any thread."""


class KeyedTable:
    """Rows of the columns `types` by key."""

    def __init__(
        self, keys: Schema, types: Mapping[str, pl.DataType], *, one_by_one: bool = False, ttl_us: int | None = None
    ) -> None:
        """How rows are kept.

        Args:
            keys: the key columns.
            types: the columns of a row beside them.
            one_by_one: rows are read by `rows`, which finds tuples at once.
            ttl_us: how long a key is kept after it was written, in processing time, until `forget` finds it up to an
                eighth later; None: for ever.
        """
        self.keys = keys
        self.types = types
        self.freezes = Freezes()
        self._stored = types if ttl_us is None else {**types, WRITTEN: pl.Int64()}
        self._expiry = None if ttl_us is None else Expiry(ttl_us)
        self._now_us = 0
        self._context: OperatorContext
        self._incremental = False
        self._table: Table | RocksTable = Table(freezes=self.freezes)
        self._store = None if one_by_one or not self._stored else RowStore(self._stored)

    @property
    def expires(self) -> bool:
        """Whether keys are forgotten."""
        return self._expiry is not None

    def open(self, operator: str, context: OperatorContext) -> None:
        """Called once, before any row is there: the rows live where the context says.

        Args:
            operator: whose rows they are, for messages.
            context: the operator's.
        """
        self._context = context
        if self._expiry is not None:
            self._now_us = context.now_us()
        self._incremental = context.incremental
        if context.local_state is not None:
            place = (context.max_parallelism, context.local_state)
            self._table = RocksTable(operator, self.keys, *place, incremental=self._incremental)
            self._store = None

    def find(self, keys: Sequence[Any]) -> pl.DataFrame:
        """The rows of those of these keys that have one, with `INDEX`: the place of the key among them."""
        found = self._table.get_many(keys)
        known = [index for index, row in enumerate(found) if row is not ABSENT]
        if len(known) < len(found):
            found = [found[index] for index in known]
        rows = _frame(found, self._stored, self._view())
        columns = rows.get_columns()[: len(self.types)]
        return pl.DataFrame([*columns, pl.Series(INDEX, known, pl.Int64)])

    def _view(self) -> RowView | None:
        return None if self._store is None else self._store.view()

    def rows(self, keys: Sequence[Any]) -> list[tuple[Any, ...] | None]:
        """The row of each key, if it has one, of a table that is read one by one; times are numbers."""
        return [None if row is ABSENT else row for row in self._table.get_many(keys)]

    def put(self, keys: Sequence[Any], rows: pl.DataFrame) -> None:
        """Replace the rows of these keys, each of which is there once."""
        if self._expiry is not None:
            rows = rows.with_columns(pl.lit(self._now_us, pl.Int64).alias(WRITTEN))
            self._expiry.touch(keys, repeat(self._now_us, len(keys)))
        self._put(keys, rows)

    def _put(self, keys: Sequence[Any], rows: pl.DataFrame) -> None:
        self._delete_stored(keys)
        if self._store is not None and rows.height >= _LEAST_STORED:
            put: Iterable[Any] = self._store.append(rows.select(*self._stored))
        else:
            put = tuples_of([rows[name] for name in self._stored], rows.height)
        self._table.put_many(keys, put)

    def put_rows(self, rows: Mapping[Any, tuple[Any, ...]]) -> None:
        """Replace the rows of these keys, of a table that is read one by one, by such as `rows` gives."""
        self._table.put_many(rows.keys(), rows.values())

    def remove(self, keys: Sequence[Any]) -> None:
        """Forget keys."""
        self._delete_stored(keys)
        for key in keys:
            self._table.remove(key)

    def forget(self) -> list[Any]:
        """Before a batch: forget the keys whose time to live is over by now, and count them; what is put is written now.

        Returns:
            The keys.
        """
        if self._expiry is None:
            return []
        self._now_us = max(self._now_us, self._context.now_us())  # clocks may go back
        over = self._over(self._expiry, self._expiry.due(self._now_us))
        self.remove(over)
        self._context.metrics.forgotten_keys += len(over)
        return over

    def _over(self, expiry: Expiry, due: Sequence[Any]) -> list[Any]:
        """Those of the keys that are due which were not written again."""
        there = [(key, row) for key, row in zip(due, self._table.get_many(due), strict=True) if row is not ABSENT]
        written = _frame([row for _, row in there], self._stored, self._view())[WRITTEN].to_numpy()
        return [key for (key, _), over in zip(there, expiry.are_over(written, self._now_us), strict=True) if over]

    def _delete_stored(self, keys: Sequence[Any]) -> None:
        if self._store is not None and not self._store.empty:
            ids = [row for row in self._table.get_many(keys) if type(row) is int]
            self._store.delete(np.array(ids, np.int64))

    def clear(self) -> None:
        """Forget all keys."""
        self._table.clear()
        if self._store is not None:
            self._store = RowStore(self._stored)
        self.freezes.restart()

    def all_keys(self) -> list[Any]:
        """The keys that have a row."""
        return self._table.all_keys()

    def maintain(self, touched: int) -> None:
        """Do a share of the work that snapshots left, after a batch that touched so many keys."""
        self._table.maintain(max(_LEAST_UPKEEP, 4 * touched))

    def freeze(self, header: Mapping[str, Any], context: OperatorContext, beside: Beside | None = None) -> FrozenRows:
        """The rows as they are now.

        Args:
            header: of their segments.
            context: the operator's.
            beside: other rows in the same snapshot.
        """
        frozen, freeze = self._table.freeze(), self.freezes.next(incremental=self._incremental)
        place = (context.max_parallelism, context.local_state)
        return FrozenRows(frozen, self._view(), freeze, self.keys, self._stored, header, beside, *place)

    def load(self, rows: pl.DataFrame) -> list[Any]:
        """Add the rows of a segment; returns their keys. Where it does not say when they were written, it is now."""
        keys = key_values(rows, self.keys)
        if self._expiry is not None:
            now = pl.lit(self._now_us, pl.Int64)
            rows = rows.with_columns((pl.coalesce(WRITTEN, now) if WRITTEN in rows.columns else now).alias(WRITTEN))
            self._expiry.touch(keys, rows[WRITTEN].to_list())
        self._put(keys, rows)
        self.maintain(len(keys))
        return keys

    def close(self) -> None:
        """Give back what is held beside the process."""
        self._table.close()


class FrozenRows(FrozenAt):
    """The rows of a snapshot: an `IncrementalPart`. A delta has the rows of keys that changed, and which were removed."""

    def __init__(
        self, frozen: FrozenTable | FrozenRocksTable, stored: RowView | None, freeze: Freeze, keys: Schema,
        types: Mapping[str, pl.DataType], header: Mapping[str, Any], beside: Beside | None, max_parallelism: int,
        folder: Path | None,
    ) -> None:  # fmt: skip
        """`folder` is where state on the local disk lies, if it does: many rows are put in order there."""
        self.freeze = freeze
        self._frozen = frozen
        self._stored = stored
        self._keys = keys
        self._types = types
        self._header = header
        self._beside = beside
        self._max_parallelism = max_parallelism
        self._folder = folder

    def knows_since(self, epoch: int) -> bool:
        """Whether all is known that came since that freeze."""
        return super().knows_since(epoch) and self._frozen.knows_since(epoch)

    def encoded(self, behind: int) -> Iterator[tuple[int, bytes]]:
        """Segments of the key groups that have rows, or had rows that were removed.

        One of each, but of rows from the disk that have no frames beside them: those come in the order of key groups.
        """
        everything = behind in (EVERYTHING, BASE)
        header = self._header if everything else {**self._header, BY_ROW: True}
        frames, others = self._rows(behind), self._others(behind)
        if self._frozen.by_key_group and not others:
            for frame in frames:
                yield from encode_segments(header, [frame], self._keys, self._max_parallelism)
            return
        if others:
            frames = self._with_all_columns(frames, others, everything=everything)
        yield from encode_segments(header, frames, self._keys, self._max_parallelism, self._folder)

    def _others(self, behind: int) -> list[Iterable[pl.DataFrame]]:
        return [] if self._beside is None else [frames for epoch, frames in self._beside.frames if epoch > behind]

    def _with_all_columns(
        self, frames: Iterable[pl.DataFrame], others: Iterable[Iterable[pl.DataFrame]], *, everything: bool
    ) -> Iterator[pl.DataFrame]:
        assert self._beside is not None
        own = {**self._keys.polars(), **self._types, **({} if everything else {REMOVED: pl.Boolean()})}
        none = pl.DataFrame(schema={**own, **self._beside.types})
        pieces = (piece for some in others for frame in some for piece in frame.iter_slices(_ROWS_PER_FRAME))
        return (pl.concat([none, rows], how="diagonal") for rows in chain(frames, pieces))

    def _rows(self, behind: int) -> Iterator[pl.DataFrame]:
        """Those of the table; what is frozen is given back as soon as the last one is taken."""
        try:
            yield from self._frames() if behind in (EVERYTHING, BASE) else self._changed(behind)
        finally:
            self._frozen.release()

    def _changed(self, behind: int) -> Iterator[pl.DataFrame]:
        entries, nothing = self._frozen.since(behind), (None,) * len(self._types)
        while chunk := list(islice(entries, _ROWS_PER_FRAME)):
            removed = [row is ABSENT for _, row in chunk]
            keys = key_frame([key for key, _ in chunk], self._keys)
            rows = _frame([nothing if row is ABSENT else row for _, row in chunk], self._types, self._stored)
            yield keys.hstack([*rows.get_columns(), pl.Series(REMOVED, removed, pl.Boolean)])

    def _frames(self) -> Iterator[pl.DataFrame]:
        entries = iter(self._frozen)
        while chunk := list(islice(entries, _ROWS_PER_FRAME)):
            keys = key_frame([key for key, _ in chunk], self._keys)
            yield keys.hstack(_frame([row for _, row in chunk], self._types, self._stored).get_columns())


class Expiry:
    """Which keys may have been untouched for a time to live.

    Keys are kept in steps of an eighth of it: a key is given out at most so much later than it is due, and may have been
    touched again since.
    """

    def __init__(self, ttl_us: int) -> None:
        self._ttl = ttl_us
        self._step = max(1, ttl_us // _BUCKETS)
        self._touched: dict[int, set[Any]] = {}

    def touch(self, keys: Iterable[Any], times: Iterable[int]) -> None:
        """Keys were touched at these times, in microseconds."""
        for key, time in zip(keys, times, strict=True):
            self._touched.setdefault(time // self._step, set()).add(key)

    def due(self, now_us: int) -> list[Any]:
        """Take out the keys whose time to live was over before `now_us`, if they were not touched again; each once."""
        over = [step for step in self._touched if self._is_over(step, now_us)]
        return list(dict.fromkeys(key for step in sorted(over) for key in self._touched.pop(step)))

    def are_over(self, times: NDArray[np.int64], now_us: int) -> NDArray[np.bool_]:
        """Of keys that were last touched at these times, which are given out by `now_us`."""
        return self._is_over(times // self._step, now_us)

    def _is_over(self, step: Any, now_us: int) -> Any:
        return (step + 1) * self._step + self._ttl < now_us


def _frame(rows: list[Any], types: Mapping[str, pl.DataType], stored: RowView | None) -> pl.DataFrame:
    """A frame of rows that are tuples, or ids of stored rows."""
    if stored is None or int not in (kinds := set(map(type, rows))):
        return _of_tuples(rows, types)
    if len(kinds) == 1:
        return stored.rows(np.array(rows, np.int64))
    places = [[index for index, row in enumerate(rows) if (type(row) is int) == there] for there in (True, False)]
    ids, tuples = ([rows[index] for index in some] for some in places)
    both = pl.concat([stored.rows(np.array(ids, np.int64)), _of_tuples(tuples, types)])
    return both[np.argsort(np.concatenate(places))]


def _of_tuples(rows: list[tuple[Any, ...]], types: Mapping[str, pl.DataType]) -> pl.DataFrame:
    columns = enumerate(types.items())
    return pl.DataFrame([of_numbers(name, list(map(itemgetter(at), rows)), kind) for at, (name, kind) in columns])
