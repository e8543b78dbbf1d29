"""The namespaces of `Expr`: `.str`, `.bin`, `.json`, `.dt`, `.list` and `.struct`, named as in Polars."""

from __future__ import annotations

import zoneinfo
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from penstock.core.arguments import checked
from penstock.core.times import duration_us, format_duration
from penstock.errors import PipelineError
from penstock.expressions.functions_json import type_option
from penstock.expressions.nodes import Option
from penstock.types import STRING, DataType, DecimalType, ListType, MapType, Scalar, StructType, of_python, parts_of

if TYPE_CHECKING:
    from penstock.expressions.surface import Expr, Operand


class _Namespace:
    __slots__ = ("_expr",)
    _name: ClassVar[str]

    def __init__(self, expr: Expr) -> None:
        self._expr = expr

    def _call(self, function: str, *others: Operand, **options: Option) -> Expr:
        return self._expr._call(function, *others, **options)

    if not TYPE_CHECKING:  # an editor shall know that there is no such method

        def __getattr__(self, name):
            raise unknown(f"{self._name}.{name}", f"{self._expr}: .{self._name}.{name}")


class UnknownFunctionError(PipelineError, AttributeError):
    """An expression has no such method; what is known under that name elsewhere is in the message."""


def unknown(name: str, where: str) -> AttributeError:
    """The error of a method that there is not; Python itself asks for some that begin with underscores."""
    if name.rpartition(".")[2].startswith("_"):
        return AttributeError(name)
    from penstock.expressions.catalogue import suggestion

    return UnknownFunctionError(f"{where}: there is no such function; {suggestion(name)}")


