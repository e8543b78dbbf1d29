"""Catalogue rows: `.str`. Positions and lengths count Unicode code points unless the name says bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.expressions.functions import Function, Lowering, dry_run, polars
from penstock.expressions.typing_rules import Arguments, Rule, TypeMismatchError, Typing, check, takes
from penstock.types import BOOLEAN, DATE, INT64, STRING, TIMESTAMP, DataType, ListType

if TYPE_CHECKING:
    import polars as pl

_TEXT: Final = frozenset({STRING})
_gives_text: Final = takes(_TEXT, gives=STRING)
_gives_boolean: Final = takes(_TEXT, gives=BOOLEAN)
_gives_integer: Final = takes(_TEXT, gives=INT64)


def _with_pattern(rule: Rule) -> Rule:
    """A rule of a function with a regular expression, which is tried out now."""

    def checked(arguments: Arguments) -> Typing:
        answer = rule(arguments)
        pattern: Any = arguments.options["pattern"]
        if not arguments.options.get("literal"):
            dry_run(f"the regular expression {pattern!r}", lambda pl: pl.lit("").str.contains(pattern))
        return answer

    return checked


def _parsed(gives: DataType) -> Rule:
    """Text read as another type: null where it cannot be, if not strict."""

    def rule(arguments: Arguments) -> Typing:
        check(arguments, 0, _TEXT)
        lenient = arguments.options.get("strict") is False
        return Typing(gives, arguments.nullable or lenient, (STRING,))

    return rule


def _split_rule(arguments: Arguments) -> Typing:
    if not arguments.options["by"]:
        raise TypeMismatchError(f"{arguments.name} needs a separator of at least one character")
    return takes(_TEXT, gives=ListType(STRING))(arguments)


def _to_datetime(call: Lowering) -> pl.Expr:
    strict = call.option("strict", True)
    return call[0].str.to_datetime(call.option("format"), time_unit="us", time_zone="UTC", strict=strict)


def _stripped(method: str) -> Callable[[Lowering], pl.Expr]:
    def lower(call: Lowering) -> pl.Expr:
        return getattr(call[0].str, method)(call.option("characters"))

    return lower


def _replaced(method: str) -> Callable[[Lowering], pl.Expr]:
    def lower(call: Lowering) -> pl.Expr:
        function = getattr(call[0].str, method)
        return function(call.option("pattern"), call.option("value"), literal=call.option("literal", False))

    return lower


def _padded(arguments: Arguments) -> Typing:
    length, fill = arguments.options["length"], arguments.options["fill_char"]
    if not isinstance(length, int) or length < 0:
        raise TypeMismatchError(f"{arguments.name} needs a length of zero or more, got {length!r}")
    if not isinstance(fill, str) or len(fill) != 1:
        raise TypeMismatchError(f"{arguments.name} fills with one character, got {fill!r}")
    return _gives_text(arguments)


def _fill(method: str) -> Callable[[Lowering], pl.Expr]:
    return lambda call: getattr(call[0].str, method)(call.option("length"), call.option("fill_char"))


def _before_match(call_option: Callable[[str], Any]) -> str:
    """The pattern whose first group is the text before the first match."""
    pattern = call_option("pattern")
    return rf"\A((?s:.*?))(?:{re.escape(pattern) if call_option('literal') else pattern})"


def _with_place(rule: Rule) -> Rule:
    def checked(arguments: Arguments) -> Typing:
        answer = _with_pattern(rule)(arguments)
        pattern = _before_match(arguments.options.get)
        dry_run(f"the regular expression {arguments.options['pattern']!r}", lambda pl: pl.lit("").str.contains(pattern))
        return answer

    return checked


def _find(call: Lowering) -> pl.Expr:
    return call[0].str.extract(_before_match(call.option), 1).str.len_chars()


def _concat_str_rule(arguments: Arguments) -> Typing:
    answer = _gives_text(arguments)
    return Typing(STRING, answer.nullable and not arguments.options.get("ignore_nulls"), answer.operands)


def _concat_str(call: Lowering) -> pl.Expr:
    separator, ignore_nulls = call.option("separator", ""), call.option("ignore_nulls", False)
    return polars().concat_str(list(call.args), separator=separator, ignore_nulls=ignore_nulls)


_CASE_AND_EDGES: Final = (
    Function(
        "str.to_lowercase", "x.str.to_lowercase()", _gives_text, lambda c: c[0].str.to_lowercase(),
        "Lower case by Unicode's full rules (the length may change; some SQL engines map single characters only).",
        ("lower",),
    ),
    Function(
        "str.to_uppercase", "x.str.to_uppercase()", _gives_text, lambda c: c[0].str.to_uppercase(),
        "Upper case by Unicode's full rules (ß becomes SS; some SQL engines map single characters only).", ("upper",),
    ),
    Function(
        "str.strip_chars", "x.str.strip_chars(characters=None)", _gives_text, _stripped("strip_chars"),
        "Without these characters (default: all Unicode white space; SQL: spaces) at both ends.", ("trim",),
    ),
    Function(
        "str.strip_chars_start", "x.str.strip_chars_start(characters=None)", _gives_text,
        _stripped("strip_chars_start"), "As strip_chars, at the beginning only.", ("ltrim",),
    ),
    Function(
        "str.strip_chars_end", "x.str.strip_chars_end(characters=None)", _gives_text, _stripped("strip_chars_end"),
        "As strip_chars, at the end only.", ("rtrim",),
    ),
    Function(
        "str.zfill", "x.str.zfill(length)", _gives_text, lambda c: c[0].str.zfill(c.option("length")),
        "Filled with zeros on the left to a length in code points; a leading sign stays in front.",
    ),
    Function(
        "str.pad_start", 'x.str.pad_start(length, fill_char=" ")', _padded, _fill("pad_start"),
        "Filled with a character at the beginning to a length in code points; longer text stays (SQL cuts it).",
        ("lpad",),
    ),
    Function(
        "str.pad_end", 'x.str.pad_end(length, fill_char=" ")', _padded, _fill("pad_end"),
        "Filled with a character at the end to a length in code points; longer text stays (SQL cuts it).", ("rpad",),
    ),
)  # fmt: skip

_MEASURES: Final = (
    Function(
        "str.len_chars", "x.str.len_chars()", _gives_integer, lambda c: c[0].str.len_chars(),
        "Number of code points.", ("length", "char_length"), exact=False,
    ),
    Function(
        "str.len_bytes", "x.str.len_bytes()", _gives_integer, lambda c: c[0].str.len_bytes(),
        "Number of bytes in UTF-8.", ("strlen", "octet_length"), exact=False,
    ),
    Function(
        "str.contains", "x.str.contains(pattern, literal=False)", _with_pattern(_gives_boolean),
        lambda c: c[0].str.contains(c.option("pattern"), literal=c.option("literal", False)),
        "Whether the regular expression (Rust's regex syntax: no look-around) or the literal text occurs.",
        ("regexp_matches", "contains"),
    ),
    Function(
        "str.starts_with", "x.str.starts_with(prefix)", _gives_boolean, lambda c: c[0].str.starts_with(c[1]),
        "Whether it begins with the text.", ("starts_with",),
    ),
    Function(
        "str.ends_with", "x.str.ends_with(suffix)", _gives_boolean, lambda c: c[0].str.ends_with(c[1]),
        "Whether it ends with the text.", ("ends_with", "suffix"),
    ),
)  # fmt: skip

_PLACES: Final = (
    Function(
        "str.find", "x.str.find(pattern, literal=False)", _with_place(takes(_TEXT, gives=INT64, null=True)), _find,
        "Code points before the first match of the regular expression or the literal text (Polars: bytes; SQL: one "
        "more, and 0 without a match); null without a match.", ("instr", "strpos", "position", "locate"), exact=False,
    ),
)  # fmt: skip

_PARTS: Final = (
    Function(
        "str.replace", "x.str.replace(pattern, value, literal=False)", _with_pattern(_gives_text),
        _replaced("replace"), "The first match replaced; `$1` or `${name}` in the value is a group unless literal.",
        ("regexp_replace",),
    ),
    Function(
        "str.replace_all", "x.str.replace_all(pattern, value, literal=False)", _with_pattern(_gives_text),
        _replaced("replace_all"), "Every match replaced; otherwise as replace.", ("replace",),
    ),
    Function(
        "str.slice", "x.str.slice(offset, length=None)", _gives_text,
        lambda c: c[0].str.slice(c.option("offset"), c.option("length")),
        "Code points from an offset counted from 0 (SQL: from 1); a negative offset counts from the end.",
        ("substring", "substr"),
    ),
    Function(
        "str.head", "x.str.head(n)", _gives_text, lambda c: c[0].str.head(c.option("n")),
        "The first n code points; a negative n leaves out that many at the end.", ("left",),
    ),
    Function(
        "str.tail", "x.str.tail(n)", _gives_text, lambda c: c[0].str.tail(c.option("n")),
        "The last n code points; a negative n leaves out that many at the beginning.", ("right",),
    ),
    Function(
        "str.split", "x.str.split(by)", _split_rule, lambda c: c[0].str.split(c.option("by")),
        "The parts between occurrences of the literal text; empty text gives one empty part.", ("string_split",),
    ),
    Function(
        "str.extract", "x.str.extract(pattern, group_index=1)",
        _with_pattern(takes(_TEXT, gives=STRING, null=True)),
        lambda c: c[0].str.extract(c.option("pattern"), c.option("group_index", 1)),
        "A group of the first match (0: the whole match); null without a match (DuckDB: empty text).",
        ("regexp_extract",),
    ),
    Function(
        "str.extract_all", "x.str.extract_all(pattern)", _with_pattern(takes(_TEXT, gives=ListType(STRING))),
        lambda c: c[0].str.extract_all(c.option("pattern")),
        "All matches as a list, empty without a match.", ("regexp_extract_all",),
    ),
    Function(
        "concat_str", 'concat_str(a, b, ..., separator="", ignore_nulls=False)', _concat_str_rule, _concat_str,
        "The texts joined; null if any is null, unless nulls are ignored (left out with their separator).",
        ("concat", "concat_ws"),
    ),
)  # fmt: skip

_PARSERS: Final = (
    Function(
        "str.to_integer", "x.str.to_integer(base=10, strict=True)", _parsed(INT64),
        lambda c: c[0].str.to_integer(base=c.option("base", 10), dtype=polars().Int64, strict=c.option("strict", True)),
        "The number it spells, without white space; otherwise the row fails, or null with strict=False.",
    ),
    Function(
        "str.to_datetime", "x.str.to_datetime(format, strict=True)", _parsed(TIMESTAMP), _to_datetime,
        "The timestamp it spells by a chrono format; UTC unless the format has an offset (%z, %:z). Otherwise the row "
        "fails, or null with strict=False.", ("strptime",),
    ),
    Function(
        "str.to_date", "x.str.to_date(format, strict=True)", _parsed(DATE),
        lambda c: c[0].str.to_date(c.option("format"), strict=c.option("strict", True)),
        "The date it spells by a chrono format; otherwise the row fails, or null with strict=False.",
    ),
)  # fmt: skip

ROWS: Final = (*_CASE_AND_EDGES, *_MEASURES, *_PLACES, *_PARTS, *_PARSERS)
