"""Places and their names: how other tools know them, and pipelines that read what they write, or write twice to a folder.

After a restart their own rows would be input, and `replace` removes the input.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase

from penstock.connectors.base import Dataset
from penstock.connectors.files.local import WILDCARDS
from penstock.connectors.files.store_clients import Location
from penstock.connectors.files.writing import STAGING

Place = str | Location


def matches(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """As `Path.glob` has them: `**` is any number of folders, `*` and `?` stay within one name."""
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(matches(pattern[1:], names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and matches(pattern[1:], names[1:])


def reads_what_is_written(source: Place, folder: Place, columns: Sequence[str], format: str) -> bool:
    """Whether a part that a sink writes to its folder would be a file of the source."""
    pattern, part = _parts(source), [*_parts(folder), *(f"{column}=0" for column in columns), f"part-0.{format}"]
    if not _has_wildcard(pattern):
        pattern = [*pattern, "**", "*"]
    below = part[_root(pattern) :]
    return matches(pattern, part) and not any(name.startswith((".", "_")) and "=" not in name for name in below)


def removes_what_is_read(source: Place, folder: Place) -> bool:
    """Whether a sink that removes its former parts, in folders of whatever columns, may remove files of the source."""
    read, written = _parts(source), _parts(folder)
    root = read[: _root(read)] if _has_wildcard(read) else read
    if root[: len(written)] != written:
        return False
    between = root[len(written) :]
    return all("=" in name for name in between[:-1]) and all(
        "=" in name or name.startswith("part-") for name in between[-1:]
    )


def is_staged(inner: Place, folder: Place) -> bool:
    """Whether a folder is one in which the sink of the other folder keeps, and removes, what is not visible yet."""
    staging = [*_parts(folder), STAGING]
    return _parts(inner)[: len(staging)] == staging


def dataset_of(place: Place) -> Dataset:
    """The folder or file; of a pattern, the folder from which on it is one."""
    parts = _parts(place)
    root = parts[: _root(parts)]
    if isinstance(place, Location):
        return Dataset(place.root, "/".join(root)[len(place.root) :].strip("/") or "/")
    return Dataset("file", "/".join(root) or "/")


def _parts(place: Place) -> list[str]:
    return str(place if isinstance(place, Location) else os.path.abspath(place)).rstrip("/").split("/")


def _has_wildcard(parts: Sequence[str]) -> bool:
    return any(character in part for part in parts for character in WILDCARDS)


def _root(parts: Sequence[str]) -> int:
    """How many parts come before the first one with a wildcard."""
    return next((index for index, part in enumerate(parts) if _has_wildcard([part])), len(parts))
