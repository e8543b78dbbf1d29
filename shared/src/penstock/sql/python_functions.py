"""Python functions that texts call, with types from their annotations."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, make_dataclass
from typing import Any

from penstock.errors import PipelineError
from penstock.sql.functions.catalogue import AGGREGATES, SCALAR
from penstock.types import Field, schema_of


@dataclass(frozen=True)
class PythonFunction:
    """A function of the values of one row."""

    name: str
    """As texts call it, in upper case."""
    function: Callable[..., Any]
    parameters: tuple[Field, ...]
    least: int
    """How many arguments have no default."""
    gives: Field


def python_function(name: str, function: Callable[..., Any]) -> PythonFunction:
    """A function with its types.

    Raises:
        PipelineError: it has no annotations, or such as no column can have; or SQL has a function of the name.
    """
    if name.upper() in SCALAR or name.upper() in AGGREGATES:
        raise PipelineError(f"{name}: SQL has a function {name.upper()}; give yours another name")
    if inspect.iscoroutinefunction(function):
        raise PipelineError(f"{name}: SQL calls no async functions; use map_async of the stream")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = list(inspect.signature(function).parameters.values())
    except (NameError, TypeError, ValueError) as error:
        raise PipelineError(f"{name}: its annotations cannot be read: {error}") from error
    if any(each.kind not in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters):
        raise PipelineError(f"{name}: SQL gives arguments by their place; *args, **kwargs and keywords are not for it")
    missing = [each.name for each in parameters if each.name not in hints]
    if missing or "return" not in hints:
        what = f"{missing[0]}" if missing else "what it returns"
        raise PipelineError(f"{name}: {what} has no annotation; write for example def {name}(price: float) -> float")
    fields = _fields(name, {each.name: hints[each.name] for each in parameters})
    (gives,) = _fields(name, {"returned": hints["return"]})
    least = sum(each.default is each.empty for each in parameters)
    return PythonFunction(name.upper(), function, fields, least, gives)


def imported(name: str, path: str) -> PythonFunction:
    """The function `module.function` of CREATE FUNCTION.

    Raises:
        PipelineError: there is none.
    """
    module, _, attribute = path.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise PipelineError(f"{name}: {path!r} cannot be imported: {error}; write 'module.function'") from error
    if not callable(function):
        raise PipelineError(f"{name}: {path!r} is no function")
    return python_function(name, function)


def _fields(name: str, hints: Mapping[str, Any]) -> tuple[Field, ...]:
    if not hints:
        return ()
    return schema_of(make_dataclass("Arguments", list(hints.items())), name).fields
