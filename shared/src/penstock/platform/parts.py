"""What the platform consists of: pinned, checked, fetched once into a cache.

* Kafka: jars from a Maven repository, each compared with its SHA-256 in `kafka-jars.sha256`.
* MinIO: built by `go install` of one pinned version, which Go's checksum database vouches for; the hash of the module
  that the program says it was built from is compared once more.
* Redis: `redis-server` of the system.
* Java runs Kafka, Maven and Go are only needed for fetching.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Final

from penstock.adapters.directory.file_lock import file_lock
from penstock.platform.errors import PlatformError
from penstock.platform.jars import PinnedJars
from penstock.platform.prerequisites import Need, check_prerequisites
from penstock.platform.processes import run_to_end

KAFKA_VERSION: Final = "4.3.1"
MINIO_VERSION: Final = "v0.0.0-20260212201848-7aac2a2c5b7c"
MINIO_MODULE: Final = "github.com/minio/minio"
MINIO_HASH: Final = "h1:/qdoYujxF5MBLDMVLeiYJ/7fBa1HikX39Dvzb9Ji8pA="
CACHE_VARIABLE: Final = "PENSTOCK_CACHE"
FETCH_COMMAND: Final = "penstock up --fetch-only"

_BUILD_DEADLINE_S: Final = 1_800

Progress = Callable[[str], AbstractContextManager[None]]
"""Told what is being done, for as long as it is done."""


def silent(text: str) -> AbstractContextManager[None]:
    """Progress that nobody watches."""
    return nullcontext()


@dataclass(frozen=True)
class Parts:
    """Where everything that is needed to start the servers lies."""

    java: Path
    kafka: Path
    """The folder of the broker's jars."""
    minio: Path
    redis: Path


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """`$PENSTOCK_CACHE`, or `penstock` in the user's cache folder."""
    environment = os.environ if environ is None else environ
    if named := environment.get(CACHE_VARIABLE):
        return Path(named).expanduser().absolute()
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "penstock"


async def fetch_parts(cache: Path | None = None, progress: Progress = silent) -> Parts:
    """All parts, from the cache or fetched into it. Any number of processes may do this at once.

    Raises:
        MissingPrerequisitesError: programs are missing; names all of them and what installs them.
        PlatformError: a download or a build failed, or what came is not what is pinned.
    """
    root = cache or cache_folder()
    jars, minio = root / f"kafka-{KAFKA_VERSION}", root / f"minio-{MINIO_VERSION}"
    needs = {Need.JAVA, Need.REDIS}
    needs |= set() if jars.is_dir() else {Need.MAVEN}
    needs |= set() if minio.is_dir() else {Need.GO}
    found = check_prerequisites(needs)
    root.mkdir(parents=True, exist_ok=True)
    jobs = [install(jars, progress, "fetching Kafka (about 20 s)", partial(_fetch_kafka, found))]
    jobs += [install(minio, progress, "building MinIO (3 to 6 minutes, once)", partial(_build_minio, found))]
    for outcome in await asyncio.gather(*jobs, return_exceptions=True):  # the slow one goes on when the other fails
        if isinstance(outcome, BaseException):
            raise outcome
    return await asyncio.to_thread(_parts, jars, minio, found)


def cached_parts(cache: Path | None = None) -> Parts:
    """All parts, from the cache only.

    Raises:
        MissingPrerequisitesError: Java or Redis is missing.
        PlatformError: the cache does not have the rest, or not as it was fetched.
    """
    root = cache or cache_folder()
    jars, minio = root / f"kafka-{KAFKA_VERSION}", root / f"minio-{MINIO_VERSION}"
    if missing := [folder.name for folder in (jars, minio) if not folder.is_dir()]:
        raise PlatformError(
            f"{root} lacks {' and '.join(missing)}; fetch what the platform needs with: {FETCH_COMMAND}"
        )
    return _parts(jars, minio, check_prerequisites({Need.JAVA, Need.REDIS}))


def _parts(jars: Path, minio: Path, found: Mapping[Need, Path]) -> Parts:
    if problem := _kafka_jars().problem(jars):
        raise PlatformError(f"{jars}: {problem}; remove this folder and fetch it anew with: {FETCH_COMMAND}")
    return Parts(java=found[Need.JAVA], kafka=jars, minio=minio / "minio", redis=found[Need.REDIS])


async def install(target: Path, progress: Progress, doing: str, fetch: Callable[[Path], Awaitable[None]]) -> None:
    """Have `fetch` fill a temporary folder that then becomes `target`, unless somebody else does or did."""
    if target.is_dir():
        return
    with progress(doing):
        async with _locked(target.with_name(f"{target.name}.lock")):
            if target.is_dir():
                return
            temporary = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
            try:
                await fetch(temporary)
                temporary.chmod(0o755)
                temporary.rename(target)
            finally:
                await asyncio.to_thread(shutil.rmtree, temporary, ignore_errors=True)


async def _fetch_kafka(found: Mapping[Need, Path], target: Path) -> None:
    await _kafka_jars().fetch(found[Need.MAVEN], found[Need.JAVA], target)


async def _build_minio(found: Mapping[Need, Path], target: Path) -> None:
    go = str(found[Need.GO])
    environment = {**os.environ, "GOBIN": str(target), "CGO_ENABLED": "0"}
    with tempfile.TemporaryDirectory() as work:
        command = [go, "install", f"{MINIO_MODULE}@{MINIO_VERSION}"]
        log = Path(work) / "output.log"
        await run_to_end(command, Path(work), log, "Go could not build MinIO", _BUILD_DEADLINE_S, environment)
    built = await asyncio.to_thread(
        subprocess.run, [go, "version", "-m", str(target / "minio")], capture_output=True, text=True, check=False
    )
    if [MINIO_MODULE, MINIO_VERSION, MINIO_HASH] not in [line.split()[1:] for line in built.stdout.splitlines()]:
        raise PlatformError(
            f"the MinIO that Go built is not {MINIO_VERSION} with the hash {MINIO_HASH}; nothing was installed"
        )


def _kafka_jars() -> PinnedJars:
    return PinnedJars("Kafka", packaged("kafka-pom.xml"), packaged("kafka-jars.sha256"))


def packaged(name: str) -> str:
    """A file of this package."""
    return files("penstock.platform").joinpath(name).read_text()


@asynccontextmanager
async def _locked(path: Path) -> AsyncGenerator[None]:
    with path.open("a") as lock:
        async with file_lock(lock.fileno()):
            yield