@checked
class StringNamespace(_Namespace):
    """Functions of text. Positions and lengths count Unicode code points unless the name says bytes."""

    __slots__ = ()
    _name = "str"

    def to_lowercase(self) -> Expr:
        """In lower case."""
        return self._call("str.to_lowercase")

    def to_uppercase(self) -> Expr:
        """In upper case."""
        return self._call("str.to_uppercase")

    def strip_chars(self, characters: str | None = None) -> Expr:
        """Without these characters at both ends; without `characters`, white space."""
        return self._call("str.strip_chars", characters=characters)

    def strip_chars_start(self, characters: str | None = None) -> Expr:
        """Without these characters at the beginning."""
        return self._call("str.strip_chars_start", characters=characters)

    def strip_chars_end(self, characters: str | None = None) -> Expr:
        """Without these characters at the end."""
        return self._call("str.strip_chars_end", characters=characters)

    def zfill(self, length: int) -> Expr:
        """Filled with zeros on the left; a sign stays in front.

        Example:
            >>> evaluate(col("n").str.zfill(4), n=["7", "-7", None])
            ['0007', '-007', None]
        """
        return self._call("str.zfill", length=length)

    def pad_start(self, length: int, fill_char: str = " ") -> Expr:
        """Filled with `fill_char` at the beginning to `length` code points; longer text stays.

        Example:
            >>> evaluate(col("n").str.pad_start(4, "*"), n=["7", "12345"])
            ['***7', '12345']
        """
        return self._call("str.pad_start", length=length, fill_char=fill_char)

    def pad_end(self, length: int, fill_char: str = " ") -> Expr:
        """Filled with `fill_char` at the end to `length` code points; longer text stays.

        Example:
            >>> evaluate(col("n").str.pad_end(4, "*"), n=["7", "12345"])
            ['7***', '12345']
        """
        return self._call("str.pad_end", length=length, fill_char=fill_char)

    def len_chars(self) -> Expr:
        """Number of code points."""
        return self._call("str.len_chars")

    def len_bytes(self) -> Expr:
        """Number of bytes in UTF-8."""
        return self._call("str.len_bytes")

    def contains(self, pattern: str, *, literal: bool = False) -> Expr:
        """Whether the regular expression, or with `literal` the text, occurs."""
        return self._call("str.contains", pattern=pattern, literal=literal or None)

    def starts_with(self, prefix: Expr | str) -> Expr:
        """Whether it begins with the text."""
        return self._call("str.starts_with", prefix)

    def ends_with(self, suffix: Expr | str) -> Expr:
        """Whether it ends with the text."""
        return self._call("str.ends_with", suffix)

    def replace(self, pattern: str, value: str, *, literal: bool = False) -> Expr:
        """The first match replaced by `value`, in which `$1` is a group unless `literal`."""
        return self._call("str.replace", pattern=pattern, value=value, literal=literal or None)

    def replace_all(self, pattern: str, value: str, *, literal: bool = False) -> Expr:
        """Every match replaced by `value`, in which `$1` is a group unless `literal`."""
        return self._call("str.replace_all", pattern=pattern, value=value, literal=literal or None)

    def slice(self, offset: int, length: int | None = None) -> Expr:
        """Code points from `offset` (from 0; negative: from the end), at most `length`."""
        return self._call("str.slice", offset=offset, length=length)

    def head(self, n: int) -> Expr:
        """The first `n` code points."""
        return self._call("str.head", n=n)

    def tail(self, n: int) -> Expr:
        """The last `n` code points."""
        return self._call("str.tail", n=n)

    def split(self, by: str) -> Expr:
        """The list of parts between occurrences of `by`."""
        return self._call("str.split", by=by)

    def extract(self, pattern: str, group_index: int = 1) -> Expr:
        """A group of the first match of the regular expression; null without a match."""
        return self._call("str.extract", pattern=pattern, group_index=None if group_index == 1 else group_index)

    def extract_all(self, pattern: str) -> Expr:
        """All matches of the regular expression as a list; empty without a match.

        Example:
            >>> evaluate(col("text").str.extract_all(r"#\\w+"), text=["#a and #b", "none"])
            [['#a', '#b'], []]
        """
        return self._call("str.extract_all", pattern=pattern)

    def find(self, pattern: str, *, literal: bool = False) -> Expr:
        """Code points before the first match of the regular expression, or with `literal` of the text; null without one.

        Example:
            >>> evaluate(col("text").str.find("b+"), text=["äabb", "bb", "a", None])
            [2, 0, None, None]
        """
        return self._call("str.find", pattern=pattern, literal=literal or None)

    def md5(self) -> Expr:
        """MD5 of the text in UTF-8, as hexadecimal text.

        Example:
            >>> evaluate(col("name").str.md5(), name=["ada"])
            ['8c8d357b5e872bbacd45197626bd5759']
        """
        return self._call("str.md5")

    def sha1(self) -> Expr:
        """SHA-1 of the text in UTF-8, as hexadecimal text.

        Example:
            >>> evaluate(col("name").str.sha1().str.head(8), name=["ada"])
            ['e4ea294c']
        """
        return self._call("str.sha1")

    def sha256(self) -> Expr:
        """SHA-256 of the text in UTF-8, as hexadecimal text.

        Example:
            >>> evaluate(col("name").str.sha256().str.head(8), name=["ada"])
            ['fdee430d']
        """
        return self._call("str.sha256")

    def to_base64(self) -> Expr:
        """The text in UTF-8 as base64.

        Example:
            >>> evaluate(col("name").str.to_base64(), name=["ada", None])
            ['YWRh', None]
        """
        return self._call("str.to_base64")

    def from_base64(self, *, strict: bool = True) -> Expr:
        """The bytes that base64 stands for; what is none fails the job, or is null with `strict=False`.

        Example:
            >>> evaluate(col("text").str.from_base64(strict=False), text=["YWRh", "?"])
            [b'ada', None]
        """
        return self._call("str.from_base64", strict=_unless_strict(strict))

    def to_hex(self) -> Expr:
        """The text in UTF-8 as two hexadecimal digits for each byte.

        Example:
            >>> evaluate(col("name").str.to_hex(), name=["ada"])
            ['616461']
        """
        return self._call("str.to_hex")

    def from_hex(self, *, strict: bool = True) -> Expr:
        """The bytes that hexadecimal digits stand for; what is none fails the job, or is null with `strict=False`.

        Example:
            >>> evaluate(col("text").str.from_hex().cast(str), text=["616461"])
            ['ada']
        """
        return self._call("str.from_hex", strict=_unless_strict(strict))

    def to_integer(self, *, base: int = 10, strict: bool = True) -> Expr:
        """The integer it spells; what is none fails the job, or is null with `strict=False`."""
        return self._call("str.to_integer", base=None if base == 10 else base, strict=_unless_strict(strict))

    def to_datetime(self, format: str, *, strict: bool = True) -> Expr:
        """The timestamp it spells, in UTC unless the format has an offset (`%z`)."""
        return self._call("str.to_datetime", format=format, strict=_unless_strict(strict))

    def to_date(self, format: str = "%Y-%m-%d", *, strict: bool = True) -> Expr:
        """The date it spells."""
        return self._call("str.to_date", format=format, strict=_unless_strict(strict))

    def strptime(self, to: type[Any], format: str, *, strict: bool = True) -> Expr:
        """`to_datetime` or `to_date`, as `to` is `datetime` or `date`.

        Raises:
            PipelineError: `to` is neither.
        """
        if to is datetime:
            return self.to_datetime(format, strict=strict)
        if to is date:
            return self.to_date(format, strict=strict)
        raise PipelineError(f"{self._expr}.str.strptime: the type must be datetime or date, got {to!r}")


