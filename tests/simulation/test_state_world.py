"""Incremental checkpoints of the backend on the local disk, in any history, and with any rule taken out."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from tests.simulation.kernel import Violation
from tests.simulation.state_world import MUTANTS, run

FIXED = 40
"""So many seeds kill every mutant."""
KILLED_BY = {"deltas_in_the_wrong_order": 5, "savepoint_is_a_base": 18}
"""The seed that does where it is none of the first; after a change of the histories another one is looked for."""


def test_what_is_restored_is_what_was_there(tmp_path):
    """Whatever was aborted, told late, rescaled, moved to another backend; nothing needed is deleted, all else is."""
    base = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(10**9)))
    print("seed", base)
    happened = Counter[str]()
    for seed in range(base, base + 6):
        happened += run(seed, tmp_path)
    print(happened)
    assert happened["deltas"] > 5
    assert happened["incremental restores"] > 0


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_killed(mutant, tmp_path):
    """With a rule taken out, state is lost or comes back wrong."""
    with mutant.applied():
        for seed in (KILLED_BY.get(mutant.name, 1), *range(FIXED)):
            try:
                run(seed, tmp_path)
            except (Violation, Exception) as error:
                print(seed, type(error).__name__, error)
                return
    pytest.fail(f"{mutant.name} survives")
