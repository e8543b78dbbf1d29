"""The stages of a pipeline on Spark for people: what each runs, what lies between them, what cannot run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.connectors import files
from penstock.connectors.kafka import marks as kafka_marks
from penstock.graph.explain import rows_of
from penstock.graph.jobgraph import JobEdge, JobGraph, JobOperator, JobVertex
from penstock.plan.logical import LogicalPlan
from penstock.plan.passes.reading import said_of_reading
from penstock.spark.arrival_order import ArrivalOrderAnalysis
from penstock.spark.native import NativeWindow, Way
from penstock.spark.replay import is_keyed
from penstock.types import schema_from_json


def explain_stages(graph: JobGraph, plan: LogicalPlan, ways: Mapping[str, Way], refused: Sequence[str]) -> str:
    """One block per stage, with the way in which it is computed and what is to know of the order of its rows; then what
    is refused."""
    arrival = ArrivalOrderAnalysis(graph, plan)
    lines = [f"{graph.name}: {len(graph.vertices)} stages on Spark, parallelism {graph.parallelism}"]
    for vertex in graph.vertices:
        lines += ["", *_stage(graph, plan, arrival, vertex, ways[vertex.id])]
    if refused:
        lines += ["", "cannot run on Spark:", *(f"  {reason}" for reason in refused)]
    return "\n".join(lines)


def _stage(
    graph: JobGraph, plan: LogicalPlan, arrival: ArrivalOrderAnalysis, vertex: JobVertex, way: Way
) -> Iterator[str]:
    yield f"{vertex.id}  {vertex.name}"
    yield f"  {_tasks(vertex, way)}"
    for edge in vertex.inputs:
        yield f"  <- {edge.vertex} {_exchange(arrival, vertex, edge, way)}"
        yield f"     {schema_from_json(edge.schema)}"
    yield f"  {_how(way)}"
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
        if operator.verb == "read":
            narrowing = said_of_reading(plan, plan.node(operator.node), time_per_split=True)
            yield from (f"      {name}: {value}" for name, value in narrowing.items())
            if operator.settings.get("source") == files.Source.kind:
                yield f"      {_said_of_parts(arrival, vertex)}"
        said = arrival.said_of_order(vertex, operator), arrival.said_of_late_rows(vertex, operator)
        yield from (f"      {text}" for text in said if text)


def _said_of_parts(arrival: ArrivalOrderAnalysis, vertex: JobVertex) -> str:
    if whole := arrival.read_as_a_whole(vertex, keeps=False):
        return f"files are read as a whole: {whole}"
    said = "large files are read in parts, where their format has any"
    kept = arrival.read_as_a_whole(vertex, keeps=True)
    return f"{said}; as a whole in a run that leaves a savepoint: {kept}" if kept else said


def _visible(operator: JobOperator) -> str:
    """When rows of a sink are seen."""
    if not operator.guarantee.startswith("exactly-once"):
        return "seen as tasks write them"
    if operator.settings.get("sink") == kafka_marks.KIND:
        return "staged by tasks, published once per run by the driver"
    return "commits once per run"


def _tasks(vertex: JobVertex, way: Way) -> str:
    if vertex.is_source:
        return "a task per split of the source, or per part of a large file, or several small files"
    if is_keyed(vertex) and not isinstance(way, NativeWindow):
        return f"{vertex.parallelism} tasks, one key group at a time of {vertex.max_parallelism}"
    return f"{vertex.parallelism} tasks"


def _exchange(arrival: ArrivalOrderAnalysis, vertex: JobVertex, edge: JobEdge, way: Way) -> str:
    how = f"by {', '.join(edge.link.keys)}" if edge.link.keys else "round robin"
    rows = rows_of(edge.link)
    if isinstance(way, NativeWindow):
        return f"partials of a key and window, shuffle {how}{rows}"
    order = ["key group"] if is_keyed(vertex) else []
    order += (
        ["arrival in its split" if arrival.is_fed_in_arrival_order(vertex) else "event time"] if edge.event_time else []
    )
    return f"shuffle {how}{rows}, sorted by {', '.join([*order, 'producer and number'])}"


def _how(way: Way) -> str:
    """Whether the stage runs the streaming operators or Spark's own plan, and why."""
    if isinstance(way, NativeWindow):
        return "native: Spark merges the partials, which is proven equal to streaming for these keys and aggregates"
    return f"replay: {way.reason}"
