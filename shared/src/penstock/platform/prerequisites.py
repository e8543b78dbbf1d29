"""Programs of the system that the platform needs, and what to type when they are missing."""

from __future__ import annotations

import enum
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from penstock.platform.errors import MissingPrerequisitesError

LEAST_JAVA: Final = 17
LEAST_GO: Final = (1, 24)


class Need(enum.Enum):
    """A program: its name, what it is for, and what it is called by Debian, Fedora and Homebrew."""

    JAVA = ("java", f"runs Kafka, version {LEAST_JAVA} or newer")
    MAVEN = ("mvn", "fetches Kafka, once")
    GO = ("go", f"builds MinIO, once, version {LEAST_GO[0]}.{LEAST_GO[1]} or newer")
    REDIS = ("redis-server", "is Redis")

    @property
    def program(self) -> str:
        """What it is called on the command line."""
        return self.value[0]

    @property
    def purpose(self) -> str:
        """What it is needed for."""
        return self.value[1]


_PACKAGES: Final[dict[str, dict[Need, str]]] = {
    "apt-get": {
        Need.JAVA: "default-jre-headless",
        Need.MAVEN: "maven",
        Need.REDIS: "redis-server",
    },
    "dnf": {Need.JAVA: "java-latest-openjdk-headless", Need.MAVEN: "maven", Need.GO: "golang", Need.REDIS: "redis"},
    "brew": {Need.JAVA: "openjdk", Need.MAVEN: "maven", Need.GO: "go", Need.REDIS: "redis"},
}
_INSTALL: Final = {"apt-get": "apt-get install --yes", "dnf": "dnf install --assumeyes", "brew": "brew install"}
# Debian's own Go is too old for MinIO.
_GO_ELSEWHERE: Final = "https://go.dev/dl/ has Go: unpack it to /usr/local and put /usr/local/go/bin on PATH"


def check_prerequisites(needs: Iterable[Need], environ: Mapping[str, str] | None = None) -> dict[Need, Path]:
    """Where each program is.

    Raises:
        MissingPrerequisitesError: some are missing or too old; lists them all, with the commands that mend it.
    """
    environment = os.environ if environ is None else environ
    found: dict[Need, Path] = {}
    problems: dict[Need, str] = {}
    for need in sorted(set(needs), key=lambda n: n.program):
        path, problem = _find(need, environment)
        if path is not None and not problem:
            found[need] = path
        else:
            problems[need] = problem
    if problems:
        raise MissingPrerequisitesError(_message(problems, environment))
    return found


def _find(need: Need, environ: Mapping[str, str]) -> tuple[Path | None, str]:
    path = _path(need, environ)
    if path is None:
        return None, "is not on PATH"
    if need is Need.JAVA and (version := java_version(path)) < LEAST_JAVA:
        return path, f"{path} is version {version}" if version else f"{path} does not tell its version"
    if need is Need.GO and (go := go_version(path)) < LEAST_GO:
        return path, f"{path} is version {go[0]}.{go[1]}" if any(go) else f"{path} does not tell its version"
    return path, ""


def _path(need: Need, environ: Mapping[str, str]) -> Path | None:
    home = environ.get("JAVA_HOME")
    if need is Need.JAVA and home and (java := Path(home) / "bin" / "java").exists():
        return java
    found = shutil.which(need.program, path=environ.get("PATH"))
    return Path(found) if found else None


def java_version(java: Path) -> int:
    """The feature release of a Java program (17, 21); 0 if it does not tell."""
    match = re.search(r'version "(?:1\.)?(\d+)', _output([str(java), "-version"]))
    return int(match[1]) if match else 0


def go_version(go: Path) -> tuple[int, int]:
    """Major and minor version of a Go program; (0, 0) if it does not tell."""
    match = re.search(r"go(\d+)\.(\d+)", _output([str(go), "version"]))
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _message(problems: Mapping[Need, str], environ: Mapping[str, str]) -> str:
    lines = ["the local platform needs programs that this machine does not have:"]
    lines += [f"  {need.program} ({need.purpose}): {problem}" for need, problem in problems.items()]
    manager = next((name for name in _PACKAGES if shutil.which(name, path=environ.get("PATH"))), None)
    if manager is None:
        return "\n".join([*lines, "install them and put them on PATH"])
    packages = [_PACKAGES[manager][need] for need in problems if need in _PACKAGES[manager]]
    others = [need for need in problems if need not in _PACKAGES[manager]]
    if packages:
        sudo = "" if manager == "brew" or os.geteuid() == 0 else "sudo "
        lines.append(f"install them with: {sudo}{_INSTALL[manager]} {' '.join(packages)}")
    if others:
        lines.append(_GO_ELSEWHERE)
    return "\n".join(lines)
