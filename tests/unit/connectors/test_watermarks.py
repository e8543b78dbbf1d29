"""Watermark strategies: bounded, periodic, punctuated; what survives a restart."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from penstock.connectors.declaring import declare
from penstock.connectors.watermarks import (
    PeriodicWatermarks,
    bounded_out_of_orderness,
    for_rows,
    periodic,
    punctuated,
)
from penstock.core.times import from_micros, to_micros
from penstock.errors import PipelineError, UserCodeError
from penstock.types import TIMESTAMP, Field, Schema, row_class


@dataclass
class Row:
    at: datetime
    marker: str | None


def batch(*seconds: int, marker: str | None = None) -> tuple[pl.Series, pl.DataFrame]:
    """Event times and rows; the hidden column that the runtime adds is there too."""
    micros = pl.Series([second * 1_000_000 for second in seconds], dtype=pl.Int64)
    frame = pl.DataFrame({"at": micros.cast(pl.Datetime("us", "UTC")), "marker": [marker] * len(seconds)})
    return micros, frame.with_columns(micros.alias("__event_time"))


def after(generator: Any, *rows: Any) -> int | None:
    """The watermark behind rows."""
    moves = generator.on_batch(*rows)
    return None if moves is None else moves.after


def test_bounded_out_of_orderness() -> None:
    """The watermark is the newest event time minus the bound minus a microsecond, and never goes back."""
    generator = bounded_out_of_orderness(2_000_000).generator()
    assert generator.on_period() is None
    assert generator.on_batch(*batch()) is None
    assert after(generator, *batch(5, 9, 3)) == 6_999_999
    assert after(generator, *batch(1)) == 6_999_999
    resumed = bounded_out_of_orderness(2_000_000).generator()
    resumed.restore(json.loads(json.dumps(generator.state())))
    assert resumed.on_period() == 6_999_999
    assert bounded_out_of_orderness(90_000_000).describe() == "out of order by at most 1m30s"


def test_periodic_function() -> None:
    """The function gets the newest event time when the period has passed, not at every batch."""
    asked: list[datetime] = []

    def lag(newest: datetime) -> datetime | None:
        asked.append(newest)
        return newest - timedelta(seconds=len(asked))

    strategy = periodic(lag, every="1s")
    assert strategy.every_us == 1_000_000
    assert "lag every 1s" in strategy.describe()
    generator = strategy.generator()
    assert generator.on_period() is None
    assert generator.on_batch(*batch(10, 7)) is None
    assert generator.on_period() == 9_000_000
    assert generator.on_period() == 9_000_000, "the function went back, the watermark does not"
    resumed = strategy.generator()
    resumed.restore(json.loads(json.dumps(generator.state())))
    assert resumed.on_period() == 9_000_000
    assert asked[-1] == from_micros(10_000_000)


def test_periodic_class() -> None:
    """A subclass sees every row, one instance per split, and its state is kept."""

    class Markers(PeriodicWatermarks):
        newest: datetime | None = None

        def on_row(self, row: Any, event_time: datetime) -> None:
            assert isinstance(row, Row)
            if row.marker:
                self.newest = event_time

        def on_period(self) -> datetime | None:
            return self.newest

        def state(self) -> Any:
            return self.newest and to_micros(self.newest)

        def restore(self, state: Any) -> None:
            self.newest = from_micros(state) if state else None

    strategy = for_rows(periodic(Markers), Row)
    generator, other = strategy.generator(), strategy.generator()
    generator.on_batch(*batch(3, 4, marker="m"))
    generator.on_batch(*batch(9))
    assert generator.on_period() == 4_000_000
    assert other.on_period() is None
    other.restore(json.loads(json.dumps(generator.state())))
    assert other.on_period() == 4_000_000


def test_punctuated() -> None:
    """The function gets every row; the highest watermark that rows announced counts."""
    strategy = for_rows(punctuated(lambda row: row.at if row.marker == "end" else None), Row)
    generator = strategy.generator()
    assert generator.on_batch(*batch(5)) is None
    assert after(generator, *batch(8, 7, marker="end")) == 8_000_000
    assert after(generator, *batch(6, marker="end")) == 8_000_000
    assert generator.on_period() is None
    resumed = strategy.generator()
    resumed.restore(generator.state())
    assert after(resumed, *batch(1)) == 8_000_000


def test_errors_of_user_code() -> None:
    """What a user's function raises or returns wrongly is told with its name."""
    for result, message in ((1, "must return a datetime or None, got 1"), (datetime(2001, 1, 1), "no time zone")):  # noqa: DTZ001
        generator = for_rows(punctuated(lambda row, result=result: result), Row).generator()  # type: ignore[misc]
        with pytest.raises(UserCodeError, match=message):
            generator.on_batch(*batch(1))

    def broken(newest: datetime) -> datetime:
        raise KeyError("oh")

    generator = periodic(broken).generator()
    generator.on_batch(*batch(1))
    with pytest.raises(UserCodeError, match=r"broken raised KeyError: 'oh'") as caught:
        generator.on_period()
    assert isinstance(caught.value.__cause__, KeyError)


