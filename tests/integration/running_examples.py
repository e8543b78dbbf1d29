"""Runs example pipelines in this process: what the tests of examples share."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock import Pipeline
from penstock.api.loading import load_pipeline
from penstock.api.parameters import set_parameters

EXAMPLES = Path(__file__).parents[2] / "examples"


def rows_of(path: Path, folder: Path, parallelism: int = 1, **parameters: object) -> list[dict[str, Any]]:
    """What the example writes, with these parameters, in a run of its own below `folder`."""
    given = {"out": str(folder / "out"), **{name: str(value) for name, value in parameters.items()}}
    pipeline = _load(path, given)
    result = pipeline.run(parallelism=parallelism, directory=folder / "state", durable=False)
    assert result.state == "FINISHED", result
    parts = sorted((folder / "out").glob("part-*"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def example(path: Path) -> ModuleType:
    """The example as a module, for the rows that it makes up."""
    _load(path, {})
    return sys.modules[path.stem]


def _load(path: Path, parameters: dict[str, str]) -> Pipeline:
    try:
        found = load_pipeline(str(path), parameters)
    finally:
        set_parameters({})
    assert isinstance(found, Pipeline)
    return found
