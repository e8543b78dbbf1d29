"""What joins share, keep and send: rows of two inputs, side by side in results and one behind the other in snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME
from penstock.errors import ProtocolError
from penstock.expressions import columns_of
from penstock.plan.logical import Node
from penstock.state.columns import canonical_keys
from penstock.state.freezes import BASE, EVERYTHING, Freeze, FrozenAt, added
from penstock.state.segments import decode_segments, encode_segments
from penstock.state.sorted_runs import FrozenRun, TimedRows
from penstock.task.operator import Operator, Output, RestoredState
from penstock.types import polars_type

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from penstock.expressions import Expr

LEFT: Final = 0
RIGHT: Final = 1
_KIND: Final = "join"
_SIDE: Final = "__side"
"""Int8: which input a stored row is of."""
_MOMENT: Final = "__moment"
_UNTIL: Final = "__until"
_MARKED: Final = "__marked"
_MET: Final = "__met"
"""Boolean: no row, but the key and the moment of rows of earlier runs, which have met their first one since."""
_WAITS: Final = "__waits"
"""Boolean: a stored row is one that waits for its time."""
_ROWS_AT_ONCE: Final = 1024 * 1024
"""Taken back at a time, if there are so many."""
PRESERVED_SIDES: Final = {
    "inner": (), "left": (LEFT,), "right": (RIGHT,), "full": (LEFT, RIGHT), "semi": (LEFT,), "anti": (LEFT,),
}  # fmt: skip
"""Inputs of whose rows it matters whether they have met any."""


class JoinedSchema:
    """The columns of both inputs and of the results."""

    def __init__(
        self,
        node: Node,
        beside: Sequence[Sequence[str]] = ((EVENT_TIME,), (EVENT_TIME,)),
        where: Expr | None = None,
    ) -> None:
        """The columns of a join.

        Args:
            node: the join.
            beside: by input, Int64 columns that are kept beside those of its rows.
            where: the condition on pairs, if there is one.
        """
        self.operator = node.operator_id
        self.inputs = tuple(each.row_schema for each in node.inputs)
        self._beside = beside
        self.keys = self.inputs[LEFT].select(node.inputs[LEFT].keys)
        self._own = [
            [name for name in schema.names if name not in self.keys] if number else list(schema.names)
            for number, schema in enumerate(self.inputs)
        ]
        """Result columns by input; keys are those of the left one."""
        read = columns_of(where) if where is not None else ()
        self.read = [[name for name in names if name in read] for names in self._own]
        """The columns of each input that the condition reads; keys are those of the left one."""
        self._results = {name: polars_type(node.schema.field(name).type) for name in node.schema.names}

    def kept(self, number: int) -> dict[str, pl.DataType]:
        """The columns that are kept of the rows of an input."""
        return {**self.inputs[number].polars(), **dict.fromkeys(self._beside[number], pl.Int64())}

    def together(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        """Pairs of rows, side by side: result columns of both."""
        return left.select(self._own[LEFT]).hstack(right.select(self._own[RIGHT]))

    def unmatched(self, number: int, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows that met none: what the other input would have given is null."""
        own = [*self.keys.names, *self._own[RIGHT]] if number == RIGHT else self._own[LEFT]
        rows = rows.select(own)
        missing = [name for side in self._own for name in side if name not in rows.columns]
        nulls = [pl.lit(None, self._results[name]).alias(name) for name in missing]
        return rows.with_columns(nulls).select(name for side in self._own for name in side)


class JoiningOperator(Operator):
    """An operator over two inputs with columns of their own: what it is given always has the number of its input."""

    _schema: JoinedSchema

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        raise ProtocolError(f"{self._schema.operator}: a join was given rows without the number of their input")


@dataclass(frozen=True)
class Met:
    """Rows of an input that were kept at an earlier freeze and have met their first one since."""

    epoch: int
    """In which they did: see `penstock.state.freezes`."""
    number: int
    alike: pl.DataFrame
    """Their keys, and what the condition reads of them: rows that have the same, and the same moment, meet the same."""
    moments: NDArray[np.int64]
    until: int
    """The last moment at which one of them is of use."""


