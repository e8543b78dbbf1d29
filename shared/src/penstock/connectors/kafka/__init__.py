"""Kafka: `kafka.Source` reads a topic, `kafka.Sink` writes a stream to one, exactly once by default.

`kafka.ChangeSource` reads a topic of changes: the rows of a table.
"""

from __future__ import annotations

from penstock.connectors.kafka.change_source import ChangeSource
from penstock.connectors.kafka.decoding import RECORD_TIMESTAMP
from penstock.connectors.kafka.sink import Compression, Delivery, Sink, Source, use_cluster

__all__ = ["RECORD_TIMESTAMP", "ChangeSource", "Compression", "Delivery", "Sink", "Source", "use_cluster"]
