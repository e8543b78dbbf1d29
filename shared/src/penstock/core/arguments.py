"""What is given to the public API is checked where it is given, against the annotations that editors read as well.

`checked` stands on every verb, function and constructor that users call. What the types cannot say (a range, a column
that is there) the function checks itself. Annotations are read when something is called for the first time: what they
import for typing alone (`pyarrow`, `polars`) is not loaded for it, such classes are known by their names.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

from penstock.errors import PipelineError, nearest

F = TypeVar("F", bound=Callable[..., Any])

_WORDS: Final[dict[str, str]] = {
    "str": "text", "int": "a whole number", "float": "a number", "bool": "True or False", "NoneType": "None",
    "type": "a class", "Callable": "a function", "PathLike": "a path", "Sequence": "a list", "Mapping": "a dict",
    "Lookup": 'a lookup such as postgres.Lookup("customers", ...)',
    "Iterable": "a list or another iterable", "TextIO": "an open file",
    "Expr": 'an expression such as col("price") > 0',
    "Accumulator": "an instance of a subclass of Accumulator",
    "BroadcastProcess": "an instance of a subclass of BroadcastProcess",
    "BroadcastStream": "a broadcast one (rules.broadcast())",
    "KeyedBroadcastProcess": "an instance of a subclass of KeyedBroadcastProcess",
    "KeyedCoProcess": "an instance of a subclass of KeyedCoProcess",
    "KeyedProcess": "an instance of a subclass of KeyedProcess",
    "KeyedStream": "a stream behind .key_by(...)",
    "OutputTag": 'a tag such as OutputTag("late")',
    "Process": "an instance of a subclass of Process",
    "Sink": 'a sink such as files.Sink("out")',
    "Source": 'a source such as files.Source("bids.jsonl", schema=Bid)',
    "Stream": "a stream",
    "WatermarkStrategy": "periodic(...) or punctuated(...)",
}  # fmt: skip
_INSTEAD: Final = {
    ("KeyedProcess", "Process"): "; a KeyedProcess needs .key_by(...) before it",
    ("KeyedCoProcess", "KeyedProcess"): "; a KeyedCoProcess needs .connect(...) before it",
    ("Process", "KeyedProcess"): "; after key_by only a KeyedProcess runs",
    ("BroadcastProcess", "Process"): "; a BroadcastProcess needs .connect(rules.broadcast()) before it",
    (
        "BroadcastProcess",
        "KeyedProcess",
    ): "; a BroadcastProcess is for a stream without key: .connect(rules.broadcast())",
    ("BroadcastProcess", "KeyedBroadcastProcess"): "; after key_by only a KeyedBroadcastProcess runs",
    ("KeyedBroadcastProcess", "Process"): "; a KeyedBroadcastProcess needs .key_by(...).connect(rules.broadcast())",
    ("KeyedBroadcastProcess", "KeyedProcess"): "; a KeyedBroadcastProcess needs .connect(rules.broadcast()) before it",
    ("KeyedBroadcastProcess", "BroadcastProcess"): "; a KeyedBroadcastProcess needs .key_by(...) before .connect(...)",
    ("KeyedBroadcastProcess", "KeyedCoProcess"): "; a KeyedBroadcastProcess needs .connect(rules.broadcast())",
    (
        "KeyedCoProcess",
        "KeyedBroadcastProcess",
    ): "; beside a broadcast stream a KeyedBroadcastProcess sees rows",
    ("KeyedStream", "BroadcastStream"): "; two streams with a key connect if both are behind .key_by(...)",
    ("UpsertStream", "BroadcastStream"): "; its rows replace earlier ones, and updates are not broadcast",
    ("Stream", "BroadcastStream"): "; write .broadcast() behind it, or .key_by(...) behind both",
    ("KeyedStream", "Stream"): "; give the stream before .key_by(...)",
    ("UpsertStream", "Stream"): "; its rows replace earlier ones: aggregate in windows, or take .final() of it",
}
"""What was given, what is taken: what to write."""
_CALLED_HERE: Final = {"slide": "every", "hop": "every", "period": "every", "lateness": "allowed_lateness"}
"""What Flink and Polars call arguments that another name lies nearer to."""
_POSITIONAL: Final = {
    "agg": "give every aggregate a name: agg(n=count(), total=col('price').sum())",
    "count": "count() is of all rows; of those with a value write col('price').count(), of some count(filter=...)",
}
"""How functions are written that take nothing by position; by their names."""
_WINDOW: Final = 'a window such as tumbling("10s")'


def checked(target: F) -> F:
    """A function, or a class with its constructor and public methods, that checks its arguments by their annotations.

    Raises:
        PipelineError: an argument is missing, unknown or of another type. The message names it, and what it takes.
    """
    if isinstance(target, type):
        for name, member in list(vars(target).items()):
            if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
                setattr(target, name, checked(member))
        return typing.cast("F", target)
    function: Any = target

    @functools.wraps(function)
    def check_and_call(*args: Any, **kwargs: Any) -> Any:
        given = _given(function, args, kwargs)
        return function(*given.args, **given.kwargs)

    return typing.cast("F", check_and_call)


def _given(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """The arguments as the function takes them, checked."""
    signature, label = _signature(function), _label(function)
    try:
        given = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise PipelineError(f"{label}: {_misfit(label, str(error), kwargs, signature)}") from None
    for name, value in given.arguments.items():
        given.arguments[name] = _checked(label, signature.parameters[name], function, value)
    return given


_signature = functools.cache(inspect.signature)  # asked for what is called, not for all that there is


def _label(function: Any) -> str:
    """What a function is called in messages: `filter`, `Pipeline`, `files.Source`."""
    if function.__name__ != "__init__":
        return function.__name__
    name = function.__qualname__.split(".")[-2].removeprefix("Declared")
    return f"{function.__module__.split('.')[2]}.{name}" if name in ("Source", "ChangeSource", "Sink") else name


def _misfit(label: str, reason: str, given: Mapping[str, Any], signature: inspect.Signature) -> str:
    for name in given:
        if name not in signature.parameters:
            known = [other for other in signature.parameters if other != "self"]
            return f"there is no argument {name}=; {_called_here(name, known)}"
    if reason.startswith("too many positional") and label in _POSITIONAL:
        return f"{reason}; {_POSITIONAL[label]}"
    return f"{reason}; it takes {_shown(signature)}"


def _called_here(name: str, known: list[str]) -> str:
    here = _CALLED_HERE.get(name)
    return f"did you mean {here!r}?" if here in known else nearest(name, known)


def _shown(signature: inspect.Signature) -> str:
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    return str(inspect.Signature(plain))


def _checked(label: str, parameter: inspect.Parameter, function: Any, value: Any) -> Any:
    """The value, a numpy scalar as Python has it; those of `*columns` or `**named` one by one."""
    if parameter.annotation is inspect.Parameter.empty:
        return value
    hint = _hint(function, parameter.annotation)
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return tuple(_one(label, f"*{parameter.name}", hint, each) for each in value)
    if parameter.kind is inspect.Parameter.VAR_KEYWORD and typing.get_origin(hint) is typing.Unpack:
        return _checked_options(label, typing.get_args(hint)[0], value)
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return {name: _one(label, f"{name}=", hint, each) for name, each in value.items()}
    return _one(label, f"{parameter.name}=", hint, value)


def _checked_options(label: str, options: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given of the options that a TypedDict names."""
    hints = hints_of(options)
    for name in given:
        if name not in hints:
            raise PipelineError(f"{label}: there is no argument {name}=; {nearest(name, list(hints))}")
    return {name: _one(label, f"{name}=", hints[name], value) for name, value in given.items()}