@checked
class JsonNamespace(_Namespace):
    """Values read out of JSON text."""

    __slots__ = ()
    _name = "json"

    def get(self, path: str, as_: type[Any] | DataType = STRING, *, strict: bool = True) -> Expr:
        """The value at `path`: `$.user.name`, `$.items[0]`, `$['a key']`.

        Null where there is none, where it is JSON's null, and where the text is no JSON. Without `as_` it is text: a
        string without its quotes, any other value as JSON.

        Args:
            path: from `$`, the whole, by members and elements.
            as_: the type that the value is read as: `int`, `float`, `bool`, `datetime` (RFC 3339), a list, a row class.
            strict: whether a value of another type fails the job; otherwise it is null.

        Example:
            >>> evaluate(col("j").json.get("$.a.b[0]", int), j=['{"a": {"b": [7]}}', "{}", None])
            [7, None, None]
            >>> evaluate(col("j").json.get("$.tags", list[str]), j=['{"tags": ["x", "y"]}'])
            [['x', 'y']]
        """
        found = self._call("json.get", path=path)
        kind = as_kind(as_, f"{self._expr}.json.get")
        if kind == STRING:
            return found
        _refuse_decimals(kind, f"{self._expr}.json.get")
        if isinstance(kind, Scalar) and kind.name in ("timestamp", "date"):
            return _moment(found, kind, strict=strict)
        if isinstance(kind, Scalar):
            return found.cast(kind, strict=strict)
        if not strict:
            raise PipelineError(f"{self._expr}.json.get: strict=False is not possible with {kind}; leave it out")
        return found.json.decode(kind)

    def decode(self, as_: type[Any] | DataType) -> Expr:
        """The whole JSON text as a value of a type, such as a list or a row class; what does not fit fails the job.

        Example:
            >>> evaluate(col("j").json.decode(list[int]), j=["[1, 2]", "[]", None])
            [[1, 2], [], None]
        """
        kind = as_kind(as_, f"{self._expr}.json.decode")
        _refuse_decimals(kind, f"{self._expr}.json.decode")
        return self._call("json.decode", type=type_option(kind))


@checked
class BinaryNamespace(_Namespace):
    """Functions of bytes."""

    __slots__ = ()
    _name = "bin"

    def size(self) -> Expr:
        """Number of bytes.

        Example:
            >>> evaluate(col("raw").bin.size(), raw=[b"abc", b""])
            [3, 0]
        """
        return self._call("bin.size")

    def md5(self) -> Expr:
        """MD5 of the bytes, as hexadecimal text.

        Example:
            >>> evaluate(col("raw").bin.md5(), raw=[b"ada"])
            ['8c8d357b5e872bbacd45197626bd5759']
        """
        return self._call("bin.md5")

    def sha1(self) -> Expr:
        """SHA-1 of the bytes, as hexadecimal text.

        Example:
            >>> evaluate(col("raw").bin.sha1().str.head(8), raw=[b"ada"])
            ['e4ea294c']
        """
        return self._call("bin.sha1")

    def sha256(self) -> Expr:
        """SHA-256 of the bytes, as hexadecimal text.

        Example:
            >>> evaluate(col("raw").bin.sha256().str.head(8), raw=[b"ada"])
            ['fdee430d']
        """
        return self._call("bin.sha256")

    def to_base64(self) -> Expr:
        """The bytes as base64.

        Example:
            >>> evaluate(col("raw").bin.to_base64(), raw=[b"ada"])
            ['YWRh']
        """
        return self._call("bin.to_base64")

    def to_hex(self) -> Expr:
        """The bytes as two hexadecimal digits each.

        Example:
            >>> evaluate(col("raw").bin.to_hex(), raw=[b"\\x00\\xff"])
            ['00ff']
        """
        return self._call("bin.to_hex")


