"""Every row once per grouping set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import PipelineError
from penstock.plan.operation import Columns, Operation, Settings, UpsertKey
from penstock.plan.traits import Traits, per_row

if TYPE_CHECKING:
    from penstock.plan.logical import Node

GROUPING_ID: Final = "grouping_id"
"""Int64 column of rows of grouping sets: a bit per grouping column, the first one the most significant. A bit is 1 where
the column is not in the set of the row, and therefore null (Flink, Spark and DuckDB: GROUPING_ID)."""


@dataclass(frozen=True, eq=False)
class Expand(Operation):
    """Every row once per grouping set, with null in the grouping columns that are not in the set (Flink: Expand)."""

    columns: tuple[str, ...]
    """All grouping columns, in the order in which the user named them."""
    sets: tuple[frozenset[str], ...]

    @property
    def verb(self) -> str:
        return "grouping_sets"

    def grouping_id(self, among: frozenset[str]) -> int:
        """What `GROUPING_ID` is in rows of this set."""
        return sum(1 << place for place, name in enumerate(reversed(self.columns)) if name not in among)

    def traits(self, node: Node) -> Traits:
        return per_row(undetermined="")

    def describe(self, node: Node) -> Settings:
        named = ["(" + ", ".join(name for name in self.columns if name in each) + ")" for each in self.sets]
        return {"columns": list(self.columns), "sets": named}

    def state_signature(self, node: Node) -> Settings | None:
        return None

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        return None if wanted is None else wanted - {GROUPING_ID} | {*self.columns}

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        raise PipelineError(
            f"{verb}: the rows of grouping sets replace no others by a key, because each row is there once per set; "
            "aggregate them before"
        )
