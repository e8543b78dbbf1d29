"""Where a worker gets a job from: its graph and settings from the job log, its code from the artifact or a file."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from penstock.api.pipeline import DeclaredPipeline
from penstock.coordination.artifacts import check_requirements, unpack
from penstock.coordination.job_store import JobReader
from penstock.errors import CorruptDataError, PipelineError, ProtocolError
from penstock.graph.jobgraph import JobGraph, graph_from_json
from penstock.loading import load_pipeline
from penstock.plan.logical import LogicalPlan
from penstock.ports import BlobNotFoundError, Blobs
from penstock.protocol.joblog import Artifact, Begin, JobHistory, StateBackend
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import Deploy


@dataclass(frozen=True)
class LoadedJob:
    """What a worker needs of a job to run a subtask of it."""

    graph: JobGraph
    plan: LogicalPlan
    manifest: Manifest | None
    """Of the checkpoint that the attempt starts from."""
    state_backend: StateBackend | None = None
    """Where snapshots of keyed state go; None: as the worker's settings say, and `incremental`, too."""
    incremental: bool = False
    """Whether its checkpoints store what has changed since one before."""


class JobLoader(Protocol):
    """Where a worker gets a job's graph and code, and the manifest it restores from."""

    @property
    def bound_to(self) -> str:
        """The job whose code this process has loaded and for which alone it can be used; empty if for any."""
        ...

    async def load(self, deploy: Deploy) -> LoadedJob:
        """Raise `PenstockError` if the job's code does not fit its graph or the manifest cannot be read."""
        ...


class StoreLoader:
    """Loads jobs from the store: graph and settings from the job log, code from the artifact. For one job per process,
    because Python can hold only one version of a module."""

    def __init__(self, blobs: Blobs, store: JobReader, folder: Path, for_job: str = "") -> None:
        """`folder` is this process's own; sources are unpacked there. `for_job`: it serves no other from the start."""
        self._blobs = blobs
        self._store = store
        self._folder = folder
        self._job = for_job
        self._pipeline: DeclaredPipeline | None = None
        self._loading = asyncio.Lock()
        self._attempts: dict[str, LoadedJob] = {}

    @property
    def bound_to(self) -> str:
        """The job whose code is loaded here."""
        return self._job

    async def load(self, deploy: Deploy) -> LoadedJob:
        """The graph that this attempt runs, the code, and the checkpoint it starts from."""
        async with self._loading:
            if self._job not in ("", deploy.job):
                raise PipelineError(f"this process holds the code of job {self._job[:8]} and serves no other")
            if deploy.attempt not in self._attempts:
                self._job = deploy.job
                self._attempts = {deploy.attempt: await self._load(deploy)}
            return self._attempts[deploy.attempt]

    async def _load(self, deploy: Deploy) -> LoadedJob:
        history = await self._store.history(deploy.job)
        submit = history.submit
        if submit is None or submit.artifact is None:
            raise CorruptDataError(f"job {deploy.job}: its log names no sources")
        if history.begin is None or history.begin.attempt != deploy.attempt:
            raise ProtocolError(f"attempt {deploy.attempt_number} is over: another one has begun")
        if self._pipeline is None:
            self._pipeline = await self._import(submit.artifact)
        graph = graph_of(history, deploy.attempt)
        _check_plan(self._pipeline, graph, deploy)
        manifest = await self._store.manifest(deploy.restore) if deploy.restore else None
        how = submit.settings
        return LoadedJob(graph, self._pipeline.plan, manifest, how.state_backend, how.checkpoints.incremental)

    async def _import(self, artifact: Artifact) -> DeclaredPipeline:
        check_requirements(artifact.requirements)
        try:
            data = await self._blobs.get(artifact.key)
        except BlobNotFoundError as error:
            raise CorruptDataError(f"{artifact.key}: the sources of the job are missing in the store") from error
        place = await asyncio.to_thread(unpack, artifact, data, self._folder)
        return load_pipeline(str(place / artifact.target), dict(artifact.parameters))


class FileLoader:
    """Loads a job from the file that the user runs: for worker processes on the same machine, working directory
    included."""

    def __init__(self, target: str, parameters: dict[str, str], store: JobReader) -> None:
        self._target = target
        self._parameters = parameters
        self._store = store
        self._pipeline: DeclaredPipeline | None = None

    @property
    def bound_to(self) -> str:
        """Empty: there is only one job."""
        return ""

    async def load(self, deploy: Deploy) -> LoadedJob:
        """The graph that this attempt runs, the code, and the checkpoint it starts from."""
        history = await self._store.history(deploy.job)
        if self._pipeline is None:
            self._pipeline = load_pipeline(self._target, self._parameters)
        graph = graph_of(history, deploy.attempt)
        _check_plan(self._pipeline, graph, deploy)
        manifest = await self._store.manifest(deploy.restore) if deploy.restore else None
        return LoadedJob(graph, self._pipeline.plan, manifest)


def graph_of(history: JobHistory, attempt: str) -> JobGraph:
    """The graph that this attempt began with, whatever began later."""
    assert history.submit is not None
    graph = history.submit.graph
    for record in history.records:
        if isinstance(record, Begin):
            graph = record.graph or graph
            if record.attempt == attempt:
                break
    return graph_from_json(graph)


def _check_plan(pipeline: DeclaredPipeline, graph: JobGraph, deploy: Deploy) -> None:
    """Raise `PipelineError` if the imported code is not what the graph was made of.

    Where only sinks run, the code may have changed since: they are found by their ids, and whoever runs one looks.
    """
    if deploy.publishes_only:
        return
    known = {node.id for node in pipeline.plan}
    lost = [operator.id for operator in graph.operators() if operator.node not in known]
    if lost:
        raise PipelineError(
            f"the code imported here declares no {', '.join(lost)}: the file declares something else on each import; "
            "let it depend on --param only"
        )
