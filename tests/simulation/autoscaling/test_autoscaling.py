"""Histories of a load in which the operator scales a job, and the mutants of it on the histories that kill them.

`PENSTOCK_TEST_SEED=N` plays them with one more seed, such as one that has failed.
"""

from __future__ import annotations

import os

import pytest
from tests.simulation.autoscaling.histories import HISTORIES, BrokenInvariantError
from tests.simulation.autoscaling.mutants import MUTANTS

pytestmark = pytest.mark.simulation
GIVEN = os.environ.get("PENSTOCK_TEST_SEED")


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_keeps_every_invariant(name: str) -> None:
    """The lag is bounded, nothing flaps, limits and what people say count, and what does not help is not repeated."""
    for seed in [0, *([int(GIVEN)] if GIVEN else [])]:
        HISTORIES[name](seed)


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_is_killed(name: str) -> None:
    """With one rule taken out a history fails that passes with it."""
    mutant, history = MUTANTS[name]
    with mutant.applied(), pytest.raises(BrokenInvariantError):
        HISTORIES[history](0)
