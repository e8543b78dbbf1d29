"""Answers as tables of text: cells that say their values exactly, and lines that people can read.

    | origin | day        | flights | tags      |
    |--------|------------|---------|-----------|
    | FRA    | 2026-01-01 |       2 | ["a","b"] |
    | NULL   | 2026-01-02 |       1 | NULL      |

Tables of Flink's client, DuckDB and Penstock's prompt are read, too, with whatever lines they draw. A text that is
empty, reads NULL, begins as JSON does, has a bar or a line break in it or a space at an end, or looks like a line that
is drawn, stands in double quotes, as in JSON; so do names of columns. Arrays, maps and rows are JSON. `DOUBLE` has 15
digits and `FLOAT` 6, which is what these types hold.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from penstock.core.decimals import units_of
from penstock.errors import PipelineError
from penstock.sql.functions.arguments import sql_name
from penstock.sql.functions.constants import moment_of
from penstock.sql.text import Span, SqlText
from penstock.types import (
    ANY_NUMBER,
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT32,
    FLOATS,
    INTEGERS,
    NULL,
    SIGNED,
    STRING,
    TIME,
    TIMESTAMP,
    DataType,
    DecimalType,
    ListType,
    MapType,
    Scalar,
    StructType,
    family,
)

_BARS: Final = "|│┃║"
_DRAWN: Final = "┌┬┐├┼┤└┴┘─┏┳┓┣╋┫┗┻┛━┡╇┩╞╪╡┠╂┨═╔╦╗╠╬╣╚╩╝╒╤╕╘╧╛"
_LINE: Final = re.compile(rf"--[ \t]*[{_BARS}]|--[ \t]*[+{_DRAWN}][-+=:{_DRAWN}{_BARS} \t]*$")
_RULE: Final = re.compile(rf"[-+=:{_DRAWN}{_BARS} \t]*")
_BELOW_A_NAME: Final = re.compile(r"\S|\s*\S{2,}\s*")
"""What stands between bars in Markdown's line below the names, where the line is one by its characters."""
_INTERVAL: Final = re.compile(r"([+-])?(\d+) (\d{1,2}):(\d{2}):(\d{2})(?:\.(\d{1,6}))?")
_BYTES: Final = re.compile(r"[xX]'((?:[0-9a-fA-F]{2})*)'")
_ODD: Final = re.compile(
    rf"[{_BARS}\x00-\x1f\x7f\u2028\u2029]|^\s|\s$|^$|^NULL$|^[\[{{\"]|^[-+=:{_DRAWN} ]+$", re.IGNORECASE
)
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True)
class Cell:
    """What stands between two bars."""

    text: str
    span: Span


@dataclass(frozen=True)
class TextTable:
    """A table of text: the names of its columns, and its rows."""

    header: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def names(self) -> list[str]:
        """The names of its columns."""
        return [_name_of(each.text) for each in self.header]


def is_line_of_table(comment: str) -> bool:
    """Whether a comment (with its `--`) is a line of a table: it begins with a bar, or is a line that is drawn."""
    return _LINE.match(comment) is not None


def has_bars(text: SqlText, lines: Sequence[Span]) -> bool:
    """Whether one of the lines begins with a bar; others only draw, as comments do that part a file."""
    return any(text.at(line)[2:].strip()[0] in _BARS for line in lines)


def table_of(text: SqlText, lines: Sequence[Span]) -> TextTable:
    """The table that lines of comments draw.

    Raises:
        SqlError: a row has other columns than the header.
    """
    rows: list[list[Cell]] = []
    for line in lines:
        if not _only_draws(text.at(line), len(rows)):
            rows.append(_cells(text, line))
    if not rows:
        raise text.error(lines[0], "the table has no line with the names of the columns")
    for cells in rows[1:]:
        if len(cells) != len(rows[0]):
            place = cells[0].span.to(cells[-1].span)
            raise text.error(place, f"the row has {len(cells)} values, and the table {len(rows[0])} columns")
    return TextTable(tuple(rows[0]), tuple(tuple(cells) for cells in rows[1:]))


def _only_draws(shown: str, before: int) -> bool:
    """Whether a line has no cells; `before` lines of the table have some.

    A line that begins with a bar only draws where Markdown does so, below the names: elsewhere it has values such as `-`.
    """
    drawn_line = shown[2:].strip()
    if _RULE.fullmatch(drawn_line) is None:
        return False
    if drawn_line[0] not in _BARS:
        return True
    cells = re.split(f"[{_BARS}]", drawn_line.strip(_BARS))
    return before <= 1 and all(map(_BELOW_A_NAME.fullmatch, cells))


