"""Pipelines that read what they write are refused before anything happens; what only lies beside it is not."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import Pipeline, PipelineError
from penstock.connectors import collecting, files
from penstock.graph.jobgraph import build_job_graph

SCHEMA = pa.schema([("n", pa.int64()), ("day", pa.string())])


def built(source: str, sink: files.Sink) -> None:
    p = Pipeline("circle")
    p.read(files.Source(source, schema=SCHEMA)).write(sink)
    build_job_graph(p.plan, 1)


@pytest.mark.parametrize(
    "source", ["in", "in/", "./in/../in", "in/*", "in/**/*.parquet", "", "i?", "in/day=*/*", "in/**/part-*"]
)
@pytest.mark.parametrize("root", ["s3://orders", "."])
def test_reading_its_own_rows(source: str, root: str) -> None:
    """After a restart they would be found as further files."""
    if (source == "i?") or (root.startswith("s3") and ".." in source):
        source = "in"
    columns = ["day"] if "day" in source else []
    with pytest.raises(PipelineError, match="writes: rows of its own after a restart"):
        built(f"{root}/{source}", files.Sink(f"{root}/in", format="parquet", partition_by=columns))


@pytest.mark.parametrize(
    "source", ["in/*.csv", "in/day=1", "in/day=1/part-7.parquet", "in/part-7.jsonl", "in/day=1/*.csv"]
)
@pytest.mark.parametrize("root", ["s3://orders", "."])
def test_removing_its_own_input(source: str, root: str) -> None:
    """What lies where a sink replaces its parts would be gone before it is read."""
    sink = files.Sink(f"{root}/in", format="parquet", partition_by=["day"], existing="replace")
    with pytest.raises(PipelineError, match=r"removes what .* reads before it is read"):
        built(f"{root}/{source}", sink)
    built(f"{root}/{source}", files.Sink(f"{root}/in", format="parquet", existing="append"))


@pytest.mark.parametrize(
    ("source", "sink"),
    [
        ("in", "out"), ("in", "input"), ("in/*.jsonl", "in/out"), ("in/a.jsonl", "in"), ("in/raw", "in"),
        ("in", "in/.out"), ("in", "in/_out"), ("in/raw/part-1.csv", "in"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("root", ["s3://orders", "."])
def test_what_lies_beside_it(source: str, sink: str, root: str) -> None:
    """Is read as ever."""
    built(f"{root}/{source}", files.Sink(f"{root}/{sink}", format="parquet", existing="replace"))
    built(f"s3://others/{source}", files.Sink(f"{root}/{source}", format="parquet"))


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ("out", "out/late", "lies in"), ("out/late", "./out/", "lies in"), ("out", "out/n=1", "lies in"),
        ("out", "out/.staging/late", "lies in"), ("out", "./out", "written by another sink already"),
        ("out", "out-late", ""), ("out/rows", "out/late", ""), ("out", "out/_late", ""), ("out", "out/.late", ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("root", ["s3://orders", "."])
def test_sinks_whose_files_would_be_mixed(one: str, other: str, said: str, root: str) -> None:
    """Readers of a folder read what is below it, too, but for what is hidden."""
    if root.startswith("s3"):
        other = other.removeprefix("./")
    p = Pipeline("nested")
    rows = p.read(files.Source(f"{root}/in", schema=SCHEMA))
    rows.write(files.Sink(f"{root}/{one}"))
    with pytest.raises(PipelineError, match=said) if said else nullcontext():
        rows.write(files.Sink(f"{root}/{other}", format="csv"))


def test_links_lead_to_the_same_folder(tmp_path: Path) -> None:
    """Whatever the two sinks call it."""
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    one, other = files.Sink(tmp_path / "out"), files.Sink(tmp_path / "link" / "late")
    assert "write to folders beside each other, such as" in one.conflict(other)
    assert not one.conflict(collecting.Sink())


def test_nothing_is_removed(tmp_path: Path) -> None:
    """It is found before the sink begins."""
    (tmp_path / "part-0.jsonl").write_text('{"n":1}\n')
    p = Pipeline("circle")
    p.read(files.Source(tmp_path, schema=SCHEMA)).write(files.Sink(tmp_path, existing="replace"))
    with pytest.raises(PipelineError, match="the input is removed"):
        p.run()
    assert (tmp_path / "part-0.jsonl").exists()
