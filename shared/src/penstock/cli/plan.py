"""`penstock plan`: what would run, without running it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from penstock.graph.explain import explain_dot, explain_text
from penstock.graph.jobgraph import build_job_graph
from penstock.loading import load_pipeline, parse_parameters


@dataclass(frozen=True)
class Plan:
    """`penstock plan`."""

    file: str
    parallelism: int | None
    param: list[str]
    at_least_once: bool
    submitted: bool
    json: bool
    dot: bool


def plan_command(command: Plan) -> int:
    """Print the job graph; the exit code."""
    pipeline = load_pipeline(command.file, parse_parameters(command.param))
    graph = build_job_graph(
        pipeline.plan, command.parallelism or 1, at_least_once=command.at_least_once, by_splits=command.submitted
    )
    if command.json:
        print(json.dumps(graph.to_json(), indent=2))
    elif command.dot:
        print(explain_dot(graph))
    else:
        print(explain_text(graph, pipeline.plan))
    return 0
