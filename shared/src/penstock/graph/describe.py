"""What a node's settings are, for plans; and what its state looks like, for the check that a restored pipeline fits."""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import IncompatibleStateError
from penstock.graph.logical import (
    AggregateChanges,
    AsOf,
    AssignEventTime,
    AssignProcessingTime,
    AssignWindows,
    CallSettings,
    CumulativeWindow,
    Deduplicate,
    Explode,
    Filter,
    FixedWindow,
    GlobalWindow,
    Join,
    LastRows,
    LookupJoin,
    MapAsync,
    MapBatches,
    MapRows,
    Materialize,
    Node,
    Over,
    ProcessRows,
    Project,
    Read,
    RegularJoin,
    RowWindow,
    RunningAggregate,
    RunningReduce,
    SessionWindow,
    SlidingWindow,
    ToChanges,
    Top,
    TumblingWindow,
    WindowAggregate,
    WindowChanges,
    WindowRows,
    Within,
    Write,
)
from penstock.process_functions import describe_states
from penstock.state.compatibility import check_states
from penstock.times import format_duration
from penstock.types import reads_described, schema_to_json


def describe_node(node: Node) -> dict[str, Any]:
    """The settings of an operator as JSON values, and what its rows are if they are no facts."""
    settings = _settings(node)
    ttl_us = getattr(node.operation, "ttl_us", None)
    if ttl_us is not None:
        settings["ttl"] = format_duration(ttl_us)
    if node.updates and not isinstance(node.operation, Write):
        settings["rows are"] = {"upsert": "updates", "retract": "changes"}.get(node.mode)
    return settings


def _settings(node: Node) -> dict[str, Any]:
    operation = node.operation
    match operation:
        case Read(source=source):
            event_time = source.event_time
            described = {"source": source.kind, **source.describe(), "bad_rows": source.bad_rows}
            if event_time is not None:
                described |= {"event_time": event_time.form.describe(), "watermarks": event_time.watermarks.describe()}
                if event_time.idle_after_us is not None:
                    described["idle_after"] = format_duration(event_time.idle_after_us)
                if event_time.alignment is not None:
                    described["max_drift"] = format_duration(event_time.alignment.max_drift_us)
                if source.max_ahead_us is not None:
                    described["max_ahead"] = format_duration(source.max_ahead_us)
            return described
        case AssignEventTime(event_time=event_time):
            return {"event_time": event_time.form.describe(), "watermarks": event_time.watermarks.describe()}
        case AssignProcessingTime(every_us=every_us):
            return {"event_time": "processing time", "watermarks": f"every {format_duration(every_us)}"}
        case Project(columns=columns):
            return {"columns": {name: str(expr) for name, expr in columns}}
        case Filter(predicate=predicate):
            return {"predicate": str(predicate)}
        case Explode(columns=columns):
            return {"columns": list(columns)}
        case MapRows(function=function) | MapBatches(function=function):
            return {"function": function_name(function)}
        case MapAsync(function=function, calls=calls, on_error=on_error):
            described = {"function": function_name(function), **describe_calls(calls)}
            return described if on_error is None else {**described, "on_error": function_name(on_error)}
        case WindowChanges(window=window, aggregates=aggregates):
            named = {name: str(expr) for name, expr in aggregates}
            return {"keys": list(node.keys), "window": describe_window(window), "aggregates": named}
        case WindowAggregate():
            settings: dict[str, Any] = {
                "keys": list(node.keys),
                "window": describe_window(operation.window),
                "aggregates": {name: str(expr) for name, expr in operation.aggregates},
            }
            if operation.allowed_lateness_us:
                settings["allowed_lateness"] = format_duration(operation.allowed_lateness_us)
            if operation.late is not None:
                settings["late_to"] = operation.late.name
            return settings
        case AggregateChanges(aggregates=(), holds=holds):
            return {"keys": list(node.keys)} if holds is None else {"keys": list(node.keys), "holds": str(holds)}
        case AssignWindows(window=window):
            return {"window": describe_window(window)}
        case RunningAggregate(aggregates=aggregates) | AggregateChanges(aggregates=aggregates):
            return {"keys": list(node.keys), "aggregates": {name: str(expr) for name, expr in aggregates}}
        case Over():
            settings = {"keys": list(node.keys or node.inputs[0].keys), "frame": describe_frame(operation)}
            settings["columns"] = {name: str(expr) for name, expr in operation.columns}
            if operation.late is not None:
                settings["late_to"] = operation.late.name
            return settings
        case Deduplicate(keep=keep):
            return {"keys": list(node.inputs[0].keys), "keep": keep}
        case Top(n=n, by=by, descending=descending):
            return {"keys": list(node.inputs[0].keys), "n": n, "by": str(by), "descending": descending}
        case LastRows() | ToChanges() | Materialize():
            return {"keys": list(node.inputs[0].keys)}
        case Join(how=how):
            return {"keys": list(node.inputs[0].keys), "how": how, **describe_join_time(operation)}
        case RegularJoin(how=how):
            return {"keys": list(node.inputs[0].keys), "how": how}
        case LookupJoin(lookup=lookup):
            described = {"on": dict(operation.on), "how": operation.how, "lookup": lookup.kind, **lookup.describe()}
            return described | describe_calls(operation.calls) | lookup.calls.describe()
        case RunningReduce(function=function):
            return {"keys": list(node.keys), "function": function_name(function)}
        case WindowRows():
            return _describe_rows(node.inputs[0].keys, operation)
        case ProcessRows(process=process):
            return {"keys": list(node.inputs[0].keys), "process": type(process).__qualname__}
        case Write(sink=sink):
            return {"sink": sink.kind, **sink.describe()}
        case _:
            return {}


