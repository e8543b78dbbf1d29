"""Tables of SQLite: `sqlite.Source` reads one, or a view or query, and `sqlite.Sink` writes a stream to one.

Needs nothing but Python.
"""

from __future__ import annotations

from penstock.connectors.sqlite.sink import Sink
from penstock.connectors.sqlite.source import Source

__all__ = ["Sink", "Source"]