def plain(value: Any) -> Any:
    """A scalar of numpy as Python has it, anything else unchanged; does not load numpy."""
    scalar = type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item")
    return value.item() if scalar else value


def _one(label: str, name: str, hint: Any, value: Any) -> Any:
    value = plain(value)
    if fits(value, hint):
        return value
    choices = [each for part in _parts(hint) if typing.get_origin(part) is typing.Literal for each in part.__args__]
    if isinstance(value, str) and choices:
        raise PipelineError(f"{label}: there is no {name}{value!r}; {nearest(value, choices)}")
    raise PipelineError(f"{label}: {name} takes {_words(hint)}, got {_got(value)}{_advice(name, value, hint)}")


# -- annotations --------------------------------------------------------------------------------------------------------


class _NotLoaded(type):
    """A class that a module imports for typing alone: what bears its name is an instance of it."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NotLoaded(name, (), {})

    def __getitem__(cls, arguments: object) -> type:
        return cls

    def __instancecheck__(cls, value: object) -> bool:
        return any(base.__name__ == cls.__name__ for base in type(value).__mro__)


class _Names(dict[str, Any]):
    """The names of a module, and those that are none at run time."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)  # Python looks there itself
        return _NotLoaded(name, (), {})


@functools.cache
def hints_of(options: Any) -> dict[str, Any]:
    """What each option of a TypedDict takes."""
    module = sys.modules[options.__module__]
    return {name: _hint(module, written.__forward_arg__) for name, written in options.__annotations__.items()}


