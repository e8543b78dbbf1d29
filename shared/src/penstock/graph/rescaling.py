"""A job graph at another parallelism, without the user's code: what a coordinator needs to rescale a job."""

from __future__ import annotations

import msgspec

from penstock.errors import PipelineError
from penstock.graph.jobgraph import JobGraph, build_job_graph
from penstock.plan.logical import LogicalPlan


def scalable_form(plan: LogicalPlan, *, at_least_once: bool = False, by_splits: bool = False) -> JobGraph:
    """The graph of a plan from which `scaled` makes that of any parallelism.

    It is cut at a parallelism that no operator asks for, so that nothing is chained that would have to be separated at
    another one.
    """
    explicit = {node.parallelism for node in plan}
    default = next(number for number in range(2, len(explicit) + 3) if number not in explicit)
    return build_job_graph(plan, default, at_least_once=at_least_once, by_splits=by_splits)


def scaled(form: JobGraph, parallelism: int) -> JobGraph:
    """The graph at this parallelism: operators without a parallelism of their own get it.

    Raises:
        PipelineError: it exceeds the key groups of a vertex.
    """
    if parallelism < 1:
        raise PipelineError(f"parallelism {parallelism}: it must be at least 1")
    vertices = tuple(
        msgspec.structs.replace(vertex, parallelism=parallelism) if vertex.parallelism == form.parallelism else vertex
        for vertex in form.vertices
    )
    for vertex in vertices:
        if vertex.parallelism > vertex.max_parallelism:
            raise PipelineError(
                f"parallelism {vertex.parallelism} of {vertex.name!r} exceeds its {vertex.max_parallelism} key groups; "
                "choose a lower one"
            )
    return msgspec.structs.replace(form, parallelism=parallelism, vertices=vertices)
