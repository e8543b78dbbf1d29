"""Aggregates per key over all rows so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.expressions import is_mergeable
from penstock.plan.operation import (
    Columns,
    Named,
    Operation,
    Settings,
    UpsertKey,
    columns_read,
    described,
    joined,
    key_columns,
    undetermined,
)
from penstock.plan.operations.window_aggregate import arrival_of_aggregates
from penstock.plan.traits import Traits, kept_for, keyed

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class RunningAggregate(Operation):
    """Aggregates per key over all rows so far; emits the new result of every key that a batch touched."""

    aggregates: Named
    ttl_us: int | None = None
    """How long after it was last written the state of a key is kept; so in all operations that have it."""

    @property
    def verb(self) -> str:
        return "agg"

    def traits(self, node: Node) -> Traits:
        return keyed(
            undetermined=undetermined(expr for _, expr in self.aggregates),
            arrival=joined(["the rows of a key before its last", arrival_of_aggregates(self.aggregates)]),
            state="by_key",
            kept=kept_for("aggregates per key", self.ttl_us),
            ttl_us=self.ttl_us,
            time_dependent=False,
            combinable=all(is_mergeable(expr) for _, expr in self.aggregates),
        )

    def describe(self, node: Node) -> Settings:
        return {"keys": list(node.keys), "aggregates": described(self.aggregates)}

    def state_signature(self, node: Node) -> Settings | None:
        return {"verb": "agg", "keys": key_columns(node), "aggregates": described(self.aggregates)}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """The key and what the aggregates look at: state holds nothing else."""
        return frozenset(node.inputs[0].keys) | columns_read(expr for _, expr in self.aggregates)

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
