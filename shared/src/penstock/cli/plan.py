"""`penstock plan`: what would run, without running it."""

from __future__ import annotations

import argparse
import json

from penstock.api.loading import load_pipeline, parse_parameters
from penstock.graph.explain import explain_dot, explain_text
from penstock.graph.jobgraph import build_job_graph


def plan_command(arguments: argparse.Namespace) -> int:
    """Print the job graph; the exit code."""
    pipeline = load_pipeline(arguments.file, parse_parameters(arguments.param))
    graph = build_job_graph(pipeline.plan, arguments.parallelism, at_least_once=arguments.at_least_once)
    if arguments.json:
        print(json.dumps(graph.to_json(), indent=2))
    elif arguments.dot:
        print(explain_dot(graph))
    else:
        print(explain_text(graph))
    return 0
