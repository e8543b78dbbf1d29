"""The pipeline's code in a task: the file and its modules, imported again, once per Python worker.

Sources travel zipped in the closure, never as pickled objects. A worker on the machine of the driver imports the files
in their own place, in the driver's working directory, so that paths in them mean the same; elsewhere they are unpacked.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from penstock.api.loading import load_pipeline
from penstock.connectors.kafka import default_cluster as kafka_platform
from penstock.coordination.artifacts import pack, unpack
from penstock.graph.logical import LogicalPlan
from penstock.protocol.joblog import Artifact
from penstock.settings import KafkaSettings


@dataclass(frozen=True)
class PipelineCode:
    """What a task needs to import a pipeline."""

    artifact: Artifact
    data: bytes
    folder: str
    """Where the sources lie on the driver."""
    directory: str
    """The driver's working directory."""
    kafka: KafkaSettings
    """Of the driver's cluster, for connectors that name no brokers."""
    cluster: str
    """The name of that cluster."""


@dataclass
class _Loaded:
    sha256: str = ""
    parameters: tuple[tuple[str, str], ...] = ()
    place: str = ""
    files: frozenset[str] = frozenset()
    plan: LogicalPlan | None = None


_loaded = _Loaded()


def pack_code(target: str, parameters: dict[str, str]) -> PipelineCode:
    """The code of a pipeline that was imported in this process."""
    packed = pack(target, parameters)
    folder = Path(target.partition(":")[0]).resolve().parent
    return PipelineCode(packed.artifact, packed.data, str(folder), os.getcwd(), *kafka_platform.platform())


def load_plan(code: PipelineCode) -> LogicalPlan:
    """The plan of a pipeline in this worker; imported anew only when the code or its parameters are others."""
    parameters = tuple(sorted(code.artifact.parameters.items()))
    if _loaded.plan is None or (_loaded.sha256, _loaded.parameters) != (code.artifact.sha256, parameters):
        _forget(_loaded.place)
        if os.path.isdir(code.directory):
            os.chdir(code.directory)
        _loaded.place = str(_place(code))
        _loaded.files = frozenset(os.path.join(_loaded.place, name) for name in _names(code.data))
        kafka_platform.use_cluster(code.kafka, code.cluster)
        path = os.path.join(_loaded.place, code.artifact.target)
        _loaded.plan = load_pipeline(path, dict(code.artifact.parameters)).plan
        _loaded.sha256, _loaded.parameters = code.artifact.sha256, parameters
    return _loaded.plan


def _place(code: PipelineCode) -> Path:
    if _holds(Path(code.folder), code.data):
        return Path(code.folder)
    return unpack(code.artifact, code.data, Path(tempfile.mkdtemp(prefix="penstock-spark-")))


def _names(data: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.namelist()


def _holds(folder: Path, data: bytes) -> bool:
    """Whether a folder holds exactly these sources."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = [(folder / name, archive.read(name)) for name in archive.namelist()]
    return all(path.is_file() and path.read_bytes() == source for path, source in files)


def _forget(place: str) -> None:
    """Let no module of the pipeline before be taken for one of the next."""
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) in _loaded.files:
            del sys.modules[name]
    if place in sys.path:
        sys.path.remove(place)
