"""Rows handed to a sink."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.plan.operation import Columns, Operation, Settings, UpsertKey
from penstock.plan.traits import Traits, per_row

if TYPE_CHECKING:
    from penstock.connectors.base import Sink
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class Write(Operation):
    """Hands rows to a sink."""

    sink: Sink

    @property
    def verb(self) -> str:
        return "write"

    def traits(self, node: Node) -> Traits:
        return replace(per_row(undetermined=""), role="sink")

    def describe(self, node: Node) -> Settings:
        return {"sink": self.sink.kind, **self.sink.describe()}

    def state_signature(self, node: Node) -> Settings | None:
        return {"verb": "write", "sink": self.sink.kind}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
