"""What becomes of the records that a reader brings: rows with their event time, or bad records by the source's policy.

Shared by the streaming source and by batch engines, so that a record is judged the same wherever it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import structlog

from penstock.connectors.base import BadRow, Fetched, Source
from penstock.core.batches import EVENT_TIME
from penstock.core.times import format_duration, format_time
from penstock.errors import BadRecordError
from penstock.protocol.messages import OperatorMetrics

if TYPE_CHECKING:
    from penstock.connectors.event_times import EventTimeForm


_log = structlog.get_logger("penstock.source")


class RowValidator:
    """Judges what the splits of one source bring; counts it in `metrics`."""

    def __init__(
        self, source: Source[Any], metrics: OperatorMetrics, clock_us: Callable[[], int], window_reach_us: int = 0
    ) -> None:
        """`clock_us`: the wall clock; `window_reach_us`: how far the bounds of windows may be from a row of them."""
        self._clock_us = clock_us
        self._max_ahead_us = source.max_ahead_us
        self._source = source
        self._form = source.event_time.form if source.event_time is not None else None
        self._micros = None if self._form is None else self._form.micros(window_reach_us).alias(EVENT_TIME)
        self._timed_columns = [*source.schema.names, EVENT_TIME]
        self.metrics = metrics

    def judge(self, fetched: Fetched, split_id: str) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """The good rows, with their hidden event time if the source has one, and the dead letters, if there are any.

        Raises:
            BadRecordError: a record is bad and the policy is `fail`.
        """
        frame, bad = fetched.frame, list(fetched.bad)
        if self._form is not None:
            frame, untimed = self._timed(self._form, frame, split_id)
            bad += untimed
            if self._max_ahead_us is not None:
                frame, ahead = self._in_reach(self._form, frame, split_id, self._max_ahead_us)
                bad += ahead
        self.metrics.rows_in += frame.height + len(bad)
        if fetched.misspelt:
            self._tell(fetched.misspelt, split_id)
        return frame, self._dead(bad)

    def _tell(self, misspelt: Mapping[str, str], split_id: str) -> None:
        """Of each optional field that records seem to spell otherwise, once."""
        known = self.metrics.misspelt_fields
        owner = f"{self._source.row_type.__name__}." if self._source.row_type is not None else ""
        found = {f"{owner}{name}": near for name, near in misspelt.items()}
        for name in found.keys() - known.keys():
            _log.warning(
                "an optional field is not in the records", field=name, did_you_mean=found[name], split=split_id
            )
        self.metrics.misspelt = found | known

    def _timed(self, form: EventTimeForm, frame: pl.DataFrame, split_id: str) -> tuple[pl.DataFrame, list[BadRow]]:
        """The frame with its hidden event time; rows without one are bad."""
        try:
            timed = frame.with_columns(self._micros)
        except pl.exceptions.PolarsError as error:  # the user's expression does not bear some value
            if frame.height > 1:
                parts = [self._timed(form, row, split_id) for row in frame.iter_slices(1)]
                return pl.concat([part for part, _ in parts]), [each for _, bad in parts for each in bad]
            timed = frame.with_columns(pl.lit(None, pl.Int64).alias(EVENT_TIME))
            reasons = [f"event time {form.name}: {str(error).splitlines()[0]}"]
        else:
            reasons = []
            if timed[EVENT_TIME].null_count():
                reasons = form.reasons(timed.filter(pl.col(EVENT_TIME).is_null()))
        timed = timed[self._timed_columns]
        if not reasons:
            return timed, []
        rows = timed.filter(pl.col(EVENT_TIME).is_null()).drop(EVENT_TIME).iter_rows(named=True)
        bad = [_bad_row(row, reason, split_id) for row, reason in zip(rows, reasons, strict=True)]
        return timed.filter(pl.col(EVENT_TIME).is_not_null()), bad

    def _in_reach(
        self, form: EventTimeForm, timed: pl.DataFrame, split_id: str, max_ahead_us: int
    ) -> tuple[pl.DataFrame, list[BadRow]]:
        """The rows whose event time is at most so far ahead of the wall clock; others are bad."""
        now_us = self._clock_us()
        newest = timed[EVENT_TIME].max()
        if not isinstance(newest, int) or newest - now_us <= max_ahead_us:
            return timed, []
        is_ahead = pl.col(EVENT_TIME) > now_us + max_ahead_us
        bad: list[BadRow] = []
        for row in timed.filter(is_ahead).iter_rows(named=True):
            at_us = row.pop(EVENT_TIME)
            reason = (
                f"event time {form.name}: {format_time(at_us)} is further ahead of the wall clock, "
                f"{format_time(now_us)}, than max_ahead={format_duration(max_ahead_us)!r} allows; if such times are "
                "meant, give the source another max_ahead=, or None"
            )
            bad.append(_bad_row(row, reason, split_id))
        return timed.filter(~is_ahead), bad

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


def _bad_row(row: Mapping[str, Any], reason: str, split_id: str) -> BadRow:
    return BadRow(reason, msgspec.json.encode({name: str(value) for name, value in row.items()}), split_id)
