"""The windows of every row: a windowing table function."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.errors import PipelineError
from penstock.functions.windows.definitions import FixedWindow, describe_window, reach_us
from penstock.plan.operation import Columns, Operation, Settings, UpsertKey
from penstock.plan.traits import Traits, per_row

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class AssignWindows(Operation):
    """Every row once for each window that its event time is in, with the bounds: Flink's windowing table function.

    Of other columns those of the output's schema stay.
    """

    window: FixedWindow

    @property
    def verb(self) -> str:
        return "window"

    def traits(self, node: Node) -> Traits:
        return replace(per_row(undetermined=""), time_dependent=True, reach_us=reach_us(self.window))

    def describe(self, node: Node) -> Settings:
        return {"window": describe_window(self.window)}

    def state_signature(self, node: Node) -> Settings | None:
        return None

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        raise PipelineError(
            f"{verb}: the rows of windows replace no others by a key, because each row is there once per window; "
            "aggregate them before"
        )
