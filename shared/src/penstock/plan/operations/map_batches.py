"""A Python function per Arrow record batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import function_name
from penstock.plan.operation import Columns, Operation, Settings, UpsertKey
from penstock.plan.traits import Traits, per_row

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class MapBatches(Operation):
    """A Python function per Arrow record batch. It returns as many rows as it got."""

    function: Callable[[Any], Any]

    @property
    def verb(self) -> str:
        return "map_batches"

    def traits(self, node: Node) -> Traits:
        return per_row(arrival="the batches that its function gets", undetermined="what its function returns")

    def describe(self, node: Node) -> Settings:
        return {"function": function_name(self.function)}

    def state_signature(self, node: Node) -> Settings | None:
        return None

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: Python code sees whole rows."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
