"""Full runs and deltas of keyed state: what incremental snapshots consist of, and how they become segments again.

There are four kinds of deltas. Those of a state backend that knows which *entries* have changed belong to a full run of
object state with the columns of `penstock.state.segments`: every element of a list is a row of its own, whose `__subkey`
is its number; in a delta a row without `__value` says that the entry was removed. For any entry what comes last counts.

Those of sessions, and of a step on Spark whatever its operators, know which *keys* have changed. Their full run are
segments as they are. A delta has all rows of the keys that it has, and its header says what it replaces: `of` is the kind
of the operator's segments, `replaced` the hashes of keys (base64 of little-endian uint64, rising) of which nothing counts
that runs before it have. A key without rows is gone.

Those of tables have the *rows* of keys that have changed (`BY_ROW`): of a key the last one counts, unless it is
`REMOVED`. Rows beside them, which have a `COUNT`, all count: what is merged of such adds, as the next kind does.

Those of partial aggregates, of counted rows and of joins only *add* (`ADDS`) to what came before: the operator brings
together what is there several times when it is restored, and nobody else can.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from penstock.errors import CorruptDataError
from penstock.state.counted_rows import COUNT
from penstock.state.freezes import ADDS
from penstock.state.hashing import hash64_frame, is_among
from penstock.state.keyed_backend import EVENT_TIMERS, KIND, PROCESSING_TIMERS
from penstock.state.segments import decode_segment, encode_segment, encode_segments, segment_header
from penstock.types import Schema, schema_to_json

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

NUMBERED: Final = "numbered objects"
"""The kind of segments of a full run."""
CHANGES: Final = "changed objects"
"""The kind of segments of a delta."""
CHANGED_KEYS: Final = "changed keys"
"""The kind of segments of a delta by key."""
BY_ROW: Final = "by_row"
"""Set in the header of a delta with the rows of keys that have changed, of state with one row per key."""
REMOVED: Final = "__removed"
"""Boolean, in such a delta: of the row only the key counts, which has none any more."""
_TIME: Final = "__time_of_timer"


def merged(operator: str, segments: Sequence[bytes]) -> bytes:
    """One segment from those of a key group, the full run's first, then those of deltas, oldest first.

    Raises:
        CorruptDataError: these are no such segments.
    """
    decoded = [decode_segment(data, operator) for data in segments]
    if any(header["kind"] in (NUMBERED, CHANGES) for header, _ in decoded):
        return _merged_by_entry(operator, decoded)
    if any(BY_ROW in header for header, _ in decoded):
        return _merged_by_row(operator, decoded)
    layers = counted([_layer(0, header, rows) for header, rows in decoded])
    if len(layers) == 1 and layers[0].replaced is None:
        return segments[0]
    return _merged_by_key(operator, layers)


# -- by entry -----------------------------------------------------------------------------------------------------------


def _merged_by_entry(operator: str, decoded: Sequence[tuple[dict[str, Any], pl.DataFrame]]) -> bytes:
    header = decoded[-1][0]
    for other, _ in decoded:
        if other["kind"] not in (NUMBERED, CHANGES) or other.get("names") != header["names"]:
            raise _foreign(operator, other)
    rows = pl.concat([rows for _, rows in decoded])
    return encode_segment({**header, "kind": KIND}, _newest(rows, header))


def _foreign(operator: str, header: dict[str, Any]) -> CorruptDataError:
    keys = ", ".join(str(part["name"]) for part in header["keys"])
    what = f"the states {', '.join(header['names'])}" if "names" in header else f"the key {keys}"
    return CorruptDataError(
        f"operator {operator!r}: a segment of {header['kind']} with {what} does not belong into its incremental "
        "snapshot; restore an earlier savepoint"
    )


def _newest(rows: pl.DataFrame, header: dict[str, Any]) -> pl.DataFrame:
    """Of every entry its last row, unless that removes it: by state, elements of lists in order of their numbers."""
    names: list[str] = header["names"]
    timer = pl.col("__state").is_in([names.index(name) for name in (EVENT_TIMERS, PROCESSING_TIMERS)])
    listed = pl.col("__state").is_in(
        [i for i, n in enumerate(names) if header["states"].get(n, {}).get("kind") == "list"]
    )
    entry = [*(field["name"] for field in header["keys"]), "__state", "__subkey", _TIME]
    return (
        rows.with_columns(pl.when(timer).then("__time_us").alias(_TIME))
        .unique(entry, keep="last", maintain_order=True)
        .filter(pl.col("__value").is_not_null())
        .sort("__state", "__subkey", maintain_order=True)
        .drop(_TIME)
        .with_columns(pl.when(~listed).then("__subkey").alias("__subkey"))
    )


# -- by row -------------------------------------------------------------------------------------------------------------


def _merged_by_row(operator: str, decoded: Sequence[tuple[dict[str, Any], pl.DataFrame]]) -> bytes:
    headers = [{name: said for name, said in header.items() if name != BY_ROW} for header, _ in decoded]
    for header in headers:
        if header != headers[-1]:
            raise _foreign(operator, header)
    rows = pl.concat([rows for _, rows in decoded], how="diagonal").with_columns(pl.col(REMOVED).fill_null(value=False))
    keys, beside = [field["name"] for field in headers[-1]["keys"]], rows.clear()
    if COUNT in rows.columns:
        headers[-1][ADDS] = True
        beside, rows = (rows.filter(counts) for counts in (pl.col(COUNT).is_not_null(), pl.col(COUNT).is_null()))
    newest = rows.unique(keys, keep="last", maintain_order=True).filter(~pl.col(REMOVED))
    return encode_segment(headers[-1], pl.concat([newest, beside]).drop(REMOVED))


# -- by key -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """What one run has of a key group."""

    run: int
    """Its number, 0 for the full one."""
    header: dict[str, Any]
    """That of the operator's segments, also if it is a delta."""
    rows: pl.DataFrame
    hashes: NDArray[np.uint64]
    """Of the keys of the rows."""
    counts: NDArray[np.bool_]
    """Which of the rows no later run replaces."""
    replaced: NDArray[np.uint64] | None = None
    """The hashes of the keys that it replaces, rising; None of the full run."""


