"""Catalogue rows that only SQL asks for: values found in JSON text by a path, told apart from those that are not there.

Polars finds text by a path too, but does not tell a text from an object, nothing from null, and text that is no JSON
from either; SQL's ON EMPTY and ON ERROR ask for just that. So texts are parsed, each different one of a batch once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.expressions.functions import Function, Lowering, polars
from penstock.expressions.typing_rules import Arguments, Rule, TypeMismatchError, Typing, check
from penstock.types import BOOLEAN, STRING, DataType, polars_type

if TYPE_CHECKING:
    import polars as pl

_STEP: Final = re.compile(
    r"""\.(?P<member>[^\W\d][\w-]*)|\.(?P<all>\*)|\[(?P<index>\d+)\]|\[(?P<every>\*)\]|\['(?P<single>[^']+)'\]"""
    r"""|\["(?P<double>[^"]+)"\]"""
)
_PATH: Final = re.compile(r"\s*(?:(?P<mode>(?i:lax|strict))\s+)?\$(?P<steps>.*?)\s*", re.DOTALL)
_ALL: Final = object()
Step = str | int | object


class PathError(Exception):
    """What strict mode does not forgive, or text that is no JSON."""


def parsed_path(path: str) -> tuple[bool, list[Step]]:
    """Whether a path is strict, and its steps.

    Raises:
        TypeMismatchError: it is no path.
    """
    found = _PATH.fullmatch(path)
    steps: list[Step] = []
    rest = found["steps"] if found else "?"
    place = 0
    for step in _STEP.finditer(rest):
        if step.start() != place:
            break
        place = step.end()
        if step["index"] is not None:
            steps.append(int(step["index"]))
        elif step["all"] or step["every"]:
            steps.append(_ALL)
        else:
            steps.append(step["member"] or step["single"] or step["double"])
    if found is None or place != len(rest):
        raise TypeMismatchError(
            f"{path!r} is no path that is supported; write for example '$.user.name', '$.items[0]', '$.items[*]' or "
            "'strict $.a', without filters"
        )
    return bool(found["mode"]) and found["mode"].lower() == "strict", steps


def _refused(name: str) -> Any:
    raise ValueError(name)


