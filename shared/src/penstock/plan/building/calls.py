"""What is checked of functions that are awaited, and of how they are called."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.core.times import Duration, duration_us
from penstock.errors import PipelineError, function_name
from penstock.plan.building.functions import returned_class
from penstock.plan.operations.calls import CallSettings


def call_settings(
    verb: str,
    capacity: int,
    timeout: Duration | None,
    retries: int,
    retry_delay: Duration,
    retry_on: type[Exception] | tuple[type[Exception], ...],
    *,
    ordered: bool,
) -> CallSettings:
    """The settings of a verb's calls; raises `PipelineError` where they make no sense."""
    if capacity < 1:
        raise PipelineError(f"{verb}: capacity={capacity}: at least one call has to be allowed")
    if retries < 0:
        raise PipelineError(f"{verb}: retries={retries}: give how often a call is made again, 0 for never")
    errors = retry_on if isinstance(retry_on, tuple) else (retry_on,)
    for error in errors:
        if not (inspect.isclass(error) and issubclass(error, Exception)):
            raise PipelineError(f"{verb}: retry_on: {error!r} is no class of exceptions, such as ConnectionError")
    return CallSettings(
        capacity,
        None if timeout is None else duration_us(timeout, f"{verb}: timeout", positive=True),
        retries,
        duration_us(retry_delay, f"{verb}: retry_delay"),
        errors,
        ordered,
    )


def awaited_class(function: Callable[[Any], Awaitable[Any]], returns: type[Any] | None) -> type[Any]:
    """The row class that comes of awaiting what `function` returns.

    Raises:
        PipelineError: what it returns cannot be awaited, or is no row.
    """
    written: Any = function
    while isinstance(written, functools.partial):
        written = written.func
    called = written if inspect.isroutine(written) else type(written).__call__
    is_async = inspect.iscoroutinefunction(inspect.unwrap(called))
    promised = None if is_async else _promised(called)
    if not is_async and promised is None and inspect.isfunction(called) and called.__name__ != "<lambda>":
        raise PipelineError(
            f"map_async: {function_name(function)} is not async, and would hold up all calls; write async def, or use "
            "map if it waits for nobody"
        )
    return returned_class(written, returns if returns is not None else promised, "map_async", many=False)


def check_on_error(on_error: Callable[[Any, Exception], Any] | None) -> None:
    """What it gives is the result itself; raises `PipelineError` where it would have to be awaited."""
    called = on_error if inspect.isroutine(on_error) else type(on_error).__call__
    if on_error is not None and inspect.iscoroutinefunction(called):
        raise PipelineError(
            f"map_async: on_error={function_name(on_error)} is async, and nobody awaits it; write it with def, or handle "
            "the error in the function"
        )


def _promised(function: Any) -> Any:
    """`Output` of a function that is annotated `-> Awaitable[Output]` or the like."""
    try:
        returned = typing.get_type_hints(function).get("return")
    except (NameError, TypeError):
        return None
    origin = typing.get_origin(returned)
    arguments = typing.get_args(returned)
    return arguments[-1] if isinstance(origin, type) and issubclass(origin, Awaitable) and arguments else None
