"""State in columns with incremental checkpoints: the operators' tests once more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.lanes import VARIABLE

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests" / "unit" / "task"
PARTS = {"changes": 140, "joins": 90, "regular joins": 55, "windows": 100}
"""A part of the operators each, so that no process is left alone with them, and how many tests they have at least."""
OPERATORS = {
    "changes": ("changes", "final", "running", "top_and_deduplicate", "top_changes"),
    "joins": ("joins",),
    "regular joins": ("regular_joins",),
    "windows": ("match", "sessions", "sort", "temporal_filter", "window_changes", "windows"),
}


@pytest.mark.timeout(1_900)
@pytest.mark.parametrize("part", [pytest.param(part, marks=pytest.mark.group(f"incremental {part}")) for part in PARTS])
def test_operators_hold_with_incremental_checkpoints(part: str) -> None:
    """What the plugin `tests.unit.task.incremental_checkpoints` makes of each snapshot changes no answer."""
    command = [
        "nice",  # nothing here waits for anybody: containers and servers of the tests beside go first
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.unit.task.incremental_checkpoints",
    ]
    command += [str(TESTS / f"test_{name}.py") for name in OPERATORS[part]]
    command += ["--deselect", "tests/unit/task/test_changes.py::test_a_key_whose_rows_are_gone_begins_anew"]
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=1_800
    )
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= PARTS[part], done.stdout
