"""Rows with a column that a Python function computes of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import function_name
from penstock.plan.operation import Columns, Operation, Settings, UpsertKey
from penstock.plan.traits import Traits, per_row

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class CallFunction(Operation):
    """Every row with one more column: what a Python function gives for the values of other columns of the row.

    The function gives the same for the same values, so that a row is retracted as it was added.
    """

    column: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]

    @property
    def verb(self) -> str:
        return "call"

    def traits(self, node: Node) -> Traits:
        return per_row(undetermined="what its function returns")

    def describe(self, node: Node) -> Settings:
        return {"column": self.column, "function": function_name(self.function), "arguments": list(self.arguments)}

    def state_signature(self, node: Node) -> Settings | None:
        return None

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        return None if wanted is None else (wanted - {self.column}) | {*self.arguments}

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.inputs[0].upsert_key(verb)
