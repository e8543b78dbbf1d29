"""What can be told of a process function before a row flows: methods that nobody calls, rows that go nowhere.

The classes themselves and their types are checked in `penstock.functions.process_functions`; here stands what reading
the code of the user's methods shows. Only what is certain is refused: where the source cannot be read, nothing is.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.errors import PipelineError, nearest
from penstock.functions.process_functions import (
    BROADCAST,
    AnyProcess,
    BroadcastState,
    KeyedCoProcess,
    KeyedProcess,
    Process,
    input_choices,
    input_methods,
    is_per_batch,
)
from penstock.state.declarations import State, declared_states

_BASES = (Process, KeyedProcess, KeyedCoProcess, *BROADCAST)
_OURS = frozenset(above for base in _BASES for above in base.__mro__)
_TIMERS = ("event_timer", "processing_timer")
_TIMERS_OF_BATCHES = tuple(f"{timer}s" for timer in _TIMERS)
_BROADCAST_WRITES = ("set", "remove", "clear")


def check_methods(process: AnyProcess, *, event_time: bool) -> None:
    """Check the methods of a process.

    Args:
        process: an instance of the user's class.
        event_time: whether its stream has event time.

    Raises:
        PipelineError: one is missing, gives rows back instead of emitting them, or sets a timer that cannot fire.
    """
    name = type(process).__name__
    methods = dict(_methods(type(process)))
    for attribute, value in vars(process).items():
        if isinstance(value, State):
            raise PipelineError(
                f"process: {name} makes the state {attribute!r} in __init__; declare it in the class: "
                f"{attribute} = {type(value).__name__}(...)"
            )
    called = input_methods(process)
    for wanted, choices in zip(called, input_choices(process), strict=True):
        if wanted not in methods:
            others = [each for each in methods if each.startswith("on_") and each not in (*called, "on_timer")]
            near = [nearest(each, others) for each in choices]
            close = [each.removeprefix("did you mean ").rstrip("?") for each in near if "'" in each]
            found = f"; {close[0]} is called by nobody" if close else ""
            instead = "".join(f", and no {each}(self, frame, ctx)" for each in choices if is_per_batch(each))
            behind = _behind(type(process), [each for each in choices if each not in methods])
            raise PipelineError(
                f"process: class {name} has no {wanted}(self, row, ctx), which is called per row{instead}{found}{behind}"
            )
    for method in (*called, "on_timer"):
        if method in methods:
            check = _check_is_called if is_per_batch(method) else _check_gives_nothing
            check(f"{name}.{method}", methods[method])
    for method in ("open", "close"):
        if method in methods:
            _check_runs(f"{name}.{method}", methods[method])
    if isinstance(process, BROADCAST):
        _check_sides(name, called[0], methods, declared_states(process))
    _check_timers(name, methods, event_time=event_time)


def _methods(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions of the user's classes, mixins too, that are called; those of derived ones last."""
    for base in reversed(_users(cls)):
        for name, value in vars(base).items():
            if inspect.isfunction(value) and not _is_hidden(cls, name, value):
                yield name, value


def _users(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base not in _OURS]


def _is_hidden(cls: type, name: str, function: Any) -> bool:
    """Whether a base of the library stands before the class that has it, with a method of this name."""
    found = next(base for base in cls.__mro__ if name in vars(base))
    return found in _OURS and vars(found)[name] is not function


def _behind(cls: type, wanted: Sequence[str]) -> str:
    """What to write where one stands in a class behind that of the library."""
    for base in _users(cls):
        for name in wanted:
            if inspect.isfunction(vars(base).get(name)):
                kind = next(each.__name__ for each in _BASES if issubclass(cls, each))
                return (
                    f"; that of {base.__name__} is hidden by {kind}, which stands before it: write "
                    f"class {cls.__name__}({base.__name__}, {kind}[...])"
                )
    return ""


def _check_timers(name: str, methods: dict[str, Callable[..., Any]], *, event_time: bool) -> None:
    setting = {
        timer: method
        for method, function in methods.items()
        for timer in (*_TIMERS, *_TIMERS_OF_BATCHES)
        if timer in function.__code__.co_names
    }
    for timer, method in setting.items():
        if "on_timer" not in methods:
            raise PipelineError(
                f"process: {name}.{method} sets timers, and class {name} has no on_timer(self, at, ctx) for them"
            )
        if timer in ("event_timer", "event_timers") and not event_time:
            instead = timer.replace("event", "processing")
            raise PipelineError(
                f"process: {name}.{method} sets an event timer, and the stream has no event time, so that it would fire "
                f"at the end of the input only; say event_time='column' at the source, or use ctx.{instead}"
            )


# -- which side may touch what -------------------------------------------------------------------------------------------


