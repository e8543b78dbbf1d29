"""Catalogue rows: lists and nested rows built of columns, and lists as sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.expressions.functions import Function, Lowering, polars
from penstock.expressions.typing_rules import (
    Arguments,
    Operand,
    TypeMismatchError,
    Typing,
    common_type,
    meet,
)
from penstock.types import NULL, DataType, Field, ListType, StructType, polars_type

if TYPE_CHECKING:
    import polars as pl


def names_option(names: tuple[str, ...]) -> str:
    """Names of fields as a setting of `struct`."""
    return json.dumps(names, ensure_ascii=False)


def option_names(option: object) -> list[str]:
    """The inverse of `names_option`."""
    return json.loads(str(option))


def _struct_rule(arguments: Arguments) -> Typing:
    names = option_names(arguments.options["names"])
    if len(set(names)) < len(names):
        again = next(name for name in names if names.count(name) > 1)
        raise TypeMismatchError(f"the field {again!r} is there twice; name one of them: struct(name=...)")
    fields = tuple(
        Field(name, operand.type, operand.nullable) for name, operand in zip(names, arguments.operands, strict=True)
    )
    return Typing(StructType(fields), False, tuple(operand.type for operand in arguments.operands))


def _struct(call: Lowering) -> pl.Expr:
    names = option_names(call.options["names"])
    return polars().struct([arg.alias(name) for arg, name in zip(call.args, names, strict=True)])


def _list_rule(arguments: Arguments) -> Typing:
    lists = [operand for operand in arguments.operands if isinstance(operand.type, ListType)]
    if lists and len(lists) < len(arguments.operands):
        other = next(operand for operand in arguments.operands if not isinstance(operand.type, ListType))
        raise TypeMismatchError(
            f"cannot join {lists[0].type} and {other.type}; put what is no list into one: concat_list(...)"
        )
    common = meet(arguments, "put into one list")
    if lists:
        return Typing(common, arguments.nullable, (common,) * len(arguments.operands))
    return Typing(ListType(common), False, (common,) * len(arguments.operands))


def _list(call: Lowering) -> pl.Expr:
    return polars().concat_list(list(call.args)).cast(polars_type(call.result))


def _sets_rule(arguments: Arguments) -> Typing:
    left, right = (_elements(arguments, index) for index in (0, 1))
    common = common_type([Operand(left, True, arguments[0].node), Operand(right, True, arguments[0].node)])
    if common is None:
        raise TypeMismatchError(
            f"the elements of {arguments[0].type} and {arguments[1].type} have no common type; cast one of them"
        )
    return Typing(ListType(common), arguments.nullable, (ListType(common), ListType(common)))


def _elements(arguments: Arguments, index: int) -> DataType:
    kind = arguments[index].type
    if not isinstance(kind, ListType):
        raise arguments.fail("a list", kind)
    if isinstance(kind.inner, (ListType, StructType)) or kind.inner == NULL:
        raise arguments.fail("a list of elements without parts", kind)
    return kind.inner


def _unique_rule(arguments: Arguments) -> Typing:
    kind = ListType(_elements(arguments, 0))
    return Typing(kind, arguments.nullable, (kind,))


def _set(method: str) -> Callable[[Lowering], pl.Expr]:
    return lambda call: getattr(call[0].list, method)(call[1])


def _difference(call: Lowering) -> pl.Expr:
    """Polars gives the elements in another order; the intersection is in that of the first list."""
    return call[0].list.set_intersection(call[0].list.set_difference(call[1]))


ROWS: Final = (
    Function(
        "struct", 'struct("a", total=col("b") * 2)', _struct_rule, _struct,
        "A nested row of these values; a field has the name that is given, else that of its column. Never null.",
        ("row", "struct_pack", "named_struct"),
    ),
    Function(
        "concat_list", "concat_list(a, b, ...)", _list_rule, _list,
        "A list of these values, nulls included; of lists the elements of all of them, null if any of the lists is null.",
        ("array", "list_value", "list_concat"),
    ),
    Function(
        "list.set_union", "x.list.set_union(other)", _sets_rule, _set("set_union"),
        "The elements of either list, each once, in the order in which they come; null counts as an element.",
        ("array_union",),
    ),
    Function(
        "list.set_intersection", "x.list.set_intersection(other)", _sets_rule, _set("set_intersection"),
        "The elements that are in both lists, each once, in the order of the first.",
        ("array_intersect", "list_intersect"),
    ),
    Function(
        "list.set_difference", "x.list.set_difference(other)", _sets_rule, _difference,
        "The elements that are not in the other list, each once, in their order.", ("array_except",),
    ),
    Function(
        "list.set_symmetric_difference", "x.list.set_symmetric_difference(other)", _sets_rule,
        _set("set_symmetric_difference"),
        "The elements that are in one of the lists only, each once, first those of the first.",
    ),
    Function(
        "list.unique", "x.list.unique()", _unique_rule, lambda c: c[0].list.unique(maintain_order=True),
        "Each element once, in the order in which they come; null counts as an element.",
        ("array_distinct", "list_distinct"), polars=("list.unique(maintain_order=True)",),
    ),
)  # fmt: skip
