"""The one way to end: barrier -> COMPLETE -> every sink has published it -> record.

`Endings` knows which ending (or savepoint) of a job is under way, what it waits for, and who is told no. What follows
from it for attempts and phases is done by `penstock.protocol.jobmaster`, which asks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from penstock.protocol.attempts import AttemptTasks
from penstock.protocol.checkpoints import PendingCheckpoint, Purpose
from penstock.protocol.jobevents import JobCommand, RequestDone, Requested, Topology
from penstock.protocol.joblog import AnyRecord, Complete, JobHistory, Savepoint, Terminated
from penstock.protocol.phases import Phase

CANCEL_DEADLINE_MS = 30_000
"""How long a cancelled job may still publish what is complete."""


@dataclass
class Ending:
    """An ending or savepoint under way. Once `checkpoint` is set it is COMPLETE and only publishing is waited for."""

    kind: Literal["finish", "savepoint", "stop", "rescale", "suspend", "cancel"]
    request: str = ""
    drain: bool = False
    reason: str = ""
    checkpoint: int | None = None
    deadline_ms: int | None = None
    requested: Requested | None = None

    @property
    def purpose(self) -> Purpose:
        """Of the checkpoint that the ending takes."""
        return "final" if self.kind == "finish" else "savepoint" if self.kind in ("savepoint", "cancel") else self.kind

    @property
    def pauses(self) -> bool:
        """Whether sources stop at its barrier."""
        return self.kind in ("stop", "rescale", "suspend")


class Endings:
    """The endings of one job: at most one is under way."""

    def __init__(self, history: JobHistory) -> None:
        self._history = history
        self._requests: set[str] = set()
        self.current: Ending | None = None

    # -- how one comes about --------------------------------------------------------------------------------------------

    def opened(self) -> None:
        """A stop whose checkpoint is COMPLETE goes on under a new leader; other endings are asked for again."""
        complete = self._history.complete
        if complete is None or complete.ending != "stop":
            self.current = None
        else:
            self.current = Ending(
                "stop", complete.request, reason=complete.reason, checkpoint=complete.checkpoint
            )  # fmt: skip

    def sources_ended(self) -> None:
        """There are no more rows: take the final checkpoint, unless another ending is under way."""
        if self.current is None:
            self.current = Ending("finish")

    def attempt_begins(self) -> None:
        """The sources of a new attempt start from before their end."""
        if self.current is not None and self.current.kind == "finish" and self.current.checkpoint is None:
            self.current = None

    def requested(self, request: Requested, phase: Phase, now_ms: int) -> list[JobCommand]:
        """Somebody asks for an ending: it is under way now, or refused."""
        under_way = self.current.request if self.current is not None else ""
        if request.request in self._requests or request.request == under_way:
            return []
        if request.request in self._history.rescales:
            return [RequestDone(request.request, "rescaled")]
        done = self._history.savepoints.get(request.request)
        if done is not None and request.kind == "savepoint":
            return [RequestDone(request.request, "completed", done.restore)]
        self._requests.add(request.request)
        former = self.current
        replaceable = former is None or (request.kind == "cancel" and former.kind != "cancel")
        if not replaceable or phase is Phase.ENDING:
            busy = former.kind if former else phase.value
            return [RequestDone(request.request, f"refused: the job is busy with {busy}")]
        self.current = self._ending_of(request, now_ms)
        replaced = former.request if former else ""
        return [RequestDone(replaced, f"refused: the job is busy with {request.kind}")] if replaced else []

    def _ending_of(self, request: Requested, now_ms: int) -> Ending:
        ending = Ending(request.kind, request.request, request.drain, request.reason, requested=request)
        if request.kind == "cancel":
            ending.checkpoint = self._history.highest_checkpoint
            ending.deadline_ms = now_ms + CANCEL_DEADLINE_MS
        return ending

    # -- its checkpoint -------------------------------------------------------------------------------------------------

    def needs_checkpoint(self, pending: list[PendingCheckpoint]) -> bool:
        """Whether its barrier is to be sent now."""
        ending = self.current
        return (
            ending is not None
            and ending.checkpoint is None
            and not any(checkpoint.purpose == ending.purpose for checkpoint in pending)
        )

    def marked(self, complete: Complete, purpose: Purpose) -> Complete:
        """The record, with the ending that it is taken for."""
        ending = self.current
        if ending is None or ending.purpose != purpose:
            return complete
        return msgspec.structs.replace(complete, ending=ending.kind, request=ending.request, reason=ending.reason)

    def completed(self, checkpoint: int, purpose: Purpose) -> None:
        """COMPLETE stands in the job log. A cancelled job publishes whatever is complete."""
        ending = self.current
        if ending is None:
            return
        if ending.kind == "cancel" or (ending.checkpoint is None and purpose == ending.purpose):
            ending.checkpoint = checkpoint

    def published(self, tasks: AttemptTasks, topology: Topology) -> bool:
        """Whether its checkpoint is COMPLETE and every sink has published it."""
        if self.current is None or self.current.checkpoint is None:
            return False
        return tasks.all_published(topology, self.current.checkpoint)

    # -- how it is recorded ---------------------------------------------------------------------------------------------

    def savepoint_records(self, ending: Ending) -> list[AnyRecord]:
        """A savepoint or a stop is published: what to write. It is no longer under way."""
        complete = self._history.complete
        assert complete is not None
        savepoint = Savepoint(
            checkpoint=complete.checkpoint, manifest=complete.manifest, sha256=complete.sha256,
            request=ending.request, published=True,
        )  # fmt: skip
        self.current = None
        if ending.kind == "savepoint":
            return [savepoint]
        terminated = Terminated(state="STOPPED", reason=ending.reason)
        return [terminated] if ending.request in self._history.savepoints else [savepoint, terminated]

    def cancel_is_over(self, phase: Phase, now_ms: int) -> bool:
        """A cancelled job ends when there is nothing to publish, or at its deadline even if something is left."""
        ending = self.current
        if ending is None or ending.kind != "cancel":
            return False
        if phase in (Phase.OPENING, Phase.BEGINNING, Phase.ENDING, Phase.TERMINATED):
            return False
        return ending.checkpoint == 0 or (ending.deadline_ms is not None and now_ms >= ending.deadline_ms)

    def cancel_reason(self) -> str:
        """Why the cancelled job ended, and what could not be published."""
        ending = self.current
        assert ending is not None
        if ending.checkpoint == 0:
            return ending.reason
        return f"{ending.reason}; checkpoint {ending.checkpoint} was not fully published in time".lstrip("; ")
