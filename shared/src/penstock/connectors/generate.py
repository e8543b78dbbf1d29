"""Generated rows: seeded, vectorised, as fast or as slow as wanted; for benchmarks, demonstrations and tests.

What a row holds is a function of the seed and the row's number alone: neither the number of splits nor the sizes of
batches nor a restart changes it. Random numbers are therefore not drawn from a stream but hashed from the number of the
row (SplitMix64, as counter-based generators do). The contents of the Nexmark benchmark are in `nexmark`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Unpack, cast

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
from penstock.connectors.declaring import SourceOptions, declare
from penstock.connectors.pacing import Pace, checked_rate
from penstock.core.arguments import checked
from penstock.core.times import Duration
from penstock.errors import PipelineError, UserCodeError, described
from penstock.formats.schema_matching import SchemaMatcher
from penstock.types import Schema

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl
    import pyarrow as pa


# -- content ------------------------------------------------------------------------------------------------------------


class Content(ABC, Generic[T]):
    """What generated rows hold. Instances of subclasses have these attributes, and never change."""

    schema: Schema
    row_type: type[T] | None
    event_time: str | None = None
    """The column that is the event time unless the source says otherwise."""
    max_out_of_orderness: Duration = "0s"

    @abstractmethod
    def frame(self, numbers: npt.NDArray[np.int64], seed: int) -> pl.DataFrame:
        """The rows with these numbers, exactly the schema's columns; a function of number and seed alone."""

    @abstractmethod
    def describe(self) -> str:
        """One line for plans."""


class _FunctionContent(Content[Any]):
    def __init__(self, function: Callable[..., Any], schema: Schema, timezone: str | None) -> None:
        self.function: Final = function
        self.schema = schema
        self.row_type = None
        self.timezone: Final = timezone

    def frame(self, numbers: npt.NDArray[np.int64], seed: int) -> pl.DataFrame:
        frame, bad = self.rows(numbers)
        assert not bad
        return frame

    def rows(self, numbers: npt.NDArray[np.int64]) -> tuple[pl.DataFrame, list[tuple[int, str, bytes]]]:
        """The rows that fit the schema and those that do not."""
        where = f"generate.Source: {self.describe()}"
        try:
            made = self.function(numbers)
        except Exception as error:
            raise UserCodeError(f"{where} raised {described(error)}") from error
        batch = _arrow_of(made, where)
        if batch.num_rows != len(numbers):
            raise UserCodeError(
                f"{where} returned {batch.num_rows} rows for {len(numbers)} numbers; return one for each"
            )
        return SchemaMatcher(self.schema, batch.schema, where, self.timezone).frame(batch)

    def describe(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))


def _arrow_of(made: Any, where: str) -> pa.RecordBatch | pa.Table:
    import polars as pl
    import pyarrow as pa

    if isinstance(made, pa.RecordBatch | pa.Table):
        return made
    if isinstance(made, pl.DataFrame):
        return made.to_arrow()
    if isinstance(made, Mapping):
        return pl.DataFrame(cast("Mapping[str, Any]", made)).to_arrow()
    raise UserCodeError(
        f"{where}: return a pyarrow.RecordBatch, a polars.DataFrame or a dict of arrays, not {made!r:.100}"
    )


def random_bits(numbers: npt.NDArray[np.int64], seed: int, stream: int = 0) -> npt.NDArray[np.uint64]:
    """64 random bits per row number: SplitMix64 of number, seed and stream. Other streams are independent.

    Vigna's finaliser; the golden-ratio increment makes neighbouring numbers unrelated.

    Example:
        >>> bool(np.all(generate.random_bits(np.arange(3), seed=1) == generate.random_bits(np.arange(3), seed=1)))
        True
    """
    import numpy as np

    start = (seed * 0x9E3779B97F4A7C15 + (stream + 1) * 0xD1B54A32D192ED03) & (2**64 - 1)
    bits = numbers.astype(np.uint64)
    bits *= np.uint64(0x9E3779B97F4A7C15)
    bits += np.uint64(start)
    shifted = bits >> np.uint64(30)
    for factor, shift in ((0xBF58476D1CE4E5B9, 27), (0x94D049BB133111EB, 31)):
        bits ^= shifted
        bits *= np.uint64(factor)
        np.right_shift(bits, np.uint64(shift), out=shifted)
    bits ^= shifted
    return bits


