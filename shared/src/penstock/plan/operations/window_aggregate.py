"""Aggregates per key and window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.times import format_duration
from penstock.expressions import columns_of, decided_by_arrival, is_mergeable
from penstock.functions.windows.definitions import (
    RETRACTED,
    SessionWindow,
    Window,
    describe_window,
    reach_us,
    window_bounds,
)
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
from penstock.plan.traits import LateForWindows, Traits, keyed, with_lateness

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.functions.process_functions import OutputTag
    from penstock.plan.logical import Node
    from penstock.types import Field


@dataclass(frozen=True, eq=False)
class WindowAggregate(Operation):
    """Aggregates per key and window; output: keys, `window_start`, `window_end`, aggregates. Event time: end - 1 us."""

    window: Window
    aggregates: Named
    allowed_lateness_us: int = 0
    late: OutputTag[Any] | None = None
    unpacked: bool = False
    """Whether the one aggregate is a row, or rows in the order of their rank: its fields are the columns instead."""

    @property
    def verb(self) -> str:
        return "window"

    @property
    def window_fields(self) -> tuple[Field, ...]:
        """The columns of the window, behind the keys."""
        return window_bounds(retracts=self.retracts)

    @property
    def retracts(self) -> bool:
        """Whether a window that was sent may be retracted: late rows move the bounds of sessions and join them."""
        return isinstance(self.window, SessionWindow) and self.allowed_lateness_us > 0

    def traits(self, node: Node) -> Traits:
        mergeable = self.late is None and all(is_mergeable(expr) for _, expr in self.aggregates)
        return keyed(
            undetermined=undetermined(expr for _, expr in self.aggregates),
            arrival=arrival_of_aggregates(self.aggregates),
            state="scanned",
            kept=with_lateness("aggregates per window, until it ends", self.allowed_lateness_us),
            watermark_lag_us=0,
            reach_us=reach_us(self.window),
            late=LateForWindows(self.window, self.allowed_lateness_us),
            late_tag=None if self.late is None else self.late.name,
            combinable=mergeable and not isinstance(self.window, SessionWindow),
        )

    def describe(self, node: Node) -> Settings:
        settings: Settings = {
            "keys": list(node.keys),
            "window": describe_window(self.window),
            "aggregates": described(self.aggregates),
        }
        if self.allowed_lateness_us:
            settings["allowed_lateness"] = format_duration(self.allowed_lateness_us)
        if self.late is not None:
            settings["late_to"] = self.late.name
        return settings

    def state_signature(self, node: Node) -> Settings | None:
        return {
            "verb": "window",
            "keys": key_columns(node),
            "window": describe_window(self.window),
            "aggregates": described(self.aggregates),
        }

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """The key and what the aggregates and the gap look at; late rows are sent unchanged."""
        if self.late is not None:
            return None
        gap = self.window.gap if isinstance(self.window, SessionWindow) else None
        read = frozenset(node.inputs[0].keys) | columns_read(expr for _, expr in self.aggregates)
        return read if gap is None else read | columns_of(gap)

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return key_with_window(node, self.window_fields)


def key_with_window(node: Node, window_fields: Iterable[Field]) -> UpsertKey:
    """The key of results that name their window."""
    said = [field.name for field in window_fields]
    bounds = [name for name in said if name != RETRACTED]
    return (*node.keys, *bounds), RETRACTED if RETRACTED in said else None


def arrival_of_aggregates(aggregates: Named) -> str:
    """Which aggregates the order of arrival decides, and what of them."""
    return joined(f"{name}: {reason}" for name, expr in aggregates for reason in decided_by_arrival(expr))
