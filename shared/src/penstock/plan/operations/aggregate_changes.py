"""Aggregates per key of changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.operation import Columns, Named, Operation, Settings, UpsertKey, described, key_columns
from penstock.plan.traits import Traits, kept_for, keyed

if TYPE_CHECKING:
    from penstock.expressions import Expr
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class AggregateChanges(Operation):
    """Named aggregates per key of changes; what was sent before is retracted when it changes.

    Without any, a key that has rows is there once: the distinct rows.
    """

    aggregates: Named
    written: Literal["agg", "distinct", "intersect", "minus"] = "agg"
    holds: Expr | None = None
    """Made of sums: what must be true of a key's rows for it to have a result (SQL: HAVING)."""
    ttl_us: int | None = None

    @property
    def verb(self) -> str:
        return self.written

    def traits(self, node: Node) -> Traits:
        kept = kept_for("aggregates of the current rows of a key", self.ttl_us, of_changes=True)
        return keyed(arrival="the changes of a key before its last", state="by_key", kept=kept, ttl_us=self.ttl_us)

    def describe(self, node: Node) -> Settings:
        settings: Settings = {"keys": list(node.keys)}
        if self.aggregates:
            settings["aggregates"] = described(self.aggregates)
        elif self.holds is not None:
            settings["holds"] = str(self.holds)
        return settings

    def state_signature(self, node: Node) -> Settings | None:
        signed: Settings = {"verb": "agg of changes", "aggregates": described(self.aggregates)}
        return signed | {"keys": key_columns(node)} | ({} if self.holds is None else {"holds": str(self.holds)})

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, RETRACTED
