"""All cases of `python -m benchmarks`, and the pipeline of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import cases, table_cases
from benchmarks.cases import Case
from penstock import Pipeline

CASES = (*cases.CASES, *table_cases.CASES)


def pipeline_of(case: Case, sources: Sequence[Any], out: Path) -> Pipeline:
    """The pipeline of a case."""
    pipeline = Pipeline(f"benchmark-{case.name}")
    case.build(*(pipeline.read(source) for source in sources), out)
    return pipeline
