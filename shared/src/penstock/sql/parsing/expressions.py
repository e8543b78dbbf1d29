"""Expressions, from OR down to constants and calls."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

from penstock.sql.parsing.cursor import RESERVED
from penstock.sql.parsing.types import TypeParser
from penstock.sql.syntax import (
    Call,
    Cast,
    Constant,
    Descriptor,
    Exists,
    FieldOf,
    Frame,
    FrameBound,
    InQuery,
    Interval,
    Name,
    NamedArgument,
    OrderItem,
    Part,
    Quantified,
    Query,
    Star,
    Subquery,
    TableArgument,
    TimeConstant,
    Window,
)
from penstock.sql.tokens import Token

UNITS: Final = (
    "YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND", "NANOSECOND",
    "DOY", "DOW", "ISODOW", "ISOYEAR", "EPOCH", "DECADE", "CENTURY", "MILLENNIUM",
)  # fmt: skip
_INTERVAL_UNITS: Final = UNITS[:8]
_COMPARISONS: Final = ("=", "<>", "!=", "<=", ">=", "<", ">")
_WITHOUT_PARENTHESES: Final = (
    "CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "LOCALTIMESTAMP", "LOCALTIME", "CURRENT_ROW_TIMESTAMP"
)  # fmt: skip
_KEYWORDS_THAT_CALL: Final = ("LEFT", "RIGHT", "GROUPING", "GROUPING_ID", "SOME", "ANY")
_MOST_OPERANDS: Final = 200
_UNIT_FIRST: Final = ("TIMESTAMPADD", "TIMESTAMPDIFF")


class ExpressionParser(TypeParser):
    """Parses expressions."""

    @abstractmethod
    def query(self) -> Query:
        """A query, which expressions have in parentheses."""

    @abstractmethod
    def at_query(self) -> bool:
        """Whether a query begins here."""

    def expression(self) -> Part:
        """An expression."""
        with self.nested():
            return self._chain("OR", self._and)

    def _and(self) -> Part:
        return self._chain("AND", self._not)

    def _chain(self, word: str, operand: Callable[[], Part]) -> Part:
        """Operands of an operator that may stand in any groups, as one call."""
        start = self.next
        operands = [operand()]
        while self.accept(word):
            operands.append(operand())
        return operands[0] if len(operands) == 1 else Call(word, tuple(operands), span=self.since(start))

    def _not(self) -> Part:
        start, negations = self.next, 0
        while self.accept("NOT"):
            negations += 1
        found = self._predicate()
        return Call("NOT", (found,), span=self.since(start)) if negations % 2 else found

    # -- predicates -----------------------------------------------------------------------------------------------------

    def _predicate(self) -> Part:
        start = self.next
        found = self._additive()
        while True:
            further = self._further(found, start)
            if further is None:
                return found
            found = further

    def _further(self, operand: Part, start: Token) -> Part | None:
        """The predicate that goes on behind an operand."""
        if operator := self.accept_any(*_COMPARISONS):
            return self._comparison(operand, "<>" if operator == "!=" else operator, start)
        if self.accept("IS"):
            return self._is(operand, start)
        if self.at("NOT") and self.peek().keyword not in ("BETWEEN", "IN", "LIKE", "ILIKE", "SIMILAR"):
            return None
        negated = self.accept("NOT")
        found = self._between_in_like(operand, start)
        if found is not None and negated:
            return Call("NOT", (found,), span=self.since(start))
        return found

    def _comparison(self, operand: Part, operator: str, start: Token) -> Part:
        quantifier = None
        if self.peek().value == "(" and (word := self.accept_any("ALL", "ANY", "SOME")):
            quantifier = word
        if quantifier is not None:
            query = self.in_parentheses(self.query)
            kind = "ALL" if quantifier == "ALL" else "ANY"
            return Quantified(operand, operator, kind, query, span=self.since(start))
        return Call(operator, (operand, self._additive()), span=self.since(start))

    def _is(self, operand: Part, start: Token) -> Part:
        negated = "NOT " if self.accept("NOT") else ""
        if self.accept("DISTINCT", "FROM"):
            name = f"IS {negated}DISTINCT FROM"
            return Call(name, (operand, self._additive()), span=self.since(start))
        if self.accept("JSON"):
            kind = self.accept_any("VALUE", "SCALAR", "ARRAY", "OBJECT") or "VALUE"
            found = Call("IS JSON", (operand,), (("kind", kind.lower()),), span=self.since(start))
            return Call("NOT", (found,), span=self.since(start)) if negated else found
        word = self.accept_any("NULL", "TRUE", "FALSE", "UNKNOWN")
        if word is None:
            raise self.unexpected()
        return Call(f"IS {negated}{word}", (operand,), span=self.since(start))

    def _between_in_like(self, operand: Part, start: Token) -> Part | None:
        if self.accept("BETWEEN"):
            symmetric = " SYMMETRIC" if self.accept("SYMMETRIC") else ""
            if not symmetric:
                self.accept("ASYMMETRIC")
            low = self._additive()
            self.require("AND")
            return Call(f"BETWEEN{symmetric}", (operand, low, self._additive()), span=self.since(start))
        if self.accept("IN"):
            return self._in(operand, start)
        if word := self.accept_any("LIKE", "ILIKE"):
            return self._pattern(word, operand, start)
        if self.accept("SIMILAR", "TO"):
            return self._pattern("SIMILAR TO", operand, start)
        return None

    def _pattern(self, operator: str, operand: Part, start: Token) -> Part:
        arguments = [operand, self._additive()]
        if self.accept("ESCAPE"):
            arguments.append(self._additive())
        return Call(operator, tuple(arguments), span=self.since(start))

    def _in(self, operand: Part, start: Token) -> Part:
        self.require("(")
        if self.at_query():
            query = self.query()
            self.require(")")
            row = isinstance(operand, Call) and operand.function == "ROW"
            values = operand.arguments if row and isinstance(operand, Call) else (operand,)
            return InQuery(values, query, span=self.since(start))
        members = self.list_of(self.expression)
        self.require(")")
        return Call("IN", (operand, *members), span=self.since(start))

    # -- operators ------------------------------------------------------------------------------------------------------

    def _additive(self) -> Part:
        return self._left_to_right(("+", "-", "||"), self._multiplicative)

    def _multiplicative(self) -> Part:
        return self._left_to_right(("*", "/", "%"), self._unary)

    def _left_to_right(self, operators: tuple[str, ...], operand: Callable[[], Part]) -> Part:
        start, found, length = self.next, operand(), 0
        while operator := self.accept_any(*operators):
            length += 1
            if length > _MOST_OPERANDS:
                raise self.fail(
                    f"more than {_MOST_OPERANDS} operands stand in one row; compute parts of it in a subquery"
                )
            found = Call(operator, (found, operand()), span=self.since(start))
        return found

    def _unary(self) -> Part:
        start = self.next
        if self.accept("-"):
            with self.nested():
                operand = self._unary()
            value = operand.value if isinstance(operand, Constant) else None
            if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
                return Constant(-value, span=self.since(start))
            return Call("NEGATE", (operand,), span=self.since(start))
        if self.accept("+"):
            with self.nested():
                return self._unary()
        return self._postfix()

    def _postfix(self) -> Part:
        start = self.next
        found = self._primary()
        while True:
            if self.accept("["):
                index = self.expression()
                self.require("]")
                found = Call("[]", (found, index), span=self.since(start))
            elif not isinstance(found, Name | Star) and self.next.value == "." and self.accept("."):
                found = FieldOf(found, self.name("a field"), span=self.since(start))
            elif self.accept("AT"):
                self.require("TIME", "ZONE")
                found = Call("AT TIME ZONE", (found, self._primary()), span=self.since(start))
            elif self.next.value == "::":
                raise self.fail("'::' is not SQL; write CAST(x AS type)")
            else:
                return found

    # -- constants ------------------------------------------------------------------------------------------------------

    def _primary(self) -> Part:
        token = self.next
        match token.kind:
            case "integer" | "decimal" | "float" | "text" | "bytes":
                return self._constant(self.advance())
            case "quoted":
                return self._name()
            case "symbol" if token.value == "(":
                return self._parenthesized()
            case "name":
                return self._word(token)
            case _:
                self.expect("an expression")
                raise self.unexpected()

    def _constant(self, token: Token) -> Constant:
        value: Any = token.value
        match token.kind:
            case "integer":
                value = int(value)
            case "decimal":
                value = Decimal(value)
            case "float":
                value = float(value)
            case "bytes":
                try:
                    value = bytes.fromhex(value)
                except ValueError:
                    raise self.fail("bytes are pairs of hexadecimal digits: x'48656C6C6F'", token.span) from None
            case _:
                pass
        return Constant(value, span=token.span)

    def _parenthesized(self) -> Part:
        start = self.next
        self.require("(")
        if self.at_query():
            query = self.query()
            self.require(")")
            return Subquery(query, span=self.since(start))
        found = self.list_of(self.expression)
        self.require(")")
        if len(found) == 1:
            return replace(found[0], span=self.since(start))
        return Call("ROW", found, span=self.since(start))

    def _word(self, token: Token) -> Part:
        word, calls = token.keyword, self.peek().value == "(" and self.peek().kind == "symbol"
        match word:
            case "TRUE" | "FALSE" | "NULL" | "UNKNOWN" if not calls:
                self.advance()
                return Constant({"TRUE": True, "FALSE": False}.get(word), span=token.span)
            case "DATE" | "TIME" | "TIMESTAMP" | "TIMESTAMP_LTZ" if self.peek().kind == "text":
                self.advance()
                text = self.advance().value
                kind = "TIMESTAMP" if word == "TIMESTAMP_LTZ" else word
                return TimeConstant(kind, text, span=self.since(token))
            case "INTERVAL":
                return self._interval()
            case "CASE":
                return self._case()
            case "CAST" | "TRY_CAST" if calls:
                return self._cast()
            case "EXISTS":
                self.advance()
                query = self.in_parentheses(self.query)
                return Exists(query, span=self.since(token))
            case "ARRAY" | "MAP" if self.peek().value == "[":
                return self._collection()
            case "RUNNING" | "FINAL" if self._calls_behind():
                self.advance()
                return Call(word, (self._word(self.next),), span=self.since(token), name=token.span)
            case _ if word in _WITHOUT_PARENTHESES and not calls:
                self.advance()
                return Call(word, (), span=token.span, name=token.span)
            case _ if word in _KEYWORDS_THAT_CALL and calls:
                return self._call(self.advance())
            case _:
                self.expect("an expression")
                return self._call(self.advance()) if calls and self.at_name() else self._name()

    def _calls_behind(self) -> bool:
        """Whether a call stands behind the next token, such as `LAST(`, and no keyword in front of a parenthesis."""
        behind = self.peek()
        return behind.kind == "name" and behind.keyword not in RESERVED and self.peek(2).value == "("

    def _interval(self) -> Part:
        start = self.advance()
        sign = "-" if self.accept("-") else ""
        self.accept("+")
        token = self.next
        if token.kind not in ("text", "integer", "decimal"):
            self.expect("a text such as '10'")
            raise self.unexpected()
        self.advance()
        unit = self._unit(_INTERVAL_UNITS)
        text = token.value.strip()
        self._precision(text, unit)
        to = None
        if self.accept("TO"):
            to = self._unit(_INTERVAL_UNITS)
            self._precision("", to)
        negative = (sign == "-") != text.startswith("-")
        return Interval(("-" if negative else "") + text.lstrip("+-"), unit, to, span=self.since(start))

    def _unit(self, units: tuple[str, ...]) -> str:
        self.expect(*units)
        word = self.next.keyword
        unit = word if word in units else word.removesuffix("S")
        if unit not in units:
            raise self.unexpected()
        self.advance()
        return unit

    def _precision(self, text: str, unit: str) -> None:
        """How many digits the first number of an interval has at most: DAY(3). For SECOND they may be of its fraction."""
        if not self.accept("("):
            return
        token = self.next
        digits = self.whole_number("a number of digits")
        if self.accept(","):
            self.whole_number("a number of digits")
        self.require(")")
        whole = re.match(r"[+-]?(\d*)", text)
        if whole is not None and len(whole.group(1)) > digits and unit != "SECOND":
            raise self.fail(f"{whole.group(1)} has more than {digits} digits; write {unit} alone", token.span)

    def _case(self) -> Part:
        start = self.advance()
        operand = None if self.at("WHEN") else self.expression()
        parts: list[Part] = []
        self.require("WHEN")
        while True:
            when = self.expression()
            parts.append(when if operand is None else Call("=", (operand, when), span=when.span))
            self.require("THEN")
            parts.append(self.expression())
            if not self.accept("WHEN"):
                break
        parts.append(self.expression() if self.accept("ELSE") else Constant(None, span=self.next.span))
        self.require("END")
        return Call("CASE", tuple(parts), span=self.since(start), name=start.span)

    def _cast(self) -> Part:
        start = self.advance()
        self.require("(")
        operand = self.expression()
        self.require("AS")
        kind, length = self.type()
        self.require(")")
        return Cast(operand, kind, length, start.keyword == "CAST", span=self.since(start))

    def _collection(self) -> Part:
        start = self.advance()
        self.require("[")
        members = () if self.at("]") else self.list_of(self.expression)
        self.require("]")
        return Call(start.keyword, members, span=self.since(start), name=start.span)

    # -- names and calls ------------------------------------------------------------------------------------------------

    def _name(self) -> Part:
        start = self.next
        parts = [self.name("a column")]
        while self.next.value == "." and self.next.kind == "symbol":
            self.advance()
            if self.accept("*"):
                return Star(tuple(parts), span=self.since(start))
            parts.append(self.name("a column"))
        return Name(tuple(parts), span=self.since(start))

    def _call(self, token: Token) -> Part:
        function = token.keyword or token.value
        self.require("(")
        call = Call(function, (), span=token.span, name=token.span)
        special: Callable[[Call], Call] | None = getattr(self, f"_{function.lower()}_call", None)
        call = self._plain_call(call) if special is None else special(call)
        self.require(")")
        return self._behind(call, token)

    def _plain_call(self, call: Call) -> Call:
        start = self.next
        if self.accept("*"):  # all rows, of COUNT; others are refused, once it is known what they are
            return call if call.function == "COUNT" else replace(call, arguments=(Star(span=start.span),))
        if self.at(")"):
            return call
        distinct = self.accept("DISTINCT")
        if not distinct:
            self.accept("ALL")
        first: tuple[Part, ...] = ()
        if call.function in _UNIT_FIRST:
            token = self.next
            first = (Constant(self._unit(UNITS), span=token.span),)
            self.require(",")
        arguments = (*first, *self.list_of(self.argument))
        order = self.order_items() if self.accept("ORDER", "BY") else ()
        return replace(call, arguments=arguments, distinct=distinct, order=order)

    def argument(self) -> Part:
        """An argument of a function, which may be a table or named."""
        start = self.next
        if self.next.keyword == "TABLE" and self.accept("TABLE"):
            return self._table_argument(start)
        if self.next.keyword == "DESCRIPTOR" and self.peek().value == "(":
            self.advance()
            columns = self.in_parentheses(lambda: self.list_of(self._column))
            return Descriptor(columns, span=self.since(start))
        if start.kind in ("name", "quoted") and self.peek().value == "=>":  # a keyword, too: OFFSET => ...
            name = self.advance()
            self.require("=>")
            return NamedArgument(name.value, self.argument(), name.span, span=self.since(start))
        if self.at_query():
            query = self.query()
            return Subquery(query, span=self.since(start))
        return self.expression()

    def _table_argument(self, start: Token) -> Part:
        table: Part
        if self.accept("("):
            table = Subquery(self.query(), span=self.since(start))
            self.require(")")
        else:
            table = self._column("a table")
        partition: tuple[Part, ...] = ()
        if self.accept("PARTITION", "BY"):
            partition = self._maybe_in_parentheses(self.expression)
        order = self._order_of_argument() if self.accept("ORDER", "BY") else ()
        return TableArgument(table, partition, order, span=self.since(start))

    def _maybe_in_parentheses(self, parse: Callable[[], Part]) -> tuple[Part, ...]:
        return self.in_parentheses(lambda: self.list_of(parse)) if self.at("(") else (parse(),)

    def _order_of_argument(self) -> tuple[OrderItem, ...]:
        return self.in_parentheses(self.order_items) if self.at("(") else (self.order_item(),)

    def _column(self, what: str = "a column") -> Name:
        start = self.next
        parts = [self.name(what)]
        while self.accept("."):
            parts.append(self.name(what))
        return Name(tuple(parts), span=self.since(start))

    def _behind(self, call: Call, token: Token) -> Part:
        """What says more of a call, behind its parentheses."""
        if self.accept("WITHIN", "GROUP"):
            self.require("(", "ORDER", "BY")
            call = replace(call, order=self.order_items())
            self.require(")")
        if self.accept("FILTER"):
            self.require("(", "WHERE")
            call = replace(call, filter=self.expression())
            self.require(")")
        if self.next.keyword in ("IGNORE", "RESPECT") and (word := self.accept_any("IGNORE", "RESPECT")):
            self.require("NULLS")
            call = replace(call, ignore_nulls=word == "IGNORE")
        if self.accept("OVER"):
            call = replace(call, over=self.window())
        return replace(call, span=self.since(token))

    def window(self) -> Window:
        """A window, by name or in parentheses."""
        start = self.next
        if not self.at("("):
            name = self.name("a window")
            return Window(base=name, span=self.since(start))
        self.require("(")
        base = None
        if self.at_name() and self.next.keyword not in ("ROWS", "RANGE", "GROUPS"):
            base = self.name("a window")
        partition = self.list_of(self.expression) if self.accept("PARTITION", "BY") else ()
        order = self.order_items() if self.accept("ORDER", "BY") else ()
        frame = self._frame()
        self.require(")")
        return Window(partition, order, frame, base, span=self.since(start))

    def _frame(self) -> Frame | None:
        start = self.next
        unit = self.accept_any("ROWS", "RANGE", "GROUPS")
        if unit is None:
            return None
        if self.accept("BETWEEN"):
            lower = self._bound()
            self.require("AND")
            upper = self._bound()
        else:
            lower, upper = self._bound(), FrameBound("current")
        if self.at("EXCLUDE"):
            raise self.fail("EXCLUDE of a frame is not supported; leave it out")
        return Frame(unit, lower, upper, span=self.since(start))  # pyright: ignore[reportArgumentType]

    def _bound(self) -> FrameBound:
        start = self.next
        if self.accept("CURRENT", "ROW"):
            return FrameBound("current", span=self.since(start))
        distance = None if self.accept("UNBOUNDED") else self.expression()
        kind = self.accept_any("PRECEDING", "FOLLOWING")
        if kind is None:
            raise self.unexpected()
        return FrameBound("preceding" if kind == "PRECEDING" else "following", distance, span=self.since(start))

    def order_items(self) -> tuple[OrderItem, ...]:
        """The expressions of ORDER BY."""
        return self.list_of(self.order_item)

    def order_item(self) -> OrderItem:
        """One of them."""
        start = self.next
        found = self.expression()
        descending = self.accept_any("ASC", "DESC") == "DESC"
        last = None
        if self.accept("NULLS"):
            word = self.accept_any("FIRST", "LAST")
            if word is None:
                raise self.unexpected()
            last = word == "LAST"
        return OrderItem(found, descending, last, span=self.since(start))

    # -- calls with a syntax of their own -------------------------------------------------------------------------------

    def _extract_call(self, call: Call) -> Call:
        token = self.next
        unit = Constant(self._unit(UNITS), span=token.span)
        self.require("FROM")
        return replace(call, arguments=(unit, self.expression()))

    def _ceil_call(self, call: Call) -> Call:
        arguments: tuple[Part, ...] = (self.expression(),)
        if self.accept("TO"):
            token = self.next
            arguments = (*arguments, Constant(self._unit(UNITS), span=token.span))
        return replace(call, arguments=arguments)

    _ceiling_call = _floor_call = _ceil_call

    def _trim_call(self, call: Call) -> Call:
        token = self.next
        side = self.accept_any("BOTH", "LEADING", "TRAILING")
        what = None if side is not None and self.at("FROM") else self.expression()
        if not self.accept("FROM"):
            if side is not None:
                raise self.unexpected()
            assert what is not None
            if self.accept(","):
                characters = self.expression()
                return replace(call, arguments=(Constant("BOTH", span=token.span), characters, what))
            return replace(call, arguments=(what,))
        characters = Constant(" ", span=token.span) if what is None else what
        return replace(call, arguments=(Constant(side or "BOTH", span=token.span), characters, self.expression()))

    def _position_call(self, call: Call) -> Call:
        sought = self._additive()
        self.require("IN")
        return replace(call, arguments=(sought, self.expression()))

    def _overlay_call(self, call: Call) -> Call:
        return replace(call, arguments=self._worded("PLACING", "FROM", "FOR"))

    def _substring_call(self, call: Call) -> Call:
        return replace(call, arguments=self._worded("FROM", "FOR"))

    def _worded(self, *words: str) -> tuple[Part, ...]:
        """Arguments that words part, or commas."""
        arguments = [self.expression()]
        commas = self.at(",")
        for word in words:
            if not self.accept("," if commas else word):
                break
            arguments.append(self.expression())
        return tuple(arguments)

    def _json_value_call(self, call: Call) -> Call:
        arguments = self.list_of(self.expression)
        return replace(call, arguments=arguments, options=self._json_options(call.function))

    _json_query_call = _json_exists_call = _json_value_call

    def _json_options(self, function: str) -> tuple[tuple[str, Any], ...]:
        options: list[tuple[str, Any]] = []
        if function != "JSON_EXISTS" and self.accept("RETURNING"):
            options.append(("returning", self.type()[0]))
        if function == "JSON_QUERY" and (word := self.accept_any("WITH", "WITHOUT")):
            kind = self.accept_any("CONDITIONAL", "UNCONDITIONAL") if word == "WITH" else None
            self.accept("ARRAY")
            self.require("WRAPPER")
            options.append(("wrapper", "without" if word == "WITHOUT" else (kind or "UNCONDITIONAL").lower()))
        while True:
            start = self.next
            word = self.accept_any("NULL", "ERROR", "DEFAULT", "TRUE", "FALSE", "UNKNOWN", "EMPTY")
            if word is None:
                return tuple(options)
            does: Any = word.lower()
            if word == "DEFAULT":
                does = ("default", self._additive())
            elif word == "EMPTY":
                does = "empty " + (self.accept_any("ARRAY", "OBJECT") or "array").lower()
            self.require("ON")
            when = "ERROR" if function == "JSON_EXISTS" and self.accept("ERROR") else None
            if function != "JSON_EXISTS":
                when = self.accept_any("EMPTY", "ERROR")
            if when is None:
                raise self.unexpected()
            name = f"on_{when.lower()}"
            if any(name == other for other, _ in options):
                raise self.fail(f"ON {when} is said already; leave one out", self.since(start))
            options.append((name, does))

    def _json_object_call(self, call: Call) -> Call:
        arguments: list[Part] = []
        while not self.at(")") and not self.at_any("NULL", "ABSENT"):
            self.accept("KEY")
            arguments.append(self._additive())
            self.require("VALUE")
            arguments.append(self.expression())
            if not self.accept(","):
                break
        return replace(call, arguments=tuple(arguments), options=self._on_null())

    _json_objectagg_call = _json_object_call

    def _json_array_call(self, call: Call) -> Call:
        arguments: tuple[Part, ...] = ()
        if not self.at(")") and not (self.at_any("NULL", "ABSENT") and self.peek().keyword == "ON"):
            arguments = self.list_of(self.expression)
        return replace(call, arguments=arguments, options=self._on_null())

    _json_arrayagg_call = _json_array_call

    def _on_null(self) -> tuple[tuple[str, Any], ...]:
        word = self.accept_any("NULL", "ABSENT")
        if word is None:
            return ()
        self.require("ON", "NULL")
        return (("on_null", word.lower()),)
