"""Programs that stand in for those of the system: small shell scripts in a folder that is the whole PATH."""

from __future__ import annotations

from pathlib import Path


def program(folder: Path, name: str, script: str) -> Path:
    """Put an executable script into the folder."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


JAVA = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"
GO = "echo go version go1.26.8 linux/amd64"
