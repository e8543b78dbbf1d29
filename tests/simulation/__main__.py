"""`python -m tests.simulation`: search fresh histories, replay one with its trace, or record what kills the mutants."""

from __future__ import annotations

import argparse
import secrets
import sys
import time

from tests.simulation.recording import record
from tests.simulation.running import replay_command, run_seed


def main() -> int:
    """Run; the exit code says whether a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories")
    parser.add_argument("--start", type=int, default=None, help="the first seed; random if left out")
    parser.add_argument("--seed", type=int, default=None, help="replay only this one")
    parser.add_argument("--mutant", default="", help="with this mutant in the protocol")
    parser.add_argument("--verbose", action="store_true", help="print every step")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    parser.add_argument(
        "--record",
        metavar="MUTANT|all",
        default="",
        help="write the killing seeds anew; looks at --seeds seeds at most",
    )
    options = parser.parse_args()
    if options.seed is not None:
        result = run_seed(options.seed, mutant=options.mutant, verbose=options.verbose)
        print(result.failure or f"seed {options.seed}: passed, {result.steps} steps, {result.sim_ms} simulated ms")
        return 1 if result.failure else 0
    start = secrets.randbelow(10**9) if options.start is None else options.start
    if options.record:
        from tests.simulation.mutants import MUTANTS

        names = list(MUTANTS) if options.record == "all" else [options.record]
        return 1 if record(names, start, options.seeds) else 0
    print(f"{options.seeds} histories from seed {start}")
    began = time.monotonic()
    failed = 0
    for seed in range(start, start + options.seeds):
        result = run_seed(seed, mutant=options.mutant)
        if result.failure:
            failed += 1
            print(f"seed {seed}: {result.failure.splitlines()[0]}\n  replay: {replay_command(seed, options.mutant)}")
            if not options.keep_going:
                break
    seconds = time.monotonic() - began
    print(f"{failed} failed; {(seed - start + 1) / seconds:.1f} histories per second")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