def is_by_key(operator: str, segments: Sequence[bytes]) -> bool:
    """Whether these, of the runs of a key group, are layers. All other kinds of deltas are to be `merged` as they are."""
    headers = [segment_header(data, operator) for data in (segments[0], segments[-1])]
    return not any(header["kind"] in (NUMBERED, CHANGES) or BY_ROW in header or ADDS in header for header in headers)


def layers_of(operator: str, segments: Sequence[tuple[int, bytes]]) -> list[Layer]:
    """The segments of a key group with the numbers of their runs, which rise.

    Raises:
        CorruptDataError: one is damaged.
    """
    return counted([_layer(run, *decode_segment(data, operator)) for run, data in segments])


def _layer(run: int, header: dict[str, Any], rows: pl.DataFrame) -> Layer:
    hashes, replaced = hash64_frame(rows, [part["name"] for part in header["keys"]]), None
    if header["kind"] == CHANGED_KEYS:
        replaced = np.frombuffer(base64.b64decode(header["replaced"]), "<u8").astype(np.uint64)
        header = {name: said for name, said in header.items() if name not in ("of", "replaced")} | {
            "kind": header["of"]
        }
    return Layer(run, header, rows, hashes, np.ones(rows.height, np.bool_), replaced)


def counted(layers: Sequence[Layer]) -> list[Layer]:
    """The same layers, oldest first, with what each later one leaves of the rows of earlier ones."""
    later, found = np.empty(0, np.uint64), list[Layer]()
    for layer in reversed(layers):
        found.append(replace(layer, counts=~is_among(layer.hashes, later)) if len(later) else layer)
        if layer.replaced is not None:
            later = layer.replaced if not len(later) else np.union1d(later, layer.replaced)
    return found[::-1]


def deltas_by_key(
    header: Mapping[str, Any],
    frames: Iterable[pl.DataFrame],
    changed: NDArray[np.uint64],
    none: pl.DataFrame,
    keys: Schema,
    max_parallelism: int,
    folder: Path | None = None,
) -> Iterator[tuple[int, bytes]]:
    """A delta: key groups, rising, and segments.

    Args:
        header: that of the operator's segments, without the keys.
        frames: all rows of the keys that have changed.
        changed: the hashes of these keys; they rise. A key without rows is gone.
        none: a frame without rows.
        keys: the key columns.
        max_parallelism: of the job.
        folder: many rows are put in order there, if it is given.
    """
    whole = {**header, "keys": schema_to_json(keys)}
    written = encode_segments(header, frames, keys, max_parallelism, folder)
    there = next(written, None)
    groups = (changed % np.uint64(max_parallelism)).astype(np.int64)
    for group in np.unique(groups).tolist():
        rows = none
        if there is not None and there[0] == group:
            (_, rows), there = decode_segment(there[1], ""), next(written, None)
        yield group, delta_by_key(whole, rows, changed[groups == group])


def delta_by_key(header: dict[str, Any], rows: pl.DataFrame, replaced: NDArray[np.uint64]) -> bytes:
    """The segment of a delta: all rows of the keys that have changed, in the form that the operator gives them.

    Args:
        header: that of the operator's segments.
        rows: may be none.
        replaced: the hashes of the keys of which nothing counts that is stored; they rise.
    """
    said = base64.b64encode(replaced.astype("<u8").tobytes()).decode()
    return encode_segment({**header, "kind": CHANGED_KEYS, "of": header["kind"], "replaced": said}, rows)


def _merged_by_key(operator: str, layers: Sequence[Layer]) -> bytes:
    left = [layer for layer in layers if layer.counts.any()] or [layers[-1]]
    adds = {ADDS: True} if any(ADDS in layer.header for layer in left) else {}
    for layer in left:
        alike = adds or layer.rows.schema == left[-1].rows.schema
        if {**layer.header, **adds} != {**left[-1].header, **adds} or not alike:
            raise _foreign(operator, layer.header)
    # What only adds may be of one of several inputs, with its columns alone.
    rows = pl.concat([rows_of(layer, layer.counts) for layer in left], how="diagonal" if adds else "vertical")
    return encode_segment({**left[-1].header, **adds}, rows)


def rows_of(layer: Layer, chosen: NDArray[np.bool_]) -> pl.DataFrame:
    """Those of the rows of a layer for which it is true."""
    return layer.rows if chosen.all() else layer.rows.filter(pl.Series(chosen, dtype=pl.Boolean))
