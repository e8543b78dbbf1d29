"""Full runs and deltas of object state: what incremental snapshots consist of, and how they become segments again.

Both have the columns of `penstock.state.segments`. Every element of a list is a row of its own, whose `__subkey` is its
number; in a delta a row without `__value` says that the entry was removed. For any entry what comes last counts.
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
_TIME: Final = "__time_of_timer"


def merged(operator: str, segments: Sequence[bytes]) -> bytes:
    """One segment of object state from those of a key group, the full run's first, then those of deltas, oldest first.

    Raises:
        CorruptDataError: these are no such segments.
    """
    decoded = [decode_segment(data, operator) for data in segments]
    header = decoded[-1][0]
    for other, _ in decoded:
        if other["kind"] not in (NUMBERED, CHANGES) or other.get("names") != header["names"]:
            raise CorruptDataError(
                f"operator {operator!r}: a segment of {other['kind']} ({', '.join(other.get('names', ()))}) does not "
                "belong into its incremental snapshot; restore an earlier savepoint"
            )
    rows = pl.concat([rows for _, rows in decoded])
    return encode_segment({**header, "kind": KIND}, _newest(rows, header))


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
