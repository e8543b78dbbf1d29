"""Redis: `redis.Sink` writes rows to hashes, `redis.StreamSink` to a stream, `redis.Lookup` joins a stream with hashes.

Needs the client `redis`, as a cluster does.
"""

from __future__ import annotations

from penstock.connectors.redis.lookup import Lookup
from penstock.connectors.redis.sink import Sink, StreamSink

__all__ = ["Lookup", "Sink", "StreamSink"]