def _read(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise PathError("the text is no JSON") from error


def _found(value: Any, steps: Sequence[Step], *, strict: bool) -> Iterator[Any]:
    if not steps:
        yield value
        return
    step, rest = steps[0], steps[1:]
    members = value  # not narrowed, so that a step may be a key or an index
    if step is _ALL:
        inner: Sequence[Any] = (
            value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else ()
        )
        for part in inner:
            yield from _found(part, rest, strict=strict)
    elif (isinstance(step, int) and isinstance(value, list) and step < len(value)) or (
        isinstance(step, str) and isinstance(value, dict) and step in value
    ):
        yield from _found(members[step], rest, strict=strict)
    elif strict:
        raise PathError("there is no such value")


def _spelled(value: Any) -> str:
    """A scalar as text."""
    if isinstance(value, str):
        return value
    return "true" if value is True else "false" if value is False else str(value)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _value(text: str, strict: bool, steps: Sequence[Step]) -> str | None:
    """A scalar; None if there is none.

    Raises:
        PathError: the text is no JSON, or strict mode does not find a scalar.
    """
    values = list(_found(_read(text), steps, strict=strict))
    scalar = len(values) == 1 and not isinstance(values[0], list | dict)
    if not scalar and strict:
        raise PathError("the value is no scalar")
    return _spelled(values[0]) if scalar and values[0] is not None else None


def _query(text: str, strict: bool, steps: Sequence[Step], wrapper: str) -> str | None:
    values = list(_found(_read(text), steps, strict=strict))
    definite = _ALL not in steps
    if definite and (not values or values[0] is None):
        return None
    if not definite:
        return _compact(values)
    (value,) = values
    if wrapper == "unconditional" or (wrapper == "conditional" and not isinstance(value, list | dict)):
        return _compact([value])
    if not isinstance(value, list | dict):
        if strict:
            raise PathError("the value is neither array nor object")
        return None
    return _compact(value)


def _exists(text: str, strict: bool, steps: Sequence[Step]) -> bool:
    values = list(_found(_read(text), steps, strict=strict))
    return bool(values) and (values[0] is not None or _ALL in steps)


def _json_rule(gives: DataType) -> Rule:
    def rule(arguments: Arguments) -> Typing:
        check(arguments, 0, {STRING})
        if "path" in arguments.options:
            parsed_path(str(arguments.options["path"]))
        return Typing(gives, True, (STRING,))

    return rule


_EMPTY: Final = {"null": None, "empty array": "[]", "empty object": "{}", "true": True, "false": False, "unknown": None}


def _asked(ask: Callable[..., Any], gives: DataType) -> Callable[[Lowering], pl.Expr]:
    """For every different text: what is found, or what ON EMPTY and ON ERROR say."""

    def lower(call: Lowering) -> pl.Expr:
        strict, steps = parsed_path(str(call.option("path")))
        on_empty, on_error = str(call.option("on_empty", "null")), str(call.option("on_error", "null"))
        more = [str(call.option("wrapper"))] if call.option("wrapper") else []

        def one(text: str) -> Any:
            try:
                found = ask(text, strict, steps, *more)
            except PathError as error:
                if on_error != "error":
                    return _EMPTY[on_error]
                raise polars().exceptions.ComputeError(f"{call.option('path')}: {error}: {text!r:.100}") from None
            if found is None:
                if on_empty == "error":
                    raise polars().exceptions.ComputeError(
                        f"{call.option('path')}: there is no such value: {text!r:.100}"
                    )
                return _EMPTY[on_empty]
            return found

        return _each(call[0], one, gives)

    return lower


def _each(value: pl.Expr, one: Callable[[str], Any], gives: DataType) -> pl.Expr:
    def apply(column: pl.Series) -> pl.Series:
        pl = polars()
        known: dict[str, Any] = {}
        found = [None if text is None else known[text] if text in known else known.setdefault(text, one(text))
                 for text in column]  # fmt: skip
        return pl.Series(column.name, found, dtype=polars_type(gives))

    return value.map_batches(apply, polars_type(gives), is_elementwise=True)


_KINDS: Final[dict[str, Callable[[Any], bool]]] = {
    "value": lambda value: True,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "scalar": lambda value: not isinstance(value, list | dict),
}


def _is_json(call: Lowering) -> pl.Expr:
    fits = _KINDS[str(call.option("kind"))]

    def one(text: str) -> bool:
        try:
            return fits(_read(text))
        except PathError:
            return False

    return _each(call[0], one, BOOLEAN)


def _row(name: str, usage: str, gives: DataType, lower: Callable[[Lowering], pl.Expr], doc: str) -> Function:
    return Function(f"sql.{name}", usage, _json_rule(gives), lower, doc, (name,), polars_lacks=True)


def _state(text: str, strict: bool, steps: Sequence[Step]) -> str:
    return "empty" if _value(text, strict, steps) is None else "found"


ROWS: Final[Sequence[Function]] = (
    _row("json_value", "JSON_VALUE(x, path)", STRING, _asked(_value, STRING),
         "The scalar at a path as text; null where there is none."),
    _row("json_state", "JSON_VALUE(x, path)", STRING, _asked(_state, STRING),
         "Whether there is a scalar at a path: found or empty; null where the text is no JSON, or strict does not find "
         "it."),
    _row("json_query", "JSON_QUERY(x, path)", STRING, _asked(_query, STRING),
         "The array or object at a path as JSON; null where there is none."),
    _row("json_exists", "JSON_EXISTS(x, path)", BOOLEAN, _asked(_exists, BOOLEAN), "Whether there is a value at a path."),
    _row("is_json", "x IS JSON", BOOLEAN, _is_json, "Whether a text is JSON."),
)  # fmt: skip
