"""Starts the measurements, each in a process of its own, and gathers what they say."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import Case

ROOT = Path(__file__).parent.parent
IMPORTS = 7
"""How often the import is measured; the median counts."""


def run_case(case: Case, folder: Path, rows: int, repeat: int, core: int) -> dict[str, Any]:
    """Input, engine, peers and check of one case."""
    place = folder / (case.input.format(rows=rows) or case.name)
    place.mkdir(exist_ok=True)
    if case.prepare is not None and not any(place.iterdir()):
        _child(case, "prepare", place, rows, core)
    runs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in ("penstock", *case.peers)}
    for _ in range(repeat):
        for mode in runs:
            shutil.rmtree(place / case.name / mode, ignore_errors=True)
            runs[mode].append(_child(case, mode, place, rows, core))
    checked = _child(case, "check", place, rows, core)
    shutil.rmtree(place / case.name, ignore_errors=True)
    return {
        "name": case.name,
        "title": case.title,
        "rows": rows,
        "target": case.target,
        "settings": {
            "parallelism": case.parallelism,
            "checkpoint_interval_ms": case.checkpoint_interval_ms,
            "durable": True,
            "polars_threads": 1,
        },
        "equal": checked["equal"],
        "systems": {mode: _median(some) for mode, some in runs.items()},
        "runs": runs,
    }


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the median time."""
    return sorted(runs, key=lambda run: run["seconds"])[len(runs) // 2]


def _child(case: Case, mode: str, folder: Path, rows: int, core: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.child", case.name, mode, str(folder), str(rows), str(core)]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case.name}, {mode}: failed")
    return json.loads(done.stdout.splitlines()[-1])


def _environment() -> dict[str, str]:
    """That of this process; bytecode is kept, or modules that a run needs later would be compiled on its clock."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "POLARS_MAX_THREADS": "1"}


# -- starting -----------------------------------------------------------------------------------------------------------


def run_starting(folder: Path, core: int) -> dict[str, float]:
    """Seconds to import the library, and until `penstock run` shows its first committed file."""
    return {"import_seconds": _import_seconds(core), "first_result_seconds": _first_result_seconds(folder, core)}


def _pinned(core: int, command: list[str], **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, text=True, env=_environment(), preexec_fn=lambda: os.sched_setaffinity(0, {core}), **options
    )


def _import_seconds(core: int) -> float:
    imports = (
        "from penstock import *; from penstock.connectors import files"  # `import penstock` alone does nothing yet
    )
    program = f"import time; started = time.perf_counter(); {imports}; print(time.perf_counter() - started)"
    times: list[float] = []
    for _ in range(IMPORTS):
        output, _ = _pinned(core, [sys.executable, "-c", program], stdout=subprocess.PIPE).communicate()
        times.append(float(output))
    return statistics.median(times)


def _first_result_seconds(folder: Path, core: int) -> float:
    """From the start of the command on 20,000 flights to the first visible file of its result."""
    out = folder / "departures"
    command = [str(Path(sys.executable).with_name("penstock")), "run", "examples/departures.py", "--fresh"]
    command += ["--dir", str(folder / "departures-job"), "--param", f"out={out}"]
    started = time.perf_counter()
    process = _pinned(core, command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(out.glob("part-*")):
        if process.poll() not in (None, 0) or time.perf_counter() - started > 60:
            raise SystemExit("starting: penstock run gave no result")
        time.sleep(0.005)
    elapsed = time.perf_counter() - started
    process.wait()
    return elapsed
