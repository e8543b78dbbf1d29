"""File formats by name and by extension."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final, Literal

Format = Literal["jsonl", "csv", "parquet", "arrow"]

_EXTENSIONS: Final[dict[str, Format]] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet", ".pq": "parquet",
    ".arrow": "arrow", ".arrows": "arrow", ".ipc": "arrow", ".feather": "arrow",
}  # fmt: skip


def format_of(path: PurePath) -> Format | None:
    """The format that a file's name tells, `.gz` aside."""
    plain = path.with_suffix("") if is_compressed(path) else path
    found = _EXTENSIONS.get(plain.suffix.lower())
    return None if is_compressed(path) and found in ("parquet", "arrow") else found


def is_compressed(path: PurePath) -> bool:
    """Whether the name says that the file is compressed with gzip."""
    return path.suffix.lower() == ".gz"