@checked
class ZonedNamespace(_Namespace):
    """Functions of moments as clocks and calendars show them: in UTC, or in the zone of `in_zone`."""

    __slots__ = ("_zone",)
    _name = "dt"

    def __init__(self, expr: Expr, zone: str | None = None) -> None:
        super().__init__(expr)
        self._zone = zone

    def _call(self, function: str, *others: Operand, **options: Option) -> Expr:
        return self._expr._call(function, *others, **options, zone=self._zone)

    def year(self) -> Expr:
        """Year."""
        return self._call("dt.year")

    def quarter(self) -> Expr:
        """Quarter, 1 to 4."""
        return self._call("dt.quarter")

    def month(self) -> Expr:
        """Month, 1 to 12."""
        return self._call("dt.month")

    def week(self) -> Expr:
        """ISO week, 1 to 53."""
        return self._call("dt.week")

    def day(self) -> Expr:
        """Day of the month."""
        return self._call("dt.day")

    def ordinal_day(self) -> Expr:
        """Day of the year, 1 to 366."""
        return self._call("dt.ordinal_day")

    def weekday(self) -> Expr:
        """Day of the week, Monday 1 to Sunday 7."""
        return self._call("dt.weekday")

    def hour(self) -> Expr:
        """Hour, 0 to 23."""
        return self._call("dt.hour")

    def minute(self) -> Expr:
        """Minute, 0 to 59."""
        return self._call("dt.minute")

    def second(self) -> Expr:
        """Second, 0 to 59."""
        return self._call("dt.second")

    def millisecond(self) -> Expr:
        """Milliseconds within the second."""
        return self._call("dt.millisecond")

    def microsecond(self) -> Expr:
        """Microseconds within the second."""
        return self._call("dt.microsecond")

    def date(self) -> Expr:
        """The day.

        Example:
            >>> evaluate(col("t").dt.in_zone("Asia/Tokyo").date(), t=[datetime(2024, 1, 1, 20, tzinfo=UTC)])
            [datetime.date(2024, 1, 2)]
        """
        return self._call("dt.date")

    def time(self) -> Expr:
        """The time of day.

        Example:
            >>> evaluate(col("t").dt.in_zone("Asia/Tokyo").time(), t=[datetime(2024, 1, 1, 20, 30, tzinfo=UTC)])
            [datetime.time(5, 30)]
            >>> evaluate(col("t").dt.time() < time(9), t=[datetime(2024, 1, 1, 8, 59, tzinfo=UTC)])
            [True]
        """
        return self._call("dt.time")

    def truncate(self, every: str | timedelta) -> Expr:
        """The beginning of the interval of this length (`"10m"`, `"1h30m"`, `"1w"` from Monday, `"1mo"`, `"1y"`).

        In a zone `"1d"` is its day, which has 23 or 25 hours when clocks change.

        Example:
            >>> night = datetime(2024, 3, 31, 22, 30, tzinfo=UTC)
            >>> evaluate(col("t").dt.in_zone("Europe/Berlin").truncate("1d").dt.strftime("%d. %H:%M"), t=[night])
            ['31. 22:00']
        """
        text = every if isinstance(every, str) else format_duration(duration_us(every, "dt.truncate", positive=True))
        return self._call("dt.truncate", every=text)

    def offset_by(self, by: str) -> Expr:
        """Moved by an offset such as `"1mo"`, `"-2d"`, `"1y6mo"`; in a zone days are those of the calendar.

        Example:
            >>> evaluate(col("day").dt.offset_by("1mo"), day=[date(2024, 1, 31)])
            [datetime.date(2024, 2, 29)]
        """
        return self._call("dt.offset_by", by=by)

    def strftime(self, format: str) -> Expr:
        """Text by a format such as `%Y-%m-%d`."""
        return self._call("dt.strftime", format=format)


