"""Bytes to frames: the decoder interface of text formats, and JSON.

A `LineDecoder` turns a block of whole records into a frame and tells bad records apart; files, sockets and message
queues share it. JSON goes through msgspec's typed decoder, which is both the fastest way here (benchmarks/tried.md has
the others) and strict: wrong types, missing fields and malformed lines are never turned into nulls.

There are two ways. The fast one makes whole columns of rows, and is only taken for records that are right beyond doubt;
the exact one looks at records one by one, says what is wrong with the bad ones, and defines what is right. A message that
the fast way refuses is read again on its own; a block of lines with something amiss is split into its lines first.

Timestamps are RFC 3339; what they have behind microseconds is cut. In the fast path they arrive as text and are parsed
by Arrow, several times faster than as datetime objects; whatever that does not take, or takes more generously than RFC
3339, goes the exact way. Of two values with one name the last counts; only the exact way looks whether a timestamp that
is replaced so is one.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field as member
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, cast

import msgspec

from penstock.formats import columns
from penstock.formats.columns import MISSING, FrameBuilder, not_null, number_for_moment, within_years
from penstock.formats.misspelt import RECORDS, has_optional, misspelt_in_records
from penstock.types import (
    FLOATS,
    INTEGERS,
    TIME,
    TIMESTAMP,
    DataType,
    DecimalType,
    Field,
    ListType,
    MapType,
    Schema,
    StructType,
    parts_of,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

_NEWLINE: Final = 10
_MISSING: Final = re.compile(
    r"(?:Object missing required field `(.*?)`|Expected `[^`]*`, got `null`)(?: - at `\$\.?(.*?)`)?$"
)
_LINES: Final = (
    "and each line is to be one object (JSON lines); `jq -c '.[]'` makes lines of an array, `jq -c .` of objects"
)
_ARRAY: Final = "Expected `object`, got `array`"
_NUMBER: Final = re.compile(r"Expected `datetime(?: \| null)?`, got `(?:int|float)` - at `\$\.([^`]*)`$")
_TRUNCATED: Final = "Input data was truncated"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_FINER: Final = r"(:[0-9]{2}\.[0-9]{6})[0-9]+"
"""Seconds with more digits than microseconds have; the group is what stays."""
_MAY_BE_FINER: Final = re.compile(_FINER.encode())
_PIECE_BYTES: Final = 512 << 10
"""Blocks are decoded in pieces of about this size, so that row objects are columns before they leave the processor's
caches. The gain is not certain: benchmarks/tried.md has the measurements."""
_PIECE_VALUES: Final = 8_192
"""So many messages are decoded at a time, for the same reason."""
_SPLIT: Final = 8
_FEWEST_VALUES: Final = 16
_MOST_FAILURES: Final = 32
"""Rows with one among them that does not fit are split, unless they are so few, or so many in a piece do not fit."""
_REFUSALS: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What decoding raises of a record that is none."""
_HINTS: Final[dict[str, Any]] = {
    "boolean": bool, "string": str, "binary": bytes, "date": date, "time": time, "timestamp": datetime,
    "duration": timedelta,
    "null": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BadLine:
    """A record that is no row: which of the block's records, what is wrong, its bytes."""

    index: int
    error: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class Decoded:
    """The rows of a block in order, with exactly the schema's columns and types, and its bad records in order."""

    frame: pl.DataFrame
    bad: Sequence[BadLine] = ()
    misspelt: Mapping[str, str] = member(default_factory=dict[str, str])
    """See `Fetched.misspelt`."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows, and which records they are."""

    numbers: npt.NDArray[np.int64]
    frame: pl.DataFrame


class LineDecoder(Protocol):
    """Decodes text that consists of records one after the other."""

    quotes: ClassVar[bool]
    """Whether a record may have line ends in quotes."""
    delimiter: int
    """The byte between columns, if that is so."""

    def ends(self, buffer: bytes, *, last: bool = False) -> npt.NDArray[np.int64]:
        """Positions behind each whole record of a buffer that begins at a record; `last`: nothing follows it."""
        ...

    def decode(self, block: bytes) -> Decoded:
        """The rows of whole records; the last needs no terminator. `BadLine.index` counts as `ends` does."""
        ...


def line_ends(buffer: bytes) -> npt.NDArray[np.int64]:
    """Positions behind every newline."""
    import numpy as np

    return np.flatnonzero(np.frombuffer(buffer, np.uint8) == _NEWLINE) + 1


def lines_of(block: bytes) -> list[bytes]:
    """The lines of a block, blank ones included, without what follows the last newline if that is nothing."""
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


class JsonDecoder:
    """Decodes one JSON object per line (or per message) into rows of a schema.

    Unknown fields are ignored; a missing field has its default, or is null, and bad if it is not nullable; blank lines
    are nothing.
    Decimals are numbers or texts, read digit by digit and never by way of a float. Bytes are base64, dates
    `YYYY-MM-DD`, times of day `HH:MM:SS`, durations ISO 8601 (`PT1.5S`).

    Args:
        schema: the columns.
        zone: the zone of timestamps without offset; None: they make a record bad.
    """

    quotes: ClassVar[bool] = False
    delimiter: int = 0

    def __init__(self, schema: Schema, zone: tzinfo | None = None) -> None:
        self._schema = schema
        self._builder = FrameBuilder(schema, zone)
        self._getters = [_getter(f"f{index}") for index in range(len(schema.fields))]
        self._has_looked = not has_optional(schema.fields)
        self._misspelt: Mapping[str, str] = {}
        self._exact = msgspec.json.Decoder(_row_struct(schema.fields))
        timed = [field.type for field in schema if not {TIME, TIMESTAMP}.isdisjoint(parts_of(field.type))]
        cut = _row_struct(schema.fields, cut=True) if timed else None
        self._cutting = None if cut is None else msgspec.json.Decoder(cut, dec_hook=_cut)
        """Where msgspec would round; None: nowhere."""
        self._fast_rounds = any(kind != TIMESTAMP for kind in timed)
        # With a zone given, timestamps without offset are expected, and only the exact way takes those.
        self._fast = msgspec.json.Decoder(_row_struct(schema.fields, timestamps_as_text=True)) if zone is None else None
        self._decode_row = None if self._fast is None else self._unrounded if self._fast_rounds else self._fast.decode

    def ends(self, buffer: bytes, *, last: bool = False) -> npt.NDArray[np.int64]:
        """See `LineDecoder.ends`."""
        return line_ends(buffer)

    def decode(self, block: bytes) -> Decoded:
        """See `LineDecoder.decode`."""
        import polars as pl

        if not self._has_looked:
            self._look(block.split(b"\n", RECORDS)[:RECORDS])
        frames: list[pl.DataFrame] = []
        bad: list[BadLine] = []
        begin = 0
        for piece in _pieces(block):
            frame = self._of_lines(piece)
            if frame is None:
                decoded = self.decode_values(lines_of(piece), skip_blank=True)
                before = block.count(b"\n", 0, begin) if decoded.bad else 0
                bad += [BadLine(before + line.index, line.error, line.raw) for line in decoded.bad]
                frame = decoded.frame
            frames.append(frame)
            begin += len(piece)
        return Decoded(frames[0] if len(frames) == 1 else pl.concat(frames, rechunk=True), bad, self._misspelt)

    def decode_values(self, values: Sequence[bytes], *, skip_blank: bool = False) -> Decoded:
        """Rows of separate messages; one that is empty or blank is bad unless it is to be skipped."""
        if not self._has_looked:
            self._look(values[:RECORDS])
        parts: list[_Part] = []
        unsure: list[int] = []
        decode = self._decode_row
        for start in range(0, len(values), _PIECE_VALUES):
            piece = values[start : start + _PIECE_VALUES]
            found, left = ([], range(len(piece))) if decode is None else self._sure(piece, decode)
            decode = decode if found else None  # where nothing of a piece is sure, the rest is not tried
            parts += [_Part(part.numbers + start, part.frame) for part in found]
            unsure += [start + number for number in left]
        if parts and not unsure:
            return Decoded(_in_order(parts), misspelt=self._misspelt)
        part, bad = self._decode_exactly(values, unsure, skip_blank=skip_blank)
        return Decoded(_in_order([*parts, part]), bad, self._misspelt)

    def _sure(self, values: Sequence[bytes], decode: Callable[[bytes], Any]) -> tuple[list[_Part], list[int]]:
        """The rows of all values but those that need a closer look, and which these are, in order."""
        import numpy as np

        rows: list[Any] = []
        left: list[int] = []
        decoded = map(decode, values)
        while True:
            try:
                rows.extend(decoded)
                break
            except _REFUSALS:  # what was decoded before stays in the list, and the next value follows
                left.append(len(rows) + len(left))
        numbers = np.delete(np.arange(len(values)), left) if left else np.arange(len(values))
        parts: list[_Part] = []
        ranges, failures = [range(len(rows))], 0
        while ranges:
            some = ranges.pop()
            frame = self._columns(rows[some.start : some.stop]) if failures < _MOST_FAILURES else None
            if frame is not None:
                parts.append(_Part(numbers[some.start : some.stop], frame))
                continue
            failures += 1
            if len(some) <= _FEWEST_VALUES or failures >= _MOST_FAILURES:
                left += numbers[some.start : some.stop].tolist()
            else:
                step = -(-len(some) // _SPLIT)
                ranges += [some[start : start + step] for start in range(0, len(some), step)]
        return parts, sorted(left)

    def _decode_exactly(
        self, values: Sequence[bytes], numbers: Sequence[int], *, skip_blank: bool
    ) -> tuple[_Part, list[BadLine]]:
        """The rows of some of the values, and those of them that are bad."""
        import numpy as np

        rows: list[Any] = []
        kept: list[int] = []
        bad: list[BadLine] = []
        decode = self._exact.decode if self._cutting is None else self._cut
        for number in numbers:
            value = values[number]
            try:
                rows.append(decode(value))
                kept.append(number)
            except _REFUSALS as error:
                if not (skip_blank and not value.strip()):
                    bad.append(BadLine(number, _reason(error, value), value))
        frame, wrong = self._builder.frame([getter(rows) for getter in self._getters])
        bad += [BadLine(kept[row], error, values[kept[row]]) for row, error in wrong]
        part = _Part(np.delete(np.array(kept, np.int64), [row for row, _ in wrong]), frame)
        return part, sorted(bad, key=lambda line: line.index)

    def _unrounded(self, value: bytes) -> Any:
        """A fast row; a `ValueError` if msgspec may have rounded something in it."""
        assert self._fast is not None
        if _MAY_BE_FINER.search(value):
            raise ValueError(value)
        return self._fast.decode(value)

    def _look(self, values: Sequence[bytes]) -> None:
        """Look at the names in the first records, if there are any: the only ones of which they are read."""
        records: list[dict[str, Any]] = []
        for value in values:
            with suppress(*_REFUSALS):  # a bad record, of which others tell
                records.append(msgspec.json.decode(value, type=dict[str, Any]))
        self._has_looked = bool(records)
        self._misspelt = misspelt_in_records(self._schema.fields, records)

    def _cut(self, value: bytes) -> Any:
        """A row whose timestamps and times of day may have to be cut; of one that is none, the usual error."""
        if self._cutting is None or not _MAY_BE_FINER.search(value):
            return self._exact.decode(value)
        try:
            return self._cutting.decode(value)
        except _REFUSALS:
            return self._exact.decode(value)

    def _of_lines(self, block: bytes) -> pl.DataFrame | None:
        """The frame if every line is a row without doubt, None if anything needs a closer look."""
        if self._fast is None or (self._fast_rounds and _MAY_BE_FINER.search(block)):
            return None
        try:
            rows = self._fast.decode_lines(block)
        except _REFUSALS:
            return None
        return self._columns(rows) if len(rows) == _objects(block) else None

    def _columns(self, rows: Sequence[Any]) -> pl.DataFrame | None:
        """The frame of fast rows, None if a value may not fit its column."""
        import polars as pl
        import pyarrow as pa

        try:
            return pl.DataFrame(
                [
                    self._column(field, getter(rows))
                    for field, getter in zip(self._schema.fields, self._getters, strict=True)
                ]
            )
        except (ValueError, TypeError, AttributeError, OverflowError, pa.ArrowException, pl.exceptions.PolarsError):
            return None

    def _column(self, field: Field, values: list[Any]) -> pl.Series:
        return timestamps_of(field, values) if field.type == TIMESTAMP else self._builder.series(field, values)


def _in_order(parts: Sequence[_Part]) -> pl.DataFrame:
    """All the rows, in the order of their records."""
    import numpy as np
    import polars as pl

    if len(parts) == 1:
        return parts[0].frame
    frame = pl.concat([part.frame for part in parts], rechunk=True)
    numbers = np.concatenate([part.numbers for part in parts])
    return frame if (numbers[1:] > numbers[:-1]).all() else frame.select(pl.all().gather(numbers.argsort()))


def _pieces(block: bytes) -> Sequence[bytes]:
    """The block cut behind newlines. What is cut within an object cannot be decoded, so a wrong cut is noticed."""
    if len(block) <= 2 * _PIECE_BYTES:
        return (block,)
    pieces: list[bytes] = []
    begin = 0
    while begin < len(block):
        newline = block.find(b"\n", begin + _PIECE_BYTES)
        end = newline + 1 if newline >= 0 else len(block)
        pieces.append(block[begin:end])
        begin = end
    return pieces


def _getter(attribute: str) -> Callable[[Sequence[Any]], list[Any]]:
    # A literal attribute name is loaded twice as fast as through attrgetter, which shows in the whole of decoding.
    return eval(f"lambda rows: [row.{attribute} for row in rows]")  # f0, f1, ... only


def timestamps_of(field: Field, texts: Sequence[str | None]) -> pl.Series:
    """A timestamp column of RFC 3339 texts; raises one of several exceptions if one is anything out of the ordinary."""
    import polars as pl
    import pyarrow as pa
    import pyarrow.compute as pc

    array: Any = pa.array(texts, pa.string())
    if not _have_seconds_and_offset(array):
        raise ValueError(field.name)
    try:
        moments: Any = pc.cast(array, pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        if pc.max(pc.binary_length(array)).as_py() < len("2001-01-01T00:00:00.1234567Z"):
            raise  # nothing can be cut, and to try it takes long
        moments = pc.cast(pc.replace_substring_regex(array, _FINER, r"\1"), pa.timestamp("us", "UTC"))
    micros: Any = pc.cast(moments, pa.int64())
    made = pl.from_arrow(micros)
    assert isinstance(made, pl.Series)
    return not_null(within_years(made.rename(field.name)), field).cast(pl.Datetime("us", "UTC"))


def _have_seconds_and_offset(array: Any) -> bool:
    """Whether all texts of the Arrow array of strings look like `....-..-..T..:..:.. ... Z` or `... +..:..`.

    Arrow's cast also takes times without seconds and offsets without a colon; all else that it takes is RFC 3339.
    """
    import numpy as np

    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(array) + 1)
    starts, ends = bounds[:-1], bounds[1:]
    lengths = ends - starts
    if not lengths.all():  # nulls are empty; so are empty texts, which the cast refuses
        starts, ends, lengths = starts[lengths > 0], ends[lengths > 0], lengths[lengths > 0]
    if not lengths.size:
        return True
    if lengths.min() < len("2001-01-01T00:00:00Z"):
        return False
    text = np.frombuffer(data, np.uint8)
    zulu = text[ends - 1] == ord("Z")
    offset = zulu.all() or (zulu | (text[ends - 3] == ord(":"))).all()
    return bool(offset and (text[starts + 16] == ord(":")).all())


def _objects(block: bytes) -> int:
    """How many objects a block has if every line is one; -1 if some line may be anything else.

    msgspec's `decode_lines` also takes several objects on a line, and objects over several lines. Where every newline
    stands between `}` and `{`, or ends the block, it can only be the end of an object.
    """
    import numpy as np

    if not block:
        return 0
    text = np.frombuffer(block, np.uint8)
    breaks = np.flatnonzero(text == _NEWLINE)
    inner = breaks[:-1] if breaks.size and breaks[-1] == len(block) - 1 else breaks
    brackets = block[:1] == b"{" and bool((text[inner - 1] == ord("}")).all() and (text[inner + 1] == ord("{")).all())
    return len(inner) + 1 if brackets else -1


class _Kinds(type):
    """Of a class that a hook makes values of another one for, which msgspec lets pass if they are instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime | time)


class _CutMoment(metaclass=_Kinds):
    """A timestamp whose digits behind the microseconds are left out."""


class _CutTime(metaclass=_Kinds):
    """A time of day whose digits behind the microseconds are left out."""


_CUT: Final[dict[Any, Any]] = {datetime: _CutMoment, time: _CutTime}


def _cut(kind: type, value: Any) -> datetime | time:
    """msgspec itself would round, into another second, day or window."""
    if not isinstance(value, str):
        raise TypeError(value)
    return msgspec.convert(without_nanoseconds(value), datetime if kind is _CutMoment else time)


def without_nanoseconds(text: str) -> str:
    """A timestamp or time of day without the digits behind its microseconds."""
    return re.sub(_FINER, r"\1", text)


def _row_struct(
    fields: Sequence[Field], *, timestamps_as_text: bool = False, cut: bool = False
) -> type[msgspec.Struct]:
    """A class that msgspec decodes an object of these fields into; attributes are f0, f1, ... in order.

    Args:
        fields: of the object.
        timestamps_as_text: they are not parsed; those within others are.
        cut: for a decoder with the hook `_cut`.
    """
    scalars = {name: _CUT.get(kind, kind) for name, kind in _HINTS.items()} if cut else _HINTS
    members: list[Any] = []
    for index, field in enumerate(fields):
        as_text = timestamps_as_text and field.type == TIMESTAMP
        hint = str if as_text else _hint(field.type, scalars)
        if field.default is not None:
            default = field.default.astimezone(UTC).isoformat().replace("+00:00", "Z") if as_text else field.default
            factory: Any = msgspec.field(default_factory=lambda default=default: default)
            members.append((f"f{index}", hint | None if field.nullable else hint, factory))
        else:
            members.append((f"f{index}", hint | None, None) if field.nullable else (f"f{index}", hint))
    names = {f"f{index}": field.name for index, field in enumerate(fields)}
    return msgspec.defstruct("Row", members, rename=names, kw_only=True, gc=False)


def _hint(kind: DataType, scalars: Mapping[str, Any]) -> Any:
    if isinstance(kind, ListType):
        return list[_hint(kind.inner, scalars) | None]
    if isinstance(kind, MapType):
        return dict[str, _hint(kind.value, scalars) | None]
    if isinstance(kind, StructType):
        # A TypedDict, because its keys may be any text, and columns are built from mappings as well as from objects.
        typed_dict: Any = typing.TypedDict
        members = {field.name: _member_hint(field, scalars) for field in kind.fields}
        return typed_dict("Nested", members)
    if kind in INTEGERS:
        return int
    if isinstance(kind, DecimalType):
        return Decimal
    return float if kind in FLOATS else scalars[kind.name]


def _member_hint(field: Field, scalars: Mapping[str, Any]) -> Any:
    hint = _hint(field.type, scalars) | None if field.nullable else _hint(field.type, scalars)
    return typing.NotRequired[hint] if field.nullable or field.default is not None else hint


def _reason(error: Exception, value: bytes) -> str:
    """What is wrong with a record, with the name of the column where that can be told."""
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error}"
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        return _malformed(error, value)
    missing = _MISSING.match(str(error))
    if missing is not None:
        return f"{'.'.join(filter(None, missing.group(2, 1)))}: {_missed(missing, value)}"
    if str(error) == _ARRAY:
        return f"the record is a JSON array, or the beginning of one, {_LINES}"
    number = _NUMBER.match(str(error))
    if number is not None:
        return number_for_moment(number[1])
    return str(error) or type(error).__name__


def _missed(missing: re.Match[str], value: bytes) -> str:
    """What to do about a field that a record lacks: its name may be spelled otherwise there."""
    name, place = missing.group(1), missing.group(2)
    if name is None or place:
        return MISSING
    try:
        there = cast("dict[str, Any]", json.loads(value))
    except (ValueError, RecursionError):  # more is wrong behind what msgspec looked at
        return MISSING
    return columns.missing(name, there)


def _malformed(error: Exception, value: bytes) -> str:
    """msgspec says "truncated" of half a surrogate pair as well, which Python takes."""
    if not value.strip():
        return "the record is empty"
    try:
        found = _surrogate_in(json.loads(value), "")
    except (ValueError, RecursionError):
        found = None
    if found is not None:
        return f"{found}: the text has a lone surrogate (half of a character in UTF-16), which is no text"
    if str(error) != _TRUNCATED:
        return str(error)
    return f"the record ends within its JSON{f', {_LINES}' if value.strip() in (b'{', b'[') else ''}"


def _surrogate_in(value: Any, path: str) -> str | None:
    """Where a text, or a name, has one."""
    if isinstance(value, str):
        return (path or "the record") if _SURROGATE.search(value) else None
    members: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        members = [(f"{path}.{name}".lstrip("."), each) for name, each in cast("dict[str, Any]", value).items()]
        if any(map(_SURROGATE.search, cast("dict[str, Any]", value))):
            return f"a name in {path or 'the record'}"
    elif isinstance(value, list):
        members = [(f"{path}[{index}]", each) for index, each in enumerate(cast("list[Any]", value))]
    return next((found for name, each in members if (found := _surrogate_in(each, name)) is not None), None)
