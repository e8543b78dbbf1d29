"""What a leader tells the task managers about one job: commands that carry its epoch and the newest attempt."""

from __future__ import annotations

from penstock.protocol.checkpoints import PendingCheckpoint
from penstock.protocol.jobevents import Announce
from penstock.protocol.joblog import Begin, Complete, JobHistory
from penstock.protocol.messages import (
    BarrierMarker,
    CancelAttempt,
    CheckpointAborted,
    CheckpointCompleted,
    Deploy,
    FinishAttempt,
    Flavour,
    SubtaskId,
)

RESCALE = "rescale"
NEW_ATTEMPT = "a new attempt begins"
"""Reasons for cancelling an attempt that are no failures."""


class Announcements:
    """Writes the commands of one job under one leader; it decides nothing."""

    def __init__(self, job: str, history: JobHistory) -> None:
        self.job = job
        self._history = history
        self.epoch = 0
        """Of the leader; known once the job is opened."""

    @property
    def attempt(self) -> str:
        """The newest attempt; empty before the first."""
        return self._history.begin.attempt if self._history.begin else ""

    def deploy(self, begin: Begin, subtask: SubtaskId, worker: str) -> Announce:
        """A subtask is to start on this worker instance."""
        offsets = begin.start_offsets.get(subtask.vertex)
        return Announce(Deploy(
            epoch=self.epoch, job=self.job, attempt=begin.attempt, attempt_number=begin.attempt_number,
            subtask=subtask, worker=worker, generation=begin.generation, restore=begin.restore,
            start_offset=offsets[subtask.index] if offsets else 0, publishes_only=begin.publishes_only,
        ))  # fmt: skip

    def barrier(self, pending: PendingCheckpoint, flavour: Flavour, *, pause: bool) -> Announce:
        """A checkpoint is to be taken."""
        return Announce(BarrierMarker(
            epoch=self.epoch, job=self.job, attempt=self.attempt, checkpoint=pending.checkpoint,
            nonce=pending.nonce, flavour=flavour, pause=pause, drain=pending.drain,
        ))  # fmt: skip

    def completed(self, record: Complete) -> Announce:
        """A checkpoint is COMPLETE."""
        return Announce(CheckpointCompleted(
            epoch=self.epoch, job=self.job, attempt=record.attempt, checkpoint=record.checkpoint,
            nonce=record.checkpoint_nonce,
        ))  # fmt: skip

    def aborted(self, checkpoint: int, nonce: str, reason: str = "") -> Announce:
        """A checkpoint of the newest attempt will not be COMPLETE."""
        return Announce(CheckpointAborted(
            epoch=self.epoch, job=self.job, attempt=self.attempt, checkpoint=checkpoint, nonce=nonce, reason=reason
        ))  # fmt: skip

    def cancel(self, reason: str, *, final: bool = False) -> Announce:
        """The newest attempt is to stop at once; `final` if the job has ended."""
        return Announce(CancelAttempt(epoch=self.epoch, job=self.job, attempt=self.attempt, reason=reason, final=final))

    def finish(self, *, final: bool = False) -> Announce:
        """The newest attempt is to end: its final checkpoint is complete and published; `final` if the job has ended."""
        return Announce(FinishAttempt(epoch=self.epoch, job=self.job, attempt=self.attempt, final=final))
