"""The tokens of a text one after the other, and what could have stood where the next one does not fit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from penstock.errors import nearest
from penstock.sql.text import Span, SqlError, SqlText
from penstock.sql.tokens import Token, tokens_of

T = TypeVar("T")

_RESERVED_TEXT: Final = """
ALL AND ANY AS ASC BETWEEN BY CASE CAST CREATE CROSS CUBE DESC DISTINCT DROP ELSE END EXCEPT EXISTS FALSE FETCH
FOR FROM FULL GROUP GROUPING HAVING IN INNER INSERT INTERSECT INTO IS JOIN LATERAL LEFT LIKE LIMIT MATCH_RECOGNIZE
MINUS NATURAL NOT NULL OFFSET ON OR ORDER OUTER OVER PARTITION QUALIFY RIGHT ROLLUP SELECT SIMILAR SOME TABLE THEN
TRUE UNION UNNEST USING VALUES WHEN WHERE WINDOW WITH
"""
RESERVED: Final = frozenset(_RESERVED_TEXT.split())
"""Names that mean something everywhere, so that a column or an alias of such a name stands in backticks."""
_DEEPEST: Final = 40
"""So many expressions and queries may stand one within the other."""
_MOST_SHOWN: Final = 8
_ENDS: Final = frozenset(["FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "QUALIFY", "WINDOW"])
"""Keywords in front of which a list ends."""
_IN_QUOTES: Final = {"DATE": "'2020-01-31'", "TIME": "'10:00:00'", "TIMESTAMP": "'2020-01-31 10:00:00'"}
_DOUBLED: Final = {
    "==": "equality is written =", "**": "a power is written POWER(x, y)", "//": "write FLOOR(x / y)",
    "<<": "bits are not shifted in SQL; multiply by POWER(2, n)",
    ">>": "bits are not shifted in SQL; divide by POWER(2, n)",
}  # fmt: skip
_SHOWN_AS_ONE: Final = "[ AT * / % + - || = <> != <= >= < > IS BETWEEN IN LIKE ILIKE NOT AND OR"
_OPERATORS: Final = frozenset(_SHOWN_AS_ONE.split())
_FEW: Final = 3
"""So many operators are named one by one."""


class Cursor:
    """A place among the tokens of a text. Methods that begin with `accept` go on if the next token fits."""

    def __init__(self, text: SqlText) -> None:
        self.text = text
        self._tokens = tokens_of(text)
        self._at = 0
        self._expected: dict[str, None] = {}
        """What was asked for at the next token, in order."""
        self._depth = 0

    @property
    def next(self) -> Token:
        """The next token."""
        return self._tokens[self._at]

    @property
    def at_end(self) -> bool:
        """Whether no token is left."""
        return self._tokens[self._at].kind == "end"

    def peek(self, further: int = 1) -> Token:
        """A token behind the next one; at the end, the end."""
        return self._tokens[min(self._at + further, len(self._tokens) - 1)]

    @property
    def last(self) -> Token:
        """The token before the next one."""
        return self._tokens[max(self._at - 1, 0)]

    def advance(self) -> Token:
        """Take the next token, whatever it is."""
        token = self.next
        if token.kind != "end":
            self._at += 1
        self._expected.clear()
        return token

    def since(self, start: Token | Span) -> Span:
        """From a token or a place to what was taken last."""
        span = start if isinstance(start, Span) else start.span
        return Span(span.start, max(self.last.span.end, span.end))

    @property
    def expected(self) -> tuple[str, ...]:
        """What could stand at the next token, as keywords, symbols and kinds of names such as `a column`."""
        return tuple(self._expected)

    def expect(self, *what: str) -> None:
        """Say that these could stand here."""
        self._expected.update(dict.fromkeys(what))

    def at(self, *words: str) -> bool:
        """Whether the next tokens are these keywords and symbols."""
        self.expect(" ".join(words))
        return all(self._fits(self.peek(further) if further else self.next, word) for further, word in enumerate(words))

    def at_any(self, *words: str) -> bool:
        """Whether the next token is one of these."""
        found = [self.at(word) for word in words]  # all are asked for, so that messages name all
        return any(found)

    def accept(self, *words: str) -> bool:
        """Take these keywords and symbols if they are the next tokens."""
        if not self.at(*words):
            return False
        for _ in words:
            self.advance()
        return True

    def accept_any(self, *words: str) -> str | None:
        """Take the next token if it is one of these; gives which."""
        return next((word for word in words if self.accept(word)), None)

    def require(self, *words: str) -> Span:
        """Take these keywords and symbols.

        Raises:
            SqlError: something else stands there.
        """
        start = self.next
        if not self.accept(*words):
            raise self.unexpected()
        return self.since(start)

    @staticmethod
    def _fits(token: Token, word: str) -> bool:
        return token.keyword == word or (token.kind == "symbol" and token.value == word)

    def unexpected(self) -> SqlError:
        """The error of the next token: it is none of what could stand there."""
        token = self.next
        shown = "the text ends" if token.kind == "end" else f"{self.text.at(token.span)!r} cannot stand here"
        span = token.span if token.kind != "end" else Span(self.last.span.end, self.last.span.end + 1)
        if instead := self._instead(token):
            return self.text.error(span, f"{shown}: {instead}")
        if token.keyword in RESERVED and any(what.startswith(("a ", "an ")) for what in self._expected):
            hint = f"; {token.keyword} is a keyword: as a name it is written `{token.value}`"
        else:
            words = [word for word in self._expected if word.isupper()]
            near = nearest(token.keyword, [word for word in words if word != token.keyword]) if token.keyword else ""
            hint = f"; {near}" if near.startswith("did you mean") else ""
        return self.text.error(span, f"{shown}: expected {_listing(self.expected)}{hint}")

    def _instead(self, token: Token) -> str:
        """What to write instead of mistakes that are made often; nothing for others."""
        before = self.last
        if (
            before.value == ","
            and before.kind == "symbol"
            and (token.keyword in _ENDS or token.value in (")", ",", ";", ""))
        ):
            return "a comma stands before it; leave that out, or write something between them"
        if token.kind == "integer" and before.keyword == "TOP":
            return f"the first rows are those of LIMIT {token.value}, at the end of the query"
        if token.kind == "integer" and before.keyword in _IN_QUOTES:
            return f"write it in quotes: {before.keyword} {_IN_QUOTES[before.keyword]}"
        if token.keyword == "ON" and before.keyword == "DISTINCT":
            return "DISTINCT ON is not supported; keep the rows for which ROW_NUMBER() OVER (...) is 1"
        if token.kind == "symbol" and before.span.end == token.span.start:
            return _DOUBLED.get(before.value + token.value, "")
        return ""

    def fail(self, message: str, span: Span | None = None) -> SqlError:
        """An error at a place, by default at the next token."""
        return self.text.error(self.next.span if span is None else span, message)

    @contextlib.contextmanager
    def nested(self) -> Generator[None]:
        """A part within a part.

        Raises:
            SqlError: there are too many, one within the other.
        """
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self.fail(
                f"more than {_DEEPEST} expressions and queries stand one within the other; use WITH or a view"
            )
        try:
            yield
        finally:
            self._depth -= 1

    def list_of(self, parse: Callable[[], T]) -> tuple[T, ...]:
        """One or more, parted by commas."""
        found = [parse()]
        while self.accept(","):
            found.append(parse())
        return tuple(found)

    def in_parentheses(self, parse: Callable[[], T]) -> T:
        """Something between parentheses."""
        self.require("(")
        found = parse()
        self.require(")")
        return found

    def name(self, what: str) -> str:
        """A name, in quotes or not.

        Args:
            what: what it is the name of, for messages: `a column`.

        Raises:
            SqlError: something else stands there.
        """
        return self.name_token(what).value

    def name_token(self, what: str) -> Token:
        """The same, as a token."""
        self.expect(what)
        token = self.next
        if token.kind != "quoted" and (token.kind != "name" or token.keyword in RESERVED):
            raise self.unexpected()
        return self.advance()

    def at_name(self) -> bool:
        """Whether a name comes."""
        return self.next.kind == "quoted" or (self.next.kind == "name" and self.next.keyword not in RESERVED)

    def string(self, what: str) -> str:
        """A text in single quotes."""
        self.expect(what)
        if self.next.kind != "text":
            raise self.unexpected()
        return self.advance().value

    def whole_number(self, what: str) -> int:
        """A whole number."""
        self.expect(what)
        if self.next.kind != "integer":
            raise self.unexpected()
        return int(self.advance().value)


def _listing(expected: tuple[str, ...]) -> str:
    operators = _OPERATORS.intersection(expected)
    if len(operators) > _FEW:
        expected = (*(what for what in expected if what not in operators), "an operator")
    shown = [what if what.startswith(("a ", "an ", "the ")) else _quoted(what) for what in expected[:_MOST_SHOWN]]
    if not shown:
        return "the end of the text"
    more = " or another clause" if len(expected) > _MOST_SHOWN else ""
    return (shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}") + more


def _quoted(what: str) -> str:
    return what if what[:1].isalpha() else f"'{what}'"
