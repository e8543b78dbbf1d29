"""The arguments of file sources and sinks, checked where they are declared; `PipelineError` says what cannot be."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from penstock.connectors.files.store_clients import SCHEMES, Location, location
from penstock.errors import PipelineError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def checked_place(path: str | os.PathLike[str], options: Mapping[str, str] | None, what: str) -> str | Location:
    """A local path, or where on an object store; `Path` makes one slash of the two of a URL."""
    text = os.fspath(path)
    stored = location(text, options, what) if "://" in text else None
    if stored is None and options is not None:
        raise PipelineError(f"{what}: storage_options= are those of an object store, and {text!r} is a local path")
    scheme = _SCHEME.match(text)
    if stored is not None or scheme is None:
        return stored or text
    if scheme[1].lower() == "file":
        local = "write it without the scheme"
    elif scheme[1].lower() in SCHEMES:
        local = f"write it as text, '{scheme[1]}://...' with two slashes (a Path keeps one of them)"
    else:
        local = f"there are {', '.join(f'{known}://' for known in SCHEMES)}; else mount the store and name the folder"
    raise PipelineError(
        f"{what}: {text!r} is a URL that is not served (nothing would go to {scheme[1]}): {local}; for a local folder "
        f"that is really called {scheme[1] + ':'!r} write './{text}'"
    )


def checked_columns(columns: Sequence[str], what: str) -> tuple[str, ...]:
    """Columns of `partition_by=`, each once."""
    if len(set(columns)) < len(columns):
        raise PipelineError(f"{what}: partition_by= names a column twice: {', '.join(columns)}")
    return tuple(columns)


def checked_batch(batch_rows: int | None, what: str) -> int | None:
    """How many rows are read at a time, if that is said."""
    if batch_rows is not None and batch_rows < 1:
        raise PipelineError(f"{what}: batch_rows= is a whole number from 1, got {batch_rows}")
    return batch_rows


def checked_delimiter(delimiter: str, what: str) -> str:
    """What stands between the columns of CSV."""
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise PipelineError(f"{what}: delimiter= is one ASCII character such as ',' or ';', got {delimiter!r}")
    return delimiter
