"""Catalogue rows: `replace` and `replace_strict`, which look values up in a mapping.

Arguments are the value, then each key and what stands for it, and with `default` last what stands for any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.expressions.functions import Function, Lowering, constants_of, polars
from penstock.expressions.typing_rules import Arguments, Operand, TypeMismatchError, Typing, common_type, promote
from penstock.types import NULL, DataType, ListType, MapType, StructType, polars_type

if TYPE_CHECKING:
    import polars as pl


def _keys_and_values(arguments: Arguments) -> tuple[list[Operand], list[Operand]]:
    pairs = arguments.operands[1 : -1 if arguments.options.get("default") else None]
    return list(pairs[::2]), list(pairs[1::2])


def _met(operands: list[Operand], what: str) -> DataType:
    common = common_type(operands)
    if common is None or isinstance(common, (ListType, MapType, StructType)):
        types = " and ".join(dict.fromkeys(str(operand.type) for operand in operands))
        raise TypeMismatchError(f"the {what} have the types {types}; write constants of one type")
    return common


def _replace_rule(arguments: Arguments) -> Typing:
    keys, values = _keys_and_values(arguments)
    common = _met([arguments[0], *keys, *values], "column and the mapping")
    if common != arguments[0].type:
        raise TypeMismatchError(f"cannot keep {arguments[0].type} with a mapping of {common}; use .replace_strict()")
    nullable = arguments[0].nullable or any(value.nullable for value in values)
    return Typing(common, nullable, (common,) * len(arguments.operands))


def _replace_strict_rule(arguments: Arguments) -> Typing:
    keys, values = _keys_and_values(arguments)
    default = arguments.operands[-1:] if arguments.options.get("default") else ()
    before = _met([arguments[0], *keys], "column and the keys of the mapping")
    after = _met([*values, *default], "values of the mapping")
    if after == NULL or promote(after, after) is None:
        raise TypeMismatchError("the values of the mapping are all None; write a value of the type that is wanted")
    nullable = arguments[0].nullable or any(operand.nullable for operand in (*values, *default))
    pairs = (before, after) * len(keys)
    return Typing(after, nullable, (before, *pairs, *(after for _ in default)))


def _replaced(call: Lowering) -> pl.Expr:
    keys, values = _series(call)
    return call[0].replace_strict(keys, values, default=call[0], return_dtype=polars_type(call.result))


def _series(call: Lowering) -> tuple[pl.Series, pl.Series]:
    pl = polars()
    pairs = call.constants[1 : -1 if call.option("default") else None]
    return (
        pl.Series(constants_of(pairs[::2], call.operands[0]), dtype=polars_type(call.operands[0]), strict=False),
        pl.Series(constants_of(pairs[1::2], call.result), dtype=polars_type(call.result), strict=False),
    )


def _replaced_strictly(call: Lowering) -> pl.Expr:
    keys, values = _series(call)
    if not call.option("default"):
        return call[0].replace_strict(keys, values, return_dtype=polars_type(call.result))
    pl = polars()
    mapped = call[0].replace_strict(keys, values, default=None, return_dtype=polars_type(call.result))
    known = call[0].is_in(pl.lit(keys).implode(), nulls_equal=True)
    # Not by Polars' own default, which must not be longer than the value: this may be a constant beside a column.
    replaced = pl.when(known).then(mapped).otherwise(call.args[-1])
    return replaced if None in keys else pl.when(call[0].is_not_null()).then(replaced)


ROWS: Final = (
    Function(
        "replace", 'x.replace({"a": "b"})', _replace_rule, _replaced,
        "The value that a mapping of constants has for it; values without an entry are unchanged. Null stays null unless "
        "None is one of the keys.", ("case x when",),
    ),
    Function(
        "replace_strict", 'x.replace_strict({1: "one"}, default="many")', _replace_strict_rule, _replaced_strictly,
        "The value that a mapping has for it, of the mapping's type, or the default. Without a default, a value that is "
        "not in the mapping fails the row. Null stays null unless None is one of the keys.", ("case x when",),
    ),
)  # fmt: skip
