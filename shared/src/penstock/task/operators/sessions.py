"""Sessions as frames: rows are cut into them, and those that overlap or touch are merged. Pure functions.

Responsible for the gap after a row, for merging, and for sessions as tables. Where they lie, and what of them is in
snapshots, is `session_store`; when they are over, and what is late, is `session_window`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME, visible
from penstock.core.times import format_duration
from penstock.errors import IncompatibleStateError, UserCodeError
from penstock.expressions import output_field, to_polars
from penstock.functions.windows.definitions import SessionWindow
from penstock.plan.logical import Node
from penstock.task.operators.partials import Partials
from penstock.types import DURATION, polars_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIRST: Final = "__first"
"""Int64: event time of the first row of a session."""
END: Final = "__end"
"""Int64: when a session ends, or the window that a row opens."""
FIRED: Final = "__fired"
"""Boolean: whether the session was sent and no row came since."""
_LAST: Final = "__last"
"""Int64: in snapshots of versions before, event time of the last row of a session."""
_SESSION: Final = "__session"
_ROW: Final = "__row"
_UTC_MICROS: Final = pl.Datetime("us", "UTC")


class SessionGap:
    """How long after a row its session ends: the same for all, or what each row says."""

    def __init__(self, node: Node, window: SessionWindow) -> None:
        self.even = window.gap is None
        self._gap_us = window.gap_us
        self._text = str(window.gap)
        self._where = f"{node.verb} ({node.operator_id})"
        self._gap = pl.lit(window.gap_us, pl.Int64)
        if window.gap is not None:
            kind = output_field(window.gap, node.inputs[0].schema, self._where).type
            own = to_polars(window.gap, node.inputs[0].schema)
            self._gap = own.dt.total_microseconds() if kind == DURATION else own.cast(pl.Int64)

    def with_ends(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with the ends of the windows that they open.

        Raises:
            UserCodeError: the gap of a row is null, zero or negative.
        """
        if not self.even:
            self._check(rows)
        return rows.with_columns((pl.col(EVENT_TIME) + self._gap).alias(END))

    def _check(self, rows: pl.DataFrame) -> None:
        gaps = rows.select(self._gap.alias(END)).to_series()
        wrong = gaps.is_null() | (gaps <= 0)
        if wrong.any():
            row = visible(rows.filter(wrong).head(1)).to_dicts()[0]
            raise UserCodeError(
                f"{self._where}: the gap {self._text} of a session is {gaps.filter(wrong)[0]} us for the row {row!r}; "
                "it must be positive: filter such rows out, or give them one with fill_null"
            )

    def describe(self) -> dict[str, Any]:
        """As a JSON value for the header of a segment."""
        return {"gap_us": self._gap_us} if self.even else {"gap": self._text}

    def check(self, operator: str, header: Mapping[str, Any]) -> None:
        """Raise `IncompatibleStateError` if the sessions of a segment have another gap."""
        if self.describe().items() <= header.items():
            return
        stored = format_duration(header["gap_us"]) if "gap_us" in header else header["gap"]
        now = format_duration(self._gap_us) if self.even else self._text
        raise IncompatibleStateError(
            f"operator {operator!r}: the snapshot holds sessions with a gap of {stored}, the pipeline has {now}; restore "
            "it with the same gap, or give the operator another uid"
        )


