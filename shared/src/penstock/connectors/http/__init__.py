"""HTTP: `http.Sink` calls a service for every row, `http.Lookup` joins a stream with what one answers in JSON.

Needs the client `httpx2`, as Kafka does.
"""

from __future__ import annotations

from penstock.connectors.http.lookup import Lookup
from penstock.connectors.http.sink import Sink

__all__ = ["Lookup", "Sink"]
