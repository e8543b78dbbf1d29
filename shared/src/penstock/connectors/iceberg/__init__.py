"""Tables of Apache Iceberg as sources and sinks."""

from __future__ import annotations

from penstock.connectors.iceberg.sink import Sink
from penstock.connectors.iceberg.source import Source

__all__ = ["Sink", "Source"]
