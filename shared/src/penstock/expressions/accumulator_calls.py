"""Runs users' accumulators within Polars: rows to partials, partials to one, partials to results.

A partial is MessagePack in a Binary column. This is the only aggregate that runs Python per row; what the user's code
raises comes out as `UserCodeError`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

import msgspec
import polars as pl

from penstock.errors import UserCodeError
from penstock.expressions.accumulators import Accumulator
from penstock.types import DataType, polars_type


class AccumulatorCalls:
    """The four steps of one accumulator as expressions."""

    def __init__(
        self, accumulator: Accumulator[Any, Any], result: DataType, where: str, *, filtered: bool = False
    ) -> None:
        """`filtered` says that the last argument is the condition of the rows that count."""
        self._accumulator = accumulator
        self._result = result
        self._where = where
        self._filtered = filtered
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(accumulator.accumulator_type).decode

    def init(self, args: Sequence[pl.Expr]) -> pl.Expr:
        """Elementwise: every row's own partial."""
        return pl.map_batches(args, self._init, return_dtype=pl.Binary(), is_elementwise=True)

    def init_grouped(self, args: Sequence[pl.Expr]) -> pl.Expr:
        """In a group: the partial of all its rows."""
        # A list per group, and one elementwise call for all groups: Polars calls Python per group far more slowly.
        lists = [arg.implode() for arg in args]
        return pl.map_batches(lists, self._fold_groups, return_dtype=pl.Binary(), is_elementwise=True)

    def merge(self, partial: pl.Expr) -> pl.Expr:
        """In a group: one partial of several."""
        return partial.implode().map_batches(self._merge_groups, return_dtype=pl.Binary(), is_elementwise=True)

    def changed(self, before: bytes | None, changes: Iterable[tuple[bool, Sequence[Any]]]) -> bytes:
        """The partial behind rows that are added, or where the flag is true retracted; `before` is None of no rows."""
        accumulator = self._accumulator
        if before is None:
            state = self._call("create", accumulator.create)
        else:
            state = self._call("add", self._decode, before)
        for retracted, row in changes:
            for values in self._counted([row]):
                if retracted:
                    state = self._call("retract", accumulator.retract, state, *values)
                else:
                    state = self._call("add", accumulator.add, state, *values)
        return self._call("add", self._encode, state)

    def finish(self, partial: pl.Expr) -> pl.Expr:
        """Elementwise: the results."""
        return partial.map_batches(self._finish, return_dtype=polars_type(self._result), is_elementwise=True)

    def _init(self, columns: Sequence[pl.Series]) -> pl.Series:
        accumulator = self._accumulator

        def one(*values: Any) -> bytes:
            state = accumulator.create()
            for counted in self._counted([values]):
                state = accumulator.add(state, *counted)
            return self._encode(state)

        rows = zip(*(column.to_list() for column in columns), strict=True)
        return pl.Series([self._call("add", one, *values) for values in rows], dtype=pl.Binary)

    def _counted(self, rows: Iterable[Sequence[Any]]) -> Iterable[Sequence[Any]]:
        return (values[:-1] for values in rows if values[-1]) if self._filtered else rows

    def _fold_groups(self, lists: Sequence[pl.Series]) -> pl.Series:
        groups = zip(*(column.to_list() for column in lists), strict=True)
        return pl.Series([self._fold(group) for group in groups], dtype=pl.Binary)

    def _fold(self, columns: Sequence[Sequence[Any]]) -> bytes:
        state = self._call("create", self._accumulator.create)
        for values in self._counted(zip(*columns, strict=True)):
            state = self._call("add", self._accumulator.add, state, *values)
        return self._call("add", self._encode, state)

    def _merge_groups(self, lists: pl.Series) -> pl.Series:
        return pl.Series([self._merge(partials) for partials in lists.to_list()], dtype=pl.Binary)

    def _merge(self, partials: Sequence[bytes]) -> bytes:
        first, *others = partials
        if not others:
            return first
        state = self._call("add", self._decode, first)
        for other in others:
            state = self._call("merge", self._accumulator.merge, state, self._call("add", self._decode, other))
        return self._call("merge", self._encode, state)

    def _finish(self, partials: pl.Series) -> pl.Series:
        states = (self._call("add", self._decode, partial) for partial in partials.to_list())
        results = [_plain(self._call("result", self._accumulator.result, state)) for state in states]
        try:
            return pl.Series(partials.name, results, dtype=polars_type(self._result), strict=True)
        except (TypeError, pl.exceptions.PolarsError) as error:
            raise self._failure("result", error, f" returned what is not {self._result}") from error

    def _call(self, method: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            raise self._failure(method, error) from error

    def _failure(self, method: str, cause: Exception, returned: str = "") -> UserCodeError:
        """An error that keeps its message and cause when Polars makes it anew from its class to add the expression."""
        if isinstance(cause, msgspec.ValidationError):
            returned = " returned what does not fit accumulator_type"
        reason = str(cause).split("\n\n")[0]
        name = f"{type(self._accumulator).__name__}.{method}{returned}"
        message = f"{self._where}: {name}: {type(cause).__name__}: {reason}"

        class RaisedError(UserCodeError):
            def __init__(self, _: str) -> None:
                super().__init__(message)
                self.__cause__ = cause

        RaisedError.__name__ = RaisedError.__qualname__ = UserCodeError.__name__
        return RaisedError(message)


def _plain(value: Any) -> Any:
    """A result as Polars takes it: nested rows as dicts."""
    if isinstance(value, (list, tuple)) or dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value, builtin_types=(bytes, date, datetime, time, timedelta))
    return value
