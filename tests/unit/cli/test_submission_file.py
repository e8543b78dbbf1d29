"""`penstock submit --write`: a job in a file, without a cluster."""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

from penstock.cli.main import main
from penstock.client.documents import Submission
from penstock.submission.file import DOCUMENT, SOURCES

PIPELINE = """
from dataclasses import dataclass

from penstock import Pipeline, param
from penstock.connectors import console, iterables


@dataclass
class Row:
    n: int


def rows():
    return [Row(1)]


p = Pipeline("written")
p.read(iterables.Source(rows, schema=Row)).write(console.Sink())
factor = param("factor", 1)
"""


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "written.py"
    file.write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    return file


def test_the_file_holds_what_a_dispatcher_takes(pipeline: Path, tmp_path: Path) -> None:
    """The document and the sources, in two plain entries; the same each time, for its owner's eyes alone."""
    command = ["submit", "written.py", "--parallelism", "3", "--param", "factor=2", "--write", "job.penstock"]
    assert main(command) == 0
    file = tmp_path / "job.penstock"
    first = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        assert [(entry.filename, entry.compress_type) for entry in archive.infolist()] == [(DOCUMENT, 0), (SOURCES, 0)]
        submission = msgspec.json.decode(archive.read(DOCUMENT), type=Submission)
        with zipfile.ZipFile(BytesIO(archive.read(SOURCES))) as inner:
            assert "written.py" in inner.namelist()
    assert (submission.name, submission.graph["parallelism"], submission.job) == ("written", 3, "")
    assert submission.artifact.parameters == {"factor": "2"}
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    assert main(command) == 0
    assert file.read_bytes() == first
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--write", "no/such/place"], "cannot be written"),
        (["--write", "job.penstock", "--from-savepoint", "other"], "leave --from-savepoint out"),
        (["--write", "job.penstock", "--job-id", "ab" * 16], "leave --job-id out"),
        (["--write", "job.penstock", "--engine", "spark"], "--write"),
    ],
)
def test_what_cannot_be_written_is_said(more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is left behind."""
    try:
        code = main(["submit", "written.py", *more])
    except SystemExit as ended:
        code = ended.code
    assert code
    assert said in capsys.readouterr().err
    assert not Path("job.penstock").exists()
