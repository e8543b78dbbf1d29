"""`python -m benchmarks [NAME ...] [--rows N] [--repeat N] [--core N]`: run benchmarks, check them, print the figures."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.catalogue import CASES
from benchmarks.report import keep, print_case, print_head, print_starting
from benchmarks.running import run_case, run_starting

STARTING = "starting"


def main() -> int:
    """Run what was asked for; 1 if a result is not that of the peers."""
    arguments = _arguments()
    names = arguments.names or [*(case.name for case in CASES), STARTING]
    measured = [case for case in CASES if case.name in names]
    print_head(arguments.core)
    results = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=arguments.folder) as folder:
        for case in measured:
            result = run_case(case, Path(folder), arguments.rows or case.rows, arguments.repeat, arguments.core)
            print_case(result)
            results.append(result)
        starting = run_starting(Path(folder), arguments.core) if STARTING in names else None
    if starting is not None:
        print_starting(starting)
    path = keep(results, starting, {"repeat": arguments.repeat, "core": arguments.core})
    print(f"\nkept in {path}")
    return 0 if all(result["equal"] for result in results) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = [*(case.name for case in CASES), STARTING]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(names)}; all by default")
    parser.add_argument("--rows", type=int, help="instead of each benchmark's own number")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each; the median counts")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="the core everything runs on")
    parser.add_argument("--folder", help="where temporary files go; they need about 2 GB")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in names]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(names)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
