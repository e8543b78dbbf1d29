"""Files that a backfill reads in place of a source's own past: rows of the same schema, decoded by their suffix."""

from __future__ import annotations

from typing import Any

from penstock.connectors import files
from penstock.connectors.base import Source


def archive_source(source: Source[Any], path: str) -> files.Source[Any]:
    """The files as a source of rows like those of `source`. Event time and bad rows are judged as those of `source`.

    Raises:
        PipelineError: there are none, or their format cannot hold such rows.
    """
    return files.Source(path, schema=source.schema, timezone=getattr(source, "timezone", None))
