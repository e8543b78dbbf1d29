"""Tables of Postgres: `postgres.Sink` writes a stream to one, `postgres.Lookup` joins a stream with one, and
`postgres.ChangeSource` reads one and its changes.

Needs `penstock-streaming[postgres]`.
"""

from __future__ import annotations

from penstock.connectors.postgres.change_source import ChangeSource
from penstock.connectors.postgres.lookup import Lookup
from penstock.connectors.postgres.sink import Sink

__all__ = ["ChangeSource", "Lookup", "Sink"]
