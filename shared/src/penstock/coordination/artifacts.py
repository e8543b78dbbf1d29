"""How a job's code travels: the pipeline file and the local modules that it imports, zipped. Never a pickle.

Where the user is the file is imported, so what it imports is known; on a task manager the same files are unpacked and
imported again. Distributions from elsewhere must be installed there: those that are missing are named all at once.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import io
import os
import stat
import sys
import sysconfig
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType

import structlog

from penstock.errors import CorruptDataError, PipelineError, UsageError
from penstock.protocol.joblog import Artifact
from penstock.protocol.requests import artifact_key

MAX_BYTES = 64 << 20
"""Sources are text; what is larger is data, which belongs into the store or the image."""
MAX_UNPACKED_BYTES = 256 << 20
MAX_FILES = 10_000

_LIBRARY = Path(__file__).resolve().parent.parent
_log = structlog.get_logger("penstock.artifacts")


@dataclass(frozen=True)
class Packed:
    """The sources of a job, ready to be stored."""

    artifact: Artifact
    data: bytes
    files: tuple[str, ...]


def pack(target: str, parameters: dict[str, str]) -> Packed:
    """Zip the file of a pipeline, which was imported before, with the local modules that this brought in.

    Args:
        target: `file.py`, `file.py:name` or `file.sql`.
        parameters: what `--param` gave.

    Raises:
        UsageError: it is too large.
    """
    path_text, _, name = target.partition(":")
    path = Path(path_text).resolve()
    folder = path.parent
    files = sorted({path, *(Path(str(module.__file__)).resolve() for module in local_modules(folder))})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            entry = zipfile.ZipInfo(str(file.relative_to(folder)))  # without times: equal sources, equal bytes
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.read_bytes())
    data = buffer.getvalue()
    if len(data) > MAX_BYTES:
        size, limit = len(data) >> 20, MAX_BYTES >> 20
        raise UsageError(f"{path_text}: its sources make {size} MiB zipped; the limit is {limit} MiB")
    digest = hashlib.sha256(data).hexdigest()
    inside = path.name + (f":{name}" if name else "")
    artifact = Artifact(artifact_key(digest), digest, inside, dict(parameters), tuple(_requirements(files, folder)))
    return Packed(artifact, data, tuple(str(file.relative_to(folder)) for file in files))


def local_modules(folder: Path | None = None) -> Iterable[ModuleType]:
    """Imported modules that are no installed ones; only those whose files lie in a folder, or below, if one is given.

    Those out of archives are none: Spark brings what it was given (`--py-files`, PySpark itself) to its workers.
    """
    installed = {Path(place).resolve() for place in sysconfig.get_paths().values()}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not file or not file.endswith(".py") or "site-packages" in file.split(os.sep):
            continue  # most are such: finding out where links lead takes longer than all else here
        path = Path(file).resolve()
        if not path.is_file() or (folder is not None and not path.is_relative_to(folder)):
            continue
        if path.is_relative_to(_LIBRARY) or "site-packages" in path.parts:
            continue
        if any(path.is_relative_to(place) for place in installed if place != folder):
            continue
        yield module


def _requirements(files: Iterable[Path], folder: Path) -> list[str]:
    """Distributions that the files import, with their versions here."""
    names: set[str] = set()
    local = {file.relative_to(folder).parts[0].removesuffix(".py") for file in files}
    for file in files:
        if file.suffix != ".py":
            continue  # statements of SQL import nothing
        for node in ast.walk(ast.parse(file.read_bytes(), str(file))):
            if isinstance(node, ast.Import):
                names.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    names -= {*local, *sys.stdlib_module_names, "penstock"}
    owners = _owners(tuple(_installed())) if names else {}
    distributions = {owner for name in names for owner in owners.get(name, ())}
    return sorted(f"{name}=={importlib.metadata.version(name)}" for name in distributions)


def _installed() -> Iterator[tuple[str, int]]:
    """The folders that distributions are in, with the time of the last change: installing one is such a change."""
    for folder in map(Path, sys.path):
        with contextlib.suppress(OSError):
            if any(name.endswith("-info") for name in os.listdir(folder)):
                yield str(folder), folder.stat().st_mtime_ns


@functools.lru_cache(maxsize=1)
def _owners(_installed: tuple[tuple[str, int], ...]) -> Mapping[str, list[str]]:
    """Importable name to the distributions that bring it; finding out takes most of a second, so it is kept."""
    return importlib.metadata.packages_distributions()


def check_requirements(requirements: Iterable[str]) -> None:
    """Raise `PipelineError` naming every distribution that is not installed here; another version is only noted."""
    missing: list[str] = []
    for requirement in requirements:
        name, _, version = requirement.partition("==")
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(requirement)
            continue
        if found != version:
            _log.warning("another version than where the job was submitted", package=name, here=found, there=version)
    if missing:
        raise PipelineError(
            f"the machine that runs this pipeline lacks what it imports: {', '.join(missing)}; install it there (into "
            "the image)"
        )


def unpack(artifact: Artifact, data: bytes, folder: Path) -> Path:
    """Write the files below `folder`; returns the folder they are in.

    Raises:
        CorruptDataError: the object is not what was stored, or the file to be run is none of it.
    """
    if problem := _target_problem(artifact.target):
        raise CorruptDataError(f"{artifact.key}: {problem}")
    if hashlib.sha256(data).hexdigest() != artifact.sha256:
        raise CorruptDataError(f"{artifact.key}: not what was stored (checksum)")
    place = folder / artifact.sha256[:16]
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            problem = problem_of(archive)
            if problem:
                raise CorruptDataError(f"{artifact.key}: {problem}")
            archive.extractall(place)  # reads no more of a file than its entry says, which was added up
    except (zipfile.BadZipFile, NotImplementedError, zlib.error, EOFError) as error:
        raise CorruptDataError(f"{artifact.key}: this is no zip that can be unpacked: {error}") from error
    return place


def _target_problem(target: str) -> str:
    """Why the file that is to be run is none of the sources: whoever writes to the topic of requests may name any."""
    file = target.partition(":")[0]
    path = PurePosixPath(file)
    if not file or path.is_absolute() or "\\" in file or ".." in path.parts:
        return f"the file to be run is outside of the sources: {target!a}"
    return ""


def problem_of(archive: zipfile.ZipFile) -> str:
    """Why sources are not unpacked; empty if they are. Looks at the entries alone."""
    entries = archive.infolist()
    if len(entries) > MAX_FILES:
        return f"it holds {len(entries):,} files; the limit is {MAX_FILES:,}"
    size = sum(entry.file_size for entry in entries)
    if size > MAX_UNPACKED_BYTES:
        return f"its files are {size >> 20} MiB; the limit is {MAX_UNPACKED_BYTES >> 20} MiB"
    for entry in entries:
        parts = PurePosixPath(entry.filename).parts
        if entry.filename.startswith("/") or "\\" in entry.filename or ".." in parts:
            return f"it holds a file outside its folder: {entry.filename!r}"
        if stat.S_ISLNK(entry.external_attr >> 16):
            return f"it holds a link: {entry.filename!r}"
        if entry.flag_bits & 1:
            return f"it holds a file that is encrypted: {entry.filename!r}"
    return ""
