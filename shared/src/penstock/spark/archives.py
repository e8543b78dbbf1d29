"""Files that a backfill reads in place of a source's own past: rows of the same schema, decoded by their suffix.

Event time and bad rows are judged as those of the source. An object store is that of the cluster's settings.
"""

from __future__ import annotations

from typing import Any

from penstock.connectors import files
from penstock.connectors.base import Source
from penstock.settings import load_settings


def archive_of(source: Source[Any], path: str) -> files.Source[Any]:
    """The files at `path` (a folder, a pattern, `s3://bucket/...`), with rows like those of `source`.

    Raises:
        PipelineError: their format cannot hold such rows.
    """
    return files.Source(
        path, schema=source.schema, timezone=source.timezone, storage_options=_options() if "://" in path else None
    )


def _options() -> dict[str, str]:
    store = load_settings().store
    keys = (
        {"access_key_id": store.access_key, "secret_access_key": store.secret_key.reveal()} if store.access_key else {}
    )
    authorities = {"ssl_cafile": store.ssl_cafile} if store.ssl_cafile else {}
    return {"endpoint": store.endpoint, "region": store.region, **keys, **authorities}
