"""Answers to requests whose job has ended: the leader that carried them out may have died before it could say so."""

from __future__ import annotations

from penstock.protocol.joblog import JobHistory
from penstock.protocol.requests import (
    Answer,
    AnyRequest,
    CancelJob,
    RescaleJob,
    StopJob,
    SubmitJob,
    TakeCheckpoint,
    TakeSavepoint,
)


def late_answer(request: AnyRequest, history: JobHistory, now_us: int) -> Answer | None:
    """What the log of an ended job says of a request that it may have carried out; None if it says nothing of it."""
    savepoint = history.savepoints.get(request.request)
    terminated = history.terminated
    done = savepoint is not None or request.request in history.rescales
    if isinstance(request, CancelJob):
        done = terminated is not None and terminated.state == "CANCELED"
    if isinstance(request, StopJob):
        done = savepoint is not None and terminated is not None and terminated.state == "STOPPED"
    restore = savepoint.restore if savepoint is not None else None
    return Answer(request.request, request.job, kind_of(request), "completed", "", restore, now_us) if done else None


def kind_of(request: AnyRequest) -> str:
    """What a request asks for, in a word."""
    return {
        SubmitJob: "submit", CancelJob: "cancel", StopJob: "stop", TakeSavepoint: "savepoint", RescaleJob: "rescale",
        TakeCheckpoint: "checkpoint",
    }[type(request)]  # fmt: skip
