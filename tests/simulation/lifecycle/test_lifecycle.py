"""Histories of what the operator on Kubernetes decides, and the mutants of it on the seeds that kill them.

`PENSTOCK_TEST_SEED=N` plays one more history first, such as one that has failed.
"""

from __future__ import annotations

import os

import pytest
from tests.simulation.lifecycle.histories import play
from tests.simulation.lifecycle.mutants import MUTANTS
from tests.simulation.lifecycle.world import BrokenInvariantError

pytestmark = pytest.mark.simulation
SEEDS = (*range(50), 66)
"""The last one has what is rare: a job that starts from a savepoint that somebody has named."""
REACHED = {
    "CANCELED", "FAILED", "STOPPED", "autoscaled", "conflict", "died", "dispose", "edit elsewhere", "edit nonce",
    "edit suspend", "halted", "named", "released", "rescale", "rolled back", "runs", "savepoint", "stateless", "stop",
}  # fmt: skip


def test_histories_keep_every_invariant() -> None:
    """Deaths between any two steps, old copies, a second operator and failing versions: state is handed on exactly.

    And everything that they claim to try was met.
    """
    given = os.environ.get("PENSTOCK_TEST_SEED")
    reached: set[str] = set()
    for seed in [*([int(given)] if given else []), *SEEDS]:
        reached |= play(seed).reached
    assert reached >= REACHED, f"never reached: {sorted(REACHED - reached)}"


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_is_killed(name: str) -> None:
    """With one rule taken out a recorded history fails; with the rule in place it passes."""
    mutant, seed = MUTANTS[name]
    with mutant.applied(), pytest.raises(BrokenInvariantError):
        play(seed)
    play(seed)
