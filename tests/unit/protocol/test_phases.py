"""No machine takes a move that its table does not have."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import pytest

from penstock.errors import ProtocolError
from penstock.protocol import leader, phases, publishing
from penstock.protocol.publishing import Mark, MarkRead, PublisherMachine, PublisherPhase


@pytest.mark.parametrize(
    ("moves", "kind", "first"),
    [
        (phases.MOVES, phases.Phase, phases.Phase.OPENING),
        (publishing.MOVES, PublisherPhase, PublisherPhase.WAITING),
        (leader.MOVES, leader.LeaderPhase, leader.LeaderPhase.STANDBY),
    ],
)
def test_every_phase_is_in_the_table_and_can_be_reached(
    moves: Mapping[Enum, frozenset[Enum]], kind: type[Enum], first: Enum
):
    """A phase that nothing leads to, or that the table forgets, is a mistake in the table."""
    assert set(moves) == set(kind)
    assert {first}.union(*moves.values()) == set(kind)


def test_nothing_is_committed_by_a_producer_that_is_not_ready():
    """A mark that is read while older producers may still commit says nothing."""
    machine = PublisherMachine(1, lambda _: 0, first_position=0, exchange="the exchange v1[0]")
    machine.start()
    with pytest.raises(ProtocolError, match=r"the exchange v1\[0\]: InitProducerId -> committing is not a legal move"):
        machine.handle(MarkRead(Mark(0, 0, 1)))


def test_nobody_leads_who_has_fenced_nobody():
    """The error says how the candidate came to where it is."""
    candidate = leader.LeaderMachine("one")
    with pytest.raises(ProtocolError, match="leader candidate one: standby -> leading is not a legal move"):
        candidate._move(leader.LeaderPhase.LEADING)
