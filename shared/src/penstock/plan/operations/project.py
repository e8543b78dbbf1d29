"""Columns as expressions over the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.errors import PipelineError
from penstock.expressions.nodes import Column, without_alias
from penstock.expressions.nodes import Literal as Constant
from penstock.plan.operation import (
    Columns,
    Named,
    Operation,
    Settings,
    UpsertKey,
    columns_read,
    described,
    undetermined,
)
from penstock.plan.traits import Traits, per_row

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class Project(Operation):
    """`select`, `with_columns`, `drop` and `rename`: every output column as an expression over the input."""

    written: Literal["select", "with_columns", "drop", "rename"]
    columns: Named

    @property
    def verb(self) -> str:
        return self.written

    @property
    def kept(self) -> dict[str, str]:
        """The columns that are handed on as they are: their names here, and what they were called before."""
        nodes = ((name, without_alias(expr.node)) for name, expr in self.columns)
        return {name: node.name for name, node in nodes if isinstance(node, Column)}

    @property
    def computes(self) -> bool:
        """Whether there are columns beside those that are kept and constants: computing a value may fail."""
        return any(not isinstance(without_alias(expr.node), Column | Constant) for _, expr in self.columns)

    def traits(self, node: Node) -> Traits:
        return per_row(undetermined=undetermined(expr for _, expr in self.columns))

    def describe(self, node: Node) -> Settings:
        return {"columns": described(self.columns)}

    def state_signature(self, node: Node) -> Settings | None:
        return None

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """Also those of values that nobody needs, which are computed all the same and may fail; only columns that are
        handed on as they are can be left out."""
        kept = self.kept
        return columns_read(expr for name, expr in self.columns if wanted is None or name in wanted or name not in kept)

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        """That of the input by its new names."""
        keys, retracted = node.inputs[0].upsert_key(verb)
        names: dict[str, str] = {}
        for name, former in self.kept.items():
            names.setdefault(former, name)
        for key in (*keys, *([] if retracted is None else [retracted])):
            if key not in names:
                raise PipelineError(
                    f"{verb}: {key}, which says which row a row replaces, is not there any more behind {self.verb}; "
                    f"keep it, or write .{verb}(...) before .{self.verb}(...)"
                )
        return tuple(names[key] for key in keys), None if retracted is None else names[retracted]
