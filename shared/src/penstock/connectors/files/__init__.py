"""Files and folders as sources and sinks: JSON lines, CSV, Parquet, Arrow."""

from __future__ import annotations

from penstock.connectors.files.connector import Sink, Source

__all__ = ["Sink", "Source"]
