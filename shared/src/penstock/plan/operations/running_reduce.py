"""A running fold per key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import function_name
from penstock.plan.operation import Columns, Operation, Settings, UpsertKey, key_columns
from penstock.plan.traits import Traits, kept_for, keyed
from penstock.types import schema_to_json

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class RunningReduce(Operation):
    """`function(accumulated, row)` per key; emits the new result of every key that a batch touched."""

    function: Callable[[Any, Any], Any]
    ttl_us: int | None = None

    @property
    def verb(self) -> str:
        return "reduce"

    def traits(self, node: Node) -> Traits:
        kept = kept_for("a row per key", self.ttl_us)
        return keyed(
            undetermined="what its function returns",
            arrival="the rows that its function gets one after the other",
            state="by_key",
            kept=kept,
            ttl_us=self.ttl_us,
        )

    def describe(self, node: Node) -> Settings:
        return {"keys": list(node.keys), "function": function_name(self.function)}

    def state_signature(self, node: Node) -> Settings | None:
        return {"verb": "reduce", "keys": key_columns(node), "row": schema_to_json(node.schema)}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: Python code sees whole rows."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
