"""What a lookup is: rows of another system that a stream is joined with by asking for their keys.

A `Lookup` is declared like a source: schema, where it is, how it is asked. Its `LookupClient` asks for many keys at once,
on the event loop of a subtask. How many calls wait at once, for how long, how often one is made again, and what of
answers is remembered, is the engine's business and the same for all of them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from string import Formatter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypedDict, Unpack, cast

from penstock.connectors.base import T
from penstock.core.times import Duration, duration_us, format_duration
from penstock.errors import BadRecordError, PipelineError
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    INTEGERS,
    STRING,
    TIMESTAMP,
    DataType,
    DecimalType,
    Schema,
    is_row_class,
    schema_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

Key = tuple[Any, ...]
"""The values of the columns of `on`, in its order; none of them is null."""
_KEYS: Final[frozenset[DataType]] = INTEGERS | {BOOLEAN, STRING, BINARY, DATE, TIMESTAMP}
"""Beside decimals; numbers with a floating point are not equal reliably."""


ATTEMPT_S: Final = 20.0
"""How long one attempt of a call may take."""


class LookupOptions(TypedDict, total=False):
    """What every lookup takes beside its own options."""

    cache_ttl: Duration | None
    """How long an answer is remembered in a subtask, also that there is no row. None, if not given: not at all, every row
    is asked for."""
    cache_keys: int
    """Of how many keys at most, for each subtask; the one that was not needed for the longest time makes room. 10,000."""
    rows_per_call: int
    """Up to so many rows are asked for by one call: 1,000, at `http.Lookup` 1."""
    capacity: int
    """Most calls of a subtask that wait at once, or for those before them: 4, at `http.Lookup` 100."""
    timeout: Duration | None
    """How long a call may take, with all its attempts: 60 s; a single one takes at most 20 s. None: for ever."""
    retries: int
    """How often a call is made again if the system does not answer: 3 times."""
    retry_delay: Duration
    """How long before that, twice as long before each further time: 100 ms."""
    ordered: bool
    """Whether results keep the order of their rows: True."""


@dataclass(frozen=True, slots=True)
class LookupCalls:
    """The options of a lookup, with what holds where nothing is said."""

    cache_ttl_us: int | None
    cache_keys: int
    rows_per_call: int
    capacity: int
    timeout_us: int | None
    retries: int
    retry_delay_us: int
    ordered: bool

    def describe(self) -> dict[str, Any]:
        """For plans: what of it is worth a look."""
        described: dict[str, Any] = {"rows_per_call": self.rows_per_call}
        if self.cache_ttl_us is not None:
            described |= {"cache_ttl": format_duration(self.cache_ttl_us), "cache_keys": self.cache_keys}
        return described


class LookupClient(Protocol):
    """Asks a system for rows. Used by one subtask on its event loop, by several calls at once."""

    async def open(self) -> None:
        """Called once before it is asked. Raises `PipelineError` if it can never answer, such as for want of a column."""
        ...

    async def ask(self, keys: Sequence[Key]) -> Sequence[Sequence[bytes]]:
        """The rows of each of these keys, which are all different: JSON objects that `JsonDecoder` takes.

        They need not have the columns of the key.

        Raises:
            ExternalError: no answer; asking again may help.
            PipelineError: the system refuses, and would do so again.
        """
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...


class Lookup(ABC, Generic[T]):
    """Rows elsewhere, asked for by key. Instances of subclasses have these attributes, and never change."""

    kind: ClassVar[str]
    """Name in plans, such as `postgres`."""
    schema: Schema
    row_type: type[T] | None
    """The user's class of the rows, if the schema was declared by one."""
    calls: LookupCalls

    @property
    @abstractmethod
    def name(self) -> str:
        """What errors call it, such as `postgres table customers at db:5432`; no secrets."""

    @abstractmethod
    def client(self, columns: Schema, keys: Schema) -> LookupClient:
        """A client that asks for `columns` by `keys`. Does not connect.

        Raises:
            PipelineError: it cannot be asked by these, or has no values of such a type.
        """

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """JSON-able settings for plans; no secrets."""

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.describe().items())
        return f"{self.kind}.{type(self).__name__}({options})"

    def _declare(
        self,
        schema: type[T] | Schema | pa.Schema,
        *,
        rows_per_call: int = 1_000,
        capacity: int = 4,
        **options: Unpack[LookupOptions],  # pyright: ignore[reportGeneralTypeIssues] # by design: defaults of two of them
    ) -> None:
        """Check what all lookups have in common, and keep it."""
        what = f"{self.kind}.Lookup"
        self.schema = schema_of(schema, f"{what}: schema")
        self.row_type = cast("type[T]", schema) if is_row_class(schema) else None
        timeout, ttl = options.get("timeout", "60s"), options.get("cache_ttl")
        self.calls = LookupCalls(
            None if ttl is None else duration_us(ttl, f"{what}: cache_ttl", positive=True),
            _at_least(what, "cache_keys", options.get("cache_keys", 10_000), 1),
            _at_least(what, "rows_per_call", rows_per_call, 1),
            _at_least(what, "capacity", capacity, 1),
            None if timeout is None else duration_us(timeout, f"{what}: timeout", positive=True),
            _at_least(what, "retries", options.get("retries", 3), 0),
            duration_us(options.get("retry_delay", "100ms"), f"{what}: retry_delay"),
            options.get("ordered", True),
        )


