"""Rows beside those that another system has for their key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from penstock.plan.operation import Columns, Operation, Settings, UpsertKey
from penstock.plan.operations.calls import CallSettings
from penstock.plan.traits import Traits, per_row
from penstock.types import schema_to_json

if TYPE_CHECKING:
    from penstock.connectors.lookups import Lookup
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class LookupJoin(Operation):
    """Rows beside those that another system has for their key, when these have come."""

    lookup: Lookup[Any]
    how: Literal["inner", "left"]
    on: tuple[tuple[str, str], ...]
    """Key columns of the input, and what they are called in the lookup."""
    columns: tuple[tuple[str, str], ...]
    """What is taken of the lookup: name in the output, name in the lookup."""
    calls: CallSettings

    @property
    def verb(self) -> str:
        return "lookup_join"

    def traits(self, node: Node) -> Traits:
        return per_row(pending=True, undetermined="what it is answered, and which rows are answered first")

    def describe(self, node: Node) -> Settings:
        lookup = self.lookup
        described: Settings = {"on": dict(self.on), "how": self.how, "lookup": lookup.kind, **lookup.describe()}
        return described | self.calls.describe() | lookup.calls.describe()

    def state_signature(self, node: Node) -> Settings | None:
        return {"verb": self.verb, "row": schema_to_json(node.inputs[0].schema)}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: rows that wait are part of snapshots."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
