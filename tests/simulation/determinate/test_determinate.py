"""Seeded histories of determinate subtasks, and the mutants on the seeds that kill them.

`python -m tests.simulation.determinate FROM TO` runs others, and `--mutant NAME` looks for what kills a mutant.
"""

from __future__ import annotations

from collections import Counter

import pytest
from tests.simulation.determinate.mutants import KILLING, MUTANTS
from tests.simulation.determinate.world import FAULTS, run_seed

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(600)]
SEEDS = 60


def test_histories_keep_every_invariant() -> None:
    """No fault loses a row, doubles one, or stops the job for good, and all that can happen does happen."""
    reached = Counter[str]()
    for seed in range(SEEDS):
        failure, counts = run_seed(seed)
        assert not failure, failure
        reached += counts
    rare = {"older snapshot", "leader goes on", "complete", "savepoint", "rescale", "SeekSplit", "BackOff", "Exit"}
    assert {*FAULTS, *rare} <= reached.keys()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_killed(name: str) -> None:
    """With one rule taken out a recorded history fails, and with the rule in place it passes."""
    with MUTANTS[name].applied():
        assert run_seed(KILLING[name])[0], f"{name} survives; search with --mutant {name}"
    assert not run_seed(KILLING[name])[0]