def describe_calls(calls: CallSettings) -> dict[str, Any]:
    """What is said of calls, beside what is called."""
    described: dict[str, Any] = {"capacity": calls.capacity, "order": "kept" if calls.ordered else "by completion"}
    if calls.timeout_us is not None:
        described["timeout"] = format_duration(calls.timeout_us)
    if calls.retries:
        described |= {"retries": calls.retries, "retry_delay": format_duration(calls.retry_delay_us)}
    return described


def _describe_rows(keys: tuple[str, ...], operation: WindowRows) -> dict[str, Any]:
    settings: dict[str, Any] = {"keys": list(keys), "window": window_of_rows(operation)}
    if operation.count is None:
        settings["trigger"] = operation.trigger.describe()
    if operation.aggregates:
        settings["aggregates"] = {name: str(expr) for name, expr in operation.aggregates}
    else:
        settings["function"] = type(operation.process).__name__
    if operation.allowed_lateness_us:
        settings["allowed_lateness"] = format_duration(operation.allowed_lateness_us)
    if operation.late is not None:
        settings["late_to"] = operation.late.name
    return settings


def window_of_rows(operation: WindowRows) -> str:
    """The window as the user wrote it."""
    if operation.count is None:
        return describe_window(operation.window)
    size, every = operation.count
    return f"count_window({size}{f', every={every}' if every != size else ''})"


