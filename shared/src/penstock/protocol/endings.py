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
from penstock.protocol.jobevents import ChangedGraph, JobCommand, RequestDone, Requested, Topology
from penstock.protocol.joblog import AnyRecord, Complete, JobHistory, Savepoint, TerminalState, Terminated
from penstock.protocol.phases import Phase

PUBLISH_DEADLINE_MS = 30_000
"""How long a failed job may still publish what is complete. A cancelled one goes on with it until that is done, or until
it is cancelled once more after this time."""

SUSPEND_DEADLINE_MS = 20_000
"""How long a suspension tries again to take its checkpoint, or waits for sinks to publish it. What is not published by
then is published when the job goes on."""

LONGEST_PAUSE_MS = 60_000
"""Between two attempts of a cancelled job to publish, once it has tried for long."""

_BUSY: dict[str, str] = {
    "finish": "its input has ended, and its last checkpoint is being taken and published",
    "savepoint": "a savepoint is being taken",
    "stop": "it is being stopped",
    "rescale": "it is being rescaled",
    "suspend": "it is being suspended",
    "cancel": "it is being cancelled",
    "fail": "it has failed, and what is complete is being published",
}


@dataclass
class Ending:
    """An ending or savepoint under way. Once `checkpoint` is set it is COMPLETE and only publishing is waited for."""

    kind: Literal["finish", "savepoint", "stop", "rescale", "suspend", "cancel", "fail"]
    request: str = ""
    drain: bool = False
    reason: str = ""
    checkpoint: int | None = None
    """0: no checkpoint of the job is COMPLETE, so there is nothing to publish."""
    deadline_ms: int | None = None
    changed: ChangedGraph | None = None
    """What a rescaled job, or one that goes on with a changed pipeline, runs then."""
    given_up: bool = False
    """Whether it ends at its deadline even if rows that are complete still stand in an exchange."""
    suspend_at_ms: int | None = None
    """When a suspension is over whose checkpoint fails, or whose sinks do not publish."""
    failed: str = ""
    """Why its checkpoint came to nothing, if it did."""
    publishes_alone: bool = False
    """Whether the job cannot run for want of slots, so that only its sinks are started."""

    @property
    def purpose(self) -> Purpose:
        """Of the checkpoint that the ending takes."""
        match self.kind:
            case "finish":
                return "final"
            case "savepoint" | "cancel" | "fail":
                return "savepoint"
            case kind:
                return kind

    @property
    def pauses(self) -> bool:
        """Whether sources stop at its barrier."""
        return self.kind in ("stop", "rescale", "suspend")

    @property
    def needs_sinks_only(self) -> bool:
        """Whether an attempt that begins now has nothing to do but to publish."""
        return bool(self.checkpoint) and (self.kind != "savepoint" or self.publishes_alone)

    @property
    def terminal_state(self) -> TerminalState:
        """How the job ends by an ending that has a deadline."""
        return "FAILED" if self.kind == "fail" else "CANCELED"


