"""Catalogue rows: `.json`, which reads values out of JSON text."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from penstock.expressions.functions import Function, Lowering
from penstock.expressions.typing_rules import Arguments, TypeMismatchError, Typing, check
from penstock.types import STRING, DataType, polars_type, type_from_json, type_to_json

if TYPE_CHECKING:
    import polars as pl

_TEXT: Final = frozenset({STRING})
_PATH: Final = re.compile(r"""\$(\.[^\W\d][\w-]*|\[\d+\]|\['[^']+'\]|\["[^"]+"\])*""")
"""One value: members and elements, no wildcards."""


def type_option(kind: DataType) -> str:
    """A type as a setting of a function."""
    return json.dumps(type_to_json(kind))


def option_type(option: object) -> DataType:
    """The inverse of `type_option`."""
    return type_from_json(json.loads(str(option)))


def _get_rule(arguments: Arguments) -> Typing:
    path: Any = arguments.options["path"]
    check(arguments, 0, _TEXT)
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        raise TypeMismatchError(
            f"{path!r} is not a path to one value; write for example '$.user.name', '$.items[0]' or \"$['a key']\""
        )
    return Typing(STRING, True, (STRING,))


def _decode_rule(arguments: Arguments) -> Typing:
    check(arguments, 0, _TEXT)
    return Typing(option_type(arguments.options["type"]), True, (STRING,))


def _decode(call: Lowering) -> pl.Expr:
    return call[0].str.json_decode(polars_type(call.result))


ROWS: Final = (
    Function(
        "json.get", 'x.json.get("$.a.b[0]", int)', _get_rule,
        lambda c: c[0].str.json_path_match(c.option("path")),
        "The value at a path within JSON text, as text or as the given type: a string without its quotes, other values "
        "as JSON. Null if there is no such value, if it is JSON's null, or if the text is no JSON. Numbers with a point "
        "are read as float64: for exact ones declare a decimal in the schema of the source.",
        ("json_value", "json_extract_string", "->>"), polars=("str.json_path_match",),
    ),
    Function(
        "json.decode", "x.json.decode(list[int])", _decode_rule, _decode,
        "The JSON text as a value of that type; members that are missing are null, what does not fit fails the row.",
        ("from_json",), polars=("str.json_decode",),
    ),
)  # fmt: skip
