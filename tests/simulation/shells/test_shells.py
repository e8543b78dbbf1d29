"""Histories of production's own classes, mutants of them on their recorded seeds, and that a seed says all.

The seeds are fixed, so that what fails is what was changed; `make simulate` searches fresh ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from tests.simulation.shells.faults import FAULTS, STEPS
from tests.simulation.shells.mutants import MUTANTS, SET_OF
from tests.simulation.shells.recording import recorded_seeds
from tests.simulation.shells.running import SETS, run_seed

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(180)]
FIRST = 9_000_000
RARE = (21, 23, 26, 27, 29, 31, 49, 56, 73)
"""Counted from `FIRST`: the histories of a cluster with what the first twenty do not reach."""
SEEDS = {
    "cluster": [*range(FIRST, FIRST + 20), *(FIRST + number for number in RARE)],
    "competing": [*range(FIRST, FIRST + 6), FIRST + 79, FIRST + 99],
    "workers": range(FIRST, FIRST + 40),
}
KILLING = recorded_seeds()
REQUIRED = {
    "cluster": (
        {f"fault {name}" for name in FAULTS}
        | {f"step {step}" for step in STEPS}
        | {f"killed at {step}" for step in ("touch", "rename", "fsync")}
        | {f"{kind} append {topic}" for kind in ("error", "lost", "late") for topic in ("commands", "events")}
        | {"credit report vanish", "credit report late", "ack larger than a record", "former files replaced"}
        | {"stopped while it looks for former files", "frame that is as large as may be"}
        | {"rescale completed", "rescale refused"}
        | {"record Savepoint", "record AttemptFailed", "end FINISHED", "end FAILED", "end CANCELED", "end STOPPED"}
        | {"logged a job cannot be opened", "logged an event cannot be read", "logged leadership lost"}
        | {"logged the master of a job failed; it is opened again", "logged a request cannot be read"}
    ),
    "competing": {"a slow import", "refused by a worker that holds another job's code"},
    "workers": (
        {f"fault {n}" for n in ("kill", "stop", "memory", "uncertain", "unreadable", "stop supervisor")}
        | {f"{kind} append commands/0" for kind in ("error", "lost", "late")}
        | {f"{kind} append events/0" for kind in ("error", "lost")}
        | {f"command {n}" for n in ("Deploy", "CancelAttempt", "FinishAttempt", "LeaderTick", "EpochStarted")}
        | {"deploy and cancel at once", "cancelled before its first step"}
    ),
}


@pytest.mark.parametrize("kind", SETS)
def test_histories_keep_every_invariant(kind: str) -> None:
    """No row is lost or doubled, no slot leaks, nobody but the leader acts, no job stops another; all of it happens."""
    reached: Counter[str] = Counter()
    for seed in SEEDS[kind]:
        result = run_seed(kind, seed)
        assert not result.failure, result.failure
        reached += result.coverage
    missed = REQUIRED[kind] - reached.keys()
    assert not missed, f"{missed}: histories change with the scenarios; find seeds that reach it and add them to RARE"


@pytest.mark.acceptance
@pytest.mark.parametrize("name", list(KILLING))
def test_a_mutant_is_killed(name: str) -> None:
    """With one rule taken out of production's code the recorded history fails, and with the rule in place it passes."""
    kind, seed = SET_OF[name], KILLING[name]
    assert run_seed(kind, seed, mutant=name).failure, f"{name} survives; search another seed with --record {name}"
    assert not run_seed(kind, seed).failure


def test_every_mutant_has_a_killing_seed() -> None:
    """None is there for show."""
    assert KILLING.keys() == MUTANTS.keys()


@pytest.mark.acceptance
@pytest.mark.parametrize("kind", SETS)
def test_a_seed_says_everything(kind: str) -> None:
    """Another process, in which sets and dicts of strings have another order, lives through the same history."""
    program = f"from tests.simulation.shells.running import run_seed; print(run_seed({kind!r}, {FIRST}).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": number, "PYTHONPATH": os.getcwd()}, timeout=60,
        ).stdout
        for number in ("1", "2")
    }  # fmt: skip
    assert len(digests) == 1
