"""Nodes as a job graph holds them: their settings, and what must agree for their state to be restored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.core.times import format_duration
from penstock.errors import IncompatibleStateError
from penstock.state.compatibility import check_states
from penstock.types import reads_described

if TYPE_CHECKING:
    from penstock.plan.logical import Node
    from penstock.plan.operation import Settings


def describe_node(node: Node) -> Settings:
    """The settings of an operator as JSON values, and what its rows are if they are no facts."""
    settings, traits = node.operation.describe(node), node.traits
    if traits.ttl_us is not None:
        settings["ttl"] = format_duration(traits.ttl_us)
    if node.updates and traits.role != "sink":
        settings["rows are"] = {"upsert": "updates", "retract": "changes"}.get(node.mode)
    return settings


def state_signature(node: Node) -> str:
    """JSON text that tells whether a snapshot of the operator can be read by another version of it; empty: no state."""
    signature = node.operation.state_signature(node)
    return "" if signature is None else json.dumps(signature, sort_keys=True, default=str)


def check_signature(operator: str, stored: str, current: str) -> None:
    """Raise `IncompatibleStateError` naming the operator if state written under `stored` cannot be read now.

    The states of a process function may evolve compatibly. Those of windows are the library's own: what of them it can
    read is checked by its operator when it is opened, so only what surrounds them is compared here.
    """
    old, new = json.loads(stored), json.loads(current)
    states = None
    if "states" in old and "states" in new:
        states = old.pop("states"), new.pop("states")
        if "aggregates" not in old:
            new.pop("aggregates", None)  # of rows, which versions before kept, there is any aggregate
    for part in sorted(old.keys() | new.keys()):
        if not reads_described(new.get(part), old.get(part)):
            raise IncompatibleStateError(
                f"operator {operator!r}: its {part} changed from {old.get(part)} to {new.get(part)}, so its state cannot "
                "be continued; undo the change, or give the operator another uid to start it with empty state"
            )
    if states is not None and new["verb"] == "process":
        check_states(operator, *states)
