"""Jars from a Maven repository, each compared with its pinned SHA-256."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.platform.errors import PlatformError
from penstock.platform.processes import run_to_end

MAVEN_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_FETCH_DEADLINE_S: Final = 1_800


@dataclass(frozen=True)
class PinnedJars:
    """What Maven shall resolve, and what that must be."""

    name: str
    """What errors call it."""
    pom: str
    """Text of the `pom.xml` whose dependencies it is."""
    digests: str
    """A line for each jar, SHA-256 and name, as the program sha256sum prints them."""

    async def fetch(self, maven: Path, java: Path, target: Path) -> None:
        """Have Maven lay the jars into a folder.

        Raises:
            PlatformError: Maven failed, or what came is not what is pinned.
        """
        with tempfile.TemporaryDirectory() as work:
            pom = Path(work) / "pom.xml"
            pom.write_bytes(self.pom.encode())
            command = [str(maven), "--batch-mode", "--file", str(pom), MAVEN_PLUGIN]
            command += ["-DincludeScope=runtime", f"-DoutputDirectory={target}"]
            environment = {**os.environ, "JAVA_HOME": str(java.resolve().parent.parent)}  # Maven uses the same Java
            log, failed = Path(work) / "output.log", f"Maven could not fetch {self.name}"
            await run_to_end(command, Path(work), log, failed, _FETCH_DEADLINE_S, environment)
        if problem := await asyncio.to_thread(self.problem, target):
            raise PlatformError(
                f"the jars that Maven fetched are not the pinned ones: {problem}; nothing was installed"
            )

    def problem(self, folder: Path) -> str:
        """What distinguishes a folder from the pinned jars; empty if nothing does."""
        pinned = {name: digest for digest, name in (line.split() for line in self.digests.splitlines())}
        present = {path.name for path in folder.glob("*.jar")}
        if present != set(pinned):
            missing, strange = sorted(set(pinned) - present), sorted(present - set(pinned))
            return "; ".join(
                f"{what}: {', '.join(names)}"
                for what, names in (("missing", missing), ("not pinned", strange))
                if names
            )
        wrong = [name for name in sorted(pinned) if _sha256(folder / name) != pinned[name]]
        return f"the SHA-256 is not the pinned one: {', '.join(wrong)}" if wrong else ""


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
