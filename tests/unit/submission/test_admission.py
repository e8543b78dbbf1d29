"""What the leader refuses before a job exists, whoever wrote the request."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Pipeline
from penstock.adapters.memory import MemoryBlobs
from penstock.connectors import collecting, iterables
from penstock.graph.jobgraph import build_job_graph
from penstock.protocol.joblog import Artifact
from penstock.protocol.requests import SubmitJob
from penstock.submission.admission import refusal
from penstock.types import INT64, Field, Schema

JOB = "ab" * 16


def submitted(called: str, **changed: Any) -> SubmitJob:
    p = Pipeline("orders")
    p.read(iterables.Source([], schema=Schema((Field("n", INT64),)))).write(collecting.Sink())
    graph = {**build_job_graph(p.plan, 1).to_json(), **changed}
    return SubmitJob(request=JOB, job=JOB, name=called, graph=graph, artifact=Artifact("k", "0" * 64, "job.py"))


@pytest.mark.parametrize("name", ["../../x", "x\n2026-01-01 granted", "x\x1b[2K", "..", ""])
async def test_a_name_that_is_none(name: str) -> None:
    """The dispatcher refuses it, too."""
    assert await refusal(submitted("orders"), MemoryBlobs()) == ""
    for request in (submitted(name), submitted("orders", name=name)):
        said = await refusal(request, MemoryBlobs())
        assert "is no name: it " in said
        assert said.isprintable()
