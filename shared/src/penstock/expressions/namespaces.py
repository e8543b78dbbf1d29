"""The namespaces of `Expr`: `.str`, `.dt`, `.list` and `.struct`, named as in Polars."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from penstock.arguments import checked
from penstock.errors import PipelineError
from penstock.expressions.nodes import Option
from penstock.times import duration_us, format_duration

if TYPE_CHECKING:
    from penstock.expressions.surface import Expr, Operand


class _Namespace:
    __slots__ = ("_expr",)

    def __init__(self, expr: Expr) -> None:
        self._expr = expr

    def _call(self, function: str, *others: Operand, **options: Option) -> Expr:
        return self._expr._call(function, *others, **options)


@checked
class StringNamespace(_Namespace):
    """Functions of text. Positions and lengths count Unicode code points unless the name says bytes."""

    __slots__ = ()

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
        """Filled with zeros on the left; a sign stays in front."""
        return self._call("str.zfill", length=length)

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
class DateTimeNamespace(_Namespace):
    """Functions of timestamps (UTC), dates and durations."""

    __slots__ = ()

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
        """The day in UTC."""
        return self._call("dt.date")

    def truncate(self, every: str | timedelta) -> Expr:
        """The beginning of the interval of this length (`"10m"`, `"1h30m"`, `"1w"` from Monday, `"1mo"`, `"1y"`)."""
        text = every if isinstance(every, str) else format_duration(duration_us(every, "dt.truncate", positive=True))
        return self._call("dt.truncate", every=text)

    def epoch(self, unit: Literal["s", "ms", "us"] = "us") -> Expr:
        """Whole seconds, milliseconds or microseconds since 1970-01-01 UTC, rounded down."""
        return self._call("dt.epoch", unit=unit)

    def strftime(self, format: str) -> Expr:
        """Text by a format such as `%Y-%m-%d`."""
        return self._call("dt.strftime", format=format)

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

    def join(self, separator: str, *, ignore_nulls: bool = True) -> Expr:
        """The texts joined; nulls are left out, or make the result null with `ignore_nulls=False`."""
        return self._expr._call("list.join", by=separator, ignore_nulls=None if ignore_nulls else False)


@checked
class StructNamespace(_Namespace):
    """Functions of nested rows."""

    __slots__ = ()

    def field(self, name: str) -> Expr:
        """A field of the nested row."""
        return self._call("struct.field", name=name)


def _unless_strict(strict: bool) -> bool | None:
    """The setting as it is kept: strict is the default and left out."""
    return None if strict else False
