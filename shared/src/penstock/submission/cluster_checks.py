"""Whether a pipeline makes sense on a cluster, where its code is imported again on other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from penstock.connectors import console, files
from penstock.connectors.base import Sink, Source
from penstock.errors import PipelineError, UsageError
from penstock.functions.patterns.automaton import compiled
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.match_rows import MatchRows
from penstock.plan.operations.read import Read
from penstock.plan.operations.write import Write

TASK_MANAGERS: Final = "the task managers"


def check_fit(plan: LogicalPlan, workers: str = TASK_MANAGERS) -> None:
    """Raise `UsageError` naming everything that can work only in one process or one working directory.

    `workers` is what runs the pipeline there, in words.
    """
    problems = [problem for _, part in _parts(plan) if (problem := _problem(part, workers))]
    if problems:
        raise UsageError("on a cluster this pipeline cannot run: " + "; ".join(problems))


def check_streams(plan: LogicalPlan) -> None:
    """Raise `PipelineError` naming every source that subtasks cannot read, because Spark alone does."""
    alone = [name for name, part in _parts(plan) if isinstance(part, Source) and part.on_spark_alone]
    if alone:
        raise PipelineError(
            f"{', '.join(alone)}: Spark alone reads a DataFrame; run the pipeline there: penstock run --engine spark, "
            'p.run(engine="spark"), or penstock.spark.to_dataframe(stream, spark) for the rows of one stream'
        )


def _problem(part: Source[Any] | Sink, workers: str) -> str:
    absolute = f", which is not that of {workers}; give an absolute path that is reached from there"
    if not part.relative_path:
        return ""
    name = "Source" if isinstance(part, Source) else "Sink"
    return f"{part.kind}.{name}({part.relative_path!r}) is relative to this directory{absolute}"


def advice(plan: LogicalPlan, file: Path, workers: str = TASK_MANAGERS) -> list[str]:
    """What will probably not be as it is here, and what will grow as long as the job runs."""
    lines = [] if plan.is_bounded else _waiting_for_ever(plan)
    beside = "__file__" in file.read_text(encoding="utf-8")
    folder = file.resolve().parent
    for name, part in _parts(plan):
        if isinstance(part, console.Sink):
            lines.append(f"{name}: the console sink prints into the logs of {workers}, not here")
        if beside and isinstance(part, files.Source) and Path(part.path).resolve().is_relative_to(folder):
            lines.append(
                f"{name}: if {part.path} is derived from __file__, it is looked for beside the unpacked sources on "
                f"{workers}, where only Python files are; give it by --param"
            )
    return lines


def _waiting_for_ever(plan: LogicalPlan) -> list[str]:
    return [
        f"{node.operator_id}: the pattern has no time, so partial matches that do not go on are kept for ever; "
        "give match(within=...)"
        for node in plan
        if isinstance(node.operation, MatchRows)
        and node.operation.regular is None
        and node.operation.within_us is None
        and compiled(node.operation.pattern).may_wait_for_ever
    ]


def _parts(plan: LogicalPlan) -> list[tuple[str, Source[Any] | Sink]]:
    found: list[tuple[str, Source[Any] | Sink]] = []
    for node in plan:
        if isinstance(node.operation, Read):
            found.append((node.operator_id, node.operation.source))
        elif isinstance(node.operation, Write):
            found.append((node.operator_id, node.operation.sink))
    return found
