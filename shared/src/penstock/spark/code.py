"""The pipeline's code in a task: the file and its modules, imported again, once per Python worker.

Sources travel zipped in the closure, and a worker on the machine of the driver imports the files in their own place, in
the driver's working directory, so that paths in them mean the same; elsewhere they are unpacked. A pipeline that no file
declares (a notebook's), or whose rows come from a DataFrame, cannot be imported again: its plan is pickled (see
`penstock.spark.pickling`).
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.connectors.kafka import default_cluster as kafka_platform
from penstock.coordination.artifacts import pack, unpack
from penstock.loading import load_pipeline
from penstock.plan.logical import LogicalPlan
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

    @property
    def identity(self) -> object:
        """The same for the same plan."""
        return self.artifact.sha256, tuple(sorted(self.artifact.parameters.items()))

    @property
    def target(self) -> str:
        """The pipeline's file, and its name there."""
        return self.artifact.target

    @property
    def parameters(self) -> Mapping[str, str]:
        """What `--param` gave."""
        return self.artifact.parameters

    @property
    def digests(self) -> Mapping[str, str]:
        """Of every source by name."""
        return {name: digest(source) for name, source in self.files().items()}

    def files(self) -> dict[str, bytes]:
        """The sources by name."""
        with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    def make(self) -> LogicalPlan:
        """The plan, in a task."""
        place = _place(self)
        _loaded.place = str(place)
        files = {os.path.join(place, name) for name in self.files()}
        before = set(sys.modules)
        plan = load_pipeline(os.path.join(place, self.target), dict(self.parameters)).plan
        brought = {name: module for name, module in sys.modules.items() if name not in before}
        _loaded.modules = frozenset(name for name, each in brought.items() if getattr(each, "__file__", None) in files)
        return plan


@dataclass(frozen=True)
class PickledPlan:
    """A plan that was made in the driver, and cannot be made again in a task."""

    data: bytes
    digests: Mapping[str, str]
    """Of the script and the modules beside it, by name; nothing is known of a notebook."""
    folder: str
    directory: str
    kafka: KafkaSettings
    cluster: str

    @property
    def identity(self) -> object:
        """The same for the same plan."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def target(self) -> str:
        """No file."""
        return ""

    @property
    def parameters(self) -> Mapping[str, str]:
        """None: what was given is in the plan."""
        return {}

    def make(self) -> LogicalPlan:
        """The plan, in a task."""
        from pyspark import cloudpickle

        return cloudpickle.loads(self.data)


TaskCode = PipelineCode | PickledPlan


@dataclass
class _Loaded:
    identity: object = None
    place: str = ""
    modules: frozenset[str] = frozenset()
    """Names of those that came with the plan."""
    plan: LogicalPlan | None = None


_loaded = _Loaded()


def pack_code(target: str, parameters: dict[str, str]) -> PipelineCode:
    """The code of a pipeline that was imported in this process."""
    packed = pack(target, parameters)
    folder = Path(target.partition(":")[0]).resolve().parent
    return PipelineCode(packed.artifact, packed.data, str(folder), os.getcwd(), *kafka_platform.platform())


def digest(data: bytes) -> str:
    """Tells one source, or one value, from others."""
    return hashlib.sha256(data).hexdigest()[:32]


def load_plan(code: TaskCode) -> LogicalPlan:
    """The plan of a pipeline in this worker; made anew only when the code or its parameters are others."""
    if _loaded.plan is None or _loaded.identity != code.identity:
        _forget(_loaded.place)
        if os.path.isdir(code.directory):
            os.chdir(code.directory)
        kafka_platform.use_cluster(code.kafka, code.cluster)
        _loaded.plan = code.make()
        _loaded.identity = code.identity
    return _loaded.plan


def _place(code: PipelineCode) -> Path:
    if _holds(Path(code.folder), code.files()):
        return Path(code.folder)
    return unpack(code.artifact, code.data, Path(tempfile.mkdtemp(prefix="penstock-spark-")))


def _holds(folder: Path, sources: Mapping[str, bytes]) -> bool:
    """Whether a folder holds exactly these sources."""
    return all((folder / name).is_file() and (folder / name).read_bytes() == text for name, text in sources.items())


def _forget(place: str) -> None:
    """Let no module of the pipeline before be taken for one of the next."""
    for name in _loaded.modules:
        sys.modules.pop(name, None)
    if place in sys.path:
        sys.path.remove(place)
    _loaded.place, _loaded.modules = "", frozenset()
