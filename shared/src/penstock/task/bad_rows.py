"""What becomes of the records that a reader brings: rows with their event time, or bad records by the source's policy.

Shared by the streaming source and by batch engines, so that a record is judged the same wherever it is read.
"""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl

from penstock.batches import EVENT_TIME
from penstock.connectors.base import BadRow, Fetched, Source
from penstock.errors import BadRecordError
from penstock.protocol.messages import OperatorMetrics


class RowValidator:
    """Judges what the splits of one source bring; counts it in `metrics`."""

    def __init__(self, source: Source[Any], metrics: OperatorMetrics) -> None:
        self._source = source
        self.metrics = metrics

    def judge(self, fetched: Fetched, split_id: str) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """The good rows, with their hidden event time if the source has one, and the dead letters, if there are any.

        Raises:
            BadRecordError: a record is bad and the policy is `fail`.
        """
        frame, bad = fetched.frame, list(fetched.bad)
        if self._source.event_time is not None:
            frame, untimed = self._timed(frame, split_id)
            bad += untimed
        self.metrics.rows_in += frame.height + len(bad)
        return frame, self._dead(bad)

    def _timed(self, frame: pl.DataFrame, split_id: str) -> tuple[pl.DataFrame, list[BadRow]]:
        """The frame with its hidden event time; rows without one are bad."""
        event_time = self._source.event_time
        assert event_time is not None
        column = frame[event_time.column]
        bad: list[BadRow] = []
        if column.null_count():
            for row in frame.filter(column.is_null()).iter_rows(named=True):
                raw = msgspec.json.encode({key: str(value) for key, value in row.items()})
                bad.append(BadRow(f"event time {event_time.column!r} is null", raw, split_id))
            frame = frame.filter(column.is_not_null())
            column = frame[event_time.column]
        return frame.with_columns(column.cast(pl.Int64).alias(EVENT_TIME)), bad

    def _dead(self, bad: list[BadRow]) -> pl.DataFrame | None:
        """Apply the source's policy."""
        if not bad:
            return None
        if self._source.bad_rows == "fail":
            first = bad[0]
            raise BadRecordError(
                f"{first.where}: {first.error}; the record is {first.raw[:200]!r}. Correct it, or choose "
                "bad_rows='skip' (counted) or 'dead_letter' at the source"
            )
        self.metrics.bad_rows += len(bad)
        if self._source.bad_rows == "skip":
            return None
        columns = {
            "error": [row.error for row in bad],
            "raw": [row.raw for row in bad],
            "where": [row.where for row in bad],
        }
        return pl.DataFrame(columns, schema={"error": pl.String, "raw": pl.Binary, "where": pl.String})
