"""`python -m tests.chaos`: start the real parts, torment a job on them, compare every row."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.cluster import ChaosError
from tests.chaos.faults import FAULTS, Fault, brief, drawn
from tests.chaos.harness import ChaosRun
from tests.guard import Guard

from penstock.platform.parts import cached_parts
from penstock.platform.processes import identify
from penstock.platform.servers import plan_servers

BROKER_SESSION_MS = 4_000


def main() -> int:
    """Run; the exit code says whether everything held."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--cycles", type=int, default=12, help="how many faults (12)")
    parser.add_argument("--leader", type=int, default=None, help="how many of them hit the leader (a quarter)")
    parser.add_argument("--seed", type=int, default=None, help="of faults, moments and events; random if left out")
    parser.add_argument("--only", default="", help="only faults whose name (name@step) contains this")
    parser.add_argument("--brief", action="store_true", help="those of `make acceptance`")
    parser.add_argument("--brokers", type=int, default=3, choices=(1, 3), help="Kafka brokers; one is never killed (3)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the figures there")
    parser.add_argument("--beside", type=int, default=None, help="jobs beside, one after the other (as many as can be)")
    options = parser.parse_args()
    seed = secrets.randbelow(10**9) if options.seed is None else options.seed
    chosen = brief(random.Random(seed)) if options.brief else _chosen(options, seed)
    print(f"seed {seed}: {len(chosen)} cycles", flush=True)
    return asyncio.run(_run(chosen, seed, options))


def _chosen(options: argparse.Namespace, seed: int) -> list[Fault]:
    rng = random.Random(seed)
    if options.only:
        kinds = [
            fault
            for fault in FAULTS
            if options.only in f"{fault.name}@{fault.step}" and fault.brokers <= options.brokers
        ]
        if not kinds:
            sys.exit(f"no fault's name contains {options.only!r}; there are: {[f'{f.name}@{f.step}' for f in FAULTS]}")
        return [kinds[number % len(kinds)] for number in range(options.cycles)]
    leader = options.cycles // 4 if options.leader is None else options.leader
    return drawn(options.cycles, leader, options.brokers, rng)


async def _run(chosen: list[Fault], seed: int, options: argparse.Namespace) -> int:
    me = identify(os.getpid())
    assert me is not None
    folder = Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    guard = Guard(folder, me)
    began = time.monotonic()
    print(f"logs: {folder}", flush=True)
    try:
        servers = await guard.own(
            cached_parts(),
            "run",
            plan_servers(brokers=options.brokers, heap_mb=256, broker_session_ms=BROKER_SESSION_MS),
        )
        run = ChaosRun(servers, seed, beside=options.beside)
        try:
            await run.run(chosen)
        except ChaosError as error:
            print(f"FAILED\n{error}", flush=True)
        print(run.report.summary())
        print(
            f"{time.monotonic() - began:.0f} s; {'FAILED' if run.report.failure else 'nothing lost, nothing doubled'}"
        )
        if options.json is not None:
            options.json.write_text(json.dumps(run.report.to_json(), indent=2) + "\n")
        return 1 if run.report.failure else 0
    finally:
        await guard.end()


if __name__ == "__main__":
    sys.exit(main())
