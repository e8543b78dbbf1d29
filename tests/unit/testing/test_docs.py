"""The examples of docs/testing.md are tests, and pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[3]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(), re.DOTALL)

LOADED = """
import sys

HEAVY = {"polars", "pyarrow", "numpy", "structlog", "aiokafka", "confluent_kafka", "redis", "minio", "testcontainers"}

def test_loaded(request):
    assert request.config.pluginmanager.has_plugin("penstock")
    assert HEAVY & set(sys.modules) == set()
    ours = {name for name in sys.modules if name.startswith("penstock")}
    assert ours == {"penstock", "penstock.testing", "penstock.testing.plugin"}
"""


@pytest.mark.parametrize("number", [n for n, text in enumerate(EXAMPLES) if "penstock_containers" not in text])
def test_an_example_of_the_documentation_passes(number: int, tmp_path: Path) -> None:
    """As a user's pytest would run it: the fixtures come by themselves. Those with containers run in acceptance."""
    (tmp_path / "test_example.py").write_text(EXAMPLES[number])
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_plugin_loads_nothing_before_a_fixture_is_used(tmp_path: Path) -> None:
    """Every pytest of an environment loads it: without Polars, Arrow, clients of services and testcontainers."""
    (tmp_path / "test_loaded.py").write_text(LOADED)
    done = run_pytest(tmp_path, "-p", "no:hypothesispytest", "-p", "no:randomly")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_size_of_the_cluster_is_said(tmp_path: Path) -> None:
    """With the name of the option."""
    (tmp_path / "test_any.py").write_text("def test_any(penstock_cluster):\n    pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\npenstock_workers = none\n")
    done = run_pytest(tmp_path)
    assert done.returncode != 0
    assert "penstock_workers = none in pytest's configuration: give a number above zero" in done.stdout


def test_the_size_of_the_cluster_is_as_configured(tmp_path: Path) -> None:
    """Workers, at least."""
    (tmp_path / "test_any.py").write_text(
        "def test_any(penstock_cluster):\n    assert len(penstock_cluster.workers) == 3\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\npenstock_workers = 3\n")
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest in a folder of its own, with no configuration but that folder's."""
    if not (folder / "pytest.ini").exists():
        (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
