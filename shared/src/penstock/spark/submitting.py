"""How a run is handed to `spark-submit`, and what its process leaves behind for whoever started it.

An attempt has a folder of its own: the specification and the sources go in, progress and outcome come out, each written
whole or not at all. Who started the attempt may die and another one take its place: everything that it has to know is
there.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from penstock.core.extras import install
from penstock.errors import CorruptDataError, UsageError
from penstock.protocol.joblog import Artifact
from penstock.protocol.requests import RunOptions
from penstock.runs.run_log import RunOutcome
from penstock.runs.run_views import RunProgress
from penstock.settings import ClusterSettings, settings_to_toml
from penstock.spark.committing import RunManifests
from penstock.spark.session import is_local, start_settings

_LAUNCHER: Final = """\
# Started by spark-submit; see penstock.spark.submitted.
from penstock.service.process_exit import leave
from penstock.spark.submitted import main

leave(main)
"""

_SECRET: Final = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)
"""Names of settings whose values Spark itself does not show (`spark.redaction.regex`)."""

T = TypeVar("T", bound=msgspec.Struct)


class AttemptSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt at a run is to do."""

    run: str
    name: str
    """Of the pipeline."""
    artifact: Artifact
    options: RunOptions
    """With the master and the settings that count, those of the pipeline service included."""
    manifests: str
    """The folder with the manifests of the pipeline's runs, or with the steps of the job."""
    staging: str | None = None
    """See `SparkSettings`."""


class AttemptFolder:
    """The files of one attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def output(self) -> Path:
        """What the process prints."""
        return self.path / "output.log"

    @property
    def sources(self) -> Path:
        """The zip of the pipeline's sources."""
        return self.path / "sources.zip"

    @property
    def cluster(self) -> Path:
        """The settings of the cluster."""
        return self.path / "cluster.toml"

    @property
    def launcher(self) -> Path:
        """What spark-submit runs. A file beside our modules would make them shadow those of the standard library."""
        return self.path / "run_pipeline.py"

    def prepare(self, spec: AttemptSpec, sources: bytes, settings: ClusterSettings) -> None:
        """Write what the process reads, for nobody else's eyes: the settings hold passwords."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.sources.write_bytes(sources)
        self.cluster.touch(mode=0o600)
        self.cluster.write_text(settings_to_toml(settings))
        self.launcher.write_text(_LAUNCHER)
        self._write("spec.json", spec)

    def spec(self) -> AttemptSpec:
        """What the process is to do; raises `CorruptDataError`."""
        spec = self._read("spec.json", AttemptSpec)
        if spec is None:
            raise CorruptDataError(f"{self.path}: there is no specification of a run")
        return spec

    def write_progress(self, progress: RunProgress) -> None:
        """Say what Spark is at."""
        self._write("progress.json", progress)

    def progress(self) -> RunProgress | None:
        """What Spark is at, if anything was said yet."""
        return self._read("progress.json", RunProgress)

    def write_outcome(self, outcome: RunOutcome) -> None:
        """Say how the run ended."""
        self._write("outcome.json", outcome)

    def outcome(self) -> RunOutcome | None:
        """How the run ended, if the process could say so."""
        return self._read("outcome.json", RunOutcome)

    def write_properties(self, settings: Mapping[str, str]) -> Path:
        """A file of properties of Java, which only its owner may read; where it is."""
        escaped = {name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in settings.items()}
        path = self.path / "settings.properties"
        path.touch(mode=0o600)
        path.write_text("".join(f"{name}={value}\n" for name, value in escaped.items()), encoding="utf-8")
        return path

    def _write(self, name: str, value: msgspec.Struct) -> None:
        temporary = self.path / f".{name}.tmp"
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(value))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / name)

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise CorruptDataError(f"{self.path / name}: not readable: {error}") from error


def is_secret(name: str) -> bool:
    """Whether the value of a setting is to be seen by nobody who may see command lines and environments."""
    return _SECRET.search(name) is not None


def submit_command(folder: AttemptFolder, spec: AttemptSpec) -> list[str]:
    """The command line of spark-submit, in client mode: the driver is a process of this machine.

    Of steps it is that of the driver, which begins a JVM of its own, and another one when that has died.
    """
    options = spec.options
    if options.in_steps:
        return [sys.executable, str(folder.launcher)]
    command = [str(_spark_home() / "bin" / "spark-submit"), "--master", options.master, "--deploy-mode", "client"]
    command += ["--name", f"penstock {spec.name}"]
    settings = start_settings(options.master)
    if is_local(options.master):
        settings["spark.local.dir"] = str(folder.path / "tmp")  # so that nothing is left of a process that was killed
    for name, value in {**settings, **options.conf}.items():
        if not is_secret(name):  # the session gets it from the specification; everybody may read a command line
            command += ["--conf", f"{name}={value}"]
    return [*command, str(folder.launcher)]


def submit_environment(master: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of spark-submit: this Python (or of executors another one, if PYSPARK_PYTHON says so), this Spark,
    and no settings of a cluster but those in the folder."""
    overrides = tuple(f"PENSTOCK_{item.name.upper()}" for item in fields(ClusterSettings))
    kept = {name: value for name, value in environment.items() if not name.startswith(overrides)}
    kept |= {
        "SPARK_HOME": str(_spark_home()),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    kept.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local(master):
        kept.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return kept


def is_decided(manifests: Path, run: str) -> bool:
    """Whether the manifest of a run exists: its results become visible, whatever happens."""
    return RunManifests(manifests).find(run) is not None


def _spark_home() -> Path:
    """Where PySpark's own Spark is; raises `UsageError` if there is none."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise UsageError(f"runs on Spark need PySpark: {install('spark')}")
    return Path(found.origin).parent
