"""Tables of Postgres: `postgres.Sink` writes a stream to one, `postgres.Lookup` joins a stream with one.

Needs `penstock[postgres]`.
"""

from __future__ import annotations

from penstock.connectors.postgres.lookup import Lookup
from penstock.connectors.postgres.sink import Sink

__all__ = ["Lookup", "Sink"]
