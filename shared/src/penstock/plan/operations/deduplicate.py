"""One row per key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.plan.operation import Columns, Operation, Settings, UpsertKey, key_columns
from penstock.plan.traits import Traits, kept_for, keyed

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class Deduplicate(Operation):
    """The first row per key by arrival, or each newer one; a key counts as new `ttl_us` after it was written."""

    keep: Literal["first", "last"]
    ttl_us: int | None = None

    @property
    def verb(self) -> str:
        return "deduplicate"

    def traits(self, node: Node) -> Traits:
        if self.keep == "first":
            arrival = "which row of a key is its first"
        else:
            arrival = "the rows of a key before its last, and which of equal event times that is"
        kept = kept_for("which keys were there" if self.keep == "first" else "the last row of a key", self.ttl_us)
        return keyed(undetermined="", arrival=arrival, state="by_key", kept=kept, ttl_us=self.ttl_us, row_times="kept")

    def describe(self, node: Node) -> Settings:
        return {"keys": list(node.inputs[0].keys), "keep": self.keep}

    def state_signature(self, node: Node) -> Settings | None:
        return {"verb": "deduplicate", "keys": key_columns(node), "keep": self.keep}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: rows are sent unchanged."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
