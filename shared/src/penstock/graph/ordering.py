"""What of an operator's rows depends on the order in which its input arrives. Engines differ in that order alone.

The table in `docs/spark.md` has a line for each of these sentences, and a test for each line.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.expressions import decided_by_arrival
from penstock.graph.logical import (
    AggregateChanges,
    As,
    AsOf,
    AssignEventTime,
    AssignProcessingTime,
    AssignWindows,
    DeadLetters,
    Deduplicate,
    Explode,
    Filter,
    Join,
    KeyBy,
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
    RunningAggregate,
    RunningReduce,
    Side,
    ToChanges,
    Top,
    Union,
    WindowAggregate,
    WindowChanges,
    WindowRows,
    Write,
)
from penstock.triggers import AtWatermark, EveryEventTime, PurgingTrigger

if TYPE_CHECKING:
    from penstock.expressions import Expr


def arrival_decides(node: Node) -> str:
    """What of the operator's rows is decided by the order of arrival, as the end of a sentence; empty if nothing is."""
    match node.operation:
        case WindowAggregate(aggregates=aggregates):
            return _of_aggregates(aggregates)
        case WindowRows():
            return _of_window_rows(node.operation)
        case RegularJoin() if node.mode == "retract":
            return "the changes of a row before its last"
        case ToChanges() | AggregateChanges() | Materialize():
            return "the changes of a key before its last"
        case RunningAggregate(aggregates=aggregates):
            return _joined(["the rows of a key before its last", _of_aggregates(aggregates)])
        case Over():
            return _of_over(node.operation)
        case Deduplicate(keep="first"):
            return "which row of a key is its first"
        case Deduplicate():
            return "the rows of a key before its last, and which of equal event times that is"
        case Top():
            return "the ranks before the last ones, and which of equal rows have these"
        case RunningReduce():
            return "the rows that its function gets one after the other"
        case Join(time=AsOf()):
            return "which of a key's right rows with equal event times is the newest"
        case ProcessRows():
            return "the rows that its function gets one after the other, and its timers between them"
        case AssignEventTime():
            return "what is late behind it"
        case MapBatches():
            return "the batches that its function gets"
        case (
            Read() | Project() | Filter() | Explode() | MapRows() | MapAsync() | As() | Union() | KeyBy() | LastRows()
            | AssignWindows() | WindowChanges()
            | Join() | RegularJoin() | LookupJoin() | Side() | DeadLetters() | AssignProcessingTime() | Write()
        ):  # fmt: skip
            return ""


def _of_aggregates(aggregates: Iterable[tuple[str, Expr]]) -> str:
    return _joined(f"{name}: {reason}" for name, expr in aggregates for reason in decided_by_arrival(expr))


def _of_window_rows(operation: WindowRows) -> str:
    if operation.count is not None:
        return "which rows are in a window"
    match operation.trigger:
        case EveryEventTime():
            firings = "what windows give before their last result"
        case AtWatermark() | PurgingTrigger(within=AtWatermark()) if operation.trigger.timers is None:
            firings = ""
        case _:
            firings = "which rows are in a window when its trigger fires"
    of_rows = _of_aggregates(operation.aggregates) if operation.aggregates else "in which order its function gets rows"
    return _joined([firings, of_rows])


def _of_over(operation: Over) -> str:
    if operation.rows is not None or any(decided_by_arrival(expr) for _, expr in operation.columns):
        return "which of a key's rows with equal event times is before which"
    return ""


def _joined(reasons: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))
