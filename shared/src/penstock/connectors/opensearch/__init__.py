"""OpenSearch and Elasticsearch: `opensearch.Sink` writes rows as documents. Needs `httpx2`, as a cluster does."""

from __future__ import annotations

from penstock.connectors.opensearch.sink import Sink

__all__ = ["Sink"]
