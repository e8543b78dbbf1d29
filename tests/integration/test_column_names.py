"""Columns may have any name: data is read, worked on and written as it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pytest

from penstock import Pipeline, PipelineError, col, tumbling
from penstock.connectors import collecting, files
from penstock.testing import run_pipeline
from penstock.types import INT64, Field, Schema

NAMES = ["user-id", "first name", "a.b", "1x", "class", "é", "{0}", "$.a", "sel*", "`q`", "a/b", "rename", "Ab"]
SCHEMA = pa.schema(
    [pa.field("@timestamp", pa.timestamp("us", "UTC"), False), *(pa.field(name, pa.int64(), False) for name in NAMES)]
)
ROWS = [{"@timestamp": f"2024-01-01T00:00:0{i}Z", **dict.fromkeys(NAMES, i % 2)} for i in range(4)]


@dataclass
class Out:
    user: int
    at: datetime


def out(row) -> Out:
    assert getattr(row, "user-id") == row.user_id
    return Out(row.user_id, row._timestamp)


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_columns_of_any_name_are_read_computed_and_written(format, tmp_path):
    """Through every format there and back, as keys, in windows and in expressions."""
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    first = Pipeline("first")
    source = files.Source(str(tmp_path / "in.jsonl"), schema=SCHEMA, event_time="@timestamp")
    doubled = {name: col(name) * 2 for name in NAMES}
    first.read(source).with_columns(**doubled).write(files.Sink(str(tmp_path / "out"), format=format))
    first.run()
    again = files.Source(str(tmp_path / "out"), schema=SCHEMA, event_time="@timestamp", format=format)
    for name in NAMES:
        second = Pipeline("second")
        rows = second.read(again).filter(col(name) >= 0).key_by(name)
        summed = rows.window(tumbling("10s")).agg(**{f"{name} sum": col(name).sum(), "t": col("@timestamp").max()})
        found = summed.collect().to_dicts()
        assert {(row[name], row[f"{name} sum"]) for row in found} == {(0, 0), (2, 4)}


def test_functions_get_rows_whose_columns_have_any_name():
    """`getattr(row, "user-id")` and `row.user_id` are the same."""
    made = Pipeline("map")
    source = files.Source("in.jsonl", schema=SCHEMA, event_time="@timestamp")
    made.read(source).map(out).write(collecting.Sink())
    got = run_pipeline(made, [{**row, "@timestamp": datetime.fromisoformat(row["@timestamp"])} for row in ROWS])
    assert [(row["user"], row["at"].second) for row in got] == [(0, 0), (1, 1), (0, 2), (1, 3)]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "", "*", "^a$", "__a"])
def test_the_few_names_that_cannot_be_are_refused(name):
    """With what to do, when the schema is declared."""
    with pytest.raises(PipelineError, match=r"column .*(rename it where the data is written|are reserved)"):
        Schema((Field(name, INT64),))
