"""Columns of times of day: decoded, encoded, computed, in rows as `datetime.time`, and what they cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time

import polars as pl
import pyarrow as pa
import pytest

from penstock import Pipeline, PipelineError, col, lit
from penstock.connectors import collecting, iterables
from penstock.expressions import from_json, to_json
from penstock.formats.avro import encode_avro
from penstock.formats.csv_decoding import CsvDecoder
from penstock.formats.decoding import JsonDecoder
from penstock.formats.encoding import encode_csv, encode_jsonl
from penstock.formats.schema_matching import SchemaMatcher
from penstock.spark.wire import wire_type
from penstock.testing import evaluate, run_pipeline
from penstock.types import TIME, arrow_type, of_arrow, polars_type, schema_of, type_from_json, type_to_json


@dataclass
class Shift:
    """A row with times."""

    begins: time
    ends: time | None = None


VALUES = [Shift(time(9), time(17, 30, 0, 500_000)), Shift(time(0)), Shift(time(23, 59, 59, 999_999), time(1, 2, 3))]
SCHEMA = schema_of(Shift)
FRAME = pl.DataFrame(
    {"begins": [row.begins for row in VALUES], "ends": [row.ends for row in VALUES]}, schema=SCHEMA.polars()
)


def test_text_formats_write_what_they_read() -> None:
    """ISO 8601, with a fraction where there is one."""
    lines = encode_jsonl(FRAME, SCHEMA)
    assert lines.splitlines()[0] == b'{"begins":"09:00:00","ends":"17:30:00.500"}'
    assert JsonDecoder(SCHEMA).decode(lines).frame.equals(FRAME)
    table = encode_csv(FRAME, SCHEMA, header=False)
    assert CsvDecoder(SCHEMA, SCHEMA.names, "a.csv").decode(table).frame.equals(FRAME)


@pytest.mark.parametrize("wrong", ['"09:00:00+01:00"', '"9"', "9", "null"])
def test_what_is_no_time_of_day_makes_a_record_bad(wrong: str) -> None:
    """One with an offset as well."""
    decoded = JsonDecoder(SCHEMA).decode(f'{{"begins": {wrong}}}\n{{"begins": "09:00:00"}}\n'.encode())
    assert decoded.frame["begins"].to_list() == [time(9)]
    assert len(decoded.bad) == 1


@pytest.mark.parametrize("kind", [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")])
def test_typed_columns_of_any_unit_are_times(kind: pa.DataType) -> None:
    """And Arrow, Polars, JSON and Spark's wire have the type."""
    batch = pa.record_batch({"begins": pa.array([time(9), time(0)], kind)})
    frame, bad = SchemaMatcher(SCHEMA, batch.schema, "a.parquet").frame(batch)
    assert frame["begins"].to_list() == [time(9), time(0)]
    assert not bad
    assert of_arrow(kind, "x") == TIME
    assert frame["begins"].dtype == polars_type(TIME)
    assert frame["begins"].to_arrow().type == arrow_type(TIME)
    assert type_from_json(type_to_json(TIME)) == TIME
    there = frame["begins"].to_arrow().cast(wire_type(TIME))
    assert there.cast(arrow_type(TIME)).to_pylist() == [time(9), time(0)]


def test_avro_has_times_in_microseconds() -> None:
    """Logical type time-micros."""
    import io

    import fastavro

    from penstock.formats.avro import avro_schema

    data = encode_avro(FRAME, SCHEMA)
    read = fastavro.schemaless_reader(io.BytesIO(data[0]), fastavro.parse_schema(avro_schema(SCHEMA)), None)
    assert read == {"begins": time(9), "ends": time(17, 30, 0, 500_000)}


def test_rows_have_times_and_pipelines_compute_with_them() -> None:
    """Through a function of rows, a filter and an aggregate."""
    made = Pipeline("shifts")
    sink = collecting.Sink()
    late = made.read(iterables.Source([], schema=Shift)).map(later).filter(col("begins") >= time(1))
    late.with_columns(hour=col("begins").dt.hour()).key_by("hour").agg(first=col("begins").min()).write(sink)
    got = run_pipeline(made, VALUES)
    assert [(row["hour"], row["first"]) for row in got] == [(10, time(10)), (1, time(1))]


def later(row: Shift) -> Shift:
    """One hour."""
    return Shift(row.begins.replace(hour=(row.begins.hour + 1) % 24), row.ends)


def test_expressions_of_times() -> None:
    """Parts, comparison, text, and the JSON form of a constant."""
    moment = datetime(2024, 1, 1, 8, 30, 0, 250_000, tzinfo=UTC)
    assert evaluate(col("t").dt.time(), t=[moment, None]) == [time(8, 30, 0, 250_000), None]
    assert evaluate(col("t").dt.time().cast(str), t=[moment]) == ["08:30:00.250"]
    assert evaluate(col("t") == time(9), t=[time(9), time(8)]) == [True, False]
    assert evaluate(col("t").dt.millisecond(), t=[time(9, 0, 0, 7_000)]) == [7]
    assert from_json(to_json(lit(time(9, 30)))).node == lit(time(9, 30)).node


def test_what_times_cannot_be() -> None:
    """Keys, constants with an offset, hashes, in a zone."""
    made = Pipeline("shifts")
    with pytest.raises(PipelineError, match=r"key_by: begins is time, which cannot be a key; key by its text"):
        made.read(iterables.Source([], schema=Shift)).key_by("begins")
    with pytest.raises(PipelineError, match=r"has an offset, a time of day has none"):
        lit(time(9, tzinfo=UTC))
    with pytest.raises(PipelineError, match="needs a column without parts that could be a key, got time"):
        evaluate(col("t").hash(), t=[time(9)])
    with pytest.raises(PipelineError, match="time is the same in every zone"):
        evaluate(col("t").dt.in_zone("Asia/Tokyo").hour(), t=[time(9)])
