"""CAST and TRY_CAST between the types of SQL, with the spellings of Flink."""

from __future__ import annotations

from typing import Final

from penstock.errors import PipelineError
from penstock.expressions import Expr, concat_str, lit, when
from penstock.expressions.casts import check_cast
from penstock.expressions.typing_rules import TypeMismatchError, promote
from penstock.sql.functions.arguments import argument, call, cast_to, sql_name
from penstock.sql.functions.constants import moment_of
from penstock.sql.functions.function import Argument
from penstock.types import (
    ANY_NUMBER,
    BOOLEAN,
    DATE,
    INTEGERS,
    NULL,
    STRING,
    TIME,
    TIMESTAMP,
    DataType,
    Field,
    family,
)

_TIMESTAMP: Final = "%Y-%m-%d %H:%M:%S%.f"
_ADVICE: Final[dict[str, str]] = {
    "number to TIMESTAMP": "write TO_TIMESTAMP_LTZ(x, 0) for seconds or TO_TIMESTAMP_LTZ(x, 3) for milliseconds",
    "TIMESTAMP to number": "write UNIX_TIMESTAMP or EXTRACT(EPOCH FROM x)",
}


def cast(value: Argument, to: DataType, strict: bool = True, *, length: int | None = None, pads: bool = False) -> Expr:
    """`CAST(value AS to)`, or with `strict=False` TRY_CAST: null where CAST fails the row.

    Args:
        value: what is cast.
        to: the type.
        strict: whether what cannot be converted fails the row.
        length: of VARCHAR(n) and CHAR(n): longer text is cut to so many characters.
        pads: CHAR(n): shorter text is filled with spaces.

    Raises:
        PipelineError: there is no such cast.
    """
    made = _cast(value, to, strict=strict)
    if length is None:
        return made
    cut = made.str.head(length)
    return cut.str.pad_end(length) if pads else cut


def text_of(value: Argument) -> Expr:
    """`CAST(value AS STRING)`."""
    return _cast(value, STRING, strict=True)


def _cast(value: Argument, to: DataType, *, strict: bool) -> Expr:
    origin = value.type
    if origin == to:
        return value.expr
    if origin == NULL:
        return cast_to(value, to)
    if to == STRING and origin in (BOOLEAN, TIMESTAMP):
        return _spelled(value)
    if origin == STRING:
        return _read(value, to, strict=strict)
    if (origin, to) == (TIMESTAMP, TIME):
        return value.expr.dt.time()
    _check(origin, to, strict=strict)
    return cast_to(value, to, strict=strict)


def _spelled(value: Argument) -> Expr:
    if value.type == TIMESTAMP:
        return value.expr.dt.strftime(_TIMESTAMP)
    if not value.nullable:
        return when(value.expr).then(lit("TRUE")).otherwise(lit("FALSE"))
    return when(value.expr).then(lit("TRUE")).when(~value.expr).then(lit("FALSE"))


def _check(origin: DataType, to: DataType, *, strict: bool) -> None:
    numeric = (family(origin) in ANY_NUMBER, family(to) in ANY_NUMBER)
    words = f"{'number' if numeric[0] else sql_name(origin)} to {'number' if numeric[1] else sql_name(to)}"
    try:
        if words in _ADVICE:
            raise TypeMismatchError(_ADVICE[words])
        check_cast(origin, to, strict=strict)
    except TypeMismatchError as error:
        advice = _ADVICE.get(words) or str(error).partition("; ")[2]
        if "int64" in advice:  # of microseconds, which are no type of SQL
            advice = "there is no such conversion"
        raise PipelineError(f"cannot cast {sql_name(origin)} to {sql_name(to)}; {advice}") from None


def _read(value: Argument, to: DataType, *, strict: bool) -> Expr:
    """Text without white space around it, read as Flink reads it."""
    text = value.expr.str.strip_chars()
    if to == DATE:
        return date_of(text, strict=strict)
    if to == TIMESTAMP:
        return timestamp_of(text, strict=strict)
    if to == TIME:
        day = concat_str(lit("1970-01-01 "), text)
        return timestamp_of(day, strict=strict).dt.time()
    if to in INTEGERS:  # digits behind the point are cut, as those of floats
        text = text.str.replace(r"^([+-]?\d+)\.\d*$", "$1")
    elif family(to) not in ANY_NUMBER and to != BOOLEAN:
        _check(STRING, to, strict=strict)
        text = value.expr
    return cast_to(text, to, strict=strict)


def date_of(text: Expr, *, strict: bool) -> Expr:
    """The date that text spells, of which a time of day is left out."""
    bare = text.str.replace(r"^(\d+-\d+-\d+)[ T].*$", "$1")
    return call("str.to_date", bare, format="%Y-%m-%d", strict=None if strict else False)


def timestamp_of(text: Expr, *, strict: bool) -> Expr:
    """The timestamp that text spells: a date, and perhaps a time of day with up to nine digits of a second."""
    spaced = text.str.replace(r"^(\d+-\d+-\d+)T", "$1 ").str.replace(r"Z$", "")
    whole = spaced.str.replace(r"^(\d+-\d+-\d+)$", "$1 00:00:00").str.replace(r"^(\S+ \d+:\d+)$", "$1:00")
    return call("str.to_datetime", whole, format=_TIMESTAMP, strict=None if strict else False)


def constant_as(value: Argument, kind: DataType, where: str) -> Argument:
    """A text constant read as a DATE, TIME or TIMESTAMP beside which it stands.

    Raises:
        PipelineError: it is none.
    """
    return argument(lit(moment_of(str(value.value), kind, where)), kind, nullable=False)


def as_parameter(function: str, parameter: Field, value: Argument) -> Expr:
    """A value as a function in Python takes it.

    Raises:
        PipelineError: it is of another type, or may be null where the function takes no None.
    """
    if value.type != NULL and promote(value.type, parameter.type) != parameter.type:
        wanted, given = sql_name(parameter.type), sql_name(value.type)
        raise PipelineError(f"{parameter.name} of {function} is {wanted}, and this is {given}; CAST it")
    if value.nullable and not parameter.nullable:
        raise PipelineError(
            f"this may be NULL, and {parameter.name} of {function} takes no None; annotate it with | None, or use "
            "COALESCE"
        )
    return value.expr if value.type == parameter.type else cast(value, parameter.type)
