"""Rows of which something must be true."""

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
class Check(Operation):
    """The rows as they are, if the predicate is true for all of them; the first for which it is not fails the job."""

    predicate: Expr
    otherwise: str
    """What is said of a row for which it is false or null."""

    @property
    def verb(self) -> str:
        return "check"

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
