"""How a job's code travels: what goes into the zip, what comes out of it, and what is refused."""

from __future__ import annotations

import hashlib
import importlib
import io
import stat
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import msgspec
import pytest

from penstock.coordination import artifacts
from penstock.coordination.artifacts import check_requirements, unpack
from penstock.errors import CorruptDataError, PipelineError
from penstock.protocol.joblog import Artifact

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
    from penstock.loading import load_pipeline
    from penstock.coordination.artifacts import pack
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


def test_modules_out_of_archives_are_not_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark is one on YARN, in the driver's own directory: taken along by value, it was too deep to be pickled."""
    with zipfile.ZipFile(tmp_path / "deps.zip", "w") as archive:
        archive.writestr("module_of_an_archive.py", "")
    monkeypatch.syspath_prepend(tmp_path / "deps.zip")
    module = importlib.import_module("module_of_an_archive")
    assert module not in artifacts.local_modules()
    assert module not in artifacts.local_modules(tmp_path)


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


@pytest.mark.parametrize(
    "target", ["/etc/evil.py", "../evil.py:p", "a/../../evil.py", "..\\evil.py", "", ":p", "//evil.py"]
)
def test_a_file_to_run_outside_of_the_sources_is_refused_by_whoever_unpacks_them(target: str, tmp_path: Path) -> None:
    """The dispatcher refuses it, too; what is in the topic of requests has not always come through one."""
    artifact, data = zipped(("job.py", b"p = 1"))
    artifact = msgspec.structs.replace(artifact, target=target)
    with pytest.raises(CorruptDataError, match="the file to be run is outside of the sources"):
        unpack(artifact, data, tmp_path / "worker")
    assert not (tmp_path / "worker").exists()


def test_missing_requirements_are_named_all_at_once() -> None:
    """Another version is no reason to refuse."""
    check_requirements([f"msgspec=={msgspec.__version__}", "polars==0.0.1"])
    with pytest.raises(PipelineError, match=r"not-there==1\.0, nor-this==2\.0; install"):
        check_requirements(["not-there==1.0", "polars==0.0.1", "nor-this==2.0"])


def zipped(*entries: tuple[str | zipfile.ZipInfo, bytes]) -> tuple[Artifact, bytes]:
    """A zip and what names it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    data = buffer.getvalue()
    return Artifact("key", hashlib.sha256(data).hexdigest(), "a.py"), data


def link(name: str) -> zipfile.ZipInfo:
    """The entry of a symbolic link."""
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([("a.py", b""), ("../b.py", b"")], "outside its folder"),
        ([("/b.py", b"")], "outside its folder"),
        ([("a/../../b.py", b"")], "outside its folder"),
        ([("..\\b.py", b"")], "outside its folder"),
        ([(link("a.py"), b"/etc/passwd")], "a link"),
        ([("large.py", b" " * 3_000_000)], "2 MiB; the limit is 1 MiB"),
        ([(f"{n}.py", b"") for n in range(11)], "11 files; the limit is 10"),
    ],
)
def test_sources_that_would_fill_a_disk_or_leave_their_folder(
    entries: list[tuple[str | zipfile.ZipInfo, bytes]], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before a file is written."""
    monkeypatch.setattr(artifacts, "MAX_UNPACKED_BYTES", 1 << 20)
    monkeypatch.setattr(artifacts, "MAX_FILES", 10)
    artifact, data = zipped(*entries)
    with pytest.raises(CorruptDataError, match=said):
        unpack(artifact, data, tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_an_entry_that_says_less_than_it_holds(tmp_path: Path) -> None:
    """A size that is not true does not get past the limit: no more than what was said is read."""
    _, data = zipped(("a.py", b" " * 100_000))
    lied = data.replace((100_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    assert lied != data
    artifact = Artifact("key", hashlib.sha256(lied).hexdigest(), "a.py")
    with pytest.raises(CorruptDataError, match="no zip that can be unpacked"):
        unpack(artifact, lied, tmp_path)
