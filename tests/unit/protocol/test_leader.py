"""Lease, epoch and takeover of a candidate."""

from __future__ import annotations

import pytest

from penstock.errors import ProtocolError
from penstock.protocol.leader import (
    OFFERS_MS,
    STANDS_BACK_MS,
    AppendEpoch,
    AskForLease,
    CommandRead,
    CreateEpoch,
    EpochCreated,
    EpochsListed,
    EpochTaken,
    EpochUnknown,
    Lead,
    LeaderMachine,
    LeaderPhase,
    LeaseAnswered,
    ListEpochs,
    OfferLease,
    StopLeading,
    TimePassed,
)
from penstock.protocol.messages import BarrierMarker, EpochStarted, LeaderTick

TTL = 900


@pytest.fixture
def candidate() -> LeaderMachine:
    return LeaderMachine("me", TTL)


def lead(candidate: LeaderMachine, now_ms: int = 0) -> None:
    candidate.handle(LeaseAnswered(True, now_ms), now_ms)
    candidate.handle(EpochsListed(4), now_ms)
    candidate.handle(EpochCreated(5), now_ms)
    candidate.handle(CommandRead(EpochStarted(epoch=5, leader="me")), now_ms)
    assert candidate.phase is LeaderPhase.LEADING


def test_a_candidate_asks_at_a_third_of_the_time_to_live(candidate: LeaderMachine):
    """And renews once it holds the lease."""
    assert candidate.handle(TimePassed(), 0) == [AskForLease(renew=False)]
    assert candidate.handle(TimePassed(), 299) == []
    assert candidate.handle(LeaseAnswered(True, 0), 299) == [ListEpochs()]
    assert candidate.handle(TimePassed(), 300) == [AskForLease(renew=True)]


def test_the_epoch_is_minted_in_the_store(candidate: LeaderMachine):
    """The lease is liveness, the created object is safety."""
    candidate.handle(LeaseAnswered(True, 0), 0)
    assert candidate.handle(EpochsListed(4), 1) == [CreateEpoch(5)]
    assert candidate.handle(EpochUnknown(5), 2) == [CreateEpoch(5)]
    assert candidate.handle(EpochTaken(5), 3) == [CreateEpoch(6)]
    assert candidate.handle(EpochCreated(6), 4) == [AppendEpoch(6)]


def test_it_leads_once_it_has_read_up_to_its_own_epoch(candidate: LeaderMachine):
    """Every marker of earlier leaders is known by then."""
    candidate.handle(LeaseAnswered(True, 0), 0)
    candidate.handle(EpochsListed(0), 0)
    candidate.handle(EpochCreated(1), 0)
    marker = BarrierMarker(epoch=0, job="j", attempt="a", checkpoint=3, nonce="n")
    assert candidate.handle(CommandRead(marker), 1) == []
    assert candidate.handle(CommandRead(LeaderTick(epoch=0)), 1) == []
    assert candidate.handle(CommandRead(EpochStarted(epoch=1, leader="me")), 2) == [Lead(1, (marker,))]


def test_it_stops_itself_at_two_thirds_of_the_time_to_live(candidate: LeaderMachine):
    """Long before anybody else can get the lease; the time counts from when it asked."""
    lead(candidate)
    candidate.handle(LeaseAnswered(True, 300), 400)
    assert candidate.handle(TimePassed(), 899) == [AskForLease(renew=True)]
    [command] = candidate.handle(TimePassed(), 900)
    assert isinstance(command, StopLeading)
    assert candidate.phase is LeaderPhase.STANDBY


def test_a_lost_lease_ends_leadership(candidate: LeaderMachine):
    """So do a refused record and a command of a higher epoch."""
    lead(candidate)
    assert isinstance(candidate.handle(LeaseAnswered(False, 1), 1)[0], StopLeading)
    assert candidate.handle(LeaseAnswered(False, 2), 2) == []
    lead(candidate, 10)
    assert candidate.lost("refused") == [StopLeading("refused")]
    lead(candidate, 20)
    assert isinstance(candidate.handle(CommandRead(LeaderTick(epoch=9)), 21)[0], StopLeading)


def test_a_leader_that_hears_no_broker_offers_its_lease_and_goes_on(candidate: LeaderMachine):
    """At every renewal, until it hears one again or another has taken the lease."""
    lead(candidate)
    assert candidate.handle(TimePassed(OFFERS_MS - 1), 300) == [AskForLease(renew=True)]
    assert candidate.handle(LeaseAnswered(True, 300), 300) == []
    assert candidate.handle(TimePassed(OFFERS_MS), 600) == [AskForLease(renew=True)]
    assert candidate.handle(LeaseAnswered(True, 600), 600) == [OfferLease()]
    assert candidate.handle(TimePassed(OFFERS_MS + 300), 900) == [AskForLease(renew=True, offered=True)]
    assert candidate.handle(LeaseAnswered(True, 900), 900) == [OfferLease()]
    assert candidate.phase is LeaderPhase.LEADING
    assert candidate.handle(TimePassed(0), 1_200) == [AskForLease(renew=True, offered=True)]
    assert candidate.handle(LeaseAnswered(True, 1_200), 1_200) == []
    assert candidate.handle(TimePassed(0), 1_500) == [AskForLease(renew=True)]
    candidate.handle(LeaseAnswered(True, 1_500), 1_500)
    candidate.handle(TimePassed(OFFERS_MS), 1_800)
    candidate.handle(LeaseAnswered(True, 1_800), 1_800)
    candidate.handle(TimePassed(OFFERS_MS), 2_100)
    assert isinstance(candidate.handle(LeaseAnswered(False, 2_100), 2_100)[0], StopLeading)


def test_who_hears_no_broker_does_not_ask_for_the_lease(candidate: LeaderMachine):
    """Nobody would be better off; as soon as it hears one it asks."""
    assert candidate.handle(TimePassed(STANDS_BACK_MS), 0) == []
    assert candidate.handle(TimePassed(STANDS_BACK_MS - 1), 1) == [AskForLease(renew=False)]


def test_answers_that_come_too_late_change_nothing(candidate: LeaderMachine):
    """A candidate on standby mints nothing."""
    assert candidate.handle(EpochsListed(4), 0) == []
    assert candidate.handle(EpochCreated(4), 0) == []
    assert candidate.handle(EpochTaken(4), 0) == []


def test_an_epoch_has_one_leader(candidate: LeaderMachine):
    """Two starts of one epoch mean that the store's conditional create is broken."""
    candidate.handle(LeaseAnswered(True, 0), 0)
    candidate.handle(EpochsListed(0), 0)
    candidate.handle(EpochCreated(1), 0)
    with pytest.raises(ProtocolError, match="started by other and by me"):
        candidate.handle(CommandRead(EpochStarted(epoch=1, leader="other")), 0)
