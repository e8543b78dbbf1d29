"""The keys of a batch of rows, and columns of values for them: what bound states need for many keys in one call.

Keys come from the user as a series and become the objects that states and timers are found by. Only keys of the batch are
accepted: another one may belong to a key group of another subtask, where what is written here would never be found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import polars as pl

from penstock.errors import PipelineError, UserCodeError
from penstock.state.columns import NAN, WrongValueError, key_values, scalar_column, to_python
from penstock.types import Field, ListType, MapType, Schema, StructType, of_python, polars_type


class BatchKeys:
    """The keys of the rows of a batch.

    Args:
        frame: the key columns, however they are named, and nothing else.
        keys: their names and types.
        learn: is told which keys come, before any of them is used.
    """

    def __init__(self, frame: pl.DataFrame, keys: Schema, learn: Callable[[pl.DataFrame, list[Any]], None]) -> None:
        self._frame = frame
        self._keys = keys
        self._learn = learn

    @cached_property
    def series(self) -> pl.Series:
        """The key of each row; structs if there are several columns."""
        names = self._keys.names
        return self._frame[names[0]] if len(names) == 1 else self._frame.to_struct("key")

    @cached_property
    def values(self) -> list[Any]:
        """The key of each row as states know it."""
        values = key_values(self._frame, self._keys)
        self._learn(self._frame, values)
        return values

    @cached_property
    def _known(self) -> dict[Any, Any]:
        return dict(zip(self.values, self.values, strict=True))

    def of(self, keys: pl.Series) -> list[Any]:
        """These keys as states know them.

        Raises:
            UserCodeError: they are not of the batch.
        """
        if keys is self.series or self._are_all(keys):
            return self.values
        names = self._keys.names
        frame = keys.rename(names[0]).to_frame() if len(names) == 1 else keys.struct.unnest()
        values = key_values(frame, self._keys)
        if not self._known.keys() >= set(values):
            raise _foreign(next(value for value in values if value not in self._known))
        return values

    def _are_all(self, keys: pl.Series) -> bool:
        """Whether these are the keys of all rows, in order; that they can be keys of the batch at all."""
        series = self.series
        if not isinstance(keys, pl.Series):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UserCodeError(f"keys are given as a series such as ctx.keys, got {type(keys).__name__}")
        if keys.dtype != series.dtype:
            raise UserCodeError(f"keys are {series.dtype} as ctx.keys, got a series of {keys.dtype}; cast it")
        return keys.equals(series, null_equal=True)

    def one(self, key: Any) -> Any:
        """A key as states know it.

        Raises:
            UserCodeError: the batch has no row of it.
        """
        known = self._known
        key = NAN if key != key else key
        if key not in known:
            raise _foreign(key)
        return known[key]


def _foreign(key: Any) -> UserCodeError:
    return UserCodeError(
        f"key {key!r} is of no row of this batch; a call may use state and timers of the keys in ctx.keys only, for "
        "others belong to other subtasks"
    )


class ValueColumn:
    """The values of a state as a column, and back.

    Args:
        hint: the declared type.
        where: which state of which operator; leads error messages.
    """

    def __init__(self, hint: Any, where: str) -> None:
        self._hint = hint
        self._where = where

    @cached_property
    def _field(self) -> Field:
        try:
            kind, nullable = of_python(self._hint, self._where)
        except PipelineError as error:
            raise self._no_column(str(error)) from error
        if isinstance(kind, ListType | MapType | StructType):
            raise self._no_column(f"{self._where}: values of type {self._hint!r} are no column of scalars")
        return Field("value", kind, nullable)

    def _no_column(self, reason: str) -> UserCodeError:
        return UserCodeError(f"{reason}; call ctx.set_current_key(key), then get and set, for each key")

    @cached_property
    def _dtype(self) -> pl.DataType:
        return polars_type(self._field.type)

    def series(self, values: Sequence[Any]) -> pl.Series:
        """The column of these values, some of which may be None."""
        try:
            return scalar_column(Field("value", self._field.type, nullable=True), values)
        except WrongValueError as error:
            raise UserCodeError(f"{self._where}: {error}") from error

    def values(self, series: pl.Series, count: int) -> list[Any]:
        """The values of a column as states keep them.

        Raises:
            UserCodeError: it is of another type or length, or has a null that it must not have.
        """
        if not isinstance(series, pl.Series):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UserCodeError(f"{self._where}: set_many takes a series of {self._dtype}, got {type(series).__name__}")
        if len(series) != count:
            raise UserCodeError(f"{self._where}: set_many was given {len(series)} values for {count} keys")
        field = self._field
        if series.null_count() and not field.nullable:
            raise UserCodeError(
                f"{self._where}: holds {field.type}, and set_many was given {series.null_count()} nulls; use clear_many "
                "for keys that are to have no value"
            )
        fitting = widened(series, self._dtype)
        if fitting is None:
            raise UserCodeError(
                f"{self._where}: holds {field.type}, and set_many was given a series of {series.dtype}; cast it to "
                f"{self._dtype}"
            )
        return to_python(fitting, field.type)


def widened(series: pl.Series, dtype: pl.DataType) -> pl.Series | None:
    """The column as one of `dtype` if that has all values of its type; else None. An integer may stand for a float."""
    given = series.dtype
    if given == dtype:
        return series
    if given == pl.Null or _widens(given, dtype):
        return series.cast(dtype)
    return None


_BITS: Final[dict[type[pl.DataType], int]] = {
    pl.Int8: 8, pl.Int16: 16, pl.Int32: 32, pl.Int64: 64, pl.UInt8: 8, pl.UInt16: 16, pl.UInt32: 32, pl.UInt64: 64
}  # fmt: skip
_WIDER_THAN_ALL: Final = 128


def _widens(given: pl.DataType, wanted: pl.DataType) -> bool:
    if given.is_integer() and wanted.is_integer():
        least, most = _BITS.get(given.base_type(), _WIDER_THAN_ALL), _BITS[wanted.base_type()]
        signs = given.is_signed_integer(), wanted.is_signed_integer()
        return least < most and (signs[0] == signs[1] or signs == (False, True))
    return wanted == pl.Float64 and (given.is_integer() or given == pl.Float32)
