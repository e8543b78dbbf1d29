"""Functions of arrays, maps and rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from penstock.errors import PipelineError
from penstock.expressions import Expr
from penstock.expressions.functions_building import names_option
from penstock.sql.functions.arguments import (
    call,
    constant_text,
    is_null_constant,
    need_integer,
    need_text,
    null_of,
    sql_name,
)
from penstock.sql.functions.conditions import aligned
from penstock.sql.functions.function import Argument, Options, ScalarFunction
from penstock.types import BOOLEAN, INT64, STRING, DataType, ListType, MapType

Build = Callable[[Sequence[Argument], Options], Expr]
_MARKS: Final = frozenset("<([{\\^-=$!|]})?*+.>")


def _need_array(name: str, value: Argument) -> ListType:
    if not isinstance(value.type, ListType):
        raise PipelineError(f"{name} needs an ARRAY, got {sql_name(value.type)}")
    return value.type


def _need_map(name: str, value: Argument) -> MapType:
    if not isinstance(value.type, MapType):
        raise PipelineError(f"{name} needs a MAP, got {sql_name(value.type)}")
    return value.type


def _array(arguments: Sequence[Argument], _: Options) -> Expr:
    return call("sql.array", *aligned(arguments, "ARRAY"))


def _map(arguments: Sequence[Argument], _: Options) -> Expr:
    if len(arguments) % 2:
        raise PipelineError("MAP needs a value for every key")
    for key in arguments[::2]:
        need_text("MAP", key)
    values = aligned(arguments[1::2], "MAP")
    pairs = zip(arguments[::2], values, strict=True)
    return call("sql.map", *(part for pair in pairs for part in pair))


def _row(arguments: Sequence[Argument], options: Options) -> Expr:
    names = options.get("names") or [f"EXPR${place}" for place in range(len(arguments))]
    return call("struct", *arguments, names=names_option(tuple(names)))


def _of_array(name: str, build: Callable[[Expr], Expr]) -> Build:
    def checked(arguments: Sequence[Argument], _: Options) -> Expr:
        _need_array(name, arguments[0])
        return build(arguments[0].expr)

    return checked


def _with_element(name: str, function: str, gives: DataType | None = None, *, null: bool = False) -> Build:
    """A function of an array and an element; `null`: of NULL it is null."""

    def checked(arguments: Sequence[Argument], _: Options) -> Expr:
        whole, element = arguments
        kind = _need_array(name, whole)
        if is_null_constant(element):
            if null:
                return null_of(gives or kind)
            return call(function, whole, null_of(kind.inner))
        return call(function, whole, element)

    return checked


def _several(name: str, function: str) -> Build:
    def checked(arguments: Sequence[Argument], _: Options) -> Expr:
        for value in arguments:
            _need_array(name, value)
        found = arguments[0].expr
        for value in arguments[1:]:
            found = call(function, found, value)
        return found

    return checked


def _sort(arguments: Sequence[Argument], _: Options) -> Expr:
    _need_array("ARRAY_SORT", arguments[0])
    flags = [_flag("ARRAY_SORT", value) for value in arguments[1:]]
    ascending = flags[0] if flags else True
    nulls_first = flags[1] if len(flags) > 1 else ascending
    return call("sql.array_sort", arguments[0], descending=not ascending or None, nulls_last=not nulls_first or None)


def _flag(name: str, value: Argument) -> bool:
    if not value.is_constant or not isinstance(value.value, bool):
        raise PipelineError(f"{name} needs TRUE or FALSE, got {value.expr}")
    return value.value


def _slice(arguments: Sequence[Argument], _: Options) -> Expr:
    kind = _need_array("ARRAY_SLICE", arguments[0])
    for value in arguments[1:]:
        need_integer("ARRAY_SLICE", value)
    if any(is_null_constant(value) for value in arguments[1:]):
        return null_of(kind)
    return call("sql.array_slice", *arguments)


def _join(arguments: Sequence[Argument], _: Options) -> Expr:
    name = "ARRAY_JOIN"
    whole, by, *fillings = arguments
    if _need_array(name, whole).inner != STRING:
        raise PipelineError(f"{name} needs an ARRAY of texts, got {sql_name(whole.type)}")
    if any(is_null_constant(value) for value in (by, *fillings)):
        return null_of(STRING)
    values = whole.expr
    if fillings:
        values = call("sql.array_fill", values, by=constant_text(name, fillings[0], "a text for nulls"))
    return values.list.join(constant_text(name, by, "a separator"))


def _cardinality(arguments: Sequence[Argument], _: Options) -> Expr:
    (value,) = arguments
    if isinstance(value.type, MapType):
        return value.expr.map.len()
    _need_array("CARDINALITY", value)
    return value.expr.list.len()


def _of_map(name: str, build: Callable[[Expr], Expr]) -> Build:
    def checked(arguments: Sequence[Argument], _: Options) -> Expr:
        _need_map(name, arguments[0])
        return build(arguments[0].expr)

    return checked


def _union(arguments: Sequence[Argument], _: Options) -> Expr:
    for value in arguments:
        _need_map("MAP_UNION", value)
    return call("sql.map_union", *arguments)


def _from_arrays(arguments: Sequence[Argument], _: Options) -> Expr:
    for value in arguments:
        _need_array("MAP_FROM_ARRAYS", value)
    return call("sql.map_from_arrays", *arguments)


def _str_to_map(arguments: Sequence[Argument], _: Options) -> Expr:
    text, *separators = arguments
    need_text("STR_TO_MAP", text)
    if is_null_constant(text):
        return null_of(MapType(STRING))
    said = [_separator(value) for value in separators]
    separator, between = (*said, *(",", "=")[len(said) :])
    return call("sql.str_to_map", text, separator=separator, between=between)


def _separator(value: Argument) -> str:
    """The literal text of a regular expression that is nothing else."""
    pattern = constant_text("STR_TO_MAP", value, "a separator")
    parts: list[str] = []
    for found in re.finditer(r"\\(\W)|(.)", pattern, re.DOTALL):
        escaped, letter = found.groups(default="")
        if letter in _MARKS - set("<-=!>"):
            raise PipelineError(
                f"STR_TO_MAP: the separator {pattern!r} is a regular expression; quote it: '\\{letter}'"
            )
        parts.append(escaped or letter)
    if not parts:
        raise PipelineError("STR_TO_MAP needs a separator of at least one character")
    return "".join(parts)


def _array_row(
    name: str, arguments: str, doc: str, build: Build, least: int, most: int | None = None
) -> ScalarFunction:
    return ScalarFunction(name, f"{name}({arguments})", doc, build, least, most or least)


ROWS: Final = (
    ScalarFunction("ARRAY", "ARRAY[x, ...]", "An array of these values.", _array, 1, None),
    ScalarFunction("MAP", "MAP[key, value, ...]", "A map of these entries; keys are text.", _map, 2, None),
    ScalarFunction("ROW", "ROW(x, ...)", "A row of these values.", _row, 1, None),
    _array_row("CARDINALITY", "array or map", "Number of elements or entries.", _cardinality, 1),
    _array_row("ELEMENT", "array", "The only element; null if there is none, several fail the row.",
               _of_array("ELEMENT", lambda x: call("sql.element", x)), 1),
    _array_row("ARRAY_SORT", "array [, ascending [, nulls_first]]", "The elements in order; without the constants "
               "ascending, nulls first, of a descending order last.", _sort, 1, 3),
    _array_row("ARRAY_SLICE", "array, first [, last]", "The elements from one place to another, which are counted from 1 "
               "(or if negative from the end) and belong to it.", _slice, 2, 3),
    _array_row("ARRAY_REVERSE", "array", "The elements from behind.",
               _of_array("ARRAY_REVERSE", lambda x: call("sql.array_reverse", x)), 1),
    _array_row("ARRAY_POSITION", "array, x", "The place of the first element that equals x, counted from 1; 0 without "
               "one.", _with_element("ARRAY_POSITION", "sql.array_position", INT64, null=True), 2),
    _array_row("ARRAY_REMOVE", "array, x", "Without the elements that equal x; null removes nulls.",
               _with_element("ARRAY_REMOVE", "sql.array_remove"), 2),
    _array_row("ARRAY_APPEND", "array, x", "With x behind.", _with_element("ARRAY_APPEND", "sql.array_append"), 2),
    _array_row("ARRAY_PREPEND", "array, x", "With x in front.", _with_element("ARRAY_PREPEND", "sql.array_prepend"), 2),
    _array_row("ARRAY_CONTAINS", "array, x", "Whether an element equals x; null is found too.",
               _with_element("ARRAY_CONTAINS", "sql.array_contains", BOOLEAN), 2),
    ScalarFunction("ARRAY_CONCAT", "ARRAY_CONCAT(array, ...)", "The elements of all; null if one is null.",
                   _several("ARRAY_CONCAT", "concat_list"), 1, None),
    _array_row("ARRAY_DISTINCT", "array", "Each element once, in the order in which they come.",
               _of_array("ARRAY_DISTINCT", lambda x: x.list.unique()), 1),
    _array_row("ARRAY_UNION", "array, array", "The elements of either, each once.",
               _several("ARRAY_UNION", "list.set_union"), 2),
    _array_row("ARRAY_INTERSECT", "array, array", "The elements that are in both, each once.",
               _several("ARRAY_INTERSECT", "list.set_intersection"), 2),
    _array_row("ARRAY_EXCEPT", "array, array", "The elements that are in the first only, each once.",
               _several("ARRAY_EXCEPT", "list.set_difference"), 2),
    _array_row("ARRAY_MAX", "array", "The greatest element; nulls are left out.",
               _of_array("ARRAY_MAX", lambda x: x.list.max()), 1),
    _array_row("ARRAY_MIN", "array", "The least element; nulls are left out.",
               _of_array("ARRAY_MIN", lambda x: x.list.min()), 1),
    _array_row("ARRAY_JOIN", "array, separator [, filling]", "The texts joined by a constant separator; nulls are left "
               "out, or a constant text stands for them.", _join, 2, 3),
    _array_row("MAP_KEYS", "map", "The keys as an array.", _of_map("MAP_KEYS", lambda x: x.map.keys()), 1),
    _array_row("MAP_VALUES", "map", "The values as an array.", _of_map("MAP_VALUES", lambda x: x.map.values()), 1),
    _array_row("MAP_ENTRIES", "map", "The entries as an array of rows of key and value.",
               _of_map("MAP_ENTRIES", lambda x: call("sql.map_entries", x)), 1),
    _array_row("MAP_FROM_ARRAYS", "keys, values", "A map of keys and their values; arrays of different lengths fail the "
               "row.", _from_arrays, 2),
    ScalarFunction("MAP_UNION", "MAP_UNION(map, ...)", "The entries of all; of equal keys the last counts.", _union, 1,
                   None),
    _array_row("STR_TO_MAP", "text [, separator [, between]]", "The map that text such as a=1,b=2 spells; separators are "
               "constants, quoted as in a regular expression.", _str_to_map, 1, 3),
)  # fmt: skip
