"""What becomes of the rows of a window that fires: a function of the user's is called, or they are to be aggregated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

from penstock.errors import PenstockError, UserCodeError
from penstock.functions.process_functions import KeyedProcess, OpenContext
from penstock.functions.windows.assigners import Bounds
from penstock.functions.windows.process import MADE_BY, Kept, WindowContext, WindowProcess, declared_rows
from penstock.functions.windows.window_functions import TimeWindow, WindowFunction


class Fired(NamedTuple):
    """What a window with aggregates gives when it fires: the operator evaluates it."""

    key: Any
    bounds: Bounds
    rows: list[Kept]
    retracted: bool


class FunctionProcess(WindowProcess):
    """Calls a function of the user's with the rows of a window."""

    def __init__(self, function: WindowFunction[Any, Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._function = function

    def open(self, context: OpenContext) -> None:
        self._function.open(context)

    def close(self) -> None:
        self._function.close()

    def deliver(self, bounds: Bounds, rows: list[Kept], ctx: WindowContext, *, retracted: bool = False) -> None:
        window = self._time_window(bounds)
        try:
            self._function.apply(ctx.key, window, [row for _, _, row in rows], ctx)
        except PenstockError:
            raise
        except Exception as error:  # whatever the user's function raises
            raise UserCodeError(
                f"apply: {type(self).__name__} raised {type(error).__name__}: {error}; key {ctx.key!r}, "
                f"window {window.start} to {window.end}, {len(rows)} rows"
            ) from error


class PlainFunction(WindowFunction[Any, Any]):
    """A window function that is a plain function, which gives its rows back."""

    def __init__(self, function: Callable[[Any, TimeWindow, list[Any]], Iterable[Any]]) -> None:
        self._function = function

    def apply(self, key: Any, window: TimeWindow, rows: Any, ctx: Any) -> None:
        for row in self._function(key, window, rows):
            ctx.emit(row)


class AggregateProcess(WindowProcess):
    """Hands the rows of a window on to the operator, which aggregates those of many firings at once."""

    def __init__(self, *args: Any, retracts: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._retracts = retracts

    def deliver(self, bounds: Bounds, rows: list[Kept], ctx: WindowContext, *, retracted: bool = False) -> None:
        ctx.emit(Fired(ctx.key, bounds, rows, retracted))


def typed(kind: type[WindowProcess], name: str, taken: type[Any], given: type[Any]) -> type[Any]:
    """A class of this kind for rows `taken` that gives rows `given`: states are declared by class."""
    of = cast("Any", KeyedProcess)[taken, given]
    made = type(name, (kind,), {"rows": declared_rows(taken), "__orig_bases__": (of,)})
    setattr(made, MADE_BY, (typed, (kind, name, taken, given)))
    made.__module__ = __name__
    return made
