"""Large files are read in parts by several tasks, and nobody can tell by the rows."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from embedded_runs import counted, finish, newest, rows
from large_files import ROWS, events, parts_of
from spark_runs import HERE, run
from state_runs import run_part

from penstock import Pipeline, savepoint
from penstock.cli.main import main
from penstock.connectors import files
from penstock.errors import PipelineError
from penstock.loading import load_pipeline
from penstock.spark import lowering, savepoints
from penstock.spark.progress import split_reports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = HERE / "large_file_pipelines.py"
TOLD = """
from dataclasses import dataclass
from datetime import datetime

from penstock import Pipeline, punctuated
from penstock.connectors import files


@dataclass
class Event:
    at: datetime


p = Pipeline("told")
told = files.Source("in", schema=Event, event_time="at", watermarks=punctuated(lambda row: row.at))
p.read(told).write(files.Sink("out"))
"""


@dataclass
class Number:
    number: int


def outcome(out: Path) -> dict[str, Any]:
    found = {name: counted(rows(out / name)) for name in ("filtered", "windows", "sessions")}
    dead = [(row["raw"], row["where"].partition(",")[0]) for row in rows(out / "dead")]
    in_order = [row["number"] for row in sorted(rows(out / "process"), key=lambda row: row["key"])]
    return found | {"dead": sorted(dead), "process": in_order, "untimed": newest(rows(out / "untimed"), "key")}


def watermarks(sp: savepoint.Savepoint) -> dict[str, set[int]]:
    """How far each vertex had come."""
    return {vertex: {each.watermark for each in found.values()} for vertex, found in sp.manifest.subtasks.items()}


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow"])
def test_rows_and_their_order_are_those_of_the_whole_file(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """Also that of rows with one event time, which functions see, and that of rows without any."""
    size = events(tmp_path / "in", kind).stat().st_size
    results = {}
    for name, most_bytes in (("whole", size), ("parts", size // 9)):
        parameters = {"in": str(tmp_path / "in"), "out": str(tmp_path / name)}
        with parts_of(spark, most_bytes):
            results[name] = run(spark, FILE, tmp_path / f"state-{name}", parameters)
    assert len(list((tmp_path / "whole" / "filtered").glob("part-*"))) == 2
    assert len(list((tmp_path / "parts" / "filtered").glob("part-*"))) >= 8
    expected, found = (outcome(tmp_path / name) for name in ("whole", "parts"))
    assert len(expected["process"]) == ROWS + 18
    assert len(expected["dead"]) == 2
    for name, value in expected.items():
        assert found[name] == value, name
    late, at_least = (results[name].total("windows", "late_rows_kept") for name in ("whole", "parts"))
    assert 0 < at_least < late  # see the next test for those that the pipeline reads


def test_late_rows_of_parts(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that the pipeline reads go by the order of the file, which is thus read by one task; the plan says so."""
    size = events(tmp_path / "in", "jsonl").stat().st_size
    parameters = {"in": str(tmp_path / "in"), "out": str(tmp_path / "spark"), "case": "late"}
    (tmp_path / "in" / "b.jsonl").unlink()
    with parts_of(spark, size // 9):
        run(spark, FILE, tmp_path / "state", parameters)
    finish(load_pipeline(str(FILE), parameters | {"out": str(tmp_path / "embedded")}), tmp_path / "job")
    for name in ("windows", "late"):
        expected = counted(rows(tmp_path / "embedded" / name))
        assert expected
        assert counted(rows(tmp_path / "spark" / name)) == expected
    given = [text for name, value in parameters.items() for text in ("--param", f"{name}={value}")]
    capsys.readouterr()
    assert main(["plan", str(FILE), "--engine", "spark", *given]) == 0
    assert "files are read as a whole: rows are late by the order of their split" in capsys.readouterr().out
    assert main(["plan", str(FILE), "--engine", "spark", *given[:-2]]) == 0
    assert "large files are read in parts" in capsys.readouterr().out


def test_a_savepoint_names_whole_files(spark: SparkSession, tmp_path: Path) -> None:
    """A run that reads in parts leaves the savepoint that one leaves which does not, and the next run goes on from it."""
    size = events(tmp_path / "in", "jsonl").stat().st_size
    (tmp_path / "in" / "b.jsonl").rename(tmp_path / "b.jsonl")
    kept = {}
    for name, most_bytes in (("whole", size), ("parts", size // 9)):
        given = {"in": str(tmp_path / "in"), "out": str(tmp_path / name)}
        with parts_of(spark, most_bytes):
            run_part(spark, tmp_path / f"state-{name}", given, target=tmp_path / f"sp-{name}", file=FILE)
        kept[name] = savepoint.read(tmp_path / f"sp-{name}")
    assert kept["parts"].splits().rows() == kept["whole"].splits().rows()
    assert '"range"' not in str(kept["parts"].splits().rows())
    assert watermarks(kept["parts"]) == watermarks(kept["whole"])
    (tmp_path / "b.jsonl").rename(tmp_path / "in" / "b.jsonl")
    late = 0
    for name in kept:
        given = {"in": str(tmp_path / "in"), "out": str(tmp_path / name)}
        with parts_of(spark, size // 9):
            done = run_part(spark, tmp_path / f"state-{name}", given, start=tmp_path / f"sp-{name}", file=FILE)
        late = done.total("windows", "late_rows")
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")
    assert sum(row["n"] for row in rows(tmp_path / "parts" / "windows")) == ROWS + 18 - late > ROWS


def test_the_plan_says_where_a_savepoint_keeps_files_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a function of the user's says how far event time has come."""
    (tmp_path / "told.py").write_text(TOLD)
    assert main(["plan", str(tmp_path / "told.py"), "--engine", "spark"]) == 0
    said = "read in parts, where their format has any; as a whole in a run that leaves a savepoint: how far event time"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("keeps", [False, True])
def test_a_file_that_is_replaced_while_it_is_read_fails_the_run(
    keeps: bool, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of both would be mixed: nothing becomes visible, with a savepoint and without. It is looked for once."""
    to_savepoint = str(tmp_path / "kept") if keeps else None
    looked: list[object] = []
    for module in (lowering, savepoints):
        monkeypatch.setattr(module, "split_reports", lambda *given: looked.append(1) or split_reports(*given))
    path = events(tmp_path / "in", "jsonl")
    other = tmp_path / "other.jsonl"
    other.write_bytes(path.read_bytes().replace(b'"k', b'"q'))
    made = Pipeline("replaced")
    read = made.read(files.Source(tmp_path / "in", bad_rows="skip", schema=Number))

    def replacing(row: Number) -> Number:
        if row.number == 0 and other.exists():
            os.replace(other, path)
        return row

    read.map(replacing, returns=Number).write(files.Sink(tmp_path / "out"))
    with parts_of(spark, path.stat().st_size // 9), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(PipelineError, match=r"a.jsonl was replaced or rewritten while the run read it in parts"):
            made.run(engine="spark", spark=spark, directory=tmp_path / "runs", to_savepoint=to_savepoint)
    assert len(looked) == 1
    assert not other.exists()
    assert not list((tmp_path / "out").glob("part-*"))
