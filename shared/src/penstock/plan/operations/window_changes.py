"""Aggregates per key and window of changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.functions.windows.definitions import FixedWindow, describe_window
from penstock.plan.operation import Columns, Named, Operation, Settings, UpsertKey, described, key_columns, undetermined
from penstock.plan.operations.aggregate_changes import kept_of_changes
from penstock.plan.traits import LateForItsWindow, Traits, keyed

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class WindowChanges(Operation):
    """Named aggregates per key and window of changes: those of the rows that are current when the window ends.

    A result is sent once, and the rows are forgotten then. The bounds of the window are the last two of the keys. Output:
    keys, aggregates. Event time: end - 1 us.
    """

    window: FixedWindow
    aggregates: Named

    @property
    def verb(self) -> str:
        return "agg"

    def traits(self, node: Node) -> Traits:
        """The windows' reach is that of `AssignWindows` before it."""
        kept = f"{kept_of_changes(self.aggregates)} of a window, until it ends"
        return keyed(
            undetermined=undetermined(expr for _, expr in self.aggregates),
            arrival="",
            state="scanned",
            kept=kept,
            watermark_lag_us=0,
            late=LateForItsWindow(),
        )

    def describe(self, node: Node) -> Settings:
        named = described(self.aggregates)
        return {"keys": list(node.keys), "window": describe_window(self.window), "aggregates": named}

    def state_signature(self, node: Node) -> Settings | None:
        signed = {"window": describe_window(self.window), "aggregates": described(self.aggregates)}
        return {"verb": "window of changes", "keys": key_columns(node), **signed}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
