"""`python -m tests.simulation.determinate FROM TO [--mutant NAME]`: histories of these seeds, or what kills a mutant."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter

from tests.simulation.determinate.mutants import MUTANTS
from tests.simulation.determinate.world import run_seed


def main() -> int:
    """Run; the exit code says whether a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.determinate", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--mutant", choices=MUTANTS)
    parser.add_argument("--verbose", action="store_true", help="print every step")
    options = parser.parse_args()
    failed, reached = 0, Counter[str]()
    with MUTANTS[options.mutant].applied() if options.mutant else contextlib.nullcontext():
        for seed in range(options.first, options.end):
            failure, counts = run_seed(seed, verbose=options.verbose)
            reached += counts
            if failure:
                failed += 1
                print(failure, flush=True)
                if options.mutant:
                    break
    print(f"{failed} of {options.end - options.first} failed; {dict(sorted(reached.items()))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
