"""Changes by the key of a sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.operation import Columns, Operation, Settings, UpsertKey, key_columns
from penstock.plan.traits import Traits, kept_for, keyed
from penstock.types import schema_to_json

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class Materialize(Operation):
    """Changes by another key than their own, of which a sink has one row: the last current one (Flink:
    SinkUpsertMaterializer)."""

    ttl_us: int | None = None

    @property
    def verb(self) -> str:
        return "materialize"

    def traits(self, node: Node) -> Traits:
        kept = kept_for("all current rows of a key", self.ttl_us, of_changes=True)
        return keyed(
            undetermined="",
            arrival="the changes of a key before its last",
            state="by_key",
            kept=kept,
            ttl_us=self.ttl_us,
        )

    def describe(self, node: Node) -> Settings:
        return {"keys": list(node.inputs[0].keys)}

    def state_signature(self, node: Node) -> Settings | None:
        return {"verb": "materialize", "keys": key_columns(node), "row": schema_to_json(node.schema)}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: rows are kept whole."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, RETRACTED