def _check_sides(name: str, per_key: str, methods: dict[str, Callable[..., Any]], states: dict[str, State]) -> None:
    """`on_broadcast` uses nothing of a key, the other methods that are called do not write broadcast state."""
    for method in (per_key, "on_timer", "open", "close"):
        for state, called in _calls_on_self(methods.get(method)):
            if isinstance(states.get(state), BroadcastState) and called in _BROADCAST_WRITES:
                raise PipelineError(
                    f"process: {name}.{method} writes the broadcast state {state!r} (.{called}), which only on_broadcast "
                    "may do: it must be the same in every subtask; keep what belongs to a key in keyed state"
                )
    for state, _ in _calls_on_self(methods.get("on_broadcast")):
        if state in states and states[state].keyed:
            raise PipelineError(
                f"process: {name}.on_broadcast uses the state {state!r}, which belongs to a key, and a broadcast row has "
                f"none; keep what it says in a BroadcastState, and use it in {per_key}"
            )
    broadcast = methods["on_broadcast"]
    timers = (*_TIMERS, *_TIMERS_OF_BATCHES)
    for called in ("key", "keys", *timers, *(f"delete_{timer}" for timer in timers)):
        if called in _read_of(broadcast, list(inspect.signature(broadcast).parameters)[-1:]):
            raise PipelineError(
                f"process: {name}.on_broadcast uses ctx.{called}, and a broadcast row, which comes to every subtask, has "
                f"no key; use it in {per_key} or on_timer"
            )


def _calls_on_self(method: Callable[..., Any] | None) -> list[tuple[str, str]]:
    """`attribute` and `name` of each `self.attribute.name` in a method, as far as its source can be read."""
    function = _source_of(method)
    if method is None or function is None:
        return []
    own = next(iter(inspect.signature(method).parameters), "")
    return [
        (inner, outer)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute)
        for outer, inner in [(node.attr, node.value.attr)]
        if isinstance(node.value.value, ast.Name) and node.value.value.id == own
    ]


def _read_of(method: Callable[..., Any], names: list[str]) -> set[str]:
    """What of these arguments a method looks at, by name."""
    function = _source_of(method)
    return {
        node.attr
        for node in (ast.walk(function) if function is not None else ())
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names
    }


# -- rows that go nowhere -----------------------------------------------------------------------------------------------


def _check_runs(where: str, method: Callable[..., Any]) -> None:
    _refuse_async(where, method)
    if inspect.isgeneratorfunction(method):
        raise PipelineError(f"process: {where} yields, and so nothing of it runs; write it without yield")


def _refuse_async(where: str, method: Callable[..., Any]) -> None:
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        raise PipelineError(f"process: {where} is async, and nobody awaits it; write it with def")


def _check_is_called(where: str, method: Callable[..., Any]) -> None:
    _refuse_async(where, method)
    if inspect.isgeneratorfunction(method):
        raise PipelineError(
            f"process: {where} yields, and nobody takes what it yields; give several frames with ctx.emit(frame)"
        )


def _check_gives_nothing(where: str, method: Callable[..., Any]) -> None:
    emit = "rows are sent on with ctx.emit(row)"
    _refuse_async(where, method)
    if inspect.isgeneratorfunction(method):
        raise PipelineError(f"process: {where} yields, and nobody takes what it yields; {emit}")
    returned = _returned(method)
    if returned is not None:
        line = method.__code__.co_firstlineno + returned.lineno - 1
        raise PipelineError(
            f"process: {where} returns {ast.unparse(returned):.60} (line {line}), and nobody takes it; {emit}"
        )


def _returned(method: Callable[..., Any]) -> ast.expr | None:
    """What a method returns if that is certainly something: its row, a new object of a class, a display or constant."""
    function = _source_of(method)
    if function is None:
        return None
    arguments = set(inspect.signature(method).parameters)
    for node in _statements(function):
        value = node.value if isinstance(node, ast.Return) else None
        if value is not None and _is_something(value, arguments, method.__globals__):
            return value
    return None


def _source_of(method: Callable[..., Any] | None) -> ast.AST | None:
    """The function as it is written; None if that cannot be read."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(method))).body[0] if method is not None else None
    except (OSError, TypeError, SyntaxError):
        return None


def _statements(function: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function, without the functions in it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _statements(child)


def _is_something(value: ast.expr, arguments: set[str], names: dict[str, Any]) -> bool:
    match value:
        case ast.Constant(value=constant):
            return constant is not None
        case ast.Name(id=name):
            return name in arguments
        case ast.Call(func=ast.Name(id=name)):
            return isinstance(names.get(name), type)
        case ast.List() | ast.Tuple() | ast.Dict() | ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
            return True
        case _:
            return False
