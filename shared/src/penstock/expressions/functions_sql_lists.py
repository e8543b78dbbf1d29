"""Catalogue rows that only SQL asks for: arrays, maps and the text of JSON that values have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from penstock.expressions.functions import Function, Lowering, polars
from penstock.expressions.typing_rules import (
    ORDERED,
    Arguments,
    Operand,
    Rule,
    TypeMismatchError,
    Typing,
    common_type,
    describe,
)
from penstock.types import (
    BINARY,
    BOOLEAN,
    DECIMAL,
    DURATION,
    INT64,
    INTEGERS,
    NULL,
    STRING,
    TIME,
    DataType,
    ListType,
    MapType,
    family,
    parts_of,
    polars_type,
)

if TYPE_CHECKING:
    import polars as pl


def _list(arguments: Arguments, place: int = 0) -> ListType:
    kind = arguments[place].type
    if not isinstance(kind, ListType):
        raise arguments.fail("a list", kind)
    return kind


def _map(arguments: Arguments, place: int = 0) -> MapType:
    kind = arguments[place].type
    if not isinstance(kind, MapType):
        raise arguments.fail("a map", kind)
    return kind


def _common(arguments: Arguments, operands: Sequence[Operand], what: str) -> DataType:
    found = common_type(operands)
    if found is None or found == NULL:
        types = " and ".join(dict.fromkeys(str(operand.type) for operand in operands))
        raise TypeMismatchError(f"{arguments.name}: the {what} have the types {types}; cast them to one type")
    return found


# -- arrays -------------------------------------------------------------------------------------------------------------


def _array_rule(arguments: Arguments) -> Typing:
    common = _common(arguments, arguments.operands, "elements")
    return Typing(ListType(common), False, (common,) * len(arguments.operands))


def _array(call: Lowering) -> pl.Expr:
    """Each value within a struct, because lists would be joined."""
    pl = polars()
    if not isinstance(call.operands[0], ListType):
        return pl.concat_list(list(call.args)).cast(polars_type(call.result))
    wrapped = pl.concat_list([pl.struct(value=arg) for arg in call.args])
    return wrapped.list.eval(pl.element().struct.field("value")).cast(polars_type(call.result))


def _same_list(arguments: Arguments) -> Typing:
    kind = _list(arguments)
    return Typing(kind, arguments.nullable, (kind,))


def _ordered_list(arguments: Arguments) -> Typing:
    kind = _list(arguments)
    if family(kind.inner) not in ORDERED:
        raise arguments.fail(f"a list of {describe(ORDERED)}", kind)
    return Typing(kind, arguments.nullable, (kind,))


def _sort(call: Lowering) -> pl.Expr:
    return call[0].list.sort(descending=call.option("descending", False), nulls_last=call.option("nulls_last", False))


def _slice_rule(arguments: Arguments) -> Typing:
    kind = _list(arguments)
    for operand in arguments.operands[1:]:
        if operand.type not in INTEGERS:
            raise arguments.fail("integers", operand.type)
    return Typing(kind, arguments.nullable, (kind, *(INT64 for _ in arguments.operands[1:])))


def _slice(call: Lowering) -> pl.Expr:
    """Both ends belong to it and count from 1, or if they are negative from the end."""
    pl = polars()
    size = call[0].list.len().cast(pl.Int64)

    def place(end: pl.Expr) -> pl.Expr:
        return pl.when(end < 0).then(size + end + 1).when(end == 0).then(pl.lit(1, pl.Int64)).otherwise(end)

    first, last = place(call[1]), place(call[2]) if len(call.args) > 2 else size
    begin = first.clip(1)
    found = call[0].list.slice(begin - 1, (last - begin + 1).clip(0))
    return pl.when(*(arg.is_not_null() for arg in call.args)).then(found)


def _element_rule(gives: DataType | None, *, null: bool = False, keeps_null: bool = True) -> Rule:
    """A function of a list and what meets its elements; without `gives` it is a list again."""

    def rule(arguments: Arguments) -> Typing:
        kind = _list(arguments)
        element = Operand(kind.inner, True, arguments[0].node)
        common = _common(arguments, [element, arguments[1]], "elements and the value")
        nullable = null or arguments[0].nullable or (keeps_null and arguments[1].nullable)
        return Typing(gives or ListType(common), nullable, (ListType(common), common))

    return rule


def _before(call: Lowering) -> pl.Expr:
    """The list behind the value: within a list only its own elements are seen, and the value is the first of them."""
    pl = polars()
    return pl.concat_list([pl.concat_list([call[1]]), call[0]])


def _position(call: Lowering) -> pl.Expr:
    pl = polars()
    equal = _before(call).list.eval((pl.element() == pl.element().first()).fill_null(False)).list.slice(1)
    place = equal.list.arg_max().cast(pl.Int64) + 1
    found = pl.when(equal.list.any()).then(place).otherwise(pl.lit(0, pl.Int64))
    return pl.when(call[0].is_not_null() & call[1].is_not_null()).then(found)


def _remove(call: Lowering) -> pl.Expr:
    pl = polars()
    kept = _before(call).list.eval(pl.element().filter(pl.element().ne_missing(pl.element().first())))
    return pl.when(call[0].is_not_null()).then(kept)


def _contains(call: Lowering) -> pl.Expr:
    pl = polars()
    return pl.when(call[0].is_not_null()).then(call[0].list.contains(call[1], nulls_equal=True))


def _append(call: Lowering) -> pl.Expr:
    pl = polars()
    return pl.when(call[0].is_not_null()).then(pl.concat_list([call[0], pl.concat_list([call[1]])]))


def _prepend(call: Lowering) -> pl.Expr:
    return polars().when(call[0].is_not_null()).then(_before(call))


def _sole(call: Lowering) -> pl.Expr:
    def checked(column: pl.Series) -> pl.Series:
        pl = polars()
        if (column.list.len() > 1).any():
            raise pl.exceptions.ComputeError(
                "ELEMENT: an array has more than one element; write array[1] for the first"
            )
        return column.list.get(0, null_on_oob=True)

    return call[0].map_batches(checked, polars_type(call.result), is_elementwise=True)


def _sole_rule(arguments: Arguments) -> Typing:
    kind = _list(arguments)
    return Typing(kind.inner, True, (kind,))


def _fill_rule(arguments: Arguments) -> Typing:
    kind = _list(arguments)
    if kind.inner != STRING:
        raise arguments.fail("a list of text", kind)
    return Typing(kind, arguments.nullable, (kind,))


# -- maps ---------------------------------------------------------------------------------------------------------------


def _map_rule(arguments: Arguments) -> Typing:
    keys, values = arguments.operands[::2], arguments.operands[1::2]
    for key in keys:
        if key.type != STRING:
            raise arguments.fail("keys that are text", key.type)
    common = _common(arguments, values, "values")
    return Typing(MapType(common), False, (STRING, common) * len(keys))


def _map_of(call: Lowering) -> pl.Expr:
    pl = polars()
    pairs = zip(call.args[::2], call.args[1::2], strict=True)
    entries = [pl.struct(key=key, value=value) for key, value in pairs]
    return pl.concat_list(entries).cast(polars_type(call.result))


def _entries_rule(arguments: Arguments) -> Typing:
    kind = _map(arguments)
    return Typing(kind.entries, arguments.nullable, (kind,))


def _union_rule(arguments: Arguments) -> Typing:
    kinds = [_map(arguments, place) for place in range(len(arguments.operands))]
    values = [Operand(kind.value, True, arguments[0].node) for kind in kinds]
    common = MapType(_common(arguments, values, "values"))
    return Typing(common, arguments.nullable, (common,) * len(kinds))


def _union(call: Lowering) -> pl.Expr:
    assert isinstance(call.result, MapType)
    entries = polars_type(call.result.entries)
    return polars().concat_list([arg.cast(entries) for arg in call.args]).cast(polars_type(call.result))


def _zip_rule(arguments: Arguments) -> Typing:
    keys, values = (_list(arguments, place) for place in (0, 1))
    if keys.inner != STRING:
        raise arguments.fail("keys that are text", keys)
    return Typing(MapType(values.inner), arguments.nullable, (keys, values))


def _zip(call: Lowering) -> pl.Expr:
    pl = polars()
    assert isinstance(call.result, MapType)
    entries = polars_type(call.result.entries)

    def apply(columns: Sequence[pl.Series]) -> pl.Series:
        keys, values = columns
        height = max(len(keys), len(values)) if len(keys) and len(values) else 0
        keys, values = (part if len(part) == height else part.new_from_index(0, height) for part in (keys, values))
        known = keys.is_not_null() & values.is_not_null()
        if ((keys.list.len() != values.list.len()) & known).any():
            raise pl.exceptions.ComputeError("MAP_FROM_ARRAYS: keys and values are not of one length")
        frame = pl.DataFrame({"key": keys, "value": values}).with_row_index("row").filter(known)
        parts = frame.filter(pl.col("key").list.len() > 0).explode("key", "value")
        if parts["key"].null_count():
            raise pl.exceptions.ComputeError("MAP_FROM_ARRAYS: a key is null")
        pairs = parts.group_by("row", maintain_order=True).agg(pl.struct("key", "value").alias("entries"))
        rows = frame.select("row").join(pairs, on="row", how="left").select("row", pl.col("entries").fill_null([]))
        found = (
            pl.DataFrame({"known": known}).with_row_index("row").join(rows, on="row", how="left", maintain_order="left")
        )
        return found["entries"].cast(entries).rename(keys.name).cast(polars_type(call.result))

    return pl.map_batches(list(call.args), apply, polars_type(call.result), is_elementwise=True)


def _pairs_rule(arguments: Arguments) -> Typing:
    if arguments[0].type not in (STRING, NULL):
        raise arguments.fail("text", arguments[0].type)
    return Typing(MapType(STRING), arguments.nullable, (STRING,))


def _pairs(call: Lowering) -> pl.Expr:
    """As Java splits, empty parts at the end are left out; what has no second separator is a key of null."""
    pl = polars()
    separator, between = str(call.option("separator")), str(call.option("between"))
    quoted = "".join(f"\\x{{{ord(letter):x}}}" for letter in separator)
    parts = call[0].str.replace(f"(?:{quoted})+$", "").str.split(separator)
    halves = pl.element().str.splitn(between, 2)
    entries = parts.list.eval(pl.struct(key=halves.struct.field("field_0"), value=halves.struct.field("field_1")))
    empty = pl.lit([], polars_type(MapType(STRING).entries))
    found = pl.when(call[0] == "").then(empty).otherwise(entries)
    return found.cast(polars_type(call.result))


# -- JSON ---------------------------------------------------------------------------------------------------------------


def _json_rule(arguments: Arguments) -> Typing:
    kind = arguments[0].type
    for part in parts_of(kind):
        if part in (BINARY, DURATION, TIME) or (family(part) == DECIMAL and part != kind):
            raise arguments.fail("a value that JSON can have", part)
    return Typing(STRING, arguments.nullable, (kind,))


def _json(call: Lowering) -> pl.Expr:
    """By a struct of one member, whose name and braces are taken off again."""
    pl = polars()
    kind = call.operands[0]
    if kind in INTEGERS or family(kind) == DECIMAL:
        return call[0].cast(pl.String)
    found = pl.struct(v=call[0]).struct.json_encode().str.slice(5).str.head(-1)
    return pl.when(call[0].is_not_null()).then(found)


def _is_json(call: Lowering) -> pl.Expr:
    return call[0]


def _raw_rule(arguments: Arguments) -> Typing:
    return Typing(STRING, arguments.nullable, (STRING,))


def _row(
    name: str, usage: str, rule: Rule, lower: Callable[[Lowering], pl.Expr], doc: str, *, exact: bool = True
) -> Function:
    return Function(f"sql.{name}", usage, rule, lower, doc, (name,), exact=exact, polars_lacks=True)


ROWS: Final[Sequence[Function]] = (
    _row("array", "ARRAY[x, ...]", _array_rule, _array, "A list of these values, which may be lists themselves."),
    _row("array_sort", "ARRAY_SORT(x)", _ordered_list, _sort, "The elements in order."),
    _row("array_reverse", "ARRAY_REVERSE(x)", _same_list, lambda c: c[0].list.reverse(), "The elements from behind."),
    _row("array_slice", "ARRAY_SLICE(x, first, last)", _slice_rule, _slice,
         "The elements between two places, which belong to it and are counted from 1, or if negative from the end."),
    _row("array_position", "ARRAY_POSITION(x, value)", _element_rule(INT64), _position,
         "The place of the first element that equals the value, counted from 1; 0 without one."),
    _row("array_remove", "ARRAY_REMOVE(x, value)", _element_rule(None, keeps_null=False), _remove,
         "Without the elements that equal the value; of null those that are null."),
    _row("array_contains", "ARRAY_CONTAINS(x, value)", _element_rule(BOOLEAN, keeps_null=False), _contains,
         "Whether an element equals the value, or both are null."),
    _row("array_append", "ARRAY_APPEND(x, value)", _element_rule(None, keeps_null=False), _append,
         "With the value behind."),
    _row("array_prepend", "ARRAY_PREPEND(x, value)", _element_rule(None, keeps_null=False), _prepend,
         "With the value in front."),
    _row("element", "ELEMENT(x)", _sole_rule, _sole, "The only element; null if there is none, several fail the row."),
    _row("array_fill", "ARRAY_JOIN(x, separator, filling)", _fill_rule,
         lambda c: c[0].list.eval(polars().element().fill_null(c.option("by"))), "With a text in place of nulls."),
    _row("map", "MAP[key, value, ...]", _map_rule, _map_of, "A map of these entries; of equal keys the last counts."),
    _row("map_entries", "MAP_ENTRIES(x)", _entries_rule, lambda c: c[0].cast(polars_type(c.result)),
         "The entries as a list of rows of key and value."),
    _row("map_union", "MAP_UNION(x, y)", _union_rule, _union, "The entries of both; of equal keys the last counts."),
    _row("map_from_arrays", "MAP_FROM_ARRAYS(keys, values)", _zip_rule, _zip, "A map of keys and their values."),
    _row("str_to_map", "STR_TO_MAP(x, ',', '=')", _pairs_rule, _pairs, "The map that text such as a=1,b=2 spells."),
    _row("json_text", "JSON_STRING(x)", _json_rule, _json, "The value as text of JSON; null stays null."),
    _row("json", "JSON_OBJECT(...)", _raw_rule, _is_json,
         "Text that is JSON already, which stands within other JSON as it is."),
)  # fmt: skip
