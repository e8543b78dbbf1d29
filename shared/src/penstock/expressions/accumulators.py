"""Aggregates written by users: an `Accumulator` says how rows are folded and how two folds become one.

An accumulator's value travels between phases, in snapshots and between processes as MessagePack, so its type is
declared. Where it runs is decided elsewhere (`penstock.expressions.aggregates`).
"""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from penstock.errors import PipelineError
from penstock.types import DataType, of_python

A = TypeVar("A")
R = TypeVar("R")


class Accumulator(ABC, Generic[A, R]):
    """A user-defined aggregate, as Flink's `AggregateFunction`.

    Used as `aggregate(Variance(), col("x"))`. `accumulator_type` is the Python type of the accumulator, anything that
    msgspec encodes (a scalar, a list, a dataclass, a `msgspec.Struct`); the result's column type is the annotation of
    `result`. `merge` is associative. Over rows that may be retracted it needs `retract` as well, as in Flink. No
    method may change its arguments' meaning for others: an accumulator may be changed in place and returned, as each is
    handed to exactly one call.

    Example:
        >>> class Product(Accumulator[float, float]):
        ...     accumulator_type = float
        ...     def create(self) -> float:
        ...         return 1.0
        ...     def add(self, accumulator: float, value: float) -> float:
        ...         return accumulator * value
        ...     def merge(self, left: float, right: float) -> float:
        ...         return left * right
        ...     def result(self, accumulator: float) -> float:
        ...         return accumulator
        >>> sorted(bids.key_by("auction").agg(product=aggregate(Product(), "price")).collect().rows())
        [(1, 6000.0), (2, 20000.0)]
    """

    accumulator_type: ClassVar[Any] = None

    @abstractmethod
    def create(self) -> A:
        """The accumulator of no rows."""

    @abstractmethod
    def add(
        self, accumulator: A, /, *values: Any, **unused: Any
    ) -> A:  # so that one may take (accumulator, value: float)
        """The accumulator with one more row's values (None where the column is null), as many as columns are given."""

    def retract(self, accumulator: A, /, *values: Any, **unused: Any) -> A:
        """The accumulator without a row of these values, which was added before; of rows that may be retracted alone.

        A class that defines it says so that its results do not depend on the order of rows.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method retract")

    @abstractmethod
    def merge(self, left: A, right: A) -> A:
        """The accumulator of both parts' rows."""

    @abstractmethod
    def result(self, accumulator: A) -> R:
        """The value of the aggregate."""


def can_retract(accumulator: Accumulator[Any, Any]) -> bool:
    """Whether a row can be taken away from what it has come to."""
    return type(accumulator).retract is not Accumulator.retract


def result_type(accumulator: Accumulator[Any, Any]) -> tuple[DataType, bool]:
    """Type and nullability of the column of an accumulator's results.

    Raises:
        PipelineError: `accumulator_type` or the annotation of `result` is missing or cannot be used.
    """
    kind = type(accumulator)
    name = kind.__name__
    if kind.accumulator_type is None:
        raise PipelineError(
            f"aggregate: {name} does not say what its accumulator is; add for example `accumulator_type = float`"
        )
    _check_encodable(kind.accumulator_type, name)
    try:
        hints = typing.get_type_hints(kind.result, include_extras=True)
    except NameError as error:
        raise PipelineError(f"aggregate: the annotation of {name}.result cannot be resolved: {error}") from error
    if "return" not in hints:
        raise PipelineError(
            f"aggregate: {name}.result does not say what it returns; write for example "
            "`def result(self, accumulator) -> float:`"
        )
    return of_python(hints["return"], f"aggregate: {name}.result")


def _check_encodable(accumulator_type: Any, name: str) -> None:
    import msgspec

    reason = "msgspec does not know this type"
    try:
        if not isinstance(msgspec.inspect.type_info(accumulator_type), msgspec.inspect.CustomType):
            return
    except (TypeError, ValueError) as error:
        reason = str(error)
    raise PipelineError(
        f"aggregate: the accumulator_type of {name} cannot be encoded: {reason}; use scalars, lists, dicts, "
        "dataclasses or msgspec.Structs"
    )
