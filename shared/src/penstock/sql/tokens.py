"""A text of SQL as tokens: names, constants, symbols and hints. Comments and white space are left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from penstock.sql.text import Span, SqlText

Kind = Literal["name", "quoted", "integer", "decimal", "float", "text", "bytes", "symbol", "hint", "end"]


@dataclass(frozen=True, slots=True)
class Token:
    """One token. `value` is what it stands for: a name without its quotes, a text without those and with its quotes
    undoubled, a keyword or a symbol as it is."""

    kind: Kind
    value: str
    span: Span

    @property
    def keyword(self) -> str:
        """An unquoted name in upper case, which may be a keyword; empty for other tokens."""
        return self.value.upper() if self.kind == "name" else ""


_SYMBOLS: Final = (
    "<=>", "=>", "->", "<>", "!=", "<=", ">=", "||", "::", "(", ")", "[", "]", "{", "}", ",", ".", ";", "+", "-",
    "*", "/", "%", "=", "<", ">", "?", "|", "^", "$", ":",
)  # fmt: skip
_TOKEN: Final = re.compile(
    r"(?P<space>\s+|--[^\n]*|/\*(?!\+).*?\*/)"
    r"|(?P<hint>/\*\+.*?\*/)"
    r"|(?P<bytes>[xX]'[^']*')"
    r"|(?P<text>'(?:[^']|'')*')"
    r"|(?P<quoted>`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\")"
    r"|(?P<float>(?:\d+\.?\d*|\.\d+)[eE][+-]?\d+)"
    r"|(?P<decimal>\d+\.\d*|\.\d+)"
    r"|(?P<integer>\d+)"
    r"|(?P<name>[^\W\d]\w*(?:\$\w*)*)"
    rf"|(?!/\*)(?P<symbol>{'|'.join(map(re.escape, _SYMBOLS))})",
    re.DOTALL,
)
_INSTEAD: Final = {
    "&&": "write AND", "!": "write NOT, or <> between values", "#": "a comment begins with --",
    **dict.fromkeys("\u201c\u201d", 'a name stands between straight quotes, " or `'),
    **dict.fromkeys("\u2018\u2019", "a text stands between straight quotes, '"),
    "@": "there are no variables; a text has parameters: '${name}'",
}  # fmt: skip
"""What to write instead of characters that begin no token."""
_WITHOUT_AN_END: Final = {
    "'": "the text that begins here has no end; close it with ' (a quote within it is written '')",
    "`": "the name that begins here has no end; close it with `",
    '"': 'the name that begins here has no end; close it with "',
    "/*": "the comment that begins here has no end; close it with */",
}


def tokens_of(text: SqlText) -> list[Token]:
    """The tokens of a text, the last of which is its end.

    Raises:
        SqlError: a text, a name or a comment has no end, or a character cannot begin a token.
    """
    found: list[Token] = []
    for match in _matches(text):
        kind, shown = match.lastgroup, match.group()
        if kind in ("integer", "decimal", "float") and text.text[match.end() : match.end() + 1].isidentifier():
            raise text.error(
                Span(match.start(), match.end() + 1),
                f"a number and a name stand together at {shown!r}; put a space between them",
            )
        if kind != "space":
            span = Span(*match.span())
            value = _value(kind, shown)
            found.append(Token(kind, text.given(value, span) if kind == "text" else value, span))  # pyright: ignore[reportArgumentType]
    found.append(Token("end", "", Span(len(text.text), len(text.text))))
    return found


def line_comments_of(text: SqlText) -> list[Span]:
    """The comments of a text that begin with `--`, each up to the end of its line.

    Raises:
        SqlError: as `tokens_of` does.
    """
    return [Span(*match.span()) for match in _matches(text) if match.group().startswith("--")]


def _matches(text: SqlText) -> Iterator[re.Match[str]]:
    """Tokens, white space and comments, one after the other."""
    position = 0
    while position < len(text.text):
        match = _TOKEN.match(text.text, position)
        if match is None:
            raise _unreadable(text, position)
        yield match
        position = match.end()


def _value(kind: str | None, shown: str) -> str:
    match kind:
        case "text":
            return shown[1:-1].replace("''", "'")
        case "quoted":
            return shown[1:-1].replace(shown[0] * 2, shown[0])
        case "bytes":
            return shown[2:-1]
        case "hint":
            return shown[3:-2]
        case _:
            return shown


def _unreadable(text: SqlText, position: int) -> Exception:
    rest = text.text[position:]
    for opening, message in _WITHOUT_AN_END.items():
        if rest.startswith(opening):
            return text.error(Span(position, position + len(opening)), message)
    instead = next((what for sign, what in _INSTEAD.items() if rest.startswith(sign)), "SQL has no such symbol")
    return text.error(Span(position, position + 1), f"{rest[0]!r} cannot stand here; {instead}")