class Sessions:
    """Cuts rows into sessions and merges sessions: pure functions of immutable frames, usable in any thread."""

    def __init__(self, partials: Partials, *, even: bool) -> None:
        self.partials = partials
        self.by = list(partials.keys.names)
        self._even = even
        self.beside_bounds = [*self.by, *partials.names]
        self.columns = [*self.beside_bounds, FIRST, END, FIRED]
        kinds = [(field.name, field.type) for field in (*partials.keys, *partials.plan.partial_fields)]
        types = {name: polars_type(kind) for name, kind in kinds}
        types |= {FIRST: pl.Int64(), END: pl.Int64(), FIRED: pl.Boolean()}
        self.empty = pl.DataFrame(schema={name: types[name] for name in self.columns})

    def of_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The sessions of some rows alone."""
        # With one gap for all, the window of the last row is the one that reaches furthest.
        numbered = self._numbered(rows.sort([*self.by, EVENT_TIME], maintain_order=True), EVENT_TIME, rising=self._even)
        beside = [
            pl.col(self.by).first(),
            pl.col(EVENT_TIME).first().alias(FIRST),
            pl.col(END).max(),
            pl.lit(False).alias(FIRED),
        ]
        return self.partials.group([numbered], [_SESSION], ordered=True, beside=beside).select(self.columns)

    def fused(self, sessions: pl.DataFrame) -> pl.DataFrame:
        """Sessions of which some may overlap or touch, merged where they do; a session with a new part is new."""
        ordered = sessions.with_row_index(_ROW).sort([*self.by, FIRST])
        # Back in the order of arrival, which decides between rows of equal event time.
        numbered = self._numbered(ordered, FIRST, rising=False).sort(_ROW)
        beside = [
            pl.col(self.by).first(),
            pl.col(FIRST).min(),
            pl.col(END).max(),
            pl.col(FIRED).all(),
        ]
        return self.partials.merge([numbered], [_SESSION], ordered=True, beside=beside).select(self.columns)

    def _numbered(self, ordered: pl.DataFrame, begin: str, *, rising: bool) -> pl.DataFrame:
        """With the number of the session to which each belongs that begins at `begin`, which rises within a key.

        `rising`: their ends do so, too.
        """
        changes = pl.any_horizontal(pl.col(key).ne_missing(pl.col(key).shift()) for key in self.by)
        starts = ordered.select(changes.fill_null(False)).to_series().to_numpy(writable=True)
        ends = ordered[END].to_numpy()
        reached = ends if rising else _furthest(ends, np.cumsum(starts))
        starts[1:] |= ordered[begin].to_numpy()[1:] > reached[:-1]
        return ordered.hstack([pl.Series(_SESSION, np.cumsum(starts))])


def _furthest(ends: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """The greatest end of each key so far; `keys` are numbers that rise."""
    distinct, ranks = np.unique(ends, return_inverse=True)
    first_ranks = keys * len(distinct)
    return distinct[np.maximum.accumulate(first_ranks + ranks) - first_ranks]


# -- sessions of a snapshot as a table ----------------------------------------------------------------------------------


def with_end(header: Mapping[str, Any], rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of a segment, also of one from before sessions said when they end."""
    if _LAST not in rows.columns:
        return rows
    return rows.with_columns((pl.col(_LAST) + header["gap_us"]).alias(END)).drop(_LAST)


def table_of_sessions(header: Mapping[str, Any], rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of a segment with the bounds of their window as timestamps and `fired`, behind the keys."""
    keys = [part["name"] for part in header["keys"]]
    rows = with_end(header, rows)
    return rows.select(
        *keys,
        pl.col(FIRST).cast(_UTC_MICROS).alias("window_start"),
        pl.col(END).cast(_UTC_MICROS).alias("window_end"),
        pl.col(FIRED).alias("fired"),
        *(name for name in rows.columns if name not in (*keys, FIRST, END, FIRED)),
    )


def sessions_of_table(header: Mapping[str, Any], table: pl.DataFrame) -> pl.DataFrame:
    """The inverse of `table_of_sessions`.

    Raises:
        ValueError: a session is shorter than the gap, or two of a key overlap or touch, which makes them one.
    """
    keys = [part["name"] for part in header["keys"]]
    start, end = pl.col("window_start").cast(pl.Int64), pl.col("window_end").cast(pl.Int64)
    shortest = header.get("gap_us", 1)
    if bad := table.filter((end - start < shortest).fill_null(True)).rows(named=True):
        window = f"window_start {bad[0]['window_start']}, window_end {bad[0]['window_end']}"
        raise ValueError(f"{window}: a session lasts at least its gap of {format_duration(shortest)}")
    ordered = table.sort([*keys, "window_start"])
    same_key = pl.all_horizontal(pl.col(key).eq_missing(pl.col(key).shift()) for key in keys)
    touching = same_key & (start <= end.shift())
    if bad := ordered.with_row_index(_ROW).filter(touching & (pl.col(_ROW) > 0)).rows(named=True):
        key = ", ".join(f"{name} {bad[0][name]!r}" for name in keys)
        raise ValueError(f"{key}: two sessions overlap or touch at {bad[0]['window_start']}; make them one")
    columns = [start.alias(FIRST), end.alias(END), pl.col("fired").alias(FIRED)]
    others = [name for name in table.columns if name not in (*keys, "window_start", "window_end", "fired")]
    return table.select(*keys, *columns, *others)
