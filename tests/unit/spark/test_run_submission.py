"""What is sent to the pipeline service, and what is refused before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.client.run_documents import RunOptions
from penstock.connectors import collecting
from penstock.errors import UsageError
from penstock.loading import load_pipeline
from penstock.spark.run_submission import prepare_run

PIPELINE = """
from dataclasses import dataclass
from penstock import Pipeline
from penstock.connectors import collecting, files

@dataclass
class Sale:
    item: str

p = Pipeline("sales")
p.read(files.Source({source!r}, schema=Sale)).write({sink})
"""


@dataclass
class Written:
    """A pipeline file with the sink that is asked for."""

    folder: Path

    def __call__(self, sink: str) -> str:
        (self.folder / "sales.jsonl").write_text("")
        file = self.folder / "sales.py"
        file.write_text(PIPELINE.format(source=str(self.folder / "sales.jsonl"), sink=sink))
        return str(file)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes pipeline files."""
    return Written(tmp_path)


def test_a_run_is_sent_with_its_options(written: Written) -> None:
    """Its graph is that of Spark, its sources are packed."""
    target = written(f"files.Sink({str(written.folder)!r} + '/out')")
    options = RunOptions(parallelism=3)
    submission, sources = prepare_run(load_pipeline(target, {}), target, {}, options, "monday")
    assert (submission.name, submission.run, submission.options) == ("sales", "monday", options)
    assert submission.artifact.target == "sales.py"
    assert submission.graph["parallelism"] == 3
    assert sources.startswith(b"PK")


def test_rows_cannot_be_gathered_in_a_process_that_ends(written: Written) -> None:
    """The sink is named, and what to do."""
    assert collecting.Sink().in_process
    target = written("collecting.Sink()")
    with pytest.raises(UsageError, match=r"collecting\.Sink gathers rows .* write to files or to a topic"):
        prepare_run(load_pipeline(target, {}), target, {}, RunOptions())
