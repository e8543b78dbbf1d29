"""Catalogue rows that only SQL asks for: text, with lengths, places and patterns that may be columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus, unquote_to_bytes

from penstock.expressions.functions import Function, Lowering, dry_run, polars
from penstock.expressions.functions_bytes import digest_of
from penstock.expressions.typing_rules import Arguments, Rule, Typing, check, takes
from penstock.types import BINARY, BOOLEAN, INT64, INTEGERS, STRING, ListType, polars_type

if TYPE_CHECKING:
    import polars as pl

_TEXT: Final = frozenset({STRING})


def _matches(call: Lowering) -> pl.Expr:
    """A pattern of LIKE in a column, made a regular expression."""
    pl = polars()
    pattern = call[1].str.replace_all(r"([\\.+*?()|\[\]{}^$#&~-])", r"\$1")
    pattern = pattern.str.replace_all("%", ".*", literal=True).str.replace_all("_", ".", literal=True)
    flags = "(?si)" if call.option("ignore_case") else "(?s)"
    return call[0].str.contains(pl.concat_str([pl.lit(flags + r"\A(?:"), pattern, pl.lit(r")\z")]))


def _places(*kinds: Any, gives: Any = STRING, null: bool = False) -> Rule:
    """A function of texts and integers, these as int64."""

    def rule(arguments: Arguments) -> Typing:
        operands = []
        for index in range(len(arguments.operands)):
            kind = kinds[min(index, len(kinds) - 1)]
            check(arguments, index, INTEGERS if kind == INT64 else {kind})
            operands.append(kind)
        return Typing(gives, null or arguments.nullable, tuple(operands))

    return rule


def _substring(call: Lowering) -> pl.Expr:
    """From 1; 0 is as 1, and what is negative counts from the end, before whose beginning is nothing."""
    pl = polars()
    text, start, *lengths = call.args
    length = lengths[0].clip(0) if lengths else None
    constant = call.constants[1]
    if isinstance(constant, int) and constant >= 0:
        return text.str.slice(max(0, constant - 1), length)
    offset = pl.when(start > 0).then(start - 1).when(start < 0).then(text.str.len_chars().cast(pl.Int64) + start)
    offset = offset.when(start == 0).then(pl.lit(0, pl.Int64))
    found = text.str.slice(offset.otherwise(None).clip(0), length)
    return pl.when(offset.otherwise(None) < 0).then(pl.when(found.is_not_null()).then(pl.lit(""))).otherwise(found)


def _position(call: Lowering) -> pl.Expr:
    """From 1, and 0 where it does not occur; from a place on if that is given."""
    pl = polars()
    needle, text, *starts = call.args
    if not starts:
        return pl.when(needle.is_not_null() & text.is_not_null()).then(_place(text, needle))
    before = (starts[0] - 1).clip(0)
    found = _place(text.str.slice(before), needle)
    moved = pl.when((found > 0) & (starts[0] > 0)).then(found + before).otherwise(pl.lit(0, pl.Int64))
    return pl.when(needle.is_not_null() & text.is_not_null() & starts[0].is_not_null()).then(moved)


def _place(text: pl.Expr, needle: pl.Expr) -> pl.Expr:
    pl = polars()
    before = text.cast(pl.Binary).bin.slice(0, text.str.find(needle, literal=True))
    # An offset that is null takes all bytes: whether there is one is asked of it alone.
    place = before.cast(pl.String).str.len_chars().cast(pl.Int64) + 1
    found = text.str.find(needle, literal=True).is_not_null()
    return pl.when(found).then(place).otherwise(pl.lit(0, pl.Int64))


def _repeated(text: pl.Expr, count: pl.Expr) -> pl.Expr:
    pl = polars()
    found = text.repeat_by(count.clip(0)).list.join("")
    return pl.when(text.is_not_null() & count.is_not_null()).then(found)


def _padded(call: Lowering, *, left: bool) -> pl.Expr:
    """To a length, cut if it is longer; null for a negative length or where there is nothing to fill with."""
    pl = polars()
    text, length, fill = call.args
    missing = (length - text.str.len_chars().cast(pl.Int64)).clip(0)
    width = fill.str.len_chars().cast(pl.Int64)
    possible = (length >= 0) & (width > 0)
    width = pl.when(width > 0).then(width).otherwise(pl.lit(1, pl.Int64))
    filler = _repeated(fill, (missing + width - 1) // width).str.head(missing)
    cut = text.str.head(length.clip(0))
    return pl.when(possible).then(pl.concat_str([filler, cut] if left else [cut, filler]))


def _split(call: Lowering) -> pl.Expr:
    return call[0].str.split(call[1])


def _titled(call: Lowering) -> pl.Expr:
    return call[0].str.to_titlecase()


def _first_byte(call: Lowering) -> pl.Expr:
    pl = polars()
    number = call[0].cast(pl.Binary).bin.slice(0, 1).bin.encode("hex").str.to_integer(base=16, strict=False)
    return pl.when(call[0].is_not_null()).then(number.fill_null(0)).cast(pl.Int64)


def _letter(call: Lowering) -> pl.Expr:
    pl = polars()
    letters = call[0].cast(pl.Int64) % 256
    found = letters.replace_strict(list(range(256)), [chr(code) for code in range(256)], return_dtype=pl.String)
    return pl.when(call[0] < 0).then(pl.lit("")).otherwise(found)


def _replaced_letters(call: Lowering) -> pl.Expr:
    pairs: dict[str, str] = {}
    after = str(call.option("to"))
    for place, letter in enumerate(str(call.option("from"))):
        pairs.setdefault(letter, after[place] if place < len(after) else "")
    return call[0].str.replace_many(list(pairs), list(pairs.values())) if pairs else call[0]


def _replaced(call: Lowering) -> pl.Expr:
    """Polars wants as many texts as replacements, or one of those; a constant text has a row for each here."""
    text = polars().when(call[1].is_not_null()).then(call[0])
    return text.str.replace_all(call.option("search"), call[1], literal=True)


def _pattern_rule(rule: Rule) -> Rule:
    def checked(arguments: Arguments) -> Typing:
        pattern: Any = arguments.options["pattern"]
        dry_run(f"the regular expression {pattern!r}", lambda pl: pl.lit("").str.contains(pattern))
        return rule(arguments)

    return checked


def _hexadecimal(call: Lowering) -> pl.Expr:
    """The digits of 64 bits, without zeros in front."""
    pl = polars()
    number = call[0].cast(pl.Int64).reinterpret(signed=False)
    digits = [
        pl.lit("0123456789ABCDEF").str.slice((number // pl.lit(16**place, pl.UInt64) % 16).cast(pl.Int64), 1)
        for place in reversed(range(16))
    ]
    found = pl.concat_str(digits).str.strip_chars_start("0")
    return pl.when(found == "").then(pl.lit("0")).otherwise(found)


def _binary(call: Lowering) -> pl.Expr:
    pl = polars()
    found = (
        _hexadecimal(call)
        .str.replace_many(list("0123456789ABCDEF"), [f"{digit:04b}" for digit in range(16)])
        .str.strip_chars_start("0")
    )
    return pl.when(found == "").then(pl.lit("0")).otherwise(found)


def _bytes_or_text(arguments: Arguments) -> Typing:
    kind = arguments[0].type if arguments[0].type == BINARY else check(arguments, 0, _TEXT)
    return Typing(STRING, arguments.nullable, (kind,))


def _digest(call: Lowering) -> pl.Expr:
    return digest_of(call[0], str(call.option("algorithm")))


def _by_value(change: Callable[[str], str | None]) -> Callable[[Lowering], pl.Expr]:
    """What Polars has no function of: asked once for every different value."""

    def apply(column: pl.Series) -> pl.Series:
        pl = polars()
        values = column.drop_nulls().unique()
        changed = pl.Series([change(value) for value in values], dtype=pl.String)
        if not len(values):
            return pl.Series(column.name, [None] * len(column), dtype=pl.String)
        return column.replace_strict(values, changed, default=None, return_dtype=pl.String)

    def lower(call: Lowering) -> pl.Expr:
        return call[0].map_batches(apply, polars_type(STRING), is_elementwise=True)

    return lower


def _url_encoded(text: str) -> str:
    return quote_plus(text, safe="*-._").replace("~", "%7E")


def _url_decoded(text: str) -> str | None:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        return None
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "replace")


def _row(
    name: str, usage: str, rule: Rule, lower: Callable[[Lowering], pl.Expr], doc: str, *, exact: bool = True
) -> Function:
    def of_nulls(call: Lowering) -> pl.Expr:
        """Null beside any null, which Polars takes for a setting that is not given."""
        found = lower(call)
        others = [arg for arg, value in zip(call.args[1:], call.constants[1:], strict=True) if value is None]
        return polars().when(*(arg.is_not_null() for arg in others)).then(found) if others else found

    return Function(f"sql.{name}", usage, rule, of_nulls, doc, (name,), exact=exact, polars_lacks=True)


ROWS: Final[Sequence[Function]] = (
    _row("like", "x LIKE pattern", takes(_TEXT, gives=BOOLEAN), _matches,
         "Whether a text matches a pattern of a column: `%` is any text, `_` any character."),
    _row("substring", "SUBSTRING(x, start, length)", _places(STRING, INT64), _substring,
         "Code points from a place counted from 1, or if it is negative from the end."),
    _row("position", "POSITION(needle IN x)", _places(STRING, STRING, INT64, gives=INT64), _position,
         "The place of the first occurrence, counted from 1; 0 without one."),
    _row("repeat", "REPEAT(x, count)", _places(STRING, INT64), lambda c: _repeated(c[0], c[1]),
         "The text so many times."),
    _row("lpad", "LPAD(x, length, fill)", _places(STRING, INT64, STRING, null=True), lambda c: _padded(c, left=True),
         "Filled in front to a length, or cut to it."),
    _row("rpad", "RPAD(x, length, fill)", _places(STRING, INT64, STRING, null=True), lambda c: _padded(c, left=False),
         "Filled behind to a length, or cut to it."),
    _row("head", "LEFT(x, count)", _places(STRING, INT64), lambda c: c[0].str.head(c[1].clip(0)),
         "The first code points."),
    _row("tail", "RIGHT(x, count)", _places(STRING, INT64), lambda c: c[0].str.tail(c[1].clip(0)),
         "The last code points."),
    _row("trim", "TRIM(BOTH characters FROM x)", takes(_TEXT, gives=STRING), lambda c: c[0].str.strip_chars(c[1]),
         "Without these characters at both ends."),
    _row("ltrim", "TRIM(LEADING characters FROM x)", takes(_TEXT, gives=STRING),
         lambda c: c[0].str.strip_chars_start(c[1]), "Without these characters in front."),
    _row("rtrim", "TRIM(TRAILING characters FROM x)", takes(_TEXT, gives=STRING),
         lambda c: c[0].str.strip_chars_end(c[1]), "Without these characters behind."),
    _row("split", "SPLIT(x, separator)", takes(_TEXT, gives=ListType(STRING)), _split,
         "The parts between occurrences of a text; of an empty one the characters."),
    _row("initcap", "INITCAP(x)", takes(_TEXT, gives=STRING), _titled,
         "The first letter of every word in upper case, the others in lower case."),
    _row("reverse", "REVERSE(x)", takes(_TEXT, gives=STRING), lambda c: c[0].str.reverse(), "From behind."),
    _row("ascii", "ASCII(x)", takes(_TEXT, gives=INT64), _first_byte, "The first byte as a number; 0 of empty text."),
    _row("chr", "CHR(number)", _places(INT64), _letter, "The character of that number modulo 256."),
    _row("translate", "TRANSLATE(x, from, to)", takes(_TEXT, gives=STRING), _replaced_letters,
         "Each character of one constant text replaced by that of the other at its place, or left out."),
    _row("replace", "REPLACE(x, search, by)", takes(_TEXT, gives=STRING),
         _replaced,
         "Every occurrence of a constant text replaced."),
    _row("regexp", "REGEXP(x, pattern)", takes(_TEXT, gives=BOOLEAN), lambda c: c[0].str.contains(c[1]),
         "Whether a regular expression of a column occurs."),
    _row("regexp_count", "REGEXP_COUNT(x, pattern)", _pattern_rule(takes(_TEXT, gives=INT64)),
         lambda c: c[0].str.count_matches(c.option("pattern")), "How often a regular expression occurs.", exact=False),
    _row("hex", "HEX(integer)", _places(INT64), _hexadecimal, "The hexadecimal digits of an integer in upper case."),
    _row("bin", "BIN(integer)", _places(INT64), _binary, "The binary digits of an integer."),
    _row("digest", "SHA2(x, 512)", _bytes_or_text, _digest, "A digest as hexadecimal text in lower case."),
    _row("url_encode", "URL_ENCODE(x)", takes(_TEXT, gives=STRING), _by_value(_url_encoded),
         "As application/x-www-form-urlencoded."),
    _row("url_decode", "URL_DECODE(x)", takes(_TEXT, gives=STRING, null=True), _by_value(_url_decoded),
         "The text that was encoded so; null if it is none."),
)  # fmt: skip