def _cells(text: SqlText, line: Span) -> list[Cell]:
    """The cells of a line that has some."""
    shown = text.at(line)
    found: list[Cell] = []
    begin: int | None = None
    nested = in_text = False
    place = 2
    while place <= len(shown):
        sign = shown[place] if place < len(shown) else "|"
        if begin is not None and sign == '"' and (nested or not shown[begin:place].strip()):
            nested, in_text = True, not in_text
        elif begin is not None and sign in "[{" and not shown[begin:place].strip():
            nested = True
        elif in_text and sign == "\\":
            place += 1
        elif (sign in _BARS and not in_text) or place == len(shown):
            if begin is not None and (place < len(shown) or shown[begin:].strip()):
                found.append(_cell(shown, begin, place, line.start))
            begin, nested, in_text = place + 1, False, False
        place += 1
    return found


def _cell(shown: str, begin: int, end: int, offset: int) -> Cell:
    text = shown[begin:end]
    start = begin + len(text) - len(text.lstrip()) if text.strip() else begin
    stripped = text.strip()
    return Cell(stripped, Span(offset + start, offset + start + max(1, len(stripped))))


def drawn(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool]) -> list[str]:
    """The lines of a table; columns of numbers stand right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return [line_of(header, widths, [False] * len(widths)), rule, *(line_of(row, widths, numbers) for row in rows)]


def line_of(cells: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]) -> str:
    """One line of a table."""
    shown = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, numbers, strict=True)
    ]
    return f"| {' | '.join(shown)} |"


def holds(kind: DataType, number: int) -> bool:
    """Whether a whole number is within the bounds of a type of whole numbers."""
    bits = int(str(kind).removeprefix("u").removeprefix("int"))
    return -(2 ** (bits - 1)) <= number < 2 ** (bits - 1) if kind in SIGNED else 0 <= number < 2**bits


def is_number(kind: DataType) -> bool:
    """Whether columns of the type stand right."""
    return family(kind) in ANY_NUMBER


# -- values to cells ----------------------------------------------------------------------------------------------------


def cell_of(value: Any, kind: DataType) -> str:
    """A value as a cell, from which `value_of` reads it again."""
    if value is None:
        return "NULL"
    match kind:
        case ListType() | MapType() | StructType():
            return json.dumps(_plain(value, kind), ensure_ascii=False, separators=(",", ":"))
        case DecimalType():
            return f"{value:f}"
        case _:
            return _SHOWS.get(kind, str)(value)


def _plain(value: Any, kind: DataType) -> Any:
    """A value as JSON has it."""
    if value is None:
        return None
    match kind:
        case ListType(inner=inner):
            return [_plain(each, inner) for each in value]
        case MapType(value=inner):
            return {key: _plain(each, inner) for key, each in sorted(value.items())}
        case StructType(fields=fields):
            return {each.name: _plain(value[each.name], each.type) for each in fields}
        case _ if kind in (BOOLEAN, STRING) or kind in INTEGERS:
            return value
        case _ if kind in FLOATS and math.isfinite(value):
            return _digits(value, kind)
        case _:
            return cell_of(value, kind)


def _digits(value: float, kind: DataType) -> float:
    """The digits that the type holds: what is beyond them depends on the order of additions."""
    return float(f"{value:.{6 if kind == FLOAT32 else 15}g}") + 0.0  # and no negative zero


def name_cell(name: str) -> str:
    """The name of a column as a cell."""
    return _text(name)


def _name_of(cell: str) -> str:
    try:
        return _read_text(cell)
    except ValueError:
        return cell


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False) if _ODD.search(value) else value


def _moment(value: datetime) -> str:
    """As CAST writes it."""
    has_whole_ms = bool(value.microsecond) and value.microsecond % 1000 == 0
    return value.replace(tzinfo=None).isoformat(" ", "milliseconds" if has_whole_ms else "auto")


def _interval(value: timedelta) -> str:
    sign, value = ("-", -value) if value < timedelta() else ("", value)
    days, rest = divmod(value, _DAY)
    seconds, micros = divmod(rest // timedelta(microseconds=1), 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{sign}{days} {clock}{f'.{micros:06}' if micros else ''}"


_SHOWS: Final[dict[DataType, Callable[[Any], str]]] = {
    BOOLEAN: lambda value: str(value).upper(),
    STRING: _text,
    BINARY: lambda value: f"X'{value.hex()}'",
    TIMESTAMP: _moment,
    DURATION: _interval,
    **{kind: lambda value, kind=kind: repr(_digits(value, kind)) for kind in FLOATS},
}


# -- cells to values ----------------------------------------------------------------------------------------------------


def value_of(cell: str, kind: DataType) -> Any:
    """The value that a cell says, of a type.

    Raises:
        PipelineError: it says none of that type.
    """
    if cell.upper() == "NULL":
        return None
    try:
        found = _value(cell, kind)
    except (ValueError, InvalidOperation, OverflowError, PipelineError):
        found = None
    if found is None:
        raise PipelineError(f"{cell!r} is no {sql_name(kind)}; write for example {_example(kind)}, or NULL")
    return found


def _value(cell: str, kind: DataType) -> Any:
    match kind:
        case ListType() | MapType() | StructType():
            return _of_json(json.loads(cell), kind)
        case DecimalType(precision=precision, scale=scale):
            value = Decimal(cell)
            return None if units_of(value, precision, scale) is None else value.quantize(Decimal(1).scaleb(-scale))
        case _ if kind in INTEGERS:
            return int(cell) if holds(kind, int(cell)) else None
        case _ if kind in FLOATS:
            return float(cell)
        case _:
            return _READS[kind](cell)


def _of_json(found: Any, kind: DataType) -> Any:
    """A value of what JSON says; raises a ValueError where that is no value of the type."""
    if found is None:
        return None
    match kind, found:
        case ListType(inner=inner), list():
            return [_of_json(each, inner) for each in found]
        case MapType(value=inner), dict():
            return {key: _of_json(each, inner) for key, each in found.items()}
        case StructType(fields=fields), dict() if found.keys() == {each.name for each in fields}:
            return {each.name: _of_json(found[each.name], each.type) for each in fields}
        case Scalar(), str() if kind == STRING:
            return found
        case ((Scalar() | DecimalType()), (str() | bool() | int() | float())) if kind != STRING:
            value = _value(found if isinstance(found, str) else repr(found), kind)
            if value is not None:
                return value
        case _:
            pass
    raise ValueError(found)


def _read_text(cell: str) -> str:
    return json.loads(cell) if cell.startswith('"') else cell


def _read_bytes(cell: str) -> bytes | None:
    match = _BYTES.fullmatch(cell)
    return match and bytes.fromhex(match.group(1))


def _read_interval(cell: str) -> timedelta | None:
    match = _INTERVAL.fullmatch(cell)
    if match is None:
        return None
    sign, days, hours, minutes, seconds, fraction = match.groups()
    micros = int((fraction or "").ljust(6, "0"))
    value = timedelta(int(days), int(seconds), micros, minutes=int(minutes), hours=int(hours))
    return -value if sign == "-" else value


def _reads_moment(kind: DataType) -> Callable[[str], date | time | datetime]:
    return lambda cell: moment_of(cell.removesuffix("+00:00"), kind, "")


_READS: Final[dict[DataType, Callable[[str], Any]]] = {
    BOOLEAN: {"TRUE": True, "FALSE": False, "true": True, "false": False, "True": True, "False": False}.get,
    STRING: _read_text,
    NULL: lambda cell: None,
    BINARY: _read_bytes,
    DURATION: _read_interval,
    **{kind: _reads_moment(kind) for kind in (DATE, TIME, TIMESTAMP)},
}


def _example(kind: DataType) -> str:
    match kind:
        case ListType():
            return '["a", "b"] as JSON'
        case MapType() | StructType():
            return '{"a": 1} as JSON'
        case DecimalType(scale=scale):
            return f"{Decimal(125).scaleb(-scale):f}"
        case Scalar():
            examples: dict[DataType, str] = {
                BOOLEAN: "TRUE", STRING: '"a text"', BINARY: "X'0a1b'", DATE: "2026-01-31", TIME: "12:30:00",
                TIMESTAMP: "2026-01-31 12:30:00", DURATION: "1 02:30:00", NULL: "NULL",
            }  # fmt: skip
            return examples.get(kind, "1.5" if kind in FLOATS else "15")


def normal_cell(cell: Cell, kind: DataType, text: SqlText) -> str:
    """A cell as `cell_of` would write its value, so that equal values are equal cells.

    Raises:
        SqlError: it says no value of the type.
    """
    try:
        return cell_of(value_of(cell.text, kind), kind)
    except PipelineError as error:
        raise text.error(cell.span, str(error)) from error
