"""Python functions and aggregates that texts call, with types from their annotations."""

from __future__ import annotations

import importlib
import inspect
import types
import typing
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, make_dataclass
from typing import Any

from penstock.errors import PipelineError
from penstock.expressions.accumulators import Accumulator, result_type
from penstock.sql.functions.catalogue import AGGREGATES, SCALAR
from penstock.sql.functions.function import PythonAggregate
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


def python_function(
    name: str, function: Callable[..., Any] | Accumulator[Any, Any]
) -> PythonFunction | PythonAggregate:
    """A function, or an `Accumulator`, with its types. What returns an iterator gives a row for every element.

    Raises:
        PipelineError: it has no annotations, or such as no column can have; or SQL has a function of the name.
    """
    if name.upper() in SCALAR or name.upper() in AGGREGATES:
        raise PipelineError(f"{name}: SQL has a function {name.upper()}; give yours another name")
    if inspect.isclass(function) and issubclass(function, Accumulator):
        try:
            function = function()
        except TypeError as error:
            raise PipelineError(f"{name}: {error}; an aggregate is a class that is made without arguments") from error
    if isinstance(function, Accumulator):
        return _python_aggregate(name, function)
    if inspect.iscoroutinefunction(function):
        raise PipelineError(f"{name}: SQL calls no async functions; use map_async of the stream")
    hints, parameters = _annotated(name, function)
    if any(each.kind not in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters):
        raise PipelineError(f"{name}: SQL gives arguments by their place; *args, **kwargs and keywords are not for it")
    missing = [each.name for each in parameters if each.name not in hints]
    if missing or "return" not in hints:
        what = f"{missing[0]}" if missing else "what it returns"
        raise PipelineError(f"{name}: {what} has no annotation; write for example def {name}(price: float) -> float")
    fields = _fields(name, {each.name: hints[each.name] for each in parameters})
    (gives,) = _fields(name, {"returned": _as_list(hints["return"])})
    least = sum(each.default is each.empty for each in parameters)
    return PythonFunction(name.upper(), function, fields, least, gives)


def _python_aggregate(name: str, accumulator: Accumulator[Any, Any]) -> PythonAggregate:
    result_type(accumulator)
    hints, (_, *parameters) = _annotated(name, accumulator.add)
    if any(each.kind not in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters):
        raise PipelineError(f"{name}: SQL gives arguments by their place; add takes *args, **kwargs or keywords")
    missing = [each.name for each in parameters if each.name not in hints]
    if missing or not parameters:
        what = f"{missing[0]} of add has no annotation" if missing else "add takes no value"
        raise PipelineError(
            f"{name}: {what}; write for example def add(self, accumulator: float, value: float) -> float"
        )
    fields = _fields(name, {each.name: hints[each.name] for each in parameters})
    return PythonAggregate(name.upper(), accumulator, fields)


def _annotated(name: str, function: Callable[..., Any]) -> tuple[dict[str, Any], list[inspect.Parameter]]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        return hints, list(inspect.signature(function).parameters.values())
    except (NameError, TypeError, ValueError) as error:
        raise PipelineError(f"{name}: its annotations cannot be read: {error}") from error


def _as_list(hint: Any) -> Any:
    """What a generator gives, as a list."""
    origin = typing.get_origin(hint)
    if origin in (Iterator, Iterable, Generator):
        return list[typing.get_args(hint)[0]]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(_as_list, typing.get_args(hint)))]  # noqa: UP007 - of parts that are computed
    return hint


def imported(name: str, path: str) -> PythonFunction | PythonAggregate:
    """The function that CREATE FUNCTION names as 'module.function', or the class of an `Accumulator`.

    Raises:
        PipelineError: there is none.
    """
    module, _, attribute = path.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise PipelineError(f"{name}: {path!r} cannot be imported: {error}; write 'module.function'") from error
    if not callable(function) and not isinstance(function, Accumulator):
        raise PipelineError(f"{name}: {path!r} is no function")
    return python_function(name, function)


def _fields(name: str, hints: Mapping[str, Any]) -> tuple[Field, ...]:
    if not hints:
        return ()
    return schema_of(make_dataclass("Arguments", list(hints.items())), name).fields
