"""Which checkpoint to trigger, and when one is complete: the leader's book of pending checkpoints.

Acks are kept per (attempt, checkpoint, nonce) and never merged. Numbers rise strictly; completing one aborts all lower
ones that are pending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from penstock.protocol.messages import Acknowledged, Declined, Flavour, SubtaskId, SubtaskSnapshot

TOLERABLE_FAILED = 3


class CheckpointSettings(msgspec.Struct, frozen=True):
    """When checkpoints happen. Times in milliseconds."""

    interval_ms: int = 10_000
    min_pause_ms: int = 0
    timeout_ms: int = 600_000
    max_concurrent: int = 1
    tolerable_failed: int = TOLERABLE_FAILED
    """How many periodic checkpoints may fail in a row; one more fails the attempt. Those that fail because the store is
    away do not count: another attempt could not write them either."""
    flavour: Flavour = "aligned"
    incremental: bool = False
    """Whether a checkpoint stores what has changed since one before, where the state backend can tell."""


Purpose = Literal["periodic", "final", "savepoint", "stop", "rescale", "suspend"]
"""Why a checkpoint was triggered: all but `periodic` belong to an ending."""

SELF_CONTAINED: frozenset[Purpose] = frozenset(("savepoint", "stop"))
"""What must not refer to objects of other checkpoints: people keep it, move it and read it."""

RETRY_MS = 1_000
"""How long after a failed checkpoint one of an ending is triggered again."""


@dataclass(slots=True)
class PendingCheckpoint:
    """A checkpoint whose acks are being gathered."""

    checkpoint: int
    nonce: str
    attempt: str
    purpose: Purpose
    drain: bool
    triggered_ms: int
    missing: set[SubtaskId]
    snapshots: dict[SubtaskId, SubtaskSnapshot] = field(default_factory=dict[SubtaskId, SubtaskSnapshot])

    @property
    def full(self) -> bool:
        """Whether every subtask has acknowledged."""
        return not self.missing


class CheckpointBook:
    """The pending checkpoints of the newest attempt."""

    def __init__(self, settings: CheckpointSettings, new_nonce: Callable[[], str]) -> None:
        self._settings = settings
        self._new_nonce = new_nonce
        self._pending: dict[tuple[str, int, str], PendingCheckpoint] = {}
        self._highest = 0
        self._last_trigger_ms: int | None = None
        self._last_end_ms: int | None = None
        self._failed_in_a_row = 0
        self._failed_last = False

    @property
    def pending(self) -> list[PendingCheckpoint]:
        """Lowest number first."""
        return sorted(self._pending.values(), key=lambda pending: pending.checkpoint)

    @property
    def too_many_failures(self) -> bool:
        """Whether more checkpoints failed in a row than are tolerated."""
        return self._failed_in_a_row > self._settings.tolerable_failed

    def flavour(self, purpose: Purpose) -> Flavour:
        """How the barriers of a checkpoint are taken: what others restore from is always exact."""
        if purpose in SELF_CONTAINED and self._settings.incremental:
            return "canonical"
        return self._settings.flavour if purpose == "periodic" else "aligned"

    def seen(self, checkpoint: int) -> None:
        """A checkpoint number stands in `commands` or in the job log: later ones are above it."""
        self._highest = max(self._highest, checkpoint)

    def start_attempt(self, now_ms: int) -> None:
        """A new attempt runs: nothing is pending, and the interval starts anew."""
        self._pending.clear()
        self._failed_in_a_row = 0
        self._failed_last = False
        self._last_trigger_ms = now_ms

    @property
    def highest(self) -> int:
        """The newest number that was given."""
        return self._highest

    def due(self, now_ms: int, asked: int = 0) -> bool:
        """Whether a periodic checkpoint is to be triggered now; one up to the number `asked` is wanted at once."""
        if len(self._pending) >= self._settings.max_concurrent:
            return False
        if asked > self._highest:
            return True
        if self._last_trigger_ms is not None and now_ms - self._last_trigger_ms < self._settings.interval_ms:
            return False
        return self._last_end_ms is None or now_ms - self._last_end_ms >= self._settings.min_pause_ms

    def may_retry(self, now_ms: int) -> bool:
        """Whether an ending may trigger its checkpoint now: at once, but after a failure only after a pause."""
        return not self._failed_last or self._last_end_ms is None or now_ms - self._last_end_ms >= RETRY_MS

    def trigger(
        self, attempt: str, subtasks: Iterable[SubtaskId], purpose: Purpose, now_ms: int, *, drain: bool = False
    ) -> PendingCheckpoint:
        """Open the book of the next checkpoint."""
        self._highest += 1
        self._last_trigger_ms = now_ms
        pending = PendingCheckpoint(
            self._highest, self._new_nonce(), attempt, purpose, drain, now_ms, missing=set(subtasks)
        )
        self._pending[self._key(pending)] = pending
        return pending

    def acknowledged(self, message: Acknowledged) -> PendingCheckpoint | None:
        """Note an ack; the checkpoint if this was the last one missing. Acks of unknown checkpoints are ignored."""
        pending = self._pending.get((message.attempt, message.checkpoint, message.nonce))
        if pending is None or message.subtask not in pending.missing:
            return None
        pending.missing.discard(message.subtask)
        pending.snapshots[message.subtask] = message.snapshot
        return pending if pending.full else None

    def declined(self, message: Declined, now_ms: int) -> list[PendingCheckpoint]:
        """The checkpoint that a subtask could not take, if it was pending: it is aborted."""
        pending = self._pending.get((message.attempt, message.checkpoint, message.nonce))
        return self._abort([pending] if pending else [], now_ms, counts=not message.unavailable)

    def failed(self, pending: PendingCheckpoint, now_ms: int) -> list[PendingCheckpoint]:
        """All acks are in, but the checkpoint must not become COMPLETE: it is aborted."""
        return self._abort([pending] if self._key(pending) in self._pending else [], now_ms)

    def expired(self, now_ms: int) -> list[PendingCheckpoint]:
        """Those that took too long: they are aborted."""
        late = [p for p in self.pending if now_ms - p.triggered_ms >= self._settings.timeout_ms and not p.full]
        return self._abort(late, now_ms)

    def completed(self, checkpoint: int, now_ms: int) -> list[PendingCheckpoint]:
        """COMPLETE stands in the job log; returns the lower ones, which are aborted by it."""
        self._failed_in_a_row = 0
        self._failed_last = False
        self._last_end_ms = now_ms
        done = [p for p in self.pending if p.checkpoint == checkpoint]
        lower = [p for p in self.pending if p.checkpoint < checkpoint]
        for pending in (*done, *lower):
            del self._pending[self._key(pending)]
        return lower

    def abort_all(self) -> list[PendingCheckpoint]:
        """Forget all pending checkpoints (a failed attempt, a takeover); this is no failure of theirs."""
        pending = self.pending
        self._pending.clear()
        return pending

    def _abort(self, aborted: list[PendingCheckpoint], now_ms: int, *, counts: bool = True) -> list[PendingCheckpoint]:
        """What somebody asked for is refused when it fails, and no failure of the attempt (Flink's rule too).

        What is tried again until it succeeds does count, or an attempt that has come to a standstill stays there.
        """
        for pending in aborted:
            del self._pending[self._key(pending)]
            self._failed_in_a_row += counts and pending.purpose in ("periodic", "final", "suspend")
            self._failed_last = True
            self._last_end_ms = now_ms
        return aborted

    @staticmethod
    def _key(pending: PendingCheckpoint) -> tuple[str, int, str]:
        return (pending.attempt, pending.checkpoint, pending.nonce)
