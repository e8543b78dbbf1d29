"""An async Python function per row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import function_name
from penstock.plan.operation import Columns, Operation, Settings, UpsertKey
from penstock.plan.operations.calls import CallSettings
from penstock.plan.traits import Traits, per_row
from penstock.types import schema_to_json

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class MapAsync(Operation):
    """An async Python function per row: one row out when it has come."""

    function: Callable[[Any], Awaitable[Any]]
    calls: CallSettings
    on_error: Callable[[Any, Exception], Any] | None = None
    """Gives the result of a row whose last attempt raised, or whose time is over."""

    @property
    def verb(self) -> str:
        return "map_async"

    def traits(self, node: Node) -> Traits:
        return per_row(pending=True, undetermined="what its function returns, and which rows are answered first")

    def describe(self, node: Node) -> Settings:
        described: Settings = {"function": function_name(self.function), **self.calls.describe()}
        return described if self.on_error is None else {**described, "on_error": function_name(self.on_error)}

    def state_signature(self, node: Node) -> Settings | None:
        return {"verb": self.verb, "row": schema_to_json(node.inputs[0].schema)}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: Python code sees whole rows."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
