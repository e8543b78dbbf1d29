"""Keeps `killing_seeds.json` true: a change of what histories draw makes other ones, and other seeds kill a mutant."""

from __future__ import annotations

import json
from pathlib import Path

from tests.simulation.shells.mutants import MUTANTS, SET_OF
from tests.simulation.shells.running import run_seed

PATH = Path(__file__).parent / "killing_seeds.json"


def recorded_seeds() -> dict[str, int]:
    """The killing seed of every mutant."""
    return json.loads(PATH.read_text()) if PATH.exists() else {}


def record(name: str, start: int, most: int) -> list[str]:
    """Look for the killing seed of a mutant (of `all`) anew, and write it; returns those that survived."""
    survivors: list[str] = []
    for mutant in list(MUTANTS) if name == "all" else [name]:
        former = [recorded_seeds()[mutant]] if mutant in recorded_seeds() else []
        found = next((seed for seed in [*former, *range(start, start + most)] if _kills(mutant, seed)), None)
        print(f"{mutant}: {'SURVIVES' if found is None else found}", flush=True)
        if found is None:
            survivors.append(mutant)
        else:
            seeds = recorded_seeds() | {mutant: found}
            PATH.write_text(json.dumps({known: seeds[known] for known in MUTANTS if known in seeds}, indent=1) + "\n")
    return survivors


def _kills(mutant: str, seed: int) -> bool:
    """The history fails with the mutant, and passes without it."""
    kind = SET_OF[mutant]
    return bool(run_seed(kind, seed, mutant=mutant).failure) and not run_seed(kind, seed).failure