def function_name(function: Any) -> str:
    """A function as people know it."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def describe_window(window: RowWindow) -> str:
    """The window as the user wrote it."""
    match window:
        case TumblingWindow():
            return f"tumbling({format_duration(window.size_us)!r}{_placed(window)})"
        case SlidingWindow():
            every = format_duration(window.slide_us)
            return f"sliding({format_duration(window.size_us)!r}, every={every!r}{_placed(window)})"
        case CumulativeWindow():
            every = format_duration(window.step_us)
            return f"cumulative({format_duration(window.size_us)!r}, every={every!r}{_placed(window)})"
        case SessionWindow(gap=None):
            return f"session({format_duration(window.gap_us)!r})"
        case SessionWindow():
            return f"session({window.gap})"
        case GlobalWindow():
            return "global_()"


def _placed(window: FixedWindow) -> str:
    offset = f", offset={format_duration(window.offset_us)!r}" if window.offset_us else ""
    return f"{offset}, timezone={window.timezone!r}" if window.timezone else offset


def describe_frame(over: Over) -> str:
    """Which rows an aggregate over rows sees."""
    if over.rows is not None:
        return f"rows={over.rows}"
    return "all" if over.within_us is None else f"within={format_duration(over.within_us)!r}"


def describe_join_time(join: Join) -> dict[str, str]:
    """Which rows of a key meet, as the user wrote it."""
    match join.time:
        case Within(lower_us=lower, upper_us=upper):
            return {
                "within": " to ".join(("-" if each < 0 else "") + format_duration(abs(each)) for each in (lower, upper))
            }
        case AsOf(tolerance_us=tolerance):
            older = "" if tolerance is None else f", at most {format_duration(tolerance)} older"
            return {"as_of": f"the newest{older}"}
        case window:
            return {"window": describe_window(window)}


def state_signature(node: Node) -> str:
    """JSON text that tells whether a snapshot of the operator can be read by another version of it; empty: no state."""
    operation = node.operation
    match operation:
        case Read(source=source):
            return _text({"verb": "read", "source": source.kind})
        case WindowAggregate():
            return _text(
                {
                    "verb": "window",
                    "keys": _keys(node),
                    "window": describe_window(operation.window),
                    "aggregates": {name: str(expr) for name, expr in operation.aggregates},
                }
            )
        case RunningAggregate(aggregates=aggregates):
            described = {name: str(expr) for name, expr in aggregates}
            return _text({"verb": "agg", "keys": _keys(node), "aggregates": described})
        case AggregateChanges(aggregates=aggregates, holds=holds):
            signed = {"verb": "agg of changes", "aggregates": {name: str(expr) for name, expr in aggregates}}
            return _text(signed | {"keys": _keys(node)} | ({} if holds is None else {"holds": str(holds)}))
        case WindowChanges(window=window, aggregates=aggregates):
            signed = {"window": describe_window(window), "aggregates": {name: str(expr) for name, expr in aggregates}}
            return _text({"verb": "window of changes", "keys": _keys(node), **signed})
        case Over(columns=columns):
            described = {name: str(expr) for name, expr in columns}
            row = schema_to_json(node.inputs[0].schema)
            frame = describe_frame(operation)
            return _text({"verb": "over", "keys": _keys(node), "frame": frame, "columns": described, "row": row})
        case Deduplicate(keep=keep):
            return _text({"verb": "deduplicate", "keys": _keys(node), "keep": keep})
        case Top(by=by, descending=descending):
            row = schema_to_json(node.inputs[0].schema)
            described = {"keys": _keys(node), "by": str(by), "descending": descending, "row": row}
            if node.mode == "retract":  # all rows of a key are kept, whatever `n` is
                return _text({"verb": "top of changes", **described})
            return _text({"verb": "top", **described, "n": operation.n})
        case Join(how=how):
            rows = [schema_to_json(each.schema) for each in node.inputs]
            return _text(
                {"verb": "join", "keys": _keys(node), "how": how, **describe_join_time(operation), "rows": rows}
            )
        case RegularJoin(how=how, ttl_us=ttl_us):
            rows = [[each.mode, schema_to_json(each.schema)] for each in node.inputs]
            described = {"how": how, "expires": ttl_us is not None, "event_time": node.event_time, "rows": rows}
            return _text({"verb": "regular join", "keys": _keys(node), **described})
        case LastRows(all_that_hold=True):
            return _text({"verb": "rows that hold", "keys": _keys(node), "row": schema_to_json(node.schema)})
        case LastRows() | ToChanges() | Materialize():
            return _text({"verb": node.verb, "keys": _keys(node), "row": schema_to_json(node.schema)})
        case RunningReduce():
            return _text({"verb": "reduce", "keys": _keys(node), "row": schema_to_json(node.schema)})
        case WindowRows(process=process):
            window = window_of_rows(operation)
            states = describe_states(process)
            signed: dict[str, Any] = {"verb": "window", "keys": _keys(node), "window": window, "states": states}
            if "partials" in states:
                signed["aggregates"] = {name: str(expr) for name, expr in operation.aggregates}
            return _text(signed)
        case ProcessRows(process=process):
            return _text({"verb": "process", "keys": _keys(node), "states": describe_states(process)})
        case AssignProcessingTime():
            return _text({"verb": "with_processing_time"})
        case MapAsync() | LookupJoin():
            return _text({"verb": node.verb, "row": schema_to_json(node.inputs[0].schema)})
        case Write(sink=sink):
            return _text({"verb": "write", "sink": sink.kind})
        case _:
            return ""


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


def _keys(node: Node) -> list[dict[str, Any]]:
    source = node.inputs[0]
    return schema_to_json(source.schema.select(source.keys)) if source.keys else []


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
