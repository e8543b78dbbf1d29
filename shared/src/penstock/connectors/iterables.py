"""Python values as a source: a list, or a function that returns an iterable. For tests, notebooks and small inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Unpack, cast, overload

from penstock.connectors import base
from penstock.connectors.base import (
    BadRow,
    EndOfSplit,
    Fetched,
    Position,
    ReadContext,
    Split,
    T,
)
from penstock.connectors.declaring import SourceOptions, declare, zone
from penstock.connectors.pacing import Pace, checked_rate
from penstock.core.arguments import checked
from penstock.errors import PipelineError, UserCodeError, described
from penstock.formats.columns import MISSING, FrameBuilder, missing
from penstock.formats.misspelt import RECORDS, misspelt_in_records
from penstock.types import Schema, is_row_class

if TYPE_CHECKING:
    import pyarrow as pa

_SLICE_MS: Final = 20
_SPLIT: Final = Split("rows")


class _Options(SourceOptions, total=False):
    """What else the source takes; see its constructor."""

    bounded: bool
    rate: float | None


class Source(base.Source[T], Generic[T]):
    """Rows of an iterable, as one split.

    Args:
        data: a list or tuple; or a function without parameters that returns an iterable (called again after a restart,
            the rows already read are skipped: it must return the same rows); or an iterator, which cannot be read again
            and so gives no exactly-once. Rows are objects of the schema's class, or dicts. They are taken where the
            pipeline runs: what waits between two rows holds everything up meanwhile, the rows before it too.
        schema: dataclass, msgspec.Struct or pyarrow.Schema; the class of the first element of a list if not given.
        bounded: False if the iterable never ends.
        rate: rows per second.
        **options: as at every source, see `SourceOptions`.

    Example:
        >>> p.read(iterables.Source([Total(1, 2.5), Total(2, 3.0)])).collect().rows()
        [(1, 2.5), (2, 3.0)]
        >>> p.read(iterables.Source([{"auction": 1, "price": 2.5}], schema=Total)).collect().rows()
        [(1, 2.5)]
    """

    kind: ClassVar[str] = "iterables"

    @overload
    def __init__(
        self,
        data: Iterable[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]],
        *,
        schema: type[T] | Schema | pa.Schema,
        **options: Unpack[_Options],
    ) -> None: ...
    @overload
    def __init__(
        self,
        data: Iterable[T] | Callable[[], Iterable[T]],
        *,
        schema: type[T] | Schema | pa.Schema | None = None,
        **options: Unpack[_Options],
    ) -> None: ...
    @checked
    def __init__(
        self,
        data: Iterable[T] | Iterable[Mapping[str, Any]] | Callable[[], Iterable[Any]],
        *,
        schema: type[T] | Schema | pa.Schema | None = None,
        bounded: bool = True,
        rate: float | None = None,
        **options: Unpack[SourceOptions],
    ) -> None:
        what = "iterables.Source"
        if not callable(data) and not isinstance(data, Iterable):
            raise PipelineError(f"{what}: need a list or a function that returns an iterable, got {data!r:.100}")
        vars(self).update(vars(declare(what, _class_of_rows(data) if schema is None else schema, **options)))
        self.data: Final = data
        self.rate: Final = checked_rate(rate, what)
        self.ends: Final = bounded

    def discover(self) -> Sequence[Split]:
        """See `Source.discover`."""
        return [_SPLIT]

    def open(self, split: Split, position: Position, context: ReadContext) -> base.SplitReader:
        """See `Source.open`."""
        builder = FrameBuilder(self.schema, zone(self.timezone, "iterables.Source"))
        return _Reader(self._rows(), builder, position, Pace(self.rate, context.monotonic_ms), context)

    def _rows(self) -> Iterator[Any]:
        if not callable(self.data):
            return iter(self.data)
        try:
            return iter(self.data())
        except Exception as error:
            raise UserCodeError(f"iterables.Source: the function raised {described(error)}") from error

    @property
    def bounded(self) -> bool:
        """As declared."""
        return self.ends

    @property
    def replayable(self) -> bool:
        """Whether the data can be read again: an iterator cannot."""
        return callable(self.data) or not isinstance(self.data, Iterator)

    def describe(self) -> Mapping[str, Any]:
        """See `Source.describe`."""
        return {"data": getattr(self.data, "__qualname__", type(self.data).__name__), "bounded": self.ends}


class Constants(Source[T], Generic[T]):
    """Rows that a plan holds itself, such as those of VALUES in SQL: a test gives rows to other sources."""


class _Reader:
    """Position: the number of rows taken from the iterable."""

    def __init__(
        self, rows: Iterator[Any], builder: FrameBuilder, position: Position, pace: Pace, context: ReadContext
    ) -> None:
        self._rows = rows
        self._builder = builder
        self._pace = pace
        self._now_ms = context.monotonic_ms
        self._skip: int = position or 0
        self._position: int = position or 0
        self._misspelt: dict[str, str] | None = None
        """See `Fetched.misspelt`; None: nobody has looked yet."""

    async def read(self, max_rows: int) -> Fetched | None:
        """See `SplitReader.read`. Takes rows for about 20 ms; an iterator that blocks blocks the subtask."""
        allowed = await self._pace.allowed(max_rows)
        if not allowed:
            return None
        rows = self._next_rows(allowed)
        if not rows:
            raise EndOfSplit
        is_all = len(rows) == allowed and self._pace.are_all(allowed, max_rows)
        fetched = self._fetched(rows, is_all=is_all)
        self._position += len(rows)
        self._pace.take(len(rows))
        return fetched

    def _next_rows(self, count: int) -> list[tuple[Any, list[Any] | AttributeError]]:
        """Rows and their values, which are taken at once: a generator may give one object again and again."""
        deadline = self._now_ms() + _SLICE_MS
        rows: list[tuple[Any, list[Any] | AttributeError]] = []
        try:
            while self._skip:
                next(self._rows)
                self._skip -= 1
            for row in itertools.islice(self._rows, count):
                rows.append((row, self._values_of(row)))
                if self._now_ms() >= deadline:
                    break
        except StopIteration:
            pass  # fewer rows than had been read before the restart
        except Exception as error:
            where = f"iterables.Source: row {self._position + len(rows) + 1}"
            raise UserCodeError(f"{where}: the iterable raised {described(error)}") from error
        return rows

    def _values_of(self, row: Any) -> list[Any] | AttributeError:
        fields = self._builder.schema.fields
        if isinstance(row, Mapping):
            return [cast("Mapping[str, Any]", row).get(field.name, field.default) for field in fields]
        try:
            return [getattr(row, field.name) for field in fields]
        except AttributeError as error:
            return error

    def _fetched(self, rows: list[tuple[Any, list[Any] | AttributeError]], *, is_all: bool) -> Fetched:
        good: list[int] = []
        columns: list[list[Any]] = [[] for _ in self._builder.schema.fields]
        bad: list[tuple[int, str]] = []
        for index, (_, values) in enumerate(rows):
            if isinstance(values, AttributeError):
                bad.append((index, f"no row of the schema: {values}"))
                continue
            good.append(index)
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        frame, wrong = self._builder.frame(columns)
        bad = sorted([*bad, *((good[index], reason) for index, reason in wrong)])
        return Fetched(
            frame,
            [
                BadRow(
                    _told(reason, rows[index][0]), repr(rows[index][0]).encode(), f"row {self._position + index + 1}"
                )
                for index, reason in bad
            ],
            is_all=is_all,
            misspelt=self._misspelt_in([row for row, _ in rows[:RECORDS]]),
        )

    def _misspelt_in(self, rows: Sequence[Any]) -> dict[str, str]:
        """Of the first rows that came, as far as they are dicts."""
        if self._misspelt is None:
            self._misspelt = misspelt_in_records(self._builder.schema.fields, rows)
        return self._misspelt

    def position(self) -> Position:
        """See `SplitReader.position`."""
        return self._position

    async def close(self) -> None:
        """Close a generator, so that its `finally` runs."""
        close = getattr(self._rows, "close", None)
        if callable(close):
            close()


def _told(reason: str, row: Any) -> str:
    """What is wrong with a row; a key that it lacks may be spelled otherwise there."""
    name, _, rest = reason.partition(": ")
    if rest != MISSING or not isinstance(row, Mapping):
        return reason
    return f"{name}: {missing(name, map(str, cast('Mapping[Any, Any]', row)))}"


def _class_of_rows(data: object) -> type[Any]:
    first = cast("Sequence[Any]", data)[0] if isinstance(data, list | tuple) and data else None
    if first is None or not is_row_class(cast("type[Any]", type(first))):
        raise PipelineError("iterables.Source: give schema=, the dataclass or msgspec.Struct of the rows")
    return cast("type[Any]", type(first))
