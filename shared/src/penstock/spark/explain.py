"""The stages of a pipeline on Spark for people: what each runs, what lies between them, what cannot run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.connectors import kafka_marks
from penstock.graph.jobgraph import JobEdge, JobGraph, JobOperator, JobVertex
from penstock.spark.replay import is_keyed
from penstock.types import schema_from_json


def explain_stages(graph: JobGraph, refused: Sequence[str]) -> str:
    """One block per stage, then what is refused."""
    lines = [f"{graph.name}: {len(graph.vertices)} stages on Spark, parallelism {graph.parallelism}"]
    for vertex in graph.vertices:
        lines += ["", *_stage(graph, vertex)]
    if refused:
        lines += ["", "cannot run on Spark:", *(f"  {reason}" for reason in refused)]
    return "\n".join(lines)


def _stage(graph: JobGraph, vertex: JobVertex) -> Iterator[str]:
    yield f"{vertex.id}  {vertex.name}"
    yield f"  {_tasks(vertex)}"
    for edge in vertex.inputs:
        yield f"  <- {edge.vertex} {_exchange(vertex, edge)}"
        yield f"     {schema_from_json(edge.schema)}"
    yield f"  replay: {_why(vertex)}"
    consumers = len(list(graph.consumers(vertex.id)))
    if consumers > 1:
        yield f"  kept on disk while its {consumers} consumers read it, so that it is computed once"
    elif consumers and vertex.has_sink:
        yield "  kept on disk for its consumer, so that what its sinks stage counts once"
    for operator in vertex.operators:
        if operator.verb == "write":
            yield f"  - {operator.verb} ({operator.id}): {_visible(operator)}; {operator.guarantee}"
        else:
            yield f"  - {operator.verb} ({operator.id})"


def _visible(operator: JobOperator) -> str:
    """When rows of a sink are seen."""
    if not operator.guarantee.startswith("exactly-once"):
        return "seen as tasks write them"
    if operator.settings.get("sink") == kafka_marks.KIND:
        return "staged by tasks, published once per run by the driver"
    return "commits once per run"


def _tasks(vertex: JobVertex) -> str:
    if vertex.is_source:
        return "a task per split of the source"
    if is_keyed(vertex):
        return f"{vertex.parallelism} tasks, one key group at a time of {vertex.max_parallelism}"
    return f"{vertex.parallelism} tasks"


def _exchange(vertex: JobVertex, edge: JobEdge) -> str:
    how = f"by {', '.join(edge.link.keys)}" if edge.link.keys else "round robin"
    tag = f" [{edge.link.tag}]" if edge.link.tag else ""
    order = ["key group"] if is_keyed(vertex) else []
    order += ["event time"] if edge.event_time else []
    return f"shuffle {how}{tag}, sorted by {', '.join([*order, 'producer and number'])}"


def _why(vertex: JobVertex) -> str:
    """Why the stage runs the streaming operators instead of Spark's own plan."""
    if vertex.is_source:
        return "its source is read by Penstock's reader, row for row as in streaming"
    return "its operators run as they do in streaming; none has a native plan that is proven equal"
