"""Catalogue rows: `.list`, `.map`, `.struct` and `.hash`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from penstock.errors import nearest
from penstock.expressions.decimal_rules import sum_of_decimals
from penstock.expressions.functions import Function, Lowering, polars
from penstock.expressions.typing_rules import (
    FITTING_INT64,
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
    BOOLEAN,
    DURATION,
    FLOAT64,
    FLOATS,
    INT64,
    NULL,
    NUMERIC,
    STRING,
    TIME,
    UINT64,
    UNSIGNED,
    DataType,
    DecimalType,
    ListType,
    MapType,
    StructType,
    family,
)

if TYPE_CHECKING:
    import polars as pl


def _inner(arguments: Arguments, kinds: Collection[DataType] | None = None) -> DataType:
    """The element type of the list that the first argument is."""
    kind = arguments[0].type
    if not isinstance(kind, ListType):
        raise arguments.fail("a list", kind)
    if kinds is not None and family(kind.inner) not in kinds:
        raise arguments.fail(f"a list of {describe(kinds)}", kind)
    return kind.inner


def _length(arguments: Arguments) -> Typing:
    return Typing(INT64, arguments.nullable, (ListType(_inner(arguments)),))


def _element(arguments: Arguments) -> Typing:
    """Null for an empty list, for a list that is null, and where the element is."""
    inner = _inner(arguments)
    indexes = arguments.operands[1:]
    if any(index.type not in FITTING_INT64 for index in indexes):
        raise arguments.fail("an index that fits into int64", indexes[0].type)
    return Typing(inner, True, (ListType(inner), *(INT64 for _ in indexes)))


def _contains(arguments: Arguments) -> Typing:
    inner = _inner(arguments, ORDERED)
    value = arguments[1]
    common = common_type([Operand(inner, True, arguments[0].node), value])
    if common is None or value.type == NULL:
        raise TypeMismatchError(f"cannot look for {value.type} in {arguments[0].type}; cast the value to {inner}")
    return Typing(BOOLEAN, arguments.nullable, (ListType(common), common))


def sum_type(kind: DataType) -> DataType:
    """The type of a sum: int64, uint64, float64, duration or 38 digits, whatever the width of what is added."""
    if isinstance(kind, DecimalType):
        return sum_of_decimals(kind)
    if kind in FLOATS:
        return FLOAT64
    if kind in UNSIGNED:
        return UINT64
    return DURATION if kind == DURATION else INT64


def _sum(arguments: Arguments) -> Typing:
    total = sum_type(_inner(arguments, NUMERIC | {DURATION}))
    return Typing(total, arguments.nullable, (ListType(total),))


def _mean(arguments: Arguments) -> Typing:
    _inner(arguments, NUMERIC)
    return Typing(FLOAT64, True, (ListType(FLOAT64),))


def _extreme(arguments: Arguments) -> Typing:
    inner = _inner(arguments, ORDERED)
    return Typing(inner, True, (ListType(inner),))


def _join(arguments: Arguments) -> Typing:
    _inner(arguments, {STRING})
    keeps_nulls = arguments.options.get("ignore_nulls") is False
    return Typing(STRING, keeps_nulls or arguments.nullable, (ListType(STRING),))


def _field(arguments: Arguments) -> Typing:
    kind = arguments[0].type
    if not isinstance(kind, StructType):
        raise arguments.fail("a struct", kind)
    name = str(arguments.options["name"])
    member = kind.field(name)
    if member is None:
        known = nearest(name, [field.name for field in kind.fields])
        raise TypeMismatchError(f"{kind} has no field {name!r}; {known}")
    return Typing(member.type, member.nullable or arguments.nullable, (kind,))


def _of_map(gives: Callable[[MapType], DataType], *, null: bool = False, key: bool = False) -> Rule:
    """A function of a map, perhaps with a key; `null`: null where there is no such key."""

    def rule(arguments: Arguments) -> Typing:
        kind = arguments[0].type
        if not isinstance(kind, MapType):
            raise arguments.fail("a map", kind)
        if key and arguments[1].type != STRING:
            raise arguments.fail("a key that is text", arguments[1].type)
        return Typing(gives(kind), null or arguments.nullable, (kind, STRING) if key else (kind,))

    return rule


def _hash_rule(arguments: Arguments) -> Typing:
    kind = arguments[0].type
    if isinstance(kind, (ListType, MapType, StructType)) or kind in (NULL, TIME):
        raise arguments.fail("a column without parts that could be a key", kind)
    return Typing(INT64, False, (kind,))


def _hash(call: Lowering) -> pl.Expr:
    from penstock.state.hashing import hash64

    pl = polars()

    def signed(series: pl.Series) -> pl.Series:
        return pl.Series(series.name, hash64(series).view("int64"), dtype=pl.Int64)

    return call[0].map_batches(signed, return_dtype=pl.Int64, is_elementwise=True)


ROWS: Final = (
    Function("list.len", "x.list.len()", _length, lambda c: c[0].list.len(),
             "Number of elements, nulls included.", ("len", "array_length"), exact=False),
    Function("list.get", "x.list.get(index)", _element, lambda c: c[0].list.get(c[1], null_on_oob=True),
             "The element at an index counted from 0 (SQL: from 1), negative from the end; null if there is none.",
             ("list_extract",)),
    Function("list.first", "x.list.first()", _element, lambda c: c[0].list.first(),
             "The first element; null if there is none."),
    Function("list.last", "x.list.last()", _element, lambda c: c[0].list.last(),
             "The last element; null if there is none."),
    Function("list.contains", "x.list.contains(value)", _contains, lambda c: c[0].list.contains(c[1]),
             "Whether an element equals the value; nulls among the elements are left out.", ("list_contains",)),
    Function("list.sum", "x.list.sum()", _sum, lambda c: c[0].list.sum(),
             "Sum as int64, uint64, float64 or duration; nulls are ignored, an empty list gives 0 (SQL: null).",
             ("list_sum",)),
    Function("list.min", "x.list.min()", _extreme, lambda c: c[0].list.min(),
             "The smallest element; null if there is none. NaN is ignored unless all are NaN.", ("list_min",)),
    Function("list.max", "x.list.max()", _extreme, lambda c: c[0].list.max(),
             "The largest element; null if there is none. NaN is ignored unless all are NaN.",
             ("list_max",)),
    Function("list.mean", "x.list.mean()", _mean, lambda c: c[0].list.mean(),
             "Mean in float64; nulls are ignored, null if all are null.", ("list_avg",)),
    Function("list.join", "x.list.join(separator, ignore_nulls=True)", _join,
             lambda c: c[0].list.join(c.option("by"), ignore_nulls=c.option("ignore_nulls", True)),
             "The texts joined; nulls are left out (only nulls: empty text), or make it null with ignore_nulls=False.",
             ("array_to_string",)),
    Function("map.get", 'x.map.get("key")', _of_map(lambda kind: kind.value, null=True, key=True),
             lambda c: c[0].map.get(c[1]), "The value of a key; null if there is none.", ("element_at", "map_extract")),
    Function("map.contains", 'x.map.contains("key")', _of_map(lambda _: BOOLEAN, key=True),
             lambda c: c[0].map.contains_key(c[1]), "Whether there is such a key, even if its value is null.",
             ("map_contains",), polars=("map.contains_key",)),
    Function("map.keys", "x.map.keys()", _of_map(lambda _: ListType(STRING)), lambda c: c[0].map.keys(),
             "The keys as a list, in their order.", ("map_keys",)),
    Function("map.values", "x.map.values()", _of_map(lambda kind: ListType(kind.value)), lambda c: c[0].map.values(),
             "The values as a list, in the order of their keys.", ("map_values",)),
    Function("map.len", "x.map.len()", _of_map(lambda _: INT64), lambda c: c[0].map.len(),
             "Number of entries.", ("cardinality",), exact=False),
    Function("struct.field", 'x.struct.field("name")', _field, lambda c: c[0].struct.field(c.option("name")),
             "A field of a nested row.", ("struct_extract",)),
    Function("hash", "x.hash()", _hash_rule, _hash,
             "A stable 64-bit hash as int64: MurmurHash64A of the key encoding that also places keys (see protocol). "
             "Never null: null has a hash too.", polars_lacks=True),
)  # fmt: skip
