"""Timestamps without an offset, of a source that names their zone."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from penstock.formats.columns import FrameBuilder
from penstock.formats.csv_decoding import CsvDecoder
from penstock.formats.decoding import JsonDecoder
from penstock.formats.schema_matching import SchemaMatcher
from penstock.types import TIMESTAMP, Field, Schema


@pytest.mark.parametrize("clock", ["2024-03-31T02:30:00", "2024-10-27T02:30:00"])
def test_naive_timestamps_mean_the_same_in_every_format(clock: str) -> None:
    """A time that clocks skip is no time; of one that comes twice it is the first."""
    schema, zone = Schema((Field("at", TIMESTAMP),)), ZoneInfo("Europe/Berlin")
    naive = datetime.fromisoformat(clock)
    batch = pa.record_batch({"at": pa.array([naive], pa.timestamp("us"))})
    frames = [
        JsonDecoder(schema, zone).decode(f'{{"at": "{clock}"}}\n'.encode()).frame,
        CsvDecoder(schema, ["at"], "a.csv", zone=zone).decode(f"{clock}\n".encode()).frame,
        FrameBuilder(schema, zone).frame([[naive]])[0],
        SchemaMatcher(schema, batch.schema, "a.parquet", "Europe/Berlin").frame(batch)[0],
    ]
    wanted = [] if naive.month == 3 else [datetime(2024, 10, 27, 0, 30, tzinfo=UTC)]
    assert [frame["at"].to_list() for frame in frames] == [wanted] * 4


def test_a_skipped_time_is_told() -> None:
    """With the zone in which there is none."""
    decoded = JsonDecoder(Schema((Field("at", TIMESTAMP),)), ZoneInfo("Europe/Berlin")).decode(
        b'{"at": "2024-03-31T02:30:00"}\n'
    )
    assert decoded.bad[0].error == "at: there is no 2024-03-31T02:30:00 in Europe/Berlin, where clocks skip it"


@pytest.mark.parametrize("clock", ["0001-01-01T00:00:00", "9999-12-31T23:59:59"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_the_ends_of_the_calendar_are_rows_or_bad_rows(clock: str, zone: str) -> None:
    """Never an error of another kind."""
    decoded = JsonDecoder(Schema((Field("at", TIMESTAMP),)), ZoneInfo(zone)).decode(f'{{"at": "{clock}"}}\n'.encode())
    assert decoded.frame.height + len(decoded.bad) == 1
    assert all("not within the years 1 to 9999" in line.error for line in decoded.bad)