class Endings:
    """The endings of one job: at most one is under way."""

    def __init__(self, history: JobHistory) -> None:
        self._history = history
        self._requests: set[str] = set()
        self.current: Ending | None = None
        self._generation_published = False
        """Whether the newest COMPLETE is of a generation that has published everything and is over."""

    @property
    def _newest(self) -> int:
        """The newest COMPLETE of this job; 0 if there is none."""
        return self._history.complete.checkpoint if self._history.complete is not None else 0

    # -- how one comes about --------------------------------------------------------------------------------------------

    def opened(self, changed: ChangedGraph | None) -> None:
        """A stop whose checkpoint is COMPLETE goes on under a new leader; other endings are asked for again.

        A pipeline that was changed begins as a rescaled one does: what is complete is published by the generation
        that wrote it.
        """
        complete = self._history.complete
        self.current = None
        if changed is not None:
            self.current = Ending("rescale", changed=changed, checkpoint=self._newest)
        elif complete is not None and complete.ending == "stop":
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

    def requested(self, request: Requested, phase: Phase, unreadable: str, now_ms: int) -> list[JobCommand]:
        """Somebody asks for an ending: it is under way now, or refused.

        `unreadable`: why the checkpoint to go on from cannot be read; only a cancellation helps then.
        """
        under_way = self.current.request if self.current is not None else ""
        if request.request in self._requests or request.request == under_way:
            return []
        if request.request in self._history.rescales:
            return [RequestDone(request.request, "rescaled")]
        done = self._history.savepoints.get(request.request)
        if done is not None and request.kind == "savepoint":
            return [RequestDone(request.request, "completed", done.restore)]
        self._requests.add(request.request)
        if self._is_cancelled_again(request, phase):
            return self._give_up(request, now_ms)
        if unreadable and request.kind != "cancel":
            return [RequestDone(request.request, f"refused: the job cannot go on: {unreadable}; cancel it")]
        former = self.current
        replaceable = former is None or (request.kind == "cancel" and former.kind not in ("cancel", "fail"))
        if not replaceable or phase is Phase.ENDING:
            busy = _BUSY[former.kind] if former else "its end is being recorded"
            return [RequestDone(request.request, f"refused: the job is busy: {busy}")]
        self.current = self._ending_of(request, now_ms)
        return self._replaced(former, _BUSY[request.kind])

    def _is_cancelled_again(self, request: Requested, phase: Phase) -> bool:
        cancelled = self.current is not None and self.current.kind == "cancel"
        return cancelled and request.kind == "cancel" and phase is not Phase.ENDING

    def _give_up(self, request: Requested, now_ms: int) -> list[JobCommand]:
        """Cancelled once more, it ends without publishing; but not because a client was impatient."""
        ending = self.current
        assert ending is not None
        assert ending.deadline_ms is not None
        if now_ms < ending.deadline_ms:
            left_s = (ending.deadline_ms - now_ms) // 1_000 + 1
            why = f"if its sinks cannot publish what is complete, cancel it once more in {left_s} s to end it without"
            return [RequestDone(request.request, f"refused: the job is busy: {_BUSY['cancel']}; {why}")]
        ending.given_up = True
        return []

    def cannot_publish(self) -> None:
        """What is complete will never be published: nobody is to wait for it."""
        if self.current is not None:
            self.current.given_up = True

    def status(self, now_ms: int) -> str:
        """What is under way, for people; empty if nothing is."""
        ending = self.current
        if ending is None:
            return ""
        late = ending.kind == "cancel" and ending.deadline_ms is not None and now_ms >= ending.deadline_ms
        waits = f", but its sinks have not published checkpoint {ending.checkpoint} yet; cancel it again to end it so"
        return _BUSY[ending.kind] + (waits if late else "")

    def publish_again_ms(self, first_ms: int, now_ms: int) -> int:
        """The pause before an attempt that publishes only begins again: growing where nobody waits for it any more."""
        ending = self.current
        if ending is None or ending.deadline_ms is None or now_ms < ending.deadline_ms:
            return first_ms
        return min(max(first_ms, now_ms - ending.deadline_ms), LONGEST_PAUSE_MS)

    def _ending_of(self, request: Requested, now_ms: int) -> Ending:
        ending = Ending(request.kind, request.request, request.drain, request.reason, changed=request.changed)
        if request.kind == "suspend":
            ending.suspend_at_ms = now_ms + SUSPEND_DEADLINE_MS
        if request.kind == "cancel":
            ending.checkpoint = self._newest
            ending.deadline_ms = now_ms + PUBLISH_DEADLINE_MS
        return ending

    def fails(self, reason: str, now_ms: int) -> list[JobCommand]:
        """No attempt follows: what is complete is published, then the job has failed."""
        former = self.current
        self.current = Ending(
            "fail", reason=reason, checkpoint=self._newest, deadline_ms=now_ms + PUBLISH_DEADLINE_MS
        )  # fmt: skip
        return self._replaced(former, f"it has failed: {reason}")

    @staticmethod
    def _replaced(former: Ending | None, why: str) -> list[JobCommand]:
        return [RequestDone(former.request, f"refused: {why}")] if former is not None and former.request else []

    def generation_begins(self) -> None:
        """The generation before has published all that is COMPLETE."""
        self.current = None
        self._generation_published = True

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
        self._generation_published = False
        ending = self.current
        if ending is None:
            return
        if ending.kind in ("cancel", "fail") or (ending.checkpoint is None and purpose == ending.purpose):
            ending.checkpoint = checkpoint

    def checkpoint_failed(self, pending: PendingCheckpoint, reason: str) -> list[JobCommand]:
        """Its checkpoint came to nothing: who asked for it is told, and the job goes on.

        The end of the input and an interruption are not asked for twice: they try again, the latter for a while.
        """
        ending = self.current
        if ending is None or ending.checkpoint is not None or ending.purpose != pending.purpose:
            return []
        if ending.kind in ("finish", "suspend"):
            ending.failed = reason
            return []
        self.current = None
        return [RequestDone(ending.request, f"refused: its checkpoint {pending.checkpoint} failed: {reason}")]

    def without_slots(self, missing: int) -> list[JobCommand]:
        """The job cannot run, so no checkpoint can be taken: the newest COMPLETE serves, or the request is refused."""
        ending = self.current
        if ending is None or ending.checkpoint is not None or ending.kind == "finish":
            return []
        lack = f"{missing} slots are missing, so that the job does not run"
        if ending.drain:
            return self._refuse(f"{lack} and cannot be drained; stop it without --drain, or add task managers")
        if not self._newest and ending.kind in ("savepoint", "stop"):
            return self._refuse(f"{lack}, and no checkpoint is complete; cancel the job, or add task managers")
        ending.checkpoint, ending.publishes_alone = self._newest, True
        return []

    def _refuse(self, why: str) -> list[JobCommand]:
        ending = self.current
        assert ending is not None
        self.current = None
        return [RequestDone(ending.request, f"refused: {why}")]

    def published(self, tasks: AttemptTasks, topology: Topology) -> bool:
        """Whether its checkpoint is COMPLETE and every sink has published it."""
        if self.current is None or self.current.checkpoint is None:
            return False
        return self._generation_published or tasks.all_published(topology, self.current.checkpoint)

    def suspends_now(self, now_ms: int) -> bool:
        """Whether a suspension waits no longer: what its sinks have not taken they get when the job goes on."""
        ending = self.current
        if ending is None or ending.suspend_at_ms is None or now_ms < ending.suspend_at_ms:
            return False
        return ending.checkpoint is not None or bool(ending.failed)

    def unpublished(self, tasks: AttemptTasks, topology: Topology) -> bool:
        """Whether rows that the newest COMPLETE covers stand in an exchange and are not known to be published."""
        return bool(self._newest) and not self._generation_published and tasks.unpublished(topology, self._newest)

    # -- how it is recorded ---------------------------------------------------------------------------------------------

    def savepoint_records(self, ending: Ending) -> list[AnyRecord]:
        """A savepoint or a stop is published: what to write. It is no longer under way."""
        complete = self._history.complete
        assert complete is not None
        savepoint = Savepoint(
            checkpoint=complete.checkpoint, manifest=complete.manifest, sha256=complete.sha256,
            request=ending.request, published=True, refers=complete.refers,
        )  # fmt: skip
        self.current = None
        if ending.kind == "savepoint":
            return [savepoint]
        terminated = Terminated(state="STOPPED", reason=ending.reason)
        return [terminated] if ending.request in self._history.savepoints else [savepoint, terminated]

    def is_over(self, tasks: AttemptTasks, topology: Topology, phase: Phase, now_ms: int) -> bool:
        """A cancelled or failed job ends when all is published; at its deadline even if something is left, but for rows
        of a cancelled one that stand in an exchange."""
        ending = self.current
        if ending is None or ending.deadline_ms is None:
            return False
        if phase in (Phase.OPENING, Phase.BEGINNING, Phase.ENDING, Phase.TERMINATED):
            return False
        if self.published(tasks, topology) or not ending.checkpoint:
            return True
        if now_ms < ending.deadline_ms:
            return False
        return ending.kind != "cancel" or ending.given_up or not self.unpublished(tasks, topology)

    def last_words(self, tasks: AttemptTasks, topology: Topology) -> str:
        """Why the cancelled or failed job ended, and what could not be published."""
        ending = self.current
        assert ending is not None
        if not ending.checkpoint or self.published(tasks, topology):
            return ending.reason
        return f"{ending.reason}; checkpoint {ending.checkpoint} was not fully published in time".lstrip("; ")
