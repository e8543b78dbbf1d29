"""Functions of JSON text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.errors import PipelineError
from penstock.expressions import Expr, concat_str, lit, when
from penstock.expressions.nodes import Call, Case
from penstock.sql.functions.arguments import (
    argument,
    call,
    cast_to,
    constant_text,
    is_null_constant,
    need_text,
    null_of,
)
from penstock.sql.functions.casts import cast
from penstock.sql.functions.function import Argument, Options, ScalarFunction
from penstock.types import BOOLEAN, STRING, DataType

_WRAPPERS: Final = ("without", "conditional", "unconditional")


def _text_and_path(name: str, arguments: Sequence[Argument]) -> tuple[Argument, str]:
    text, path = arguments
    return need_text(name, text), constant_text(name, path, "a path")


def _json_value(arguments: Sequence[Argument], options: Options) -> Expr:
    """`returning` is a type, `on_empty` and `on_error` are "null", "error" or ("default", Argument)."""
    name = "JSON_VALUE"
    text, path = _text_and_path(name, arguments)
    kind: DataType = options.get("returning") or STRING
    on_empty, on_error = options.get("on_empty") or "null", options.get("on_error") or "null"
    for behaviour in (on_empty, on_error):
        if behaviour not in ("null", "error") and not isinstance(behaviour, tuple):
            raise PipelineError(f"{name}: ON EMPTY and ON ERROR take NULL, ERROR or DEFAULT value")
    if is_null_constant(text):
        return null_of(kind)
    said = {"on_empty": _setting(on_empty), "on_error": _setting(on_error)}
    found = call("sql.json_value", text, path=path, **said)
    strict = _setting(on_error) == "error"
    value = found if kind == STRING else cast(argument(found, STRING, nullable=True), kind, strict)
    if isinstance(on_empty, str) and isinstance(on_error, str):
        return value
    state = call("sql.json_state", text, path=path)
    branches = [(text.expr.is_null().node, null_of(kind).node)]
    if not isinstance(on_empty, str):
        branches.append(((state == "empty").node, _default(on_empty, kind).node))
    if not isinstance(on_error, str):
        failed = state.is_null() | ((state == "found") & value.is_null())
        branches.append((failed.node, _default(on_error, kind).node))
    return Expr(Case(tuple(branches), value.node))


def _setting(behaviour: Any) -> str | None:
    return "error" if behaviour == "error" else None


def _default(behaviour: tuple[str, Argument], kind: DataType) -> Expr:
    return cast(behaviour[1], kind)


def _json_query(arguments: Sequence[Argument], options: Options) -> Expr:
    """`wrapper` is "without", "conditional" or "unconditional"; `on_empty` and `on_error` are "null", "error", "empty
    array" or "empty object"."""
    name = "JSON_QUERY"
    text, path = _text_and_path(name, arguments)
    if is_null_constant(text):
        return null_of(STRING)
    if (options.get("returning") or STRING) != STRING:
        raise PipelineError(f"{name} gives a STRING; RETURNING another type is not supported")
    wrapper = options.get("wrapper") or "without"
    if wrapper not in _WRAPPERS:
        raise PipelineError(f"{name}: there are {', '.join(_WRAPPERS)} wrappers, got {wrapper!r}")
    said = {part: options.get(part) or "null" for part in ("on_empty", "on_error")}
    for behaviour in said.values():
        if behaviour not in ("null", "error", "empty array", "empty object"):
            raise PipelineError(f"{name}: ON EMPTY and ON ERROR take NULL, ERROR, EMPTY ARRAY or EMPTY OBJECT")
    found = call("sql.json_query", text, path=path, wrapper=wrapper, **said)
    return call("sql.json", found)


def _json_exists(arguments: Sequence[Argument], options: Options) -> Expr:
    """`on_error` is "false", "true", "unknown" or "error"."""
    name = "JSON_EXISTS"
    text, path = _text_and_path(name, arguments)
    on_error = options.get("on_error") or "false"
    if on_error not in ("false", "true", "unknown", "error"):
        raise PipelineError(f"{name}: ON ERROR takes TRUE, FALSE, UNKNOWN or ERROR")
    return null_of(BOOLEAN) if is_null_constant(text) else call("sql.json_exists", text, path=path, on_error=on_error)


def json_text(value: Argument) -> Expr:
    """A value as it stands within JSON; what is JSON already stands as it is."""
    if is_null_constant(value):
        return null_of(STRING)
    node = value.expr.node
    if isinstance(node, Call) and node.function == "sql.json":
        return value.expr
    return call("sql.json_text", value)


def _json_string(arguments: Sequence[Argument], _: Options) -> Expr:
    return call("sql.json", json_text(arguments[0]))


