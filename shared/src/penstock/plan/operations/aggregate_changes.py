"""Aggregates per key of changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.errors import PipelineError
from penstock.expressions import is_subtractable
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.operation import Columns, Named, Operation, Settings, UpsertKey, described, key_columns, undetermined
from penstock.plan.traits import Traits, kept_for, keyed

if TYPE_CHECKING:
    from penstock.expressions import Expr
    from penstock.plan.logical import Node


def kept_of_changes(aggregates: Named) -> str:
    """What is kept for aggregates of changes: from sums and counts a row can be subtracted, others are computed anew."""
    if all(is_subtractable(expr) for _, expr in aggregates):
        return "aggregates of the current rows"
    return "aggregates, and what they read of all current rows"


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
    copies: Expr | None = None
    """Made of sums: how many equal rows a key has as its result (SQL: INTERSECT ALL); None for one row."""

    @property
    def verb(self) -> str:
        return self.written

    def traits(self, node: Node) -> Traits:
        kept = kept_for(f"{kept_of_changes(self.aggregates)} of a key", self.ttl_us, of_changes=True)
        return keyed(
            undetermined=undetermined(expr for _, expr in self.aggregates),
            arrival="the changes of a key before its last",
            state="by_key",
            kept=kept,
            ttl_us=self.ttl_us,
        )

    def describe(self, node: Node) -> Settings:
        settings: Settings = {"keys": list(node.keys)}
        if self.aggregates:
            settings["aggregates"] = described(self.aggregates)
        elif self.holds is not None:
            settings["holds"] = str(self.holds)
        elif self.copies is not None:
            settings["copies"] = str(self.copies)
        return settings

    def state_signature(self, node: Node) -> Settings | None:
        signed: Settings = {"verb": "agg of changes", "aggregates": described(self.aggregates)}
        conditions = (("holds", self.holds), ("copies", self.copies))
        return signed | {"keys": key_columns(node)} | {name: str(expr) for name, expr in conditions if expr is not None}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        if self.copies is not None:
            raise PipelineError(
                f"{verb}: the rows of {self.verb} with all=True replace no others by a key, because equal ones are there "
                "several times"
            )
        return node.keys, RETRACTED
