"""Updates as changes."""

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
class ToChanges(Operation):
    """A stream of updates as changes: the former row of the key is retracted (Flink: ChangelogNormalize)."""

    retracted: str | None = None
    """The column of the updates in which a row says that its key has none any more."""
    ttl_us: int | None = None

    @property
    def verb(self) -> str:
        return "changes"

    def traits(self, node: Node) -> Traits:
        kept = kept_for("the last row of a key", self.ttl_us, of_changes=self.retracted is not None)
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
        return {"verb": "changes", "keys": key_columns(node), "row": schema_to_json(node.schema)}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: the former row is sent whole."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, RETRACTED
