"""How a job's code travels: what goes into the zip, what comes out of it, and what is refused."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import msgspec
import pytest

from penstock.errors import CorruptDataError, PipelineError
from penstock.protocol.joblog import Artifact
from penstock.runtime.artifacts import check_requirements, unpack

PIPELINE = """
    import msgspec
    from dataclasses import dataclass
    from helpers.units import double
    from penstock import Pipeline
    from penstock.connectors import console, generate

    @dataclass
    class Row:
        n: int

    p = Pipeline("packed")
    p.read(generate.nexmark.bids(rows=5)).write(console.Sink())
"""
PACK = """
    import sys, msgspec
    from penstock.runtime.loading import load_pipeline
    from penstock.runtime.artifacts import pack
    load_pipeline("jobs/job.py", {})
    packed = pack("jobs/job.py:p", {"a": "b"})
    open("packed.zip", "wb").write(packed.data)
    sys.stdout.buffer.write(msgspec.json.encode(packed.artifact))
"""


def written(folder: Path, name: str, text: str) -> None:
    """A file of indented text."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A pipeline file that imports a local package; beside it a module that it does not import."""
    written(tmp_path, "jobs/job.py", PIPELINE.replace("generate.nexmark.bids(rows=5)", "SOURCE"))
    text = (tmp_path / "jobs/job.py").read_text()
    source = "generate.Source(lambda n: {'n': n}, schema=Row, rows=5)"
    (tmp_path / "jobs/job.py").write_text(text.replace("SOURCE", source))
    written(tmp_path, "jobs/helpers/__init__.py", "")
    written(tmp_path, "jobs/helpers/units.py", "def double(n): return 2 * n\n")
    written(tmp_path, "jobs/unused.py", "raise RuntimeError\n")
    return tmp_path


def packed(project: Path) -> Artifact:
    """Pack in a process of its own, as the command does: imports stay in it."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PACK)], cwd=project, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=Artifact)


def test_the_file_and_what_it_imports_locally(project: Path) -> None:
    """Files keep their places; other files stay behind; what is imported from elsewhere is named with its version."""
    artifact = packed(project)
    with zipfile.ZipFile(project / "packed.zip") as archive:
        assert sorted(archive.namelist()) == ["helpers/__init__.py", "helpers/units.py", "job.py"]
    assert artifact.target == "job.py:p"
    assert artifact.parameters == {"a": "b"}
    assert artifact.requirements == (f"msgspec=={msgspec.__version__}",)


def test_equal_sources_make_equal_bytes(project: Path) -> None:
    """The object is named by its digest, so that jobs share it."""
    first = packed(project)
    (project / "jobs/job.py").touch()
    assert packed(project).sha256 == first.sha256
    with (project / "jobs/helpers/units.py").open("a") as file:
        file.write("# changed\n")
    assert packed(project).sha256 != first.sha256


def test_unpacked_files_are_those_that_were_packed(project: Path, tmp_path: Path) -> None:
    """And bytes that are not what was stored are refused."""
    artifact = packed(project)
    data = (project / "packed.zip").read_bytes()
    place = unpack(artifact, data, tmp_path / "worker")
    assert (place / "job.py").read_text() == (project / "jobs/job.py").read_text()
    with pytest.raises(CorruptDataError, match="not what was stored"):
        unpack(artifact, data + b" ", tmp_path / "other")


def test_a_file_outside_its_folder_is_refused(tmp_path: Path) -> None:
    """Whatever wrote such an archive, it was not us."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../evil.py", "")
    import hashlib

    artifact = Artifact("k", hashlib.sha256(buffer.getvalue()).hexdigest(), "job.py")
    with pytest.raises(CorruptDataError, match="outside its folder"):
        unpack(artifact, buffer.getvalue(), tmp_path / "worker")
    assert not (tmp_path / "evil.py").exists()


def test_missing_requirements_are_named_all_at_once() -> None:
    """Another version is no reason to refuse."""
    check_requirements([f"msgspec=={msgspec.__version__}", "polars==0.0.1"])
    with pytest.raises(PipelineError, match=r"not-there==1\.0, nor-this==2\.0; install"):
        check_requirements(["not-there==1.0", "polars==0.0.1", "nor-this==2.0"])
