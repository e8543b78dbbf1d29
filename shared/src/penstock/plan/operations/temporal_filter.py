"""Rows that are valid for a span of event time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.plan.operation import Columns, Operation, Settings, UpsertKey, key_columns, key_of_subset
from penstock.plan.traits import Traits, keyed
from penstock.types import schema_to_json

if TYPE_CHECKING:
    from penstock.expressions import Expr
    from penstock.plan.logical import Node


@dataclass(frozen=True, slots=True)
class Bound:
    """Where the span of a row begins or ends."""

    column: str
    """Of the input; handed on only if rows have it anyway. Null where the span has no such bound."""
    expr: Expr
    """What the user said."""


@dataclass(frozen=True, eq=False)
class TemporalFilter(Operation):
    """Every row is added when event time reaches the beginning of its span, and retracted when it reaches the end.

    Of a row whose span is over, or empty, nothing is seen.
    """

    valid_from: Bound | None
    valid_until: Bound | None

    @property
    def verb(self) -> str:
        return "temporal_filter"

    @property
    def bounds(self) -> dict[str, Bound]:
        """Those that were said, by their names."""
        both = {"valid_from": self.valid_from, "valid_until": self.valid_until}
        return {name: bound for name, bound in both.items() if bound is not None}

    def retracts_all(self, node: Node) -> bool:
        """Whether every row is retracted at the end of the input at the latest."""
        return self.valid_until is not None and not node.inputs[0].schema.field(self.valid_until.column).nullable

    def traits(self, node: Node) -> Traits:
        *_, last = self.bounds.values()
        return keyed(undetermined="", arrival="", state="scanned", kept=f"a row until event time reaches {last.expr}")

    def describe(self, node: Node) -> Settings:
        return {name: str(bound.expr) for name, bound in self.bounds.items()}

    def state_signature(self, node: Node) -> Settings | None:
        """Of facts without the bounds: rows that wait have the moments for which they wait. A row that is retracted is
        looked for at the moments that the bounds say."""
        bounds = self.describe(node) if node.inputs[0].mode == "retract" else {}
        return {"verb": self.verb, "keys": key_columns(node), "row": schema_to_json(node.schema), **bounds}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: a row is retracted whole."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return key_of_subset(node, verb)
