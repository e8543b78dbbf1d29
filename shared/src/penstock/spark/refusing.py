"""What cannot run on Spark, said when the pipeline is planned: why, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Final

from penstock.errors import PipelineError
from penstock.graph.jobgraph import JobGraph
from penstock.graph.logical import AssignProcessingTime, LogicalPlan, Node, ProcessRows, Read, WindowRows
from penstock.process_functions import BROADCAST

_PROCESSING_TIMERS: Final = (
    "processing_timer", "delete_processing_timer", "processing_timers", "delete_processing_timers",
)  # fmt: skip


def refusals(graph: JobGraph, plan: LogicalPlan, *, until_now: bool = False) -> list[str]:
    """Everything in the way of a run on Spark, one sentence each; empty if there is nothing.

    `until_now`: sources without an end are read up to what is there, if they allow it.
    """
    used = {operator.node for operator in graph.operators()}
    return [reason for node in plan if node.id in used for reason in _reasons(node, until_now)]


def check_runnable(graph: JobGraph, plan: LogicalPlan, *, until_now: bool = False) -> None:
    """Raise `PipelineError` naming everything that is in the way."""
    reasons = refusals(graph, plan, until_now=until_now)
    if reasons:
        raise PipelineError("this pipeline cannot run on Spark: " + "; ".join(reasons))


def _reasons(node: Node, until_now: bool) -> Iterator[str]:
    match node.operation:
        case Read(source=source) if not source.bounded and not (until_now and source.ends_on_request):
            end = "read a bounded source instead"
            if source.ends_on_request:
                end = "give it an end with end=, or read it up to now and keep its state with --to-savepoint"
            yield f"{node.operator_id}: the {source.kind} source has no end, and a batch run is over at the end; {end}"
        case Read(source=source) if not source.replayable:
            yield (
                f"{node.operator_id}: the {source.kind} source cannot be read again, and Spark runs a task again when it "
                "fails or is slow; read files or a topic instead"
            )
        case WindowRows(trigger=trigger):
            if trigger.timers == "processing" or _sets_processing_timers(type(trigger)):
                yield (
                    f"{node.operator_id}: {trigger.describe()} sets processing-time timers, and a batch run has no wall "
                    "clock to follow; use event time"
                )
        case ProcessRows(process=process) if isinstance(process, BROADCAST):
            yield (
                f"{node.operator_id}: {type(process).__name__} sees a broadcast stream beside another one, and a batch "
                "run, which sorts its rows, does not know which of them came first; run it embedded or on the cluster, "
                "or join the streams: .join(rules, on=..., as_of=True)"
            )
        case ProcessRows(process=process) if _sets_processing_timers(type(process)):
            yield (
                f"{node.operator_id}: {type(process).__name__} sets processing-time timers, and a batch run has no wall "
                "clock to follow; use event_timer"
            )
        case AssignProcessingTime():
            yield (
                f"{node.operator_id}: the time of a row is when it passes, and a batch run, which reads all at once "
                "and runs a task again when it fails, has no such time; use the event time of the rows"
            )
        case _:
            pass


def _sets_processing_timers(process: type) -> bool:
    """Whether a method names the calls. Code that hides them is found when it runs."""
    methods = [value for cls in process.__mro__ for value in vars(cls).values() if isinstance(value, FunctionType)]
    return any(name in method.__code__.co_names for method in methods for name in _PROCESSING_TIMERS)
