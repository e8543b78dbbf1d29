"""Full runs and deltas of keyed state: what incremental snapshots consist of, and how they become segments again.

Of object state both have the columns of `penstock.state.segments`. Every element of a list is a row of its own, whose
`__subkey` is its number; in a delta a row without `__value` says that the entry was removed. For any entry what comes
last counts. Of tables with a row per key (`BY_KEY`) the last row of a key counts, unless it is `REMOVED`; rows without
that column are added to those before. State that consists of nothing but such rows needs no merging: an operator that
restores several segments of a key group adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from penstock.errors import CorruptDataError
from penstock.state.keyed_backend import EVENT_TIMERS, KIND, PROCESSING_TIMERS
from penstock.state.segments import decode_segment, encode_segment

NUMBERED: Final = "numbered objects"
"""The kind of segments of a full run."""
CHANGES: Final = "changed objects"
"""The kind of segments of a delta."""
BY_KEY: Final = "by_key"
"""Set in the header of segments with a row per key."""
REMOVED: Final = "__removed"
"""Boolean: the key of this row has none any more; null in rows that are no key's own."""
_TIME: Final = "__time_of_timer"


def needs_merging(operator: str, segment: bytes) -> bool:
    """Whether segments like this one, of a full run and of deltas, must be `merged` before an operator is given them."""
    header, _ = decode_segment(segment, operator)
    return header["kind"] in (NUMBERED, CHANGES) or BY_KEY in header


def merged(operator: str, segments: Sequence[bytes]) -> bytes:
    """One segment of keyed state from those of a key group, the full run's first, then those of deltas, oldest first.

    Raises:
        CorruptDataError: these are no such segments.
    """
    decoded = [decode_segment(data, operator) for data in segments]
    header = decoded[-1][0]
    for other, _ in decoded:
        if _described(other) != _described(header):
            raise CorruptDataError(
                f"operator {operator!r}: a segment of {other['kind']} ({', '.join(other.get('names', ()))}) does not "
                "belong into its incremental snapshot; restore an earlier savepoint"
            )
    if BY_KEY in header:
        rows = pl.concat([rows for _, rows in decoded], how="diagonal")
        return encode_segment({name: said for name, said in header.items() if name != BY_KEY}, _standing(rows, header))
    rows = pl.concat([rows for _, rows in decoded])
    return encode_segment({**header, "kind": KIND}, _newest(rows, header))


def _described(header: dict[str, Any]) -> tuple[Any, ...]:
    """What all segments of one snapshot say alike."""
    if header["kind"] in (NUMBERED, CHANGES):
        return KIND, header.get("names")
    return (header,) if BY_KEY in header else ("unknown", header)


def _standing(rows: pl.DataFrame, header: dict[str, Any]) -> pl.DataFrame:
    """Of every key its last row, unless it is removed, and all rows that are no key's own."""
    if REMOVED not in rows.columns:
        return rows
    own = pl.col(REMOVED).is_not_null()
    newest = rows.filter(own).unique([field["name"] for field in header["keys"]], keep="last", maintain_order=True)
    return pl.concat([newest.filter(~pl.col(REMOVED)), rows.filter(~own)]).drop(REMOVED)


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
