"""Who leads: the lease for liveness, the epoch for safety, and the takeover.

A candidate that gets the lease mints its epoch by creating `leaders/<epoch>` in the store; only then may it append
EPOCH{e} to `commands` and read up to it. Everything before it is known to the new leader, everything behind it of a
lower epoch is dropped by all. The holder renews at a third of the time to live and stops itself at two thirds.

Who hears no broker cannot lead, but may be the only one that could: where nobody hears any, the holder stays and says so.
So it goes on and offers its lease to those who do hear one, and those who hear none do not ask for it.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import assert_never

import msgspec

from penstock.errors import ProtocolError
from penstock.protocol.messages import AnyCommand, BarrierMarker, EpochStarted
from penstock.protocol.phases import RECENT, check_move

LEASE_TTL_MS = 15_000
STANDS_BACK_MS = 3_000
"""Who has heard no broker for so long does not ask for a lease that it does not have."""
OFFERS_MS = 10_000
"""The holder offers it to others then: later than they stand back, or they would take it though they hear no broker."""


def epoch_key(epoch: int) -> str:
    """The object that says who minted this epoch."""
    return f"leaders/{epoch:020d}"


class LeaderPhase(Enum):
    """Where a candidate stands."""

    STANDBY = "standby"
    MINTING = "minting"
    FENCING = "fencing"
    LEADING = "leading"


MOVES: dict[LeaderPhase, frozenset[LeaderPhase]] = {
    LeaderPhase.STANDBY: frozenset({LeaderPhase.MINTING}),
    LeaderPhase.MINTING: frozenset({LeaderPhase.FENCING, LeaderPhase.STANDBY}),
    LeaderPhase.FENCING: frozenset({LeaderPhase.LEADING, LeaderPhase.STANDBY}),
    LeaderPhase.LEADING: frozenset({LeaderPhase.STANDBY}),
}
"""What may follow on what: nobody leads who has not minted an epoch and fenced those before it."""


# -- events -------------------------------------------------------------------------------------------------------------


class LeaseAnswered(msgspec.Struct, frozen=True):
    """The metadata store answered an acquire or a renewal that was sent at `asked_ms`."""

    held: bool
    asked_ms: int


class EpochsListed(msgspec.Struct, frozen=True):
    """The highest epoch that has an object; 0 if none."""

    highest: int


class EpochCreated(msgspec.Struct, frozen=True):
    """The store created our epoch object, or the object found there carries our own nonce."""

    epoch: int


class EpochTaken(msgspec.Struct, frozen=True):
    """Somebody else's object stands there."""

    epoch: int


class EpochUnknown(msgspec.Struct, frozen=True):
    """No certain answer."""

    epoch: int


class CommandRead(msgspec.Struct, frozen=True):
    """A record of `commands`, in order, from its first kept one."""

    command: AnyCommand


class TimePassed(msgspec.Struct, frozen=True):
    """The monotonic clock has moved."""

    deaf_ms: int = 0
    """How long this candidate has heard no broker."""


LeaderEvent = LeaseAnswered | EpochsListed | EpochCreated | EpochTaken | EpochUnknown | CommandRead | TimePassed

# -- commands -----------------------------------------------------------------------------------------------------------


class AskForLease(msgspec.Struct, frozen=True):
    """Acquire the lease, or renew it if it is held; `LeaseAnswered` follows."""

    renew: bool
    offered: bool = False
    """It was given back when it was last renewed, and is acquired again if nobody has it."""


class OfferLease(msgspec.Struct, frozen=True):
    """Give the lease back and go on: another one may take it until it is asked for next."""


class ListEpochs(msgspec.Struct, frozen=True):
    """Find the highest epoch object; `EpochsListed` follows."""


class CreateEpoch(msgspec.Struct, frozen=True):
    """Create the epoch object conditionally with our nonce; on a refusal read it back and compare."""

    epoch: int


class AppendEpoch(msgspec.Struct, frozen=True):
    """Append EPOCH to `commands`, then read `commands` from its start up to that record."""

    epoch: int


class Lead(msgspec.Struct, frozen=True):
    """Commands of earlier leaders are all known: open the jobs."""

    epoch: int
    markers: tuple[BarrierMarker, ...]


class StopLeading(msgspec.Struct, frozen=True):
    """Decide nothing more; drop everything that was known."""

    reason: str


LeaderCommand = AskForLease | OfferLease | ListEpochs | CreateEpoch | AppendEpoch | Lead | StopLeading


