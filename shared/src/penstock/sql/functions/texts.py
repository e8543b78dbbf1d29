"""Functions of text. Places count code points from 1; regular expressions are Rust's, which have no look-around."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from penstock.errors import PipelineError
from penstock.expressions import Expr, concat_str, lit
from penstock.expressions.nodes import Case
from penstock.sql.functions.arguments import (
    call,
    cast_to,
    constant_integer,
    constant_text,
    is_null_constant,
    need,
    need_integer,
    need_text,
    null_of,
)
from penstock.sql.functions.conditions import aligned
from penstock.sql.functions.function import Argument, Options, ScalarFunction
from penstock.types import BINARY, BOOLEAN, INT64, INTEGERS, STRING, DataType, ListType

Build = Callable[[Sequence[Argument], Options], Expr]


def _of_text(name: str, kinds: str, build: Callable[..., Expr], gives: DataType = STRING) -> Build:
    """A builder that is given expressions: `kinds` has `t` for a text and `i` for an integer; any null gives null."""

    def checked(arguments: Sequence[Argument], _: Options) -> Expr:
        for kind, value in zip(kinds, arguments, strict=False):
            (need_text if kind == "t" else need_integer)(name, value)
        if any(is_null_constant(value) for value in arguments):
            return null_of(gives)
        return build(*(value.expr for value in arguments))

    return checked


def _text(name: str, arguments: str, doc: str, kinds: str, build: Callable[..., Expr], *aliases: str,
          gives: DataType = STRING, optional: int = 0) -> ScalarFunction:  # fmt: skip
    count = len(kinds)
    return ScalarFunction(
        name, f"{name}({arguments})", doc, _of_text(name, kinds, build, gives), count - optional, count, aliases
    )


# -- parts --------------------------------------------------------------------------------------------------------------


def _concat(arguments: Sequence[Argument], _: Options) -> Expr:
    values = [need_text("CONCAT", value) for value in arguments]
    if any(is_null_constant(value) for value in values):
        return null_of(STRING)
    return concat_str(*(value.expr for value in values))


def _concat_ws(arguments: Sequence[Argument], _: Options) -> Expr:
    by, *others = arguments
    need_text("CONCAT_WS", by)
    if is_null_constant(by):
        return null_of(STRING)
    values: list[Expr] = []
    for value in others:
        if isinstance(value.type, ListType):
            raise PipelineError("CONCAT_WS takes texts; write ARRAY_JOIN for an array")
        if not is_null_constant(need_text("CONCAT_WS", value)):
            values.append(value.expr)
    if not values:
        return lit("") if by.is_constant else concat_str(by.expr.str.head(0))
    if by.is_constant:
        return concat_str(*values, separator=str(by.value), ignore_nulls=True)
    raise PipelineError("CONCAT_WS needs a separator that is a text constant")


def _trim(arguments: Sequence[Argument], _: Options) -> Expr:
    if len(arguments) == 1:
        return _trimmed("BOTH", arguments[0], None)
    side = constant_text("TRIM", arguments[0], "BOTH, LEADING or TRAILING").upper()
    if len(arguments) == 2:
        return _trimmed(side, arguments[1], None)
    return _trimmed(side, arguments[2], arguments[1])


_SIDES: Final = {"BOTH": "trim", "LEADING": "ltrim", "TRAILING": "rtrim"}


def _trimmed(side: str, text: Argument, letters: Argument | None) -> Expr:
    if side not in _SIDES:
        raise PipelineError(f"TRIM takes BOTH, LEADING or TRAILING, got {side}")
    need_text("TRIM", text)
    if letters is not None:
        need_text("TRIM", letters)
    if is_null_constant(text) or (letters is not None and is_null_constant(letters)):
        return null_of(STRING)
    return call(f"sql.{_SIDES[side]}", text, " " if letters is None else letters)


def _side(name: str, side: str) -> ScalarFunction:
    def build(arguments: Sequence[Argument], _: Options) -> Expr:
        return _trimmed(side, arguments[0], arguments[1] if len(arguments) > 1 else None)

    where = {"BOTH": "at both ends", "LEADING": "in front", "TRAILING": "behind"}[side]
    doc = f"Without these characters {where}; without `characters`, spaces."
    return ScalarFunction(name, f"{name}(text [, characters])", doc, build, 1, 2)


def _replace(arguments: Sequence[Argument], _: Options) -> Expr:
    text, search, by = (need_text("REPLACE", value) for value in arguments)
    if any(is_null_constant(value) for value in arguments):
        return null_of(STRING)
    what = constant_text("REPLACE", search, "a text to search for")
    if not what:
        return text.expr
    return call("sql.replace", text, by, search=what)


def _overlay(text: Expr, by: Expr, start: Expr, length: Expr | None = None) -> Expr:
    size = by.str.len_chars() if length is None else length
    behind = call("sql.substring", text, start + call("max_horizontal", size, 0))
    whole = concat_str(call("sql.substring", text, 1, start - 1), by, behind)
    within = (start >= 1) & (start <= text.str.len_chars())
    size_known = size.is_not_null() & by.is_not_null()
    return Expr(Case((((within & size_known).node, whole.node), (((~within) & size_known).node, text.node))))


def _split_index(text: Expr, by: Expr, index: Expr) -> Expr:
    parts = call("sql.split", text, by)
    valid = (index >= 0) & (text != "")
    return Expr(Case(((valid.node, call("list.get", parts, index).node),)))


def _elt(arguments: Sequence[Argument], _: Options) -> Expr:
    index, *values = arguments
    need_integer("ELT", index)
    values = aligned(values, "ELT")
    if is_null_constant(index):
        return null_of(STRING)
    branches = tuple((call("eq", index, place).node, value.expr.node) for place, value in enumerate(values, 1))
    return Expr(Case(branches))


def _translate(arguments: Sequence[Argument], _: Options) -> Expr:
    text, *letters = (need_text("TRANSLATE", value) for value in arguments)
    if any(is_null_constant(value) for value in arguments):
        return null_of(STRING)
    before, after = (constant_text("TRANSLATE", value, "characters") for value in letters)
    return call("sql.translate", text, **{"from": before, "to": after})


# -- regular expressions ------------------------------------------------------------------------------------------------


def java_replacement(text: str) -> str:
    """A replacement of Java as one of Rust: `$1` is a group, `\\$` a dollar."""
    parts: list[str] = []
    for found in re.finditer(r"\\(.)|\$(\d)|\$\{(\w+)\}|(.)", text, re.DOTALL):
        escaped, number, group, letter = found.groups()
        if escaped is not None:
            parts.append("$$" if escaped == "$" else escaped)
        elif number is not None or group is not None:
            parts.append(f"${{{number or group}}}")
        else:
            parts.append("$$" if letter == "$" else letter)
    return "".join(parts)


def _regexp(arguments: Sequence[Argument], _: Options) -> Expr:
    text, pattern = (need_text("REGEXP", value) for value in arguments)
    if is_null_constant(text) or is_null_constant(pattern):
        return null_of(BOOLEAN)
    if pattern.is_constant:
        return text.expr.str.contains(str(pattern.value))
    return call("sql.regexp", text, pattern)


def _with_pattern(name: str, build: Callable[..., Expr], gives: DataType) -> Build:
    """A function of a text and a pattern that is a constant; any null gives null."""

    def checked(arguments: Sequence[Argument], _: Options) -> Expr:
        text, pattern, *others = arguments
        need_text(name, text)
        if any(is_null_constant(value) for value in arguments):
            return null_of(gives)
        return build(text.expr, constant_text(name, pattern, "a regular expression"), *others)

    return checked


def _regexp_replace(text: Expr, pattern: str, by: Argument) -> Expr:
    value = constant_text("REGEXP_REPLACE", by, "a replacement")
    return text.str.replace_all(pattern, java_replacement(value))


def _regexp_extract(text: Expr, pattern: str, group: Argument | None = None) -> Expr:
    index = 0 if group is None else constant_integer("REGEXP_EXTRACT", group, "a group")
    return text.str.extract(pattern, index) if index >= 0 else null_of(STRING)


def _regexp_place(text: Expr, pattern: str) -> Expr:
    found = call("fill_null", text.str.find(pattern) + 1, 0)
    return Expr(Case(((text.is_not_null().node, found.node),)))


# -- bytes --------------------------------------------------------------------------------------------------------------


def _digest(name: str, algorithm: str) -> ScalarFunction:
    doc = f"The {name} digest as hexadecimal text."
    return ScalarFunction(name, f"{name}(text)", doc, lambda a, _: _digested(name, a[0], algorithm), 1, 1)


def _digested(name: str, value: Argument, algorithm: str) -> Expr:
    need(name, value, {STRING, BINARY}, "text or bytes")
    return null_of(STRING) if is_null_constant(value) else call("sql.digest", value, algorithm=algorithm)


def _sha2(arguments: Sequence[Argument], _: Options) -> Expr:
    value, size = arguments
    bits = constant_integer("SHA2", size, "a number of bits")
    if bits not in (0, 224, 256, 384, 512):
        raise PipelineError(f"SHA2 has 224, 256, 384 or 512 bits, got {bits}")
    return _digested("SHA2", value, f"sha{bits or 256}")


def _charset(name: str, value: Argument) -> None:
    charset = constant_text(name, value, "a character set")
    if charset.upper() not in ("UTF-8", "UTF8"):
        raise PipelineError(f"{name}: the character set {charset!r} is not supported; there is 'UTF-8'")


def _encode(arguments: Sequence[Argument], _: Options) -> Expr:
    _charset("ENCODE", arguments[1])
    return cast_to(need_text("ENCODE", arguments[0]), BINARY)


def _decode(arguments: Sequence[Argument], _: Options) -> Expr:
    _charset("DECODE", arguments[1])
    return cast_to(need("DECODE", arguments[0], {BINARY}, "bytes"), STRING)


def _hex(arguments: Sequence[Argument], _: Options) -> Expr:
    (value,) = arguments
    if is_null_constant(value):
        return null_of(STRING)
    if value.type in INTEGERS:
        return call("sql.hex", value)
    need("HEX", value, {STRING, BINARY}, "an integer, text or bytes")
    return call("str.to_hex" if value.type == STRING else "bin.to_hex", value).str.to_uppercase()


def _unhex(text: Expr) -> Expr:
    odd = call("sql.mod", text.str.len_chars(), 2) == 1
    even = Expr(Case(((odd.node, concat_str(lit("0"), text).node),), text.node))
    return even.str.from_hex(strict=False)


def _to_base64(arguments: Sequence[Argument], _: Options) -> Expr:
    value = need("TO_BASE64", arguments[0], {STRING, BINARY}, "text or bytes")
    if is_null_constant(value):
        return null_of(STRING)
    return call("bin.to_base64" if value.type == BINARY else "str.to_base64", value)


# -- addresses ----------------------------------------------------------------------------------------------------------

_URL: Final = r"^(?i:https?|ftp|file|jar):(?://(?:[^/?#@]*@)?(?:[^/?#:]*)(?::\d*)?)?[^?#]*(?:\?[^#]*)?(?:#.*)?$"
_BEFORE: Final = r"^[A-Za-z]+:"
_AUTHORITY: Final = r"//([^/?#]*)"
_URL_PARTS: Final = {
    "PROTOCOL": r"^([A-Za-z]+):",
    "AUTHORITY": _BEFORE + _AUTHORITY,
    "USERINFO": _BEFORE + r"//([^/?#@]*)@",
    "HOST": _BEFORE + r"//(?:[^/?#@]*@)?([^/?#:]*)",
    "PATH": _BEFORE + r"(?://[^/?#]*)?([^?#]*)",
    "QUERY": r"^[^?#]*\?([^#]*)",
    "FILE": _BEFORE + r"(?://[^/?#]*)?([^#]*)",
    "REF": r"#(.*)$",
}


def _parse_url(arguments: Sequence[Argument], _: Options) -> Expr:
    name = "PARSE_URL"
    url, part, *keys = arguments
    need_text(name, url)
    if any(is_null_constant(value) for value in arguments):
        return null_of(STRING)
    which = constant_text(name, part, "a part")
    if which not in _URL_PARTS:
        raise PipelineError(f"{name} knows the parts {', '.join(_URL_PARTS)}, got {which!r}")
    valid = url.expr.str.contains(_URL)
    found = url.expr.str.extract(_URL_PARTS[which])
    if keys:
        if which != "QUERY":
            raise PipelineError(f"{name}: only QUERY takes a key")
        key = re.escape(constant_text(name, keys[0], "a key"))
        found = found.str.extract(rf"(?:^|&){key}=([^&]*)")
    return Expr(Case(((valid.node, found.node),)))


ROWS: Final = (
    _text("UPPER", "text", "In upper case.", "t", lambda x: x.str.to_uppercase(), "UCASE"),
    _text("LOWER", "text", "In lower case.", "t", lambda x: x.str.to_lowercase(), "LCASE"),
    _text("INITCAP", "text", "Every word with its first letter in upper case, the others in lower case.", "t",
          lambda x: call("sql.initcap", x)),
    _text("CHAR_LENGTH", "text", "Number of characters (code points).", "t", lambda x: x.str.len_chars(),
          "CHARACTER_LENGTH", "LENGTH", gives=INT64),
    _text("OCTET_LENGTH", "text", "Number of bytes in UTF-8.", "t", lambda x: x.str.len_bytes(), gives=INT64),
    ScalarFunction("CONCAT", "CONCAT(text, ...)", "The texts joined; null if one is null.", _concat, 1, None),
    ScalarFunction("CONCAT_WS", "CONCAT_WS(separator, text, ...)", "The texts that are not null, joined by a constant "
                   "separator.", _concat_ws, 1, None),
    _text("SUBSTRING", "text, start [, length]", "From a place counted from 1 (0 is as 1, negative from the end).",
          "tii", lambda *parts: call("sql.substring", *parts), "SUBSTR", "MID", optional=1),
    _text("LEFT", "text, count", "The first characters.", "ti", lambda x, n: call("sql.head", x, n)),
    _text("RIGHT", "text, count", "The last characters.", "ti", lambda x, n: call("sql.tail", x, n)),
    ScalarFunction("TRIM", "TRIM([BOTH | LEADING | TRAILING] [characters] FROM text)", "Without these characters at its "
                   "ends; without `characters`, spaces.", _trim, 1, 3),
    _side("BTRIM", "BOTH"), _side("LTRIM", "LEADING"), _side("RTRIM", "TRAILING"),
    ScalarFunction("REPLACE", "REPLACE(text, search, by)", "Every occurrence of a constant text replaced.", _replace,
                   3, 3),
    _text("POSITION", "search IN text", "The place of the first occurrence, counted from 1; 0 without one.", "tt",
          lambda a, b: call("sql.position", a, b), gives=INT64),
    _text("LOCATE", "search, text [, from]", "As POSITION, from a place on.", "tti",
          lambda *parts: call("sql.position", *parts), gives=INT64, optional=1),
    _text("INSTR", "text, search", "As POSITION.", "tt", lambda a, b: call("sql.position", b, a), gives=INT64),
    _text("OVERLAY", "text PLACING by FROM start [FOR length]", "The text in which so many characters from a place on "
          "(without a length as many as `by` has) are replaced; a place outside of it changes nothing.", "ttii", _overlay,
          optional=1),
    _text("REPEAT", "text, count", "The text so many times.", "ti", lambda x, n: call("sql.repeat", x, n)),
    _text("REVERSE", "text", "From behind.", "t", lambda x: call("sql.reverse", x)),
    _text("LPAD", "text, length [, fill]", "Filled in front (with spaces) to a length, or cut to it; null for a negative "
          "length.", "tit", lambda x, n, fill=" ": call("sql.lpad", x, n, fill), optional=1),
    _text("RPAD", "text, length [, fill]", "Filled behind (with spaces) to a length, or cut to it; null for a negative "
          "length.", "tit", lambda x, n, fill=" ": call("sql.rpad", x, n, fill), optional=1),
    _text("STARTSWITH", "text, prefix", "Whether it begins with the text.", "tt",
          lambda a, b: call("str.starts_with", a, b), gives=BOOLEAN),
    _text("ENDSWITH", "text, suffix", "Whether it ends with the text.", "tt",
          lambda a, b: call("str.ends_with", a, b), gives=BOOLEAN),
    _text("SPLIT", "text, separator", "The parts as an ARRAY; an empty separator gives the characters.", "tt",
          lambda a, b: call("sql.split", a, b), gives=ListType(STRING)),
    _text("SPLIT_INDEX", "text, separator, index", "A part, counted from 0; null if there is none.", "tti", _split_index),
    _text("ASCII", "text", "The first byte as a number; 0 of empty text.", "t", lambda x: call("sql.ascii", x),
          gives=INT64),
    ScalarFunction("CHR", "CHR(number)", "The character of that number modulo 256; empty text of a negative one.",
                   _of_text("CHR", "i", lambda n: call("sql.chr", n)), 1, 1),
    ScalarFunction("ELT", "ELT(index, x, ...)", "The value at an index counted from 1; null if there is none.", _elt, 2,
                   None),
    ScalarFunction("TRANSLATE", "TRANSLATE(text, from, to)", "Each character of a constant text replaced by that of the "
                   "other at its place, or left out.", _translate, 3, 3, ("TRANSLATE3",)),
    ScalarFunction("REGEXP", "REGEXP(text, pattern)", "Whether a regular expression occurs.", _regexp, 2, 2,
                   ("REGEXP_LIKE", "RLIKE")),
    ScalarFunction("REGEXP_REPLACE", "REGEXP_REPLACE(text, pattern, by)", "Every match of a constant regular expression "
                   "replaced by a constant; `$1` is a group.",
                   _with_pattern("REGEXP_REPLACE", _regexp_replace, STRING), 3, 3),
    ScalarFunction("REGEXP_EXTRACT", "REGEXP_EXTRACT(text, pattern [, group])", "A group (0: all) of the first match of "
                   "a constant regular expression; null without one.",
                   _with_pattern("REGEXP_EXTRACT", _regexp_extract, STRING), 2, 3),
    ScalarFunction("REGEXP_SUBSTR", "REGEXP_SUBSTR(text, pattern)", "The first match of a constant regular expression; "
                   "null without one.", _with_pattern("REGEXP_SUBSTR", _regexp_extract, STRING), 2, 2),
    ScalarFunction("REGEXP_COUNT", "REGEXP_COUNT(text, pattern)", "How often a constant regular expression occurs.",
                   _with_pattern("REGEXP_COUNT", lambda x, p: call("sql.regexp_count", x, pattern=p), INT64), 2, 2),
    ScalarFunction("REGEXP_INSTR", "REGEXP_INSTR(text, pattern)", "The place of the first match of a constant regular "
                   "expression, counted from 1; 0 without one.",
                   _with_pattern("REGEXP_INSTR", _regexp_place, INT64), 2, 2),
    _digest("MD5", "md5"), _digest("SHA1", "sha1"), _digest("SHA224", "sha224"), _digest("SHA256", "sha256"),
    _digest("SHA384", "sha384"), _digest("SHA512", "sha512"),
    ScalarFunction("SHA2", "SHA2(text, bits)", "The SHA-2 digest of 224, 256, 384 or 512 bits as hexadecimal text.",
                   _sha2, 2, 2),
    ScalarFunction("ENCODE", "ENCODE(text, 'UTF-8')", "The bytes of the text.", _encode, 2, 2),
    ScalarFunction("DECODE", "DECODE(bytes, 'UTF-8')", "The text of the bytes; what is none fails the row.", _decode,
                   2, 2),
    ScalarFunction("HEX", "HEX(x)", "Hexadecimal digits in upper case of an integer, text or bytes.", _hex, 1, 1),
    _text("UNHEX", "text", "The bytes of hexadecimal digits; null if it is none.", "t", _unhex, gives=BINARY),
    ScalarFunction("TO_BASE64", "TO_BASE64(text)", "Base64 of the text or bytes.", _to_base64, 1, 1),
    _text("FROM_BASE64", "text", "The text that base64 stands for; what is none fails the row.", "t",
          lambda x: x.str.from_base64().cast(str)),
    ScalarFunction("PARSE_URL", "PARSE_URL(url, part [, key])", "A part of an address: PROTOCOL, AUTHORITY, USERINFO, "
                   "HOST, PATH, QUERY (or the value of a constant key of it), FILE or REF; null if there is none.",
                   _parse_url, 2, 3),
    _text("URL_ENCODE", "text", "As application/x-www-form-urlencoded.", "t", lambda x: call("sql.url_encode", x)),
    _text("URL_DECODE", "text", "The text that was encoded so; null if it is none.", "t",
          lambda x: call("sql.url_decode", x)),
)  # fmt: skip