@functools.cache
def _hint(where: Any, annotation: str) -> Any:
    """What an annotation in one of our own functions or modules means. Constants are checked where they become nodes."""
    names = vars(where) if isinstance(where, types.ModuleType) else inspect.unwrap(where).__globals__
    return eval(annotation, {}, _Names(names, Operand=Any, Value=Any))


@functools.cache
def _parts(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(part for arm in typing.get_args(hint) for part in _parts(arm))
    return (hint,)


def fits(value: object, hint: Any) -> bool:
    """Whether a value is what an annotation says, as far as can be told without using it up."""
    parts = _parts(hint)
    return type(value) in parts or any(_fits_one(value, part) for part in parts)


def _fits_one(value: object, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if hint is None:
        return value is None
    if origin is typing.Literal:
        return value in arguments if isinstance(value, str) else False
    if origin is type:
        wanted = arguments[0]
        if wanted is Any or isinstance(wanted, TypeVar):
            return isinstance(value, type | typing.NewType) or typing.get_origin(value) is not None  # also list[float]
        return isinstance(value, type) and issubclass(value, wanted)
    kind = origin or hint
    if kind is typing.TextIO:
        return hasattr(value, "write")
    if kind in (int, float) and (isinstance(value, bool) or not isinstance(value, int | kind)):
        return False
    if kind is float:
        return True
    if isinstance(value, str | bytes) and kind not in (str, bytes, object):
        return False  # also an iterable of its characters, which nobody means
    return isinstance(value, kind) and _members_fit(value, arguments)


def _members_fit(value: Any, arguments: tuple[Any, ...]) -> bool:
    if isinstance(value, Mapping) and len(arguments) == 2:
        pairs = typing.cast("Mapping[Any, Any]", value).items()
        return all(fits(key, arguments[0]) and fits(each, arguments[1]) for key, each in pairs)
    if isinstance(value, list | tuple) and len(arguments) == 1 and not isinstance(arguments[0], TypeVar):
        return all(fits(each, arguments[0]) for each in typing.cast("Iterable[Any]", value))
    return True


# -- words --------------------------------------------------------------------------------------------------------------


def _words(hint: Any) -> str:
    parts = list(_parts(hint))
    found: list[str] = []
    if str in parts and timedelta in parts:
        found.append('a duration such as "10s"')
        parts = [part for part in parts if part not in (str, timedelta)]
    found += [_word(part) for part in parts]
    different = list(dict.fromkeys(found))
    return different[0] if len(different) == 1 else f"{', '.join(different[:-1])} or {different[-1]}"


def _word(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return ", ".join(repr(each) for each in arguments)
    name = "NoneType" if hint is None else getattr(origin or hint, "__name__", str(hint))
    if name.endswith("Window"):
        return _WINDOW
    if name == "Sequence" and arguments:
        return f"a list of {_words(arguments[0])}"
    return _WORDS.get(name, f"a {name}")


def _got(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {value.__name__}"
    if type(value).__repr__ is object.__repr__:
        return f"an instance of {type(value).__name__}"
    return f"{value!r:.80}"


OF_POLARS: Final = (
    "; that is an expression of Polars, and Penstock has its own: from penstock import col, count, lit, when"
)


def _advice(name: str, value: Any, hint: Any) -> str:
    """What was probably meant, for the end of the message."""
    names = {getattr(typing.get_origin(part) or part, "__name__", "") for part in _parts(hint)}
    if isinstance(value, type):
        return f"; give an instance: {value.__name__}()" if names & {base.__name__ for base in value.__mro__} else ""
    if inspect.isfunction(value):
        return f"; call it: {value.__name__}(...)" if value.__name__.isidentifier() else ""
    if type(value).__module__.startswith("polars."):
        return OF_POLARS if "Expr" in names else ""
    bases = {base.__name__ for base in type(value).__mro__}
    for (given, wanted), advice in _INSTEAD.items():
        if given in bases and wanted in names:
            return advice
    if "Expr" in bases and "str" in names:
        return "; it is one text for all rows, no expression (.with_columns(name=...) makes an expression a column)"
    if isinstance(value, str) and "Expr" in names:
        return f"; a column is col({value!r})" if value.isidentifier() else '; a column is col("name")'
    if name.startswith("*") and isinstance(value, list | tuple):
        return "; give them one by one, without a list"
    return ""
