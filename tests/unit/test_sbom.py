"""What `make sbom` says is in the images is what their locks have installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "name", ["requirements", "requirements-coordinator", "requirements-operator", "requirements-pipeline"]
)
def test_an_sbom_has_every_package_with_its_version(name: str, tmp_path: Path) -> None:
    """By the names under which databases of vulnerabilities have them."""
    lock = ROOT / "infra" / "images" / f"{name}.txt"
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", str(lock), "--of", "JSON"]
    subprocess.run([*command, "-o", str(tmp_path / "sbom.json")], check=True, capture_output=True)
    components = json.loads((tmp_path / "sbom.json").read_text())["components"]
    locked = re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==([\w.+!-]+)", lock.read_text(), re.M)
    assert len(locked) > 20
    assert sorted(one["purl"].partition("?")[0] for one in components) == sorted(
        f"pkg:pypi/{package}@{version}" for package, version in locked
    )


def test_it_is_written_for_every_image() -> None:
    """`make sbom` names each lock whose packages are in the images: not that of the tool that builds the site."""
    makefile = (ROOT / "Makefile").read_text()
    locks = {file.stem for file in (ROOT / "infra" / "images").glob("requirements*.txt")} - {
        "requirements-documentation"
    }
    assert f"for part in {' '.join(sorted(locks))};" in makefile
