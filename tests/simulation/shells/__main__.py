"""`python -m tests.simulation.shells`: search fresh histories, replay one with its story, record what kills mutants."""

from __future__ import annotations

import argparse
import secrets
import sys
import time

from tests.simulation.shells.recording import record
from tests.simulation.shells.running import SETS, replay_command, run_seed


def main() -> int:
    """Run; the exit code says whether a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.shells", description=__doc__)
    parser.add_argument("--set", choices=list(SETS), default="", help="only this set")
    parser.add_argument("--seeds", type=int, default=100, help="how many histories of each set")
    parser.add_argument("--start", type=int, default=None, help="the first seed; random if left out")
    parser.add_argument("--seed", type=int, default=None, help="replay only this one (with --set)")
    parser.add_argument("--mutant", default="", help="with this mutant in production's classes")
    parser.add_argument("--verbose", action="store_true", help="print everything that happens")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    parser.add_argument("--record", metavar="MUTANT|all", default="", help="write the killing seeds anew")
    options = parser.parse_args()
    start = secrets.randbelow(10**9) if options.start is None else options.start
    if options.record:
        return 1 if record(options.record, start, options.seeds) else 0
    if options.seed is not None:
        if not options.set:
            parser.error("--seed goes with --set: the sets draw other histories from it")
        result = run_seed(options.set, options.seed, mutant=options.mutant, verbose=options.verbose)
        print(result.failure or f"seed {options.seed}: passed, {result.virtual_s:.1f} virtual seconds")
        return 1 if result.failure else 0
    failed = [_search(kind, start, options) for kind in ([options.set] if options.set else SETS)]
    return 1 if any(failed) else 0


def _search(kind: str, start: int, options: argparse.Namespace) -> int:
    print(f"{kind}: {options.seeds} histories from seed {start}")
    began = time.monotonic()
    failed = 0
    for seed in range(start, start + options.seeds):
        result = run_seed(kind, seed, mutant=options.mutant)
        if result.failure:
            failed += 1
            what = result.failure.splitlines()[0]
            print(f"seed {seed}: {what}\n  replay: {replay_command(kind, seed, options.mutant)}", flush=True)
            if not options.keep_going:
                break
    print(f"{kind}: {failed} failed; {(seed - start + 1) / (time.monotonic() - began):.1f} histories per second")
    return failed


if __name__ == "__main__":
    sys.exit(main())