class LeaderMachine:
    """One candidate."""

    def __init__(self, name: str, lease_ttl_ms: int = LEASE_TTL_MS) -> None:
        self.name = name
        self.phase = LeaderPhase.STANDBY
        self._phases = deque([self.phase], maxlen=RECENT)
        self.epoch = 0
        self.lease_ttl_ms = lease_ttl_ms
        self._held_since_ms: int | None = None
        self._asked_ms: int | None = None
        self._deaf_ms = 0
        self._offered = False
        self._markers: list[BarrierMarker] = []

    def handle(self, event: LeaderEvent, now_ms: int) -> list[LeaderCommand]:
        """Take an event; `now_ms` is monotonic."""
        overdue = self._overdue(now_ms)
        if overdue:
            return overdue
        match event:
            case TimePassed():
                self._deaf_ms = event.deaf_ms
                return self._on_time(now_ms)
            case LeaseAnswered():
                return self._on_lease(event)
            case EpochsListed():
                return self._mint(event.highest + 1)
            case EpochCreated():
                return self._on_epoch_created(event.epoch)
            case EpochTaken():
                return self._mint(event.epoch + 1) if event.epoch == self.epoch else []
            case EpochUnknown():
                return self._mint(event.epoch) if event.epoch == self.epoch else []
            case CommandRead():
                return self._on_command(event.command)
            case _:
                assert_never(event)

    def lost(self, reason: str) -> list[LeaderCommand]:
        """The job log refused a record: another leader acts."""
        return self._stop(reason)

    def _overdue(self, now_ms: int) -> list[LeaderCommand]:
        if self._held_since_ms is None or now_ms - self._held_since_ms < self.lease_ttl_ms * 2 // 3:
            return []
        return self._stop("the lease was not renewed in time")

    def _on_time(self, now_ms: int) -> list[LeaderCommand]:
        renew = self._held_since_ms is not None
        pause_ms = self.lease_ttl_ms // 3
        if self._asked_ms is not None and now_ms - self._asked_ms < pause_ms:
            return []
        if not renew and self._deaf_ms >= STANDS_BACK_MS:
            return []
        self._asked_ms = now_ms
        return [AskForLease(renew, offered=renew and self._offered)]

    def _on_lease(self, event: LeaseAnswered) -> list[LeaderCommand]:
        if not event.held:
            return self._stop("the lease is held by another") if self._held_since_ms is not None else []
        self._held_since_ms = event.asked_ms
        self._offered = self._deaf_ms >= OFFERS_MS
        offer: list[LeaderCommand] = [OfferLease()] if self._offered else []
        if self.phase is not LeaderPhase.STANDBY:
            return offer
        self._move(LeaderPhase.MINTING)
        return [*offer, ListEpochs()]

    def _mint(self, epoch: int) -> list[LeaderCommand]:
        if self.phase is not LeaderPhase.MINTING:
            return []
        self.epoch = epoch
        return [CreateEpoch(epoch)]

    def _on_epoch_created(self, epoch: int) -> list[LeaderCommand]:
        if self.phase is not LeaderPhase.MINTING or epoch != self.epoch:
            return []
        self._move(LeaderPhase.FENCING)
        self._markers.clear()
        return [AppendEpoch(epoch)]

    def _on_command(self, command: AnyCommand) -> list[LeaderCommand]:
        if command.epoch > self.epoch and self.phase in (LeaderPhase.FENCING, LeaderPhase.LEADING):
            return self._stop(f"a leader of epoch {command.epoch} acts")
        if self.phase is not LeaderPhase.FENCING:
            return []
        if isinstance(command, BarrierMarker):
            self._markers.append(command)
        if isinstance(command, EpochStarted) and command.epoch == self.epoch:
            if command.leader != self.name:
                raise ProtocolError(f"epoch {command.epoch} was started by {command.leader} and by {self.name}")
            self._move(LeaderPhase.LEADING)
            return [Lead(self.epoch, tuple(self._markers))]
        return []

    def _stop(self, reason: str) -> list[LeaderCommand]:
        self._held_since_ms, self._offered = None, False
        if self.phase is LeaderPhase.STANDBY:
            return []
        self._move(LeaderPhase.STANDBY)
        return [StopLeading(reason)]

    def _move(self, phase: LeaderPhase) -> None:
        check_move(f"leader candidate {self.name}", MOVES, self._phases, phase)
        self.phase = phase
        self._phases.append(phase)
