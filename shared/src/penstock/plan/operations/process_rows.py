"""Process functions."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Final

from penstock.functions.process_functions import BROADCAST, describe_states
from penstock.plan.operation import Columns, Operation, Settings, UpsertKey, key_columns
from penstock.plan.traits import Traits

if TYPE_CHECKING:
    from penstock.functions.process_functions import AnyProcess
    from penstock.plan.logical import Node

_PROCESSING_TIMERS: Final = (
    "processing_timer", "delete_processing_timer", "processing_timers", "delete_processing_timers",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ProcessRows(Operation):
    """A `Process` (no key) or, on a keyed stream, a `KeyedProcess` with state and timers; a `KeyedCoProcess` of two.

    A `BroadcastProcess` or `KeyedBroadcastProcess` has a broadcast stream as second input.
    """

    process: AnyProcess

    @property
    def verb(self) -> str:
        return "process"

    def traits(self, node: Node) -> Traits:
        """A `Process` that declares no state is taken to have none."""
        stateful = bool(node.inputs[0].keys) or bool(describe_states(self.process))
        broadcast = isinstance(self.process, BROADCAST)
        return Traits(
            role="operator", state="by_key" if stateful else "none", kept="", ttl_us=None, row_times="kept",
            watermarks="forwarded", watermark_lag_us=None, in_order=None, reads_watermarks=True, time_dependent=True,
            reach_us=0, late=None, late_tag=None, combinable=False,
            arrival="the rows that its function gets one after the other, and its timers between them",
            undetermined="what its function does",
            broadcast_inputs=frozenset({1} if broadcast else ()), not_in_batch=self._not_in_batch(broadcast),
        )  # fmt: skip

    def _not_in_batch(self, broadcast: bool) -> str:
        name = type(self.process).__name__
        if broadcast:
            return (
                f"{name} sees a broadcast stream beside another one, and a batch run, which sorts its rows, does not "
                "know which of them came first; run it embedded or on the cluster, or join the streams: "
                ".join(rules, on=..., as_of=True)"
            )
        if sets_processing_timers(type(self.process)):
            return f"{name} sets processing-time timers, and a batch run has no wall clock to follow; use event_timer"
        return ""

    def describe(self, node: Node) -> Settings:
        return {"keys": list(node.inputs[0].keys), "process": type(self.process).__qualname__}

    def state_signature(self, node: Node) -> Settings | None:
        return {"verb": "process", "keys": key_columns(node), "states": describe_states(self.process)}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: Python code sees whole rows."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None


def sets_processing_timers(process: type) -> bool:
    """Whether a method names the calls. Code that hides them is found when it runs."""
    methods = [value for cls in process.__mro__ for value in vars(cls).values() if isinstance(value, FunctionType)]
    return any(name in method.__code__.co_names for method in methods for name in _PROCESSING_TIMERS)
