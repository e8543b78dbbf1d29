"""Prints figures as a table and keeps them as JSON with what is needed to judge them."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_COLUMNS = "{:<16} {:>10} {:>9} {:>11} {:>13} {:>9} {:>9}"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    packages = ("penstock-streaming", "polars", "pyarrow", "duckdb", "numpy", "msgspec")
    return {
        "processor": model or platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in packages},
        "load": os.getloadavg()[0],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def print_head(core: int) -> None:
    """What holds for all figures."""
    where = machine()
    print(f"{where['time']}  {where['processor']}, {where['cores']} cores, everything on core {core}")
    print(f"python {where['python']}", *(f"{name} {number}" for name, number in where["versions"].items()), sep=", ")
    print(f"load before: {where['load']:.1f} (what else runs on the core costs seconds, not CPU-seconds)")


def print_case(result: Mapping[str, Any]) -> None:
    """One benchmark: the engine and its peers."""
    rows, systems = result["rows"], result["systems"]
    ours = systems["penstock"]
    print(f"\n{result['name']}: {result['title']}; outputs {'equal' if result['equal'] else 'NOT EQUAL'}")
    print(_COLUMNS.format("", "rows", "seconds", "rows/s", "rows/CPU-s", "CPU-s/M", "it/ours"))
    for name, figures in systems.items():
        cells = (
            f"{rows:,}", f"{figures['seconds']:.2f}", f"{rows / figures['seconds']:,.0f}",
            f"{rows / figures['cpu_seconds']:,.0f}", f"{figures['cpu_seconds'] * 1e6 / rows:.3f}",
            f"{figures['cpu_seconds'] / ours['cpu_seconds']:.2f}x",
        )  # fmt: skip
        print(_COLUMNS.format(name, *cells))
    target = f"; target {result['target']:,} rows/s" if result["target"] else ""
    print(
        f"start {ours['start_seconds']:.2f} s, {ours['checkpoints']} checkpoints every "
        f"{result['settings']['checkpoint_interval_ms']} ms: stood still {ours['sync_ms']:.1f} ms at most, in the "
        f"background {ours['background_ms']:,.0f} ms, {ours['state_mib']:,.1f} MiB; peak {ours['peak_mib']:,} MiB{target}"
    )
    if "checkpoint_mib" in ours:
        found = ", ".join(
            f"{wrote:.1f} of {whole:.1f} in {took:.1f} s" for wrote, whole, took in ours["checkpoint_mib"]
        )
        print(f"checkpoints, MiB written of what they consist of: {found}")
        if "restore_seconds" in ours:
            print(f"after the failure the job went on from a checkpoint in {ours['restore_seconds']:.2f} s")
        else:
            print("no checkpoint was complete before the failure: the job began anew; give more rows")


def print_starting(starting: Mapping[str, float]) -> None:
    """How long it takes until anything happens."""
    print(
        f"\nstarting: import penstock {starting['import_seconds']:.3f} s, penstock run to the first committed file "
        f"{starting['first_result_seconds']:.2f} s"
    )


def keep(results: list[dict[str, Any]], starting: Mapping[str, float] | None, settings: Mapping[str, Any]) -> Path:
    """Write everything to a file of its own."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    content = {"machine": machine(), "settings": settings, "results": results, "starting": starting}
    path.write_text(json.dumps(content, indent=1))
    return path