def test_declaration_errors() -> None:
    """Wrong strategies are told at once."""
    for wrong in (lambda: periodic(Row), lambda: periodic(1), lambda: punctuated(1)):  # type: ignore[arg-type]
        with pytest.raises(PipelineError, match="need a function"):
            wrong()
    with pytest.raises(PipelineError, match="every"):
        periodic(lambda newest: newest, every="0s")
    with pytest.raises(PipelineError, match="class of its rows"):
        punctuated(lambda row: None).generator()


def test_common_parameters_of_sources() -> None:
    """Event time, watermarks, policy and zone are checked against the schema with helpful messages."""
    declared = declare("x", Row, event_time="at", idle_after="5s")
    assert declared.row_type is Row
    assert declared.event_time is not None
    assert declared.event_time.idle_after_us == 5_000_000
    cases: list[tuple[dict[str, Any], str]] = [
        ({"event_time": "att"}, r"x: event_time: there is no column 'att'; did you mean 'at'\?"),
        ({"event_time": "marker", "time_unit": "ms"}, "time_unit= is for numbers; event_time marker is string"),
        ({"max_out_of_orderness": "1s"}, "needs event_time="),
        ({"idle_after": "1s"}, "needs event_time="),
        ({"event_time": "at", "max_out_of_orderness": "1s", "watermarks": punctuated(lambda row: None)}, "not both"),
        ({"event_time": "at", "watermarks": "1s"}, "periodic"),
        ({"event_time": "at", "max_out_of_orderness": "1 hour"}, "not a duration"),
        ({"event_time": "at", "idle_after": "0s"}, "positive"),
        ({"bad_rows": "ignore"}, "no bad_rows='ignore'"),
        ({"timezone": "Mars"}, "no time zone 'Mars'"),
    ]
    for parameters, message in cases:
        with pytest.raises(PipelineError, match=message):
            declare("x", Row, **parameters)
    assert declare("x", Row).event_time is None


def test_event_time_is_never_null() -> None:
    """The event time column counts as not nullable, so that rows without it are bad rows."""

    @dataclass
    class Loose:
        at: datetime | None

    declared = declare("x", Loose, event_time="at")
    assert not declared.schema.field("at").nullable
    assert datetime(2001, 1, 1, tzinfo=UTC)


def test_rows_for_a_strategy_have_attributes_for_columns_of_any_name() -> None:
    """Columns whose names are no identifiers, in rows without a class of the user."""
    made = row_class(Schema((Field("sent-at", TIMESTAMP),)))
    generator = for_rows(punctuated(lambda row: row.sent_at), made).generator()
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert after(generator, pl.Series([0]), pl.DataFrame({"sent-at": [moment]})) == to_micros(moment)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_what_holds_at_a_row_does_not_depend_on_batches(size: int) -> None:
    """Bounded: the time of a row counts at the row itself. Punctuated: what it announces holds behind it."""
    seconds = [5, 9, 3, 9, 12]
    bounded = bounded_out_of_orderness(2_000_000).generator()
    announced = for_rows(punctuated(lambda row: row.at), Row).generator()
    found: dict[Any, list[int | None]] = {bounded: [], announced: []}
    for begin in range(0, len(seconds), size):
        for generator, marks in found.items():
            moves = generator.on_batch(*batch(*seconds[begin : begin + size]))
            assert moves is not None
            marks += moves.at_rows.to_list()
    assert found[bounded] == [second * 1_000_000 - 2_000_001 for second in (5, 9, 9, 9, 12)]
    assert found[announced] == [None, 5_000_000, 9_000_000, 9_000_000, 9_000_000]