def _at_least(what: str, name: str, value: int, least: int) -> int:
    if value < least:
        raise PipelineError(f"{what}: {name}={value}: it is at least {least}")
    return value


class KeyTemplate:
    """A text with the columns of the key in it, such as `customer:{id}`.

    Each text belongs to one key: of several keys that would have the same, `a:b` and `c` or `a` and `b:c` in
    `{shop}:{item}`, it is that of the key that is read out of it: text columns end where what stands behind them comes
    first. The others have none.

    Args:
        what: the lookup, which leads errors.
        text: every key column is in it as `{name}`; `{{` is a brace.
        encode: what is done with the text of each value.
        apart: False: several keys may have the same text, because it only says where their rows go.

    Raises:
        PipelineError: it is no such text, or a column has values that no text stands for.
    """

    any_text: ClassVar[str] = "."
    """What text is made of, as a pattern."""

    def __init__(
        self, what: str, text: str, keys: Schema, encode: Callable[[str], str] = str, *, apart: bool = True
    ) -> None:
        parts = template_parts(what, text)
        named = [name for _, name in parts if name is not None]
        if set(named) != set(keys.names):
            raise PipelineError(
                f"{what}: {text!r} has {_braced(named)}, and on= of the join names {_braced(keys.names)}; each key "
                "column has to be in it"
            )
        check_lookup_keys(what, keys, besides=BINARY)
        self.columns: Final = keys.names
        self._what, self._template = what, text
        self._parts = [(literal, None if name is None else keys.names.index(name)) for literal, name in parts]
        self._encode = encode
        self._pattern = _pattern(self._parts, keys, self.any_text) if apart and len(keys.names) > 1 else None
        """Reads the values again; None where texts need not differ, or do because there is only one column."""

    def text(self, key: Key) -> str | None:
        """The text for a key; None if it is that of another one, see `problem`."""
        values = self._values(key)
        text = self._joined(values)
        return text if self._pattern is None or self._read(text) == values else None

    def asked(self, key: Key) -> str:
        """The text for a key that rows are asked for by; raises `BadRecordError` if it is that of another one."""
        text = self.text(key)
        if text is None:
            raise BadRecordError(f"{self._what}: {self.problem(key)}")
        return text

    def problem(self, key: Key) -> str:
        """Why a key has no text, and what to do."""
        values = self._values(key)
        read = self._read(self._joined(values))
        order = dict.fromkeys(index for _, index in self._parts if index is not None)
        index = next(index for index in order if values[index] != read[index])
        name, separator = self.columns[index], self._separator(index)
        stands = f"{separator!r} stands behind it" if separator else "nothing stands between it and the next one"
        return (
            f"{self._template!r} would make the same of another key: "
            f"column {name} is {values[index][:100]!r}, and {stands} there; "
            f"put another separator behind {{{name}}}, which no value has, or cast or replace its values before"
        )

    def _values(self, key: Key) -> list[str]:
        return [self._encode(_text(value)) for value in key]

    def _joined(self, values: Sequence[str]) -> str:
        return "".join(literal if index is None else literal + values[index] for literal, index in self._parts)

    def _read(self, text: str) -> list[str]:
        assert self._pattern is not None
        found = self._pattern.fullmatch(text)
        assert found is not None  # what was joined can be read
        return [found[f"c{index}"] for index in range(len(self.columns))]

    def _separator(self, index: int) -> str:
        """What stands between a column and the next one."""
        place = [part[1] for part in self._parts].index(index) + 1
        end = next(end for end in range(place, len(self._parts)) if self._parts[end][1] is not None)
        return "".join(literal for literal, _ in self._parts[place : end + 1])


