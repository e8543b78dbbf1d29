"""Lets the hundreds of JVMs that tests start find their classes parsed and verified: a third less time until they answer.

`python -m tests.class_archives` makes the archives once per environment (JEP 350); without them, or with another Java,
JVMs start as ever. Nor does a test run long enough for the code of the better compiler to pay.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

SPARK: Final = Path(sys.prefix) / "spark-classes.jsa"
KAFKA: Final = Path(sys.prefix) / "kafka-classes.jsa"
_EXAMPLE: Final = Path(__file__).resolve().parents[1] / "examples" / "departures.py"
_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def quick_java(archive: Path) -> str:
    """Options of a JVM that lives as long as a test."""
    return f"{_QUICK} -XX:SharedArchiveFile={archive} -Xlog:disable" if archive.exists() else _QUICK


def make(archive: Path, variable: str, *commands: list[str]) -> None:
    """Run Penstock's commands in a folder of their own; the JVM that reads the variable leaves the archive."""
    if archive.exists():
        return
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        made = Path(folder) / archive.name
        variables = {**os.environ, variable: f"{_QUICK} -XX:ArchiveClassesAtExit={made} -Xlog:disable"}
        for command in commands:
            penstock = [sys.executable, "-m", "penstock.cli.main", *command]
            # The pipe ends with the last process that has it: Spark's JVM outlives the command while it writes.
            subprocess.run(penstock, cwd=folder, env=variables, check=True, stdout=subprocess.PIPE)
        if not made.exists():
            sys.exit(f"{archive.name}: Java has left none")
        made.replace(archive)


if __name__ == "__main__":
    make(KAFKA, "JDK_JAVA_OPTIONS", ["up"], ["down", "--purge"])
    make(SPARK, "SPARK_SUBMIT_OPTS", ["run", str(_EXAMPLE), "--engine", "spark", "--param", "out=out"])
