"""What a leader needs to know of a job to be its master."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.graph.executiongraph import ExecutionGraph
from penstock.graph.jobgraph import graph_from_json
from penstock.protocol.jobevents import ChangedGraph, Topology
from penstock.protocol.joblog import JobHistory, JobSettings


@dataclass(frozen=True)
class JobSpec:
    """What a leader needs to know of a job to be its master."""

    topology: Topology
    """Of the graph that the job log says."""
    settings: JobSettings
    changed: ChangedGraph | None = None
    """What the job is to run, where it is not what the job log says."""
    resumable: bool = False
    """Whether a failed job can be gone on with: its last record is not written then."""


def spec_of(history: JobHistory) -> JobSpec:
    """The job as its log says."""
    assert history.submit is not None
    return JobSpec(ExecutionGraph(graph_from_json(history.graph)).topology(), history.submit.settings)
