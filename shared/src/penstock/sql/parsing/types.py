"""Types as SQL writes them."""

from __future__ import annotations

from typing import Final

from penstock.core.decimals import MOST_DIGITS
from penstock.errors import nearest
from penstock.sql.parsing.cursor import Cursor
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    TIME,
    TIMESTAMP,
    DataType,
    DecimalType,
    Field,
    ListType,
    MapType,
    StructType,
)

_PLAIN: Final[dict[str, DataType]] = {
    "BOOLEAN": BOOLEAN, "BOOL": BOOLEAN, "TINYINT": INT8, "SMALLINT": INT16, "INT": INT32, "INTEGER": INT32,
    "BIGINT": INT64, "FLOAT": FLOAT32, "REAL": FLOAT32, "DOUBLE": FLOAT64, "STRING": STRING, "TEXT": STRING,
    "BYTES": BINARY, "DATE": DATE,
}  # fmt: skip
_WITH_LENGTH: Final[dict[str, DataType]] = {
    "VARCHAR": STRING, "CHAR": STRING, "CHARACTER": STRING, "VARBINARY": BINARY, "BINARY": BINARY
}  # fmt: skip
_MOST_DIGITS_OF_TIME: Final = 6
Length = tuple[str, int] | None
"""`("CHAR", 3)` or `("VARCHAR", 10)`, which values of such a type keep to."""


class TypeParser(Cursor):
    """Parses types."""

    def type(self) -> tuple[DataType, Length]:
        """A type, and the length that it says.

        Raises:
            SqlError: there is no such type.
        """
        with self.nested():
            kind, length = self._type()
        while self.accept_any("ARRAY", "MULTISET"):
            kind, length = ListType(kind), None
        return kind, length

    def element_type(self) -> DataType:
        """The type of a part; whether it says NOT NULL does not matter, because lists and fields may always hold null."""
        kind, _ = self.type()
        if not self.accept("NOT", "NULL"):
            self.accept("NULL")
        return kind

    def _type(self) -> tuple[DataType, Length]:
        self.expect("a type")
        token = self.next
        word = token.keyword
        if word not in ("ROW", "INTERVAL") and (token.kind != "name" or word == ""):
            raise self.unexpected()
        self.advance()
        if word in _WITH_LENGTH:
            varying = word in ("CHAR", "CHARACTER") and self.accept("VARYING")
            size = self._size()
            fixed = word in ("CHAR", "CHARACTER", "BINARY") and not varying
            family = (
                ("CHAR" if fixed else "VARCHAR") if _WITH_LENGTH[word] == STRING else "BINARY" if fixed else "VARBINARY"
            )
            size = 1 if fixed and size is None else size
            return _WITH_LENGTH[word], None if size is None else (family, size)
        if word in _PLAIN:
            if word == "DOUBLE":
                self.accept("PRECISION")
            return _PLAIN[word], None
        match word:
            case "DECIMAL" | "DEC" | "NUMERIC":
                return self._decimal(), None
            case "TIME":
                self._fraction()
                self.accept("WITHOUT", "TIME", "ZONE")
                return TIME, None
            case "TIMESTAMP" | "TIMESTAMP_LTZ" | "DATETIME":
                self._fraction()
                if self.accept("WITH"):
                    self.accept("LOCAL")
                    self.require("TIME", "ZONE")
                else:
                    self.accept("WITHOUT", "TIME", "ZONE")
                return TIMESTAMP, None
            case "ARRAY" | "MULTISET":
                return ListType(self._between_angles()), None
            case "MAP":
                self.require("<")
                token = self.next
                if self.element_type() != STRING:
                    raise self.fail("the keys of a MAP are STRING", token.span)
                self.require(",")
                value = self.element_type()
                self.require(">")
                return MapType(value), None
            case "ROW" | "STRUCT":
                return StructType(self._row_fields()), None
            case _:
                known = (*_PLAIN, *_WITH_LENGTH, "DECIMAL", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ", "ARRAY", "MAP", "ROW")
                raise self.fail(f"there is no type {token.value}; {nearest(word, known)}", token.span)

    def _between_angles(self) -> DataType:
        self.require("<")
        kind = self.element_type()
        self.require(">")
        return kind

    def _row_fields(self) -> tuple[Field, ...]:
        closing = ">" if self.accept("<") else ")"
        if closing == ")":
            self.require("(")
        fields: list[Field] = []
        while not fields or self.accept(","):
            token = self.name_token("a field")
            if any(field.name == token.value for field in fields):
                raise self.fail(f"the field {token.value!r} is there twice", token.span)
            kind, _ = self.type()
            nullable = not self.accept("NOT", "NULL")
            if nullable:
                self.accept("NULL")
            if self.next.kind == "text":
                self.advance()  # a comment
            fields.append(Field(token.value, kind, nullable))
        self.require(closing)
        return tuple(fields)

    def _size(self) -> int | None:
        if not self.accept("("):
            return None
        token = self.next
        size = self.whole_number("a length")
        if size < 1:
            raise self.fail("a length is 1 or more", token.span)
        self.require(")")
        return size

    def _fraction(self) -> None:
        if not self.accept("("):
            return
        token = self.next
        digits = self.whole_number("a number of digits")
        if digits > 9:
            raise self.fail("a time has at most 9 digits of a second", token.span)
        if digits > _MOST_DIGITS_OF_TIME:
            raise self.fail(f"times are kept in microseconds; write {_MOST_DIGITS_OF_TIME} digits or fewer", token.span)
        self.require(")")

    def _decimal(self) -> DecimalType:
        precision, scale, start = 10, 0, self.next
        if self.accept("("):
            precision = self.whole_number("the number of digits")
            if self.accept(","):
                scale = self.whole_number("the number of digits behind the point")
            self.require(")")
        if not 1 <= precision <= MOST_DIGITS or scale > precision:
            raise self.fail(
                f"a DECIMAL has 1 to {MOST_DIGITS} digits, of which none to all stand behind the point",
                self.since(start),
            )
        return DecimalType(precision, scale)
