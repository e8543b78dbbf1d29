"""A thousand histories of the protocol, the mutants on their recorded seeds, and what all that has reached.

The seeds are fixed, so that what fails is what was changed; `make simulate` searches fresh ones."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.simulation.coverage import required
from tests.simulation.mutants import CARELESS, MUTANTS
from tests.simulation.mutating import Mutant
from tests.simulation.recording import recorded_seeds
from tests.simulation.running import run_seed

# Half a minute of a processor; on a loaded machine that is many minutes.
pytestmark = [pytest.mark.simulation, pytest.mark.timeout(900)]
SEEDS = 1_000
SHARDS = 4
KILLING = recorded_seeds()
RARE = (9_001_705, 9_003_994, 315_788_865, 62_358)
"""Histories with what fewer than one in three thousand has: a cancel while slots are missing, a leader that dies
between the exchanges of a generation and its BEGIN and whose successor begins at another parallelism, and a publisher of
a split that finds a newer attempt in its mark."""


class Reached:
    """What the histories of this process have reached so far."""

    names: set[str] = set()  # noqa: RUF012 (shared by the tests of this module on purpose)
    histories = 0


def _search(seeds: Iterable[int]) -> None:
    for seed in seeds:
        result = run_seed(seed)
        Reached.names |= result.coverage
        Reached.histories += 1
        assert not result.failure, result.failure


@pytest.mark.parametrize("shard", range(SHARDS))
def test_histories_keep_every_invariant(shard: int) -> None:
    """No fault that the registry knows breaks an invariant, loses a row, doubles one, or stops the job for good."""
    share = SEEDS // SHARDS
    _search(range(shard * share, (shard + 1) * share))


def test_the_histories_reach_everything() -> None:
    """Every fault is injected and every move, event and command is met, or the histories prove less than they claim.

    Beside those that this process ran for the other tests only as many as it takes.
    """
    _search(RARE)
    start = SEEDS
    while required() - Reached.names and Reached.histories < 4 * SEEDS:
        _search(range(start, start + 100))
        start += 100
    missed = required() - Reached.names
    assert not missed, (
        f"{missed}: seeds that reach what is rare are recorded in RARE; histories change with the scenarios"
    )


@pytest.mark.acceptance
@pytest.mark.parametrize("name", sorted(KILLING))
def test_a_mutant_is_killed(name: str) -> None:
    """With one rule taken out of the protocol some recorded history fails, and with the rule in place it passes."""
    killers = [seed for seed in KILLING[name] if run_seed(seed, mutant=name).failure]
    assert killers, f"{name} survives seeds {KILLING[name]}; search others with --record {name}"
    assert not run_seed(killers[0]).failure


@pytest.mark.parametrize("seed", KILLING["objects_that_are_gone_are_not_missed"])
def test_careless_subtasks_do_no_harm(seed: int) -> None:
    """The leader completes nothing that names what may be gone: it is its rule that the mutant breaks."""
    with Mutant(0, "careless", CARELESS).applied():
        assert not run_seed(seed).failure


def test_every_mutant_has_killing_seeds() -> None:
    """All mutants of the protocol's list are there, and something kills each of them."""
    assert {mutant.number for mutant in MUTANTS.values()} == set(range(1, len(MUTANTS) + 1))
    assert KILLING.keys() == MUTANTS.keys()