@checked
class DateTimeNamespace(ZonedNamespace):
    """Functions of timestamps (UTC), dates and durations."""

    __slots__ = ()

    def in_zone(self, zone: str) -> ZonedNamespace:
        """The same moment as clocks show it in `zone`: `.dt.in_zone("Europe/Berlin").hour()`.

        A column has no zone, so this is followed by what depends on it: a part, `date`, `truncate`, `offset_by`,
        `strftime`. (Polars: `.dt.convert_time_zone(zone).dt`; SQL: `AT TIME ZONE`.)

        Raises:
            PipelineError: there is no such zone.

        Example:
            >>> evaluate(col("t").dt.in_zone("Asia/Kolkata").strftime("%H:%M"), t=[datetime(2024, 1, 1, tzinfo=UTC)])
            ['05:30']
        """
        if not isinstance(zone, str) or not _is_zone(zone):
            raise PipelineError(
                f"{self._expr}.dt.in_zone: there is no time zone {zone!r}; write for example 'Europe/Berlin' or 'UTC'"
            )
        return ZonedNamespace(self._expr, zone)

    def epoch(self, unit: Literal["s", "ms", "us"] = "us") -> Expr:
        """Whole seconds, milliseconds or microseconds since 1970-01-01 UTC, rounded down."""
        return self._call("dt.epoch", unit=unit)

    def total_hours(self) -> Expr:
        """Whole hours of a duration, rounded towards zero."""
        return self._call("dt.total_hours")

    def total_minutes(self) -> Expr:
        """Whole minutes of a duration, rounded towards zero."""
        return self._call("dt.total_minutes")

    def total_seconds(self) -> Expr:
        """Whole seconds of a duration, rounded towards zero."""
        return self._call("dt.total_seconds")

    def total_milliseconds(self) -> Expr:
        """Whole milliseconds of a duration, rounded towards zero."""
        return self._call("dt.total_milliseconds")

    def total_microseconds(self) -> Expr:
        """Microseconds of a duration."""
        return self._call("dt.total_microseconds")


@checked
class ListNamespace(_Namespace):
    """Functions of lists."""

    __slots__ = ()
    _name = "list"

    def len(self) -> Expr:
        """Number of elements, nulls included."""
        return self._call("list.len")

    def get(self, index: Expr | int) -> Expr:
        """The element at `index` (from 0; negative: from the end); null if there is none."""
        return self._call("list.get", index)

    def first(self) -> Expr:
        """The first element; null if there is none."""
        return self._call("list.first")

    def last(self) -> Expr:
        """The last element; null if there is none."""
        return self._call("list.last")

    def contains(self, value: Operand) -> Expr:
        """Whether an element equals `value`."""
        return self._call("list.contains", value)

    def sum(self) -> Expr:
        """Sum of the elements; 0 for an empty list."""
        return self._call("list.sum")

    def min(self) -> Expr:
        """Least element; null if there is none."""
        return self._call("list.min")

    def max(self) -> Expr:
        """Greatest element; null if there is none."""
        return self._call("list.max")

    def mean(self) -> Expr:
        """Mean of the elements; null if there is none."""
        return self._call("list.mean")

    def set_union(self, other: Expr) -> Expr:
        """The elements of either list, each once, in the order in which they come.

        Example:
            >>> evaluate(col("a").list.set_union(col("b")), a=[[3, 1, 3]], b=[[2, 1]])
            [[3, 1, 2]]
        """
        return self._call("list.set_union", other)

    def set_intersection(self, other: Expr) -> Expr:
        """The elements that are in both lists, each once, in the order of this one.

        Example:
            >>> evaluate(col("a").list.set_intersection(col("b")), a=[[3, 1, 2]], b=[[2, 3]])
            [[3, 2]]
        """
        return self._call("list.set_intersection", other)

    def set_difference(self, other: Expr) -> Expr:
        """The elements that are not in the other list, each once, in their order.

        Example:
            >>> evaluate(col("a").list.set_difference(col("b")), a=[[3, 1, 2, 3]], b=[[1]])
            [[3, 2]]
        """
        return self._call("list.set_difference", other)

    def set_symmetric_difference(self, other: Expr) -> Expr:
        """The elements that are in one of the lists only, each once, first those of this one.

        Example:
            >>> evaluate(col("a").list.set_symmetric_difference(col("b")), a=[[1, 2]], b=[[2, 3]])
            [[1, 3]]
        """
        return self._call("list.set_symmetric_difference", other)

    def unique(self) -> Expr:
        """Each element once, in the order in which they come.

        Example:
            >>> evaluate(col("a").list.unique(), a=[[2, 1, 2, None]])
            [[2, 1, None]]
        """
        return self._call("list.unique")

    def join(self, separator: str, *, ignore_nulls: bool = True) -> Expr:
        """The texts joined; nulls are left out, or make the result null with `ignore_nulls=False`."""
        return self._expr._call("list.join", by=separator, ignore_nulls=None if ignore_nulls else False)


