"""`python -m tests.simulation.lifecycle [SEEDS]`: searches fresh histories, then seeds that kill the mutants."""

from __future__ import annotations

import random
import sys

from tests.simulation.lifecycle.histories import play
from tests.simulation.lifecycle.mutants import MUTANTS
from tests.simulation.lifecycle.world import BrokenInvariantError


def main(count: int) -> int:
    """Play `count` histories; the exit code."""
    first = random.randrange(10**9)
    print(f"histories {first} to {first + count - 1}")
    for seed in range(first, first + count):
        try:
            play(seed)
        except BrokenInvariantError as error:
            print(error)
            return 1
    for name, (mutant, _) in MUTANTS.items():
        with mutant.applied():
            print(f"{name}: {next(filter(_fails, range(2_000)), 'no history kills it')}")
    return 0


def _fails(seed: int) -> bool:
    try:
        play(seed)
    except BrokenInvariantError:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
