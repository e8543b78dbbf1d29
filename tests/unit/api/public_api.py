"""What users call: verbs, functions, windows, connectors, states."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import penstock
from penstock.api import stream, update_streams
from penstock.expressions import constructors, namespaces

CONNECTORS = (
    "collecting", "console", "files", "generate", "http", "iceberg", "iterables", "kafka", "nexmark", "opensearch",
    "postgres", "redis", "sockets", "spark", "sqlite",
)  # fmt: skip
WITH_VERBS = (
    "Pipeline", "Expr", "Stream", "SourceStream", "KeyedStream", "ConnectedStreams", "OverStream", "WindowedStream",
    "BroadcastConnectedStreams", "KeyedBroadcastConnectedStreams",
    "LateWindowedStream", "UpsertStream", "SourceUpdates", "KeyedUpdates",
    "TriggeredStream", "PurgingStream", "CountWindowedStream", "StringNamespace", "DateTimeNamespace",
    "ListNamespace", "MapNamespace", "StructNamespace", "When", "Then",
)  # fmt: skip
"""Classes whose methods users call."""
OF_THE_USER = (
    "Accumulator",
    "BatchContext",
    "BroadcastProcess",
    "Context",
    "KeyedBatchContext",
    "KeyedBroadcastProcess",
    "KeyedCoProcess",
    "KeyedContext",
    "KeyedProcess",
    "Process",
    "PeriodicWatermarks",
    "OpenContext",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "TimeWindow",
    "WindowFunction",
)
"""Classes that users derive from or are given: Penstock calls them."""
INTERNAL = ("Pipeline.rows_of",)


def public() -> Iterator[tuple[str, Any]]:
    """By name: functions, constructors, and the verbs of what these give."""
    for name in penstock.__all__:
        if name not in OF_THE_USER:
            yield from _members(name, getattr(penstock, name))
    for connector in CONNECTORS:
        home = importlib.import_module(f"penstock.connectors.{connector}")
        for name, value in vars(home).items():
            called = name in ("Source", "ChangeSource", "Sink", "Lookup") or (
                inspect.isfunction(value) and not name.startswith("_")
            )
            own = getattr(value, "__module__", "").startswith(home.__name__)
            if own and called and name in getattr(home, "__all__", [name]):
                yield f"{connector}.{name}", value
    for name in WITH_VERBS:
        modules = (namespaces, constructors, stream, update_streams)
        home = next((module for module in modules if hasattr(module, name)), None)
        if home is not None and name not in penstock.__all__:
            yield from _members(name, getattr(home, name))


def _members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, type):
        yield name, value
    elif name in WITH_VERBS:
        if name == "Pipeline":
            yield name, value
        for member in dir(value):
            internal = member.startswith("_") or f"{name}.{member}" in INTERNAL
            if not internal and inspect.isfunction(getattr(value, member)):
                yield f"{name}.{member}", getattr(value, member)
    elif not issubclass(value, BaseException) and name != "Row":
        yield name, value
