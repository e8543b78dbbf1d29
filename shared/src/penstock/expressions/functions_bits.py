"""Catalogue rows: bits of integers. `&`, `|`, `^` and `~` are those of logic, which take integers as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.expressions.functions import Function, Lowering, polars
from penstock.expressions.nodes import Literal
from penstock.expressions.typing_rules import FITTING_INT64, Arguments, TypeMismatchError, Typing, check
from penstock.types import INT64, INTEGERS, Scalar, polars_type

if TYPE_CHECKING:
    import polars as pl


def _shift_rule(arguments: Arguments) -> Typing:
    kind = check(arguments, 0, INTEGERS)
    if arguments[1].type not in FITTING_INT64:
        raise arguments.fail("a number of bits that fits into int64", arguments[1].type)
    assert isinstance(kind, Scalar)
    bits, constant = _width(kind), arguments[1].node
    if isinstance(constant, Literal):
        if not isinstance(constant.value, int) or not 0 <= constant.value < bits:
            raise TypeMismatchError(f"{kind} has {bits} bits: shift by 0 to {bits - 1}, not by {constant.value}")
        return Typing(kind, arguments.nullable, (kind, INT64))
    return Typing(kind, True, (kind, INT64))


def _width(kind: Scalar) -> int:
    return int("".join(filter(str.isdigit, kind.name)))


def _shift(call: Lowering, ufunc: str) -> pl.Expr:
    """By NumPy: Polars has no shifts of bits. What NumPy leaves open, a shift by all bits or by less than 0, is null."""
    pl = polars()
    kind = call.operands[0]
    assert isinstance(kind, Scalar)
    value, count = call.args
    possible = value.is_not_null() & count.is_between(0, _width(kind) - 1)

    def apply(columns: Sequence[pl.Series]) -> pl.Series:
        import numpy as np

        numbers, counts = (column.to_numpy() for column in columns)
        return pl.Series(columns[0].name, getattr(np, ufunc)(numbers, counts.astype(numbers.dtype)))

    filled = [pl.when(possible).then(part).otherwise(pl.lit(0, part_type)) for part, part_type in zip(
        (value, count), (polars_type(kind), polars_type(INT64)), strict=True)]  # fmt: skip
    return pl.when(possible).then(pl.map_batches(filled, apply, polars_type(kind), is_elementwise=True))


ROWS: Final = (
    Function(
        "shift_left", "a << b", _shift_rule, lambda c: _shift(c, "left_shift"),
        "The bits of an integer moved up; those above its width are lost. Null where b is not 0 to width - 1.",
        ("<<", "shiftleft"), polars_lacks=True,
    ),
    Function(
        "shift_right", "a >> b", _shift_rule, lambda c: _shift(c, "right_shift"),
        "The bits of an integer moved down, as in Python: the sign stays. Null where b is not 0 to width - 1.",
        (">>", "shiftright"), polars_lacks=True,
    ),
)  # fmt: skip
