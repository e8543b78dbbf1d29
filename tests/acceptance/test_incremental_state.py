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
OPERATORS = (
    "changes", "final", "joins", "regular_joins", "running", "sessions", "top_and_deduplicate", "top_changes",
    "window_changes", "windows",
)  # fmt: skip


@pytest.mark.timeout(1_300)
def test_operators_hold_with_incremental_checkpoints() -> None:
    """What the plugin `tests.unit.task.incremental_checkpoints` makes of each snapshot changes no answer."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.unit.task.incremental_checkpoints",
    ]
    command += [str(TESTS / f"test_{name}.py") for name in OPERATORS]
    command += ["--deselect", "tests/unit/task/test_changes.py::test_a_key_whose_rows_are_gone_begins_anew"]
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=1_200
    )
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 340, done.stdout