def _pattern(parts: Sequence[tuple[str, int | None]], keys: Schema, any_text: str) -> re.Pattern[str]:
    """What matches the texts of a template, with a group per column."""
    pattern, seen = "", set[int]()
    for literal, index in parts:
        pattern += re.escape(literal)
        if index is not None:
            form = _form(keys.fields[index].type, any_text)
            pattern += f"(?P=c{index})" if index in seen else f"(?P<c{index}>{form})"
            seen.add(index)
    return re.compile(pattern, re.DOTALL)


def _form(kind: DataType, any_text: str) -> str:
    """What values of a type look like. Text ends as soon as it can, so the last one may have anything in it."""
    if kind == STRING:
        return f"(?:{any_text})*?"
    if kind == BOOLEAN:
        return "true|false"
    if isinstance(kind, DecimalType):
        return "-?(?:0|[1-9][0-9]*)" + (rf"\.[0-9]{{{kind.scale}}}" if kind.scale else "")
    if kind in INTEGERS:
        return "0|-?[1-9][0-9]*"
    day, colon = "[0-9]{4}-[0-9]{2}-[0-9]{2}", "(?::|%3A)"
    return day if kind == DATE else rf"{day}T[0-9]{{2}}{colon}[0-9]{{2}}{colon}[0-9]{{2}}(?:\.[0-9]{{6}})?Z?"


def template_parts(what: str, text: str) -> list[tuple[str, str | None]]:
    """Texts, and the columns behind them; raises `PipelineError` if it names none."""
    try:
        parsed = list(Formatter().parse(text))
    except ValueError as error:
        raise PipelineError(f"{what}: {text!r}: {error}; write a column of the key in braces: {{id}}") from error
    if not any(name for _, name, _, _ in parsed) or any(name == "" or form or how for _, name, form, how in parsed):
        raise PipelineError(f"{what}: {text!r} has to name the columns of the key in braces, such as {{id}}")
    return [(literal, name) for literal, name, _, _ in parsed]


def template_columns(what: str, text: str) -> tuple[str, ...]:
    """The columns that a text names, each once; raises `PipelineError` if it names none."""
    return tuple(dict.fromkeys(name for _, name in template_parts(what, text) if name is not None))


def _braced(names: Sequence[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")  # not 1E-8, as which nobody else writes it
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, date) else str(value)


def check_lookup_keys(what: str, keys: Schema, besides: DataType | None = None) -> None:
    """Raise `PipelineError` if rows cannot be asked for by values of these types, and not by those of `besides`."""
    for field in keys:
        if (field.type not in _KEYS or field.type == besides) and not isinstance(field.type, DecimalType):
            raise PipelineError(
                f"{what}: {field.name} is {field.type}, and rows are not looked up by that; cast it to text or to a "
                "whole number before"
            )