@dataclass
class JoinState(FrozenAt):
    """Rows of both inputs that are kept, and left rows that wait: an `IncrementalPart`.

    What a delta has is added to what came before, and marks rows of that. Rows that wait no more are told from the others
    by event time.
    """

    schema: JoinedSchema
    max_parallelism: int
    freeze: Freeze
    kept: Mapping[int, Sequence[FrozenRun]]
    waiting: Sequence[tuple[int, Iterable[pl.DataFrame]]] = ()
    """By the epochs in which they came."""
    folder: Path | None = None
    """Where state on the local disk lies, if it does."""
    met: Sequence[Met] = ()

    def encoded(self, behind: int) -> Iterable[tuple[int, bytes]]:
        """One segment per key group that has rows."""
        runs = [(number, run) for number, runs in self.kept.items() for run in runs if run.epoch > behind]
        waiting = [frames for epoch, frames in self.waiting if epoch > behind]
        since = [] if behind in (EVERYTHING, BASE) else [met for met in self.met if met.epoch > behind]
        noted = list(self._noted(since))
        columns = [self._stored(number, run.kept.part(0, 0)) for number, run in runs]
        columns += [self._waits(pl.DataFrame(schema=self.schema.kept(LEFT))) for _ in waiting[:1]]
        columns += [rows.clear() for rows in noted]
        if not columns:
            return ()
        none = pl.concat(columns, how="diagonal")
        stored = (self._stored(number, piece) for number, run in runs for piece in run.pieces())
        rest = (self._waits(rows) for frames in waiting for rows in frames)
        frames = (pl.concat([none, rows], how="diagonal") for rows in chain(stored, rest, noted))
        header = added({"kind": _KIND}, behind)
        return encode_segments(header, frames, self.schema.keys, self.max_parallelism, self.folder)

    def _stored(self, number: int, rows: TimedRows) -> pl.DataFrame:
        return self._named(number, rows.frame).with_columns(
            pl.Series(_MOMENT, rows.moments), pl.Series(_UNTIL, rows.until), pl.Series(_MARKED, rows.marked)
        )

    def _noted(self, since: Sequence[Met]) -> Iterator[pl.DataFrame]:
        for number in {met.number for met in since}:
            alike = pl.concat([met.alike for met in since if met.number == number])
            moments = np.concatenate([met.moments for met in since if met.number == number])
            rows = self._named(number, alike).with_columns(pl.Series(_MOMENT, moments)).unique()
            yield rows.with_columns(pl.lit(True).alias(_MARKED), pl.lit(True).alias(_MET))

    def _waits(self, rows: pl.DataFrame) -> pl.DataFrame:
        return self._named(LEFT, rows).with_columns(pl.lit(True).alias(_WAITS))

    def _named(self, number: int, rows: pl.DataFrame) -> pl.DataFrame:
        names = self.schema.keys.names
        columns = [pl.col(name).alias(_stored_name(number, name)) for name in rows.columns if name not in names]
        return rows.select(*names, pl.lit(number, pl.Int8).alias(_SIDE), *columns)


def restored_rows(schema: JoinedSchema, restored: RestoredState) -> Iterator[tuple[int, TimedRows | pl.DataFrame]]:
    """What `JoinState` wrote: an input, and rows of it that are kept or a frame of rows that wait; some at a time."""
    parts: list[pl.DataFrame] = []
    for _, _, rows in decode_segments(restored.keyed, schema.operator, _KIND, schema.keys):
        parts.append(rows)
        if sum(part.height for part in parts) >= _ROWS_AT_ONCE:
            yield from _by_input(schema, parts)
            parts = []
    if parts:
        yield from _by_input(schema, parts)


def _by_input(schema: JoinedSchema, parts: Sequence[pl.DataFrame]) -> Iterator[tuple[int, TimedRows | pl.DataFrame]]:
    rows = canonical_keys(pl.concat(parts, how="diagonal"), schema.keys)
    if _MET in rows.columns:
        rows = _marked(rows, [*schema.keys.names, _SIDE, _MOMENT, *_told_apart(schema)])
    waits = _flags(rows, _WAITS)
    for number in range(len(schema.inputs)):
        of_side = rows[_SIDE].to_numpy() == number
        for chosen, waiting in ((of_side & ~waits, False), (of_side & waits, True)):
            if chosen.any():
                part = rows.filter(pl.Series(chosen))
                yield number, _input_rows(schema, number, part) if waiting else _timed(schema, number, part)


def _marked(rows: pl.DataFrame, alike: Sequence[str]) -> pl.DataFrame:
    """The rows, with what is noted of them; those that are alike have all met one, or none."""
    noted = pl.col(_MET).is_not_null()
    return rows.with_columns(pl.col(_MARKED) | noted.any().over(alike)).filter(~noted).drop(_MET)


def _told_apart(schema: JoinedSchema) -> list[str]:
    """The stored columns that a condition reads of either input, beside the keys."""
    return [
        _stored_name(number, name)
        for number, names in enumerate(schema.read)
        for name in names
        if name not in schema.keys
    ]


def _timed(schema: JoinedSchema, number: int, rows: pl.DataFrame) -> TimedRows:
    moments, until = (rows[name].to_numpy(writable=True) for name in (_MOMENT, _UNTIL))
    return TimedRows(_input_rows(schema, number, rows), moments, until, _flags(rows, _MARKED))


def _input_rows(schema: JoinedSchema, number: int, rows: pl.DataFrame) -> pl.DataFrame:
    names = {name: name if name in schema.keys else _stored_name(number, name) for name in schema.kept(number)}
    return rows.select(pl.col(stored).alias(name) for name, stored in names.items())


def _flags(rows: pl.DataFrame, name: str) -> NDArray[np.bool_]:
    if name not in rows.columns:
        return np.zeros(rows.height, np.bool_)
    return rows[name].fill_null(False).to_numpy(writable=True)


def _stored_name(number: int, name: str) -> str:
    return f"__{number}_{name}"