@checked
class MapNamespace(_Namespace):
    """Functions of maps."""

    __slots__ = ()
    _name = "map"

    def get(self, key: Expr | str) -> Expr:
        """The value of a key; null if there is none.

        Example:
            >>> evaluate(col("j").json.decode(dict[str, int]).map.get("a"), j=['{"a": 1}', '{"b": 2}', None])
            [1, None, None]
        """
        return self._call("map.get", key)

    def contains(self, key: Expr | str) -> Expr:
        """Whether there is such a key, be its value null or not.

        Example:
            >>> evaluate(col("j").json.decode(dict[str, int]).map.contains("a"), j=['{"a": null}', '{"b": 2}'])
            [True, False]
        """
        return self._call("map.contains", key)

    def keys(self) -> Expr:
        """The keys as a list, in their order.

        Example:
            >>> evaluate(col("j").json.decode(dict[str, int]).map.keys(), j=['{"b": 1, "a": 2}', '{}'])
            [['b', 'a'], []]
        """
        return self._call("map.keys")

    def values(self) -> Expr:
        """The values as a list, in the order of their keys.

        Example:
            >>> evaluate(col("j").json.decode(dict[str, int]).map.values(), j=['{"b": 1, "a": null}', '{}'])
            [[1, None], []]
        """
        return self._call("map.values")

    def len(self) -> Expr:
        """Number of entries.

        Example:
            >>> evaluate(col("j").json.decode(dict[str, int]).map.len(), j=['{"b": 1, "a": 2}', '{}'])
            [2, 0]
        """
        return self._call("map.len")


@checked
class StructNamespace(_Namespace):
    """Functions of nested rows."""

    __slots__ = ()
    _name = "struct"

    def field(self, name: str) -> Expr:
        """A field of the nested row."""
        return self._call("struct.field", name=name)


def as_kind(to: type[Any] | DataType, where: str) -> DataType:
    """The type that a Python type or one of `penstock.types` stands for; `where` says whose argument it is."""
    return to if isinstance(to, (Scalar, DecimalType, ListType, MapType, StructType)) else of_python(to, where)[0]


def _refuse_decimals(kind: DataType, where: str) -> None:
    """Numbers within a text of JSON are read as floats, by which digits would be lost."""
    for part in parts_of(kind):
        if isinstance(part, DecimalType):
            raise PipelineError(
                f"{where}: {part} would be read by way of a float; declare the column in the schema of the source "
                "(or where the data has the number as text, cast that: .json.get(path).cast(DecimalType(...)))"
            )


def _moment(text: Expr, kind: Scalar, *, strict: bool) -> Expr:
    if kind.name == "date":
        return text.str.to_date(strict=strict)
    return text.str.to_datetime("%+", strict=strict)


def _is_zone(name: str) -> bool:
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _unless_strict(strict: bool) -> bool | None:
    """The setting as it is kept: strict is the default and left out."""
    return None if strict else False
