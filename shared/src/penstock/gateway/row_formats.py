"""Values of rows as Flink's REST endpoint writes them: `JSON`, typed, and `PLAIN_TEXT`, as Flink's client shows them.

JSON is what Flink's RowDataToJsonConverters make: timestamps in ISO 8601, decimals as numbers without trailing zeros,
bytes in Base64, intervals in milliseconds. A text is what `CAST(value AS STRING)` gives.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, Final, Literal

import numpy as np

from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT32,
    FLOATS,
    TIME,
    TIMESTAMP,
    DataType,
    DecimalType,
    ListType,
    MapType,
    StructType,
)

RowFormat = Literal["JSON", "PLAIN_TEXT"]
_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}
_LARGEST_PLAIN: Final = 1e7
_LEAST_PLAIN: Final = 1e-3
"""Java writes numbers from 0.001 up to ten million without an exponent."""
_ZEROS: Final = re.compile(r"\.?0+$")
_DAY: Final = timedelta(days=1)


def value_in(row_format: RowFormat, value: Any, kind: DataType) -> Any:
    """A value of a row as a result has it; of JSON something that can be encoded as such."""
    if value is None:
        return None
    return json_of(value, kind) if row_format == "JSON" else text_of(value, kind)


def json_of(value: Any, kind: DataType) -> Any:
    """A value as JSON has it."""
    if value is None:
        return None
    match kind:
        case ListType(inner=inner):
            return [json_of(each, inner) for each in value]
        case MapType(value=inner):
            return {key: json_of(each, inner) for key, each in value.items()}
        case StructType(fields=fields):
            return {each.name: json_of(value[each.name], each.type) for each in fields}
        case DecimalType():
            return _stripped(value)
        case _:
            return _JSON[kind](value) if kind in _JSON else value


def text_of(value: Any, kind: DataType) -> str:
    """A value as text."""
    if value is None:
        return "NULL"
    match kind:
        case ListType(inner=inner):
            return f"[{', '.join(text_of(each, inner) for each in value)}]"
        case MapType(value=inner):
            return f"{{{', '.join(f'{key}={text_of(each, inner)}' for key, each in value.items())}}}"
        case StructType(fields=fields):
            return f"({', '.join(text_of(value[each.name], each.type) for each in fields)})"
        case DecimalType():
            return f"{value:f}"
        case _:
            return _TEXTS[kind](value) if kind in _TEXTS else str(value)


_EXACT: Final = Context(prec=76)
"""More digits than any decimal has."""


def _stripped(value: Decimal) -> Decimal:
    """Without trailing zeros, as Java's BigDecimal strips them."""
    return Decimal(0) if value == 0 else value.normalize(_EXACT)


def _shortest(value: float, kind: DataType) -> float:
    """The number with the least digits that the type holds."""
    return float(str(np.float32(value))) if kind == FLOAT32 else value


def _json_float(value: float, kind: DataType) -> float | str:
    if math.isfinite(value):
        return _shortest(value, kind)
    return _NOT_FINITE.get(value, "NaN")


def _text_float(value: float, kind: DataType) -> str:
    """As Java's `Double.toString` and `Float.toString`."""
    if not math.isfinite(value):
        return _NOT_FINITE.get(value, "NaN")
    short = _shortest(value, kind)
    if short == 0 or _LEAST_PLAIN <= abs(short) < _LARGEST_PLAIN:
        return np.format_float_positional(short, trim="0")
    digits, _, exponent = np.format_float_scientific(short, trim="0").partition("e")
    return f"{digits}E{int(exponent)}"


def _clock(value: time) -> str:
    """Seconds always, and as many digits of them as are needed."""
    return _ZEROS.sub("", f"{value:%H:%M:%S.%f}") if value.microsecond else f"{value:%H:%M:%S}"


def _interval(value: timedelta) -> str:
    sign, rest = ("-", -value) if value < timedelta() else ("+", value)
    days, rest = divmod(rest, _DAY)
    seconds, millis = divmod(rest // timedelta(milliseconds=1), 1_000)
    return f"{sign}{days} {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{millis:03}"


def _day(value: date) -> str:
    return f"{value.year:04}-{value.month:02}-{value.day:02}"


def _iso(value: datetime) -> str:
    return f"{_day(value)}T{_clock(value.time())}"


def _moment(value: datetime) -> str:
    return f"{_day(value)} {value:%H:%M:%S.%f}"


_JSON: Final[dict[DataType, Callable[[Any], Any]]] = {
    BINARY: lambda value: base64.b64encode(value).decode(),
    DATE: _day,
    TIME: _clock,
    TIMESTAMP: _iso,
    DURATION: lambda value: value // timedelta(milliseconds=1),
    **{kind: lambda value, kind=kind: _json_float(value, kind) for kind in FLOATS},
}
_TEXTS: Final[dict[DataType, Callable[[Any], str]]] = {
    BOOLEAN: lambda value: str(value).upper(),
    BINARY: lambda value: f"x'{value.hex()}'",
    DATE: _day,
    TIME: _clock,
    TIMESTAMP: _moment,
    DURATION: _interval,
    **{kind: lambda value, kind=kind: _text_float(value, kind) for kind in FLOATS},
}