def _or_null(value: Argument) -> Expr:
    return call("fill_null", json_text(value), "null") if value.nullable else json_text(value)


def member(key: Argument, value: Argument) -> Expr:
    """`"key":value`.

    Raises:
        PipelineError: the key can be null.
    """
    if key.nullable or is_null_constant(key):
        raise PipelineError("a key of JSON cannot be null, and this one can; write COALESCE(key, '...')")
    return concat_str(json_text(need_text("a key of JSON", key)), lit(":"), _or_null(value))


def _json_object(arguments: Sequence[Argument], options: Options) -> Expr:
    """`on_null` is "null" or "absent"."""
    if len(arguments) % 2:
        raise PipelineError("JSON_OBJECT needs a value for every key")
    pairs = list(zip(arguments[::2], arguments[1::2], strict=True))
    absent = (options.get("on_null") or "null") == "absent"
    members = [_unless_null(value, member(key, value)) if absent else member(key, value) for key, value in pairs]
    return call("sql.json", _joined("{", members, "}"))


def _unless_null(value: Argument, text: Expr) -> Expr:
    return when(value.expr.is_not_null()).then(text) if value.nullable or is_null_constant(value) else text


def _json_array(arguments: Sequence[Argument], options: Options) -> Expr:
    """`on_null` is "absent" or "null"."""
    absent = (options.get("on_null") or "absent") == "absent"
    parts = [cast_to(json_text(value), STRING) if absent else _or_null(value) for value in arguments]
    return call("sql.json", _joined("[", parts, "]"))


def _joined(opening: str, parts: Sequence[Expr], closing: str) -> Expr:
    if not parts:
        return lit(opening + closing)
    return concat_str(lit(opening), concat_str(*parts, separator=",", ignore_nulls=True), lit(closing))


def _is_json(keywords: str, kind: str) -> ScalarFunction:
    negated = keywords.startswith("IS NOT")

    def build(arguments: Sequence[Argument], options: Options) -> Expr:
        """`kind` is "value", "object", "array" or "scalar"."""
        text = need_text(keywords, arguments[0])
        if is_null_constant(text):
            return null_of(BOOLEAN)
        found = call("sql.is_json", text, kind=options.get("kind") or kind)
        return ~found if negated else found

    what = "JSON" if kind == "value" else f"JSON and {'an' if kind[0] in 'ao' else 'a'} {kind}"
    doc = f"Whether the text is {'not ' if negated else ''}{what}; null of null."
    aliases = (f"{keywords} VALUE",) if kind == "value" else ()
    return ScalarFunction(keywords, f"x {keywords}", doc, build, 1, 1, aliases)


_NAMES: Final = (("JSON", "value"), ("JSON OBJECT", "object"), ("JSON ARRAY", "array"), ("JSON SCALAR", "scalar"))

ROWS: Final = (
    ScalarFunction("JSON_VALUE", "JSON_VALUE(text, path [RETURNING type] [NULL | ERROR | DEFAULT x ON EMPTY] [... ON "
                   "ERROR])", "The scalar at a constant path ('$.a[0]', 'strict $.a'); null where there is none, or as "
                   "ON EMPTY (nothing, null, or no scalar) and ON ERROR (no JSON) say.", _json_value, 2, 2),
    ScalarFunction("JSON_QUERY", "JSON_QUERY(text, path [WITHOUT | WITH [CONDITIONAL] WRAPPER] [... ON EMPTY] [... ON "
                   "ERROR])", "The array or object at a constant path as JSON; null where there is none.", _json_query,
                   2, 2),
    ScalarFunction("JSON_EXISTS", "JSON_EXISTS(text, path [TRUE | FALSE | UNKNOWN | ERROR ON ERROR])", "Whether there is "
                   "a value other than null at a constant path.", _json_exists, 2, 2),
    ScalarFunction("JSON_STRING", "JSON_STRING(x)", "The value as JSON; null of null.", _json_string, 1, 1),
    ScalarFunction("JSON_OBJECT", "JSON_OBJECT([KEY] key VALUE x, ... [NULL | ABSENT ON NULL])", "A JSON object of these "
                   "members, whose keys are never null.", _json_object, 0, None),
    ScalarFunction("JSON_ARRAY", "JSON_ARRAY(x, ... [ABSENT | NULL ON NULL])", "A JSON array of these elements, by "
                   "default without nulls.", _json_array, 0, None),
    *(_is_json(f"IS {name}", kind) for name, kind in _NAMES),
    *(_is_json(f"IS NOT {name}", kind) for name, kind in _NAMES),
)  # fmt: skip
