"""MATCH_RECOGNIZE: the clauses in its parentheses, and the language of patterns."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.sql.parsing.expressions import ExpressionParser
from penstock.sql.syntax import (
    MatchRecognize,
    Part,
    PatternAlternatives,
    PatternPermutation,
    PatternRepetition,
    PatternSequence,
    PatternVariable,
    SelectItem,
    SkipTo,
)
from penstock.sql.tokens import Token

_QUANTIFIERS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class RowPatternParser(ExpressionParser):
    """Parses MATCH_RECOGNIZE."""

    def match_recognize(self, table: Part) -> MatchRecognize:
        """`MATCH_RECOGNIZE (...)` behind a table."""
        self.require("MATCH_RECOGNIZE")
        self.require("(")
        partition = self.list_of(self.expression) if self.accept("PARTITION", "BY") else ()
        order = self.order_items() if self.accept("ORDER", "BY") else ()
        measures = self.list_of(self._measure) if self.accept("MEASURES") else ()
        all_rows = self._all_rows()
        skip = self._skip()
        if self.at_any("INITIAL", "SEEK"):
            raise self.fail(f"{self.next.keyword} is for windows of patterns; a stream is searched from its beginning")
        self.require("PATTERN")
        pattern = self.in_parentheses(self._alternatives)
        within = self.expression() if self.accept("WITHIN") else None
        subsets = self.list_of(self._subset) if self.accept("SUBSET") else ()
        define = self.list_of(self._definition) if self.accept("DEFINE") else ()
        self.require(")")
        return MatchRecognize(
            table, pattern, define, partition, order, measures, all_rows, skip, within, subsets,
        )  # fmt: skip

    def _measure(self) -> SelectItem:
        start = self.next
        value = self.expression()
        self.require("AS")
        return SelectItem(value, self.name("a name for the measure"), span=self.since(start))

    def _definition(self) -> SelectItem:
        start = self.next
        name = self.name("a variable of the pattern")
        self.require("AS")
        return SelectItem(self.expression(), name, span=self.since(start))

    def _subset(self) -> tuple[PatternVariable, tuple[PatternVariable, ...]]:
        name = self._variable()
        self.require("=")
        return name, self.in_parentheses(lambda: self.list_of(self._variable))

    def _variable(self) -> PatternVariable:
        token = self.name_token("a variable of the pattern")
        return PatternVariable(token.value, span=token.span)

    def _all_rows(self) -> bool:
        if self.accept("ONE", "ROW", "PER", "MATCH"):
            return False
        if not self.accept("ALL", "ROWS", "PER", "MATCH"):
            return False
        if self.at_any("SHOW", "WITH"):
            words = "SHOW EMPTY MATCHES" if self.next.keyword == "SHOW" else "WITH UNMATCHED ROWS"
            instead = (
                "no match is empty, because a stream has one at every row"
                if words.startswith("SHOW")
                else "of a stream it is never known that no later match has a row; join the matches with its rows"
            )
            raise self.fail(f"{words} is not supported: {instead}")
        self.accept("OMIT", "EMPTY", "MATCHES")
        return True

    def _skip(self) -> SkipTo:
        start = self.next
        if not self.accept("AFTER", "MATCH"):
            return SkipTo("past_last")
        self.require("SKIP")
        if self.accept("PAST", "LAST", "ROW"):
            return SkipTo("past_last", span=self.since(start))
        self.require("TO")
        if self.accept("NEXT", "ROW"):
            return SkipTo("next", span=self.since(start))
        word = self.accept_any("FIRST", "LAST")
        name = self.name("a variable of the pattern")
        return SkipTo("first" if word == "FIRST" else "last", name, span=self.since(start))

    # -- patterns -------------------------------------------------------------------------------------------------------

    def _alternatives(self) -> Part:
        with self.nested():
            start = self.next
            found = [self._sequence()]
            while self.accept("|"):
                found.append(self._sequence())
            return found[0] if len(found) == 1 else PatternAlternatives(tuple(found), span=self.since(start))

    def _sequence(self) -> Part:
        start = self.next
        found = [self._repeated()]
        while self._at_row_or_group():
            found.append(self._repeated())
        return PatternSequence(tuple(found), span=self.since(start))

    def _at_row_or_group(self) -> bool:
        return self.at_name() or self.at_any("(", "{", "^", "$")

    def _repeated(self) -> Part:
        start = self.next
        found = self._row_or_group()
        times = self._times()
        if times is None:
            return found
        least, most = times
        greedy = not self.accept("?")
        if self.at_any("*", "+", "?") or (self.at("{") and self.peek().value != "-"):
            raise self.fail("one quantifier stands behind another; put the part in front of it in parentheses")
        return PatternRepetition(found, least, most, greedy, span=self.since(start))

    def _row_or_group(self) -> Part:
        start = self.next
        if self.accept("("):
            if self.at(")"):
                raise self.fail(
                    "an empty pattern matches no row; leave it out, and write A? for a row that may be missing"
                )
            found = self._alternatives()
            self.require(")")
            return replace(found, span=self.since(start))
        if self.accept("{"):
            self.require("-")
            found = self._alternatives()
            self.require("-")
            self.require("}")
            return PatternSequence((found,), shown=False, span=self.since(start))
        if self.at_any("^", "$") or (self.next.kind == "name" and self.next.value.endswith("$")):
            where, sign = ("first", "^") if self.next.value == "^" else ("last", "$")
            raise self.fail(
                f"{sign} is the {where} row of a partition, which a stream does not tell from others; leave it out"
            )
        if self.next.keyword == "PERMUTE" and self.peek().value == "(":
            self.advance()
            parts = self.in_parentheses(lambda: self.list_of(self._alternatives))
            return PatternPermutation(parts, span=self.since(start))
        return self._variable()

    def _times(self) -> tuple[int, int | None] | None:
        word = self.accept_any(*_QUANTIFIERS)
        if word is not None:
            return _QUANTIFIERS[word]
        if not self.at("{") or self.peek().value == "-":
            return None
        start = self.advance()
        least = self._times_bound()
        most = least
        if self.accept(","):
            most = None if self.at("}") else self._times_bound()
        elif least is None:
            raise self.unexpected()
        self.require("}")
        return self._checked(start, 0 if least is None else least, most)

    def _times_bound(self) -> int | None:
        """A number, if one stands here."""
        return None if self.at(",") else self.whole_number("a number of rows")

    def _checked(self, start: Token, least: int, most: int | None) -> tuple[int, int | None]:
        if most is not None and (most < least or most == 0):
            span = self.since(start)
            raise self.fail(
                f"{self.text.at(span)} can never be fulfilled; write the smaller number first, and at least 1", span
            )
        return least, most
