"""Records of runs for tests."""

from __future__ import annotations

from typing import Any

from penstock.protocol.joblog import Artifact
from penstock.protocol.requests import RunOptions
from penstock.runs.run_log import AnyRunRecord, AttemptBegan, Submitted

PLACE = "here"


def submitted(run: str = "nightly", *, name: str = "flights", request: str = "r1", at_us: int = 1, **options: Any):
    """The first record of a run."""
    artifact = Artifact("artifacts/a.zip", "a", "flights.py")
    return Submitted(
        run=run, request=request, name=name, graph={}, artifact=artifact, options=RunOptions(**options), at_us=at_us
    )


def began(attempt: int = 1, place: str = PLACE) -> AnyRunRecord:
    """An attempt begins."""
    return AttemptBegan(attempt=attempt, place=place, host="one", at_us=10 + attempt)