def random_integers(
    numbers: npt.NDArray[np.int64], seed: int, stream: int, below: int | npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """An integer from 0 to `below` - 1 (under 2**31, one bound or one per row) per row number.

    Scales 32 of the 64 bits instead of dividing (Lemire): several times faster, with a bias below 2**-32 * `below`.

    Example:
        >>> dice = generate.random_integers(np.arange(1_000), seed=1, stream=0, below=6) + 1
        >>> int(dice.min()), int(dice.max())
        (1, 6)
    """
    import numpy as np

    high = random_bits(numbers, seed, stream) >> np.uint64(32)
    high *= np.asarray(below, np.uint64)
    high >>= np.uint64(32)
    return high.view(np.int64)


def random_floats(numbers: npt.NDArray[np.int64], seed: int, stream: int) -> npt.NDArray[np.float64]:
    """A float in [0, 1) per row number.

    Example:
        >>> prices = generate.random_floats(np.arange(1_000), seed=1, stream=0) * 100
        >>> bool((prices >= 0).all() and (prices < 100).all())
        True
    """
    import numpy as np

    return np.multiply(random_bits(numbers, seed, stream) >> np.uint64(11), 2.0**-53, dtype=np.float64)


# -- source -------------------------------------------------------------------------------------------------------------


class Source(base.Source[T], Generic[T]):
    """Generated rows.

    Args:
        content: `nexmark.bids()` and the like; or a function from an array of row numbers (int64) to as many rows, a
            pyarrow.RecordBatch, a polars.DataFrame or a dict of arrays. It must depend on the numbers alone
            (`random_integers` and its like help) and be vectorised.
        schema: of the rows, if `content` is a function.
        rows: how many in all; None: without end.
        rate: rows per second of all splits together; None: as fast as possible.
        seed: another one gives other rows.
        splits: how many readers can work at once; row n is in split n modulo `splits`.
        **options: as at every source, see `SourceOptions`; a Nexmark
            content brings its own event time.

    Example:
        >>> p.read(generate.Source(nexmark.bids(), rows=1_000)).collect().height
        1000
        >>> def numbered(numbers):
        ...     return {"auction": numbers, "price": numbers * 0.5}
        >>> p.read(generate.Source(numbered, schema=Total, rows=3)).collect().rows()
        [(0, 0.0), (1, 0.5), (2, 1.0)]
    """

    kind: ClassVar[str] = "generate"
    makes_event_times: ClassVar[bool] = True

    @checked
    def __init__(
        self,
        content: Content[T] | Callable[[npt.NDArray[np.int64]], Any],
        *,
        schema: type[T] | Schema | pa.Schema | None = None,
        rows: int | None = None,
        rate: float | None = None,
        seed: int = 42,
        splits: int = 1,
        **options: Unpack[SourceOptions],
    ) -> None:
        what = "generate.Source"
        own = content if isinstance(content, Content) else None
        if own is None and (not callable(content) or schema is None):
            raise PipelineError(
                f"{what}: content= is for example nexmark.bids(), or a function of row numbers with schema="
            )
        if own is not None and schema is not None:
            raise PipelineError(f"{what}: {own.describe()} has its own schema; leave out schema=")
        if (rows is not None and rows < 0) or splits < 1:
            raise PipelineError(f"{what}: rows= is zero or more (got {rows}), splits= at least one (got {splits})")
        if own is not None and own.event_time is not None and options.get("event_time") is None:
            options["event_time"] = own.event_time
            if options.get("watermarks") is None and options.get("max_out_of_orderness") is None:
                options["max_out_of_orderness"] = own.max_out_of_orderness
        vars(self).update(vars(declare(what, (own.row_type or own.schema) if own is not None else schema, **options)))
        made = _FunctionContent(cast("Any", content), self.schema, self.timezone) if own is None else own
        self.content: Final[Content[T]] = made
        self.rows: Final = rows
        self.rate: Final = checked_rate(rate, what)
        self.seed: Final = seed
        self.splits: Final = splits

    def discover(self) -> Sequence[Split]:
        """See `Source.discover`."""
        return [Split(str(number)) for number in sorted(range(self.splits), key=str)]

    def open(self, split: Split, position: Position, context: ReadContext) -> base.SplitReader:
        """See `Source.open`."""
        pace = Pace(None if self.rate is None else self.rate / self.splits, context.monotonic_ms)
        return _Reader(self, int(split.id), position or 0, pace)

    def rows_of_split(self, split: int) -> int | None:
        """How many rows a split has."""
        return None if self.rows is None else max(0, (self.rows - split + self.splits - 1) // self.splits)

    @property
    def bounded(self) -> bool:
        """Whether `rows` is given."""
        return self.rows is not None

    @property
    def replayable(self) -> bool:
        """True: rows follow from their numbers."""
        return True

    def describe(self) -> Mapping[str, Any]:
        """See `Source.describe`."""
        return {
            "content": self.content.describe(),
            "rows": self.rows,
            "rate": self.rate,
            "seed": self.seed,
            "splits": self.splits,
        }


class _Reader:
    """Position: the number of rows of the split that were read."""

    def __init__(self, source: Source[Any], split: int, position: int, pace: Pace) -> None:
        self._source = source
        self._split = split
        self._position = position
        self._pace = pace
        self._end = source.rows_of_split(split)

    async def read(self, max_rows: int) -> Fetched | None:
        """See `SplitReader.read`."""
        import numpy as np

        allowed = await self._pace.allowed(max_rows)
        if self._end is not None:
            if self._position >= self._end:
                raise EndOfSplit
            allowed = min(allowed, self._end - self._position)
        if not allowed:
            return None
        source = self._source
        numbers = np.arange(self._position, self._position + allowed, dtype=np.int64) * source.splits + self._split
        bad: list[BadRow] = []
        if isinstance(source.content, _FunctionContent):
            frame, failed = source.content.rows(numbers)
            bad = [BadRow(reason, raw, f"row {numbers[index]}") for index, reason, raw in failed]
        else:
            frame = source.content.frame(numbers, source.seed)
        self._position += allowed
        self._pace.take(allowed)
        return Fetched(frame, bad, int(frame.estimated_size()), self._pace.are_all(allowed, max_rows))

    def position(self) -> Position:
        """See `SplitReader.position`."""
        return self._position

    async def close(self) -> None:
        """Nothing is held."""
