"""What cannot run on Spark, said when the pipeline is planned: why, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import PipelineError
from penstock.graph.jobgraph import JobGraph
from penstock.plan.logical import LogicalPlan, Node
from penstock.plan.operations.read import Read


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
        case _:
            if reason := node.traits.not_in_batch:
                yield f"{node.operator_id}: {reason}"
