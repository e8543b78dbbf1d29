"""Rows for which a predicate is true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.expressions import columns_of
from penstock.plan.operation import Columns, Operation, Settings, UpsertKey, undetermined
from penstock.plan.traits import Traits, per_row

if TYPE_CHECKING:
    from penstock.expressions import Expr
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class Filter(Operation):
    """Keeps the rows for which the predicate is true (neither false nor null)."""

    predicate: Expr

    @property
    def verb(self) -> str:
        return "filter"

    def traits(self, node: Node) -> Traits:
        return per_row(undetermined=undetermined([self.predicate]))

    def describe(self, node: Node) -> Settings:
        return {"predicate": str(self.predicate)}

    def state_signature(self, node: Node) -> Settings | None:
        return None

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        return None if wanted is None else wanted | columns_of(self.predicate)

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.inputs[0].upsert_key(verb)
