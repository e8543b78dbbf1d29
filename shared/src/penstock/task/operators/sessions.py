"""Sessions as frames: rows are cut into them, and those that overlap or touch are merged. Pure functions.

Responsible for the gap after a row, for merging, and for sessions in snapshots and as tables. When sessions are over, and
what is late, is `session_window`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import polars as pl

from penstock.batches import EVENT_TIME, visible
from penstock.errors import IncompatibleStateError, UserCodeError
from penstock.expressions import output_field, to_polars
from penstock.graph.logical import Node, SessionWindow
from penstock.state.segments import encode_segments
from penstock.task.operators.partials import Partials
from penstock.times import format_duration
from penstock.types import DURATION, polars_type

FIRST: Final = "__first"
"""Int64: event time of the first row of a session."""
END: Final = "__end"
"""Int64: when a session ends, or the window that a row opens."""
FIRED: Final = "__fired"
"""Boolean: whether the session was sent and no row came since."""
_LAST: Final = "__last"
"""Int64: in snapshots of versions before, event time of the last row of a session."""
_SESSION: Final = "__session"
_KEY: Final = "__key"
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
        self._by = list(partials.keys.names)
        # With one gap for all, the window of the last row is the one that reaches furthest.
        self._even = even
        self._reached = pl.col(END).shift() if even else pl.col(END).cum_max().over(_KEY).shift()
        self.columns = [*self._by, FIRST, END, FIRED, *partials.names]
        kinds = [(field.name, field.type) for field in (*partials.keys, *partials.plan.partial_fields)]
        types = {name: polars_type(kind) for name, kind in kinds}
        types |= {FIRST: pl.Int64(), END: pl.Int64(), FIRED: pl.Boolean()}
        self.empty = pl.DataFrame(schema={name: types[name] for name in self.columns})

    def merged(self, stored: pl.DataFrame, pending: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """The stored sessions with the pending rows in them."""
        if not pending:
            return stored
        fresh = self._of_rows(pl.concat(pending))
        if stored.height == 0:
            return fresh
        keys = fresh.select(self._by).unique()
        touched = stored.join(keys, on=self._by, how="semi", nulls_equal=True)
        apart = stored.join(keys, on=self._by, how="anti", nulls_equal=True)
        return pl.concat([apart, self.fused(pl.concat([touched, fresh]))])

    def _of_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        ordered = rows.sort([*self._by, EVENT_TIME], maintain_order=True)
        if not self._even:
            ordered = ordered.with_columns(_numbered(self._key_changes(), _KEY))
        far = pl.col(EVENT_TIME) > self._reached
        numbered = ordered.with_columns(_numbered(self._key_changes() | far, _SESSION))
        beside = [
            pl.col(self._by).first(),
            pl.col(EVENT_TIME).first().alias(FIRST),
            pl.col(END).max(),
            pl.lit(False).alias(FIRED),
        ]
        return self.partials.group([numbered], [_SESSION], ordered=True, beside=beside).select(self.columns)

    def fused(self, sessions: pl.DataFrame) -> pl.DataFrame:
        """Sessions of which some may overlap or touch, merged where they do; a session with a new part is new."""
        ordered = sessions.with_row_index(_ROW).sort([*self._by, FIRST])
        ordered = ordered.with_columns(_numbered(self._key_changes(), _KEY))
        starts = self._key_changes() | (pl.col(FIRST) > pl.col(END).cum_max().over(_KEY).shift())
        # Back in the order of arrival, which decides between rows of equal event time.
        numbered = ordered.with_columns(_numbered(starts, _SESSION)).sort(_ROW)
        beside = [
            pl.col(self._by).first(),
            pl.col(FIRST).min(),
            pl.col(END).max(),
            pl.col(FIRED).all(),
        ]
        return self.partials.merge([numbered], [_SESSION], ordered=True, beside=beside).select(self.columns)

    def _key_changes(self) -> pl.Expr:
        return pl.any_horizontal(pl.col(key).ne_missing(pl.col(key).shift()) for key in self._by)


def _numbered(changes: pl.Expr, name: str) -> pl.Expr:
    """Numbers runs that begin where `changes` is true; whatever the first row compares to, it begins one anyway."""
    return changes.fill_null(False).cast(pl.Int64).cum_sum().alias(name)


class FrozenSessions:
    """Sessions and pending rows of a snapshot: a `KeyedPart`."""

    def __init__(
        self,
        sessions: Sessions,
        stored: pl.DataFrame,
        pending: Sequence[pl.DataFrame],
        header: Mapping[str, Any],
        max_parallelism: int,
    ) -> None:
        self._sessions = sessions
        self._stored = stored
        self._pending = pending
        self._header = header
        self._max_parallelism = max_parallelism

    def segments(self) -> Iterable[tuple[int, bytes]]:
        """One segment per key group that has sessions."""
        frames = [self._sessions.merged(self._stored, self._pending)]
        return encode_segments(self._header, frames, self._sessions.partials.keys, self._max_parallelism)


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
