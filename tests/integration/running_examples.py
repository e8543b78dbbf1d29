"""Runs example pipelines in this process: what the tests of examples share."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock import Pipeline
from penstock.api.parameters import set_parameters
from penstock.loading import load_pipeline

EXAMPLES = Path(__file__).parents[2] / "examples"


def rows_of(path: Path, folder: Path, parallelism: int = 1, **parameters: object) -> list[dict[str, Any]]:
    """What the example writes, with these parameters, in a run of its own below `folder`."""
    given = {"out": str(folder / "out"), **{name: str(value) for name, value in parameters.items()}}
    pipeline = _load(path, given)
    result = pipeline.run(parallelism=parallelism, directory=folder / "state", durable=False)
    assert result.state == "FINISHED", result
    parts = sorted((folder / "out").glob("part-*"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def same(found: Iterable[dict[str, Any]], expected: Iterable[dict[str, Any]]) -> None:
    """The same rows in any order, and there are some; a moment may be a datetime or text."""
    wanted = sorted(map(_text, expected))
    assert wanted
    assert sorted(map(_text, found)) == wanted


def _text(row: dict[str, Any]) -> str:
    return json.dumps({name: _moment(value) for name, value in sorted(row.items())})


def _moment(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str) and value.endswith("Z") and value[:4].isdigit():
        return datetime.fromisoformat(value).isoformat()
    return value


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
