"""Finds the one pipeline that a file declares: in Python, or in SQL."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from penstock.api.parameters import check_parameters, set_parameters
from penstock.api.pipeline import DeclaredPipeline, set_importing
from penstock.errors import UsageError, nearest

if TYPE_CHECKING:
    pass

_peeked: dict[tuple[str, tuple[tuple[str, str], ...]], DeclaredPipeline] = {}


def peek_pipeline(target: str, parameters: dict[str, str]) -> DeclaredPipeline:
    """As `load_pipeline`, for who has to know what a command does with the file: which then takes the same pipeline, so
    that the file is imported once."""
    pipeline = load_pipeline(target, parameters)
    _peeked[target, tuple(parameters.items())] = pipeline
    return pipeline


def load_pipeline(target: str, parameters: dict[str, str]) -> DeclaredPipeline:
    """The pipeline in `file.py`, or the one named in `file.py:name`; the one that the statements of `file.sql` are.

    What the file itself raises comes through unchanged.

    Raises:
        UsageError: there is no such file, no pipeline in it, or several; or a parameter it never asks for.
    """
    if peeked := _peeked.pop((target, tuple(parameters.items())), None):
        return peeked
    path_text, _, name = target.partition(":")
    path = Path(path_text)
    if not path.is_file():
        raise UsageError(f"{path_text}: there is no such file")
    if path.suffix == ".sql":
        return _sql_pipeline(path, parameters)
    if path.suffix != ".py":
        raise UsageError(f"{path_text}: a pipeline file is a Python file (.py) or one of SQL statements (.sql)")
    set_parameters(parameters)
    module = _import(path)
    found = _pipelines(module)
    check_parameters()
    if name:
        if name not in found:
            raise UsageError(f"{path_text}: there is no pipeline {name!r}; {nearest(name, found)}")
        return found[name]
    distinct = {id(pipeline): pipeline for pipeline in found.values()}
    if not distinct:
        raise UsageError(f"{path_text}: declares no pipeline; write for example p = Pipeline('my-job')")
    if len(distinct) > 1:
        raise UsageError(f"{path_text}: declares several pipelines; say which: {path_text}:{next(iter(found))}")
    return next(iter(distinct.values()))


def _sql_pipeline(path: Path, parameters: dict[str, str]) -> DeclaredPipeline:
    """The statements of a file as a pipeline, which is called as the file, or as they set it."""
    from penstock.sql.programs import NAME, Program
    from penstock.sql.text import read_sql

    make_importable(path.resolve().parent)
    program = Program.of(read_sql(path, parameters))
    for unused in program.text.unused:
        raise UsageError(f"{path}: no text in it has ${{{unused}}}, so --param {unused} says nothing")
    name = program.settings.values.get(NAME, path.stem)
    pipeline = DeclaredPipeline(name, max_parallelism=program.settings.max_parallelism)
    program.add_to(pipeline.plan)
    return pipeline


def make_importable(folder: Path) -> None:
    """The modules of a folder: of that of a file as for `python file.py`, of the current one as for `python -c`."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import(path: Path) -> ModuleType:
    """Import the file as a module of its own name, with its folder importable, as `python file.py` would."""
    make_importable(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    before = set_importing(True)
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == spec.origin]
        raise UsageError(
            f"{path}, line {lines[-1] if lines else 1}: ends the process with exit code {error.code or 0!r} while "
            'Penstock imports the file; put what is for a script below if __name__ == "__main__":'
        ) from error
    finally:
        set_importing(before)
    return module


def _pipelines(module: ModuleType) -> dict[str, DeclaredPipeline]:
    return {name: value for name, value in vars(module).items() if isinstance(value, DeclaredPipeline)}


def parse_parameters(given: list[str]) -> dict[str, str]:
    """`["days=7"]` as `{"days": "7"}`.

    A value `@env:NAME` stands for what is in that environment variable, `@file:PATH` for what is in that file
    (without the line's end): command lines can be read by everybody on a machine.

    Raises:
        UsageError: one has no `=`, or the variable or the file is not there.
    """
    parameters: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--param {text}: write --param name=value")
        parameters[name] = _value(name, value)
    return parameters


def _value(name: str, text: str) -> str:
    if text.startswith("@env:"):
        variable = text.removeprefix("@env:")
        if variable not in os.environ:
            raise UsageError(f"--param {name}={text}: there is no environment variable {variable!r}")
        return os.environ[variable]
    if text.startswith("@file:"):
        try:
            return Path(text.removeprefix("@file:")).read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--param {name}={text}: the file cannot be read: {error}") from error
    return text
