"""Jars that tests run something from: pinned, and fetched once into the cache."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.core.blocking import run_blocking
from penstock.platform.jars import PinnedJars
from penstock.platform.parts import cache_folder, install, silent
from penstock.platform.prerequisites import Need, check_prerequisites


def fetched(name: str, pom: Path, digests: Path, versioned: str) -> Path:
    """The folder of the jars.

    Args:
        name: what errors and the cache call them.
        pom: whose dependencies they are.
        digests: the SHA-256 of each.
        versioned: the jar whose version is that of the folder.
    """
    pinned = PinnedJars(name, pom.read_text(), digests.read_text())
    (version,) = re.findall(rf"  {versioned}-(\d.*)\.jar", pinned.digests)

    async def fetch(target: Path) -> None:
        found = check_prerequisites({Need.JAVA, Need.MAVEN})
        await pinned.fetch(found[Need.MAVEN], found[Need.JAVA], target)

    target = cache_folder() / f"{name}-{version}"
    target.parent.mkdir(parents=True, exist_ok=True)
    run_blocking(install(target, silent, f"fetching {name}", fetch))
    assert pinned.problem(target) == ""
    return target
