"""Keeps `killing_seeds.json` true: changed scenarios make other histories, and then other seeds kill a mutant."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tests.simulation.running import run_seed

PATH = Path(__file__).parent / "killing_seeds.json"
ENOUGH = 2
"""With so many killing seeds per mutant the search for others ends: some mutants die in one history of thousands."""


def recorded_seeds() -> dict[str, list[int]]:
    """The killing seeds per mutant."""
    return json.loads(PATH.read_text())


def record(names: Iterable[str], start: int, most: int) -> list[str]:
    """Look for the killing seeds of these mutants anew, and write them; returns the mutants that survived.

    Recorded seeds that still kill are kept; if they are not enough, at most `most` others are tried from `start` on.
    What was found is written after every mutant, so that an interrupted search keeps it.
    """
    survivors: list[str] = []
    for name in names:
        found = [seed for seed in recorded_seeds().get(name, ()) if _kills(name, seed)]
        for seed in range(start, start + most):
            if len(found) >= ENOUGH:
                break
            if seed not in found and _kills(name, seed):
                found.append(seed)
        print(f"{name}: {found or 'SURVIVES'}", flush=True)
        if found:
            _write(name, sorted(found))
        else:
            survivors.append(name)
    return survivors


def _kills(name: str, seed: int) -> bool:
    """The history fails with the mutant, and passes without it."""
    return bool(run_seed(seed, mutant=name).failure) and not run_seed(seed).failure


def _write(name: str, found: list[int]) -> None:
    from tests.simulation.mutants import MUTANTS

    seeds = recorded_seeds() | {name: found}
    ordered = {known: seeds[known] for known in MUTANTS if known in seeds}
    PATH.write_text(json.dumps(ordered, indent=1) + "\n")
