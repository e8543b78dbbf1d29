"""Penstock: Apache Flink's semantics for Python teams.

A pipeline file imports from here and from `penstock.connectors`, and nothing else. Names are resolved when first used,
so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.api.keyed_streams import KeyedStream, OverStream
    from penstock.api.parameters import param
    from penstock.api.patterns import Pattern
    from penstock.api.stream import Stream
    from penstock.api.update_streams import KeyedUpdates, UpsertStream
    from penstock.api.windowed_streams import WindowedStream
    from penstock.api.windows import cumulative, global_, session, sliding, tumbling
    from penstock.connectors.base import Row
    from penstock.connectors.watermarks import PeriodicWatermarks, periodic, punctuated
    from penstock.errors import PenstockError, PipelineError
    from penstock.expressions import (
        Accumulator,
        Expr,
        aggregate,
        arctan2,
        coalesce,
        col,
        concat_list,
        concat_str,
        count,
        count_if,
        lag,
        lead,
        lit,
        max_horizontal,
        min_horizontal,
        row_number,
        struct,
        when,
    )
    from penstock.functions.process_functions import (
        AggregatingState,
        BatchContext,
        BroadcastProcess,
        BroadcastState,
        Context,
        KeyedBatchContext,
        KeyedBroadcastProcess,
        KeyedContext,
        KeyedCoProcess,
        KeyedProcess,
        ListState,
        MapState,
        OpenContext,
        OperatorListState,
        OutputTag,
        Process,
        ReducingState,
        UnionListState,
        ValueState,
    )
    from penstock.functions.windows.triggers import (
        Trigger,
        TriggerContext,
        TriggerResult,
        at_watermark,
        every,
        every_rows,
        purging,
    )
    from penstock.functions.windows.window_functions import TimeWindow, WindowFunction
    from penstock.pipeline import Pipeline
    from penstock.types import DecimalType

__version__ = "0.1.0"

_HOMES = {
    "penstock.functions.process_functions": (
        "AggregatingState", "BatchContext", "BroadcastProcess", "BroadcastState", "Context", "KeyedBatchContext",
        "KeyedBroadcastProcess", "KeyedCoProcess", "KeyedContext", "KeyedProcess", "ListState", "MapState",
        "OpenContext", "OperatorListState", "OutputTag", "Process", "ReducingState", "UnionListState", "ValueState",
    ),
    "penstock.api.parameters": ("param",),
    "penstock.api.patterns": ("Pattern",),
    "penstock.pipeline": ("Pipeline",),
    "penstock.connectors.base": ("Row",),
    "penstock.api.stream": ("Stream",),
    "penstock.api.keyed_streams": ("KeyedStream", "OverStream"),
    "penstock.api.windowed_streams": ("WindowedStream",),
    "penstock.api.update_streams": ("KeyedUpdates", "UpsertStream"),
    "penstock.api.windows": ("cumulative", "global_", "session", "sliding", "tumbling"),
    "penstock.connectors.watermarks": ("PeriodicWatermarks", "periodic", "punctuated"),
    "penstock.functions.windows.triggers": (
        "Trigger", "TriggerContext", "TriggerResult", "at_watermark", "every", "every_rows", "purging",
    ),
    "penstock.types": ("DecimalType",),
    "penstock.functions.windows.window_functions": ("TimeWindow", "WindowFunction"),
    "penstock.errors": ("PenstockError", "PipelineError"),
    "penstock.expressions": (
        "Accumulator", "Expr", "aggregate", "arctan2", "coalesce", "col", "concat_list", "concat_str", "count",
        "count_if", "lag", "lead", "lit", "max_horizontal", "min_horizontal", "row_number", "struct", "when",
    ),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Accumulator",
    "AggregatingState",
    "BatchContext",
    "BroadcastProcess",
    "BroadcastState",
    "Context",
    "DecimalType",
    "Expr",
    "KeyedBatchContext",
    "KeyedBroadcastProcess",
    "KeyedCoProcess",
    "KeyedContext",
    "KeyedProcess",
    "KeyedStream",
    "ListState",
    "MapState",
    "OpenContext",
    "OperatorListState",
    "OutputTag",
    "OverStream",
    "Pattern",
    "PenstockError",
    "PeriodicWatermarks",
    "Pipeline",
    "PipelineError",
    "Process",
    "ReducingState",
    "Row",
    "Stream",
    "TimeWindow",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "UnionListState",
    "UpsertStream",
    "KeyedUpdates",
    "ValueState",
    "WindowFunction",
    "WindowedStream",
    "aggregate",
    "arctan2",
    "at_watermark",
    "coalesce",
    "col",
    "concat_list",
    "concat_str",
    "count",
    "count_if",
    "cumulative",
    "every",
    "every_rows",
    "global_",
    "lag",
    "lead",
    "lit",
    "max_horizontal",
    "min_horizontal",
    "param",
    "periodic",
    "punctuated",
    "purging",
    "row_number",
    "session",
    "sliding",
    "struct",
    "tumbling",
    "when",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
