"""Column types and row schemas: small frozen values that need neither Arrow nor Polars until rows flow.

A schema comes from a dataclass, a `msgspec.Struct` or a `pyarrow.Schema`, travels in the job graph as JSON, and is
turned into Arrow and Polars types at the edge of the data path.
"""

from __future__ import annotations

import dataclasses
import keyword
import re
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.core.arguments import checked
from penstock.core.decimals import MOST_DIGITS, misfit, units_of
from penstock.errors import PipelineError, nearest

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

ScalarName = Literal[
    "boolean", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float32", "float64", "string", "binary", "date", "time", "timestamp", "duration", "null",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type without parts. `timestamp` is UTC in microseconds, `duration` microseconds, `time` the time of a day."""

    name: ScalarName

    def __str__(self) -> str:
        return self.name


@checked
@dataclass(frozen=True, slots=True)
class DecimalType:
    """A number of exactly so many digits behind the point, for amounts of money: `decimal.Decimal` in Python.

    Engines disagree about what a decimal without digits is (SQL and Spark 10 and none, Polars 38 and none), so both are
    always said, in annotations and in casts.

    Args:
        precision: digits in all, 1 to 38.
        scale: how many of them stand behind the point.

    Raises:
        PipelineError: there are no such digits.

    Example:
        >>> @dataclass
        ... class Sale:
        ...     price: Annotated[Decimal, DecimalType(12, 2)]
        >>> sales = p.read(iterables.Source([Sale(Decimal("0.10")), Sale(Decimal("0.20"))]))
        >>> sales.select(gross=col("price") * Decimal("1.19")).collect().rows()
        [(Decimal('0.1190'),), (Decimal('0.2380'),)]
        >>> evaluate(col("text").cast(DecimalType(12, 2)), text=["0.1", "2.345"])
        [Decimal('0.10'), Decimal('2.35')]
    """

    precision: int
    scale: int

    def __post_init__(self) -> None:
        if not 1 <= self.precision <= MOST_DIGITS or not 0 <= self.scale <= self.precision:
            raise PipelineError(
                f"DecimalType({self.precision}, {self.scale}): there are 1 to {MOST_DIGITS} digits in all, and 0 to all "
                "of them behind the point; write for example DecimalType(12, 2)"
            )

    def __str__(self) -> str:
        return f"decimal({self.precision}, {self.scale})"


@dataclass(frozen=True, slots=True)
class ListType:
    """A list of values of one type; elements may be null."""

    inner: DataType

    def __str__(self) -> str:
        return f"list[{self.inner}]"


@dataclass(frozen=True, slots=True)
class MapType:
    """Values of one type by text: `dict[str, int]`. Values may be null, keys are there once, in the order of the data."""

    value: DataType

    def __str__(self) -> str:
        return f"map[string, {self.value}]"

    @property
    def entries(self) -> ListType:
        """The list of structs `key` and `value` that it is made of."""
        return ListType(StructType((Field("key", STRING), Field("value", self.value, nullable=True))))


@dataclass(frozen=True, slots=True)
class StructType:
    """Named fields within one column."""

    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return "struct{" + ", ".join(str(field) for field in self.fields) + "}"

    def field(self, name: str) -> Field | None:
        """The field of that name, if there is one."""
        return next((field for field in self.fields if field.name == name), None)


DataType = Scalar | DecimalType | ListType | MapType | StructType

BOOLEAN: Final = Scalar("boolean")
INT8: Final = Scalar("int8")
INT16: Final = Scalar("int16")
INT32: Final = Scalar("int32")
INT64: Final = Scalar("int64")
UINT8: Final = Scalar("uint8")
UINT16: Final = Scalar("uint16")
UINT32: Final = Scalar("uint32")
UINT64: Final = Scalar("uint64")
FLOAT32: Final = Scalar("float32")
FLOAT64: Final = Scalar("float64")
STRING: Final = Scalar("string")
BINARY: Final = Scalar("binary")
DATE: Final = Scalar("date")
TIME: Final = Scalar("time")
TIMESTAMP: Final = Scalar("timestamp")
DURATION: Final = Scalar("duration")
NULL: Final = Scalar("null")

SIGNED: Final = frozenset({INT8, INT16, INT32, INT64})
UNSIGNED: Final = frozenset({UINT8, UINT16, UINT32, UINT64})
INTEGERS: Final = SIGNED | UNSIGNED
FLOATS: Final = frozenset({FLOAT32, FLOAT64})
NUMERIC: Final = INTEGERS | FLOATS
DECIMAL: Final = DecimalType(MOST_DIGITS, 0)
"""Stands for decimals of any digits where types are listed (see `family`)."""
ANY_NUMBER: Final[frozenset[DataType]] = NUMERIC | {DECIMAL}

_INSTEAD: Final[dict[Any, str]] = {
    Decimal: "write Annotated[Decimal, DecimalType(12, 2)]: how many digits in all, and how many behind the point",
    dict: "write dict[str, ...] with the type of the values; keys are text",
    tuple: "write list[...], or a dataclass if its parts differ",
    set: "write list[...]",
}
_UNWRITABLE: Final = re.compile(r'["\\\x00-\x1f]|^\*?$|^\^.*\$$')
"""What msgspec cannot have in the name of a JSON member, and what means several columns to Polars."""
_OF_PYTHON: Final[dict[Any, Scalar]] = {
    bool: BOOLEAN, int: INT64, float: FLOAT64, str: STRING, bytes: BINARY,
    datetime: TIMESTAMP, date: DATE, time: TIME, timedelta: DURATION,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """A named column or struct member. A field that is not nullable never holds null once a row was accepted."""

    name: str
    type: DataType
    nullable: bool = False
    default: Any = dataclasses.field(default=None, compare=False)
    """What stands for it in data that lack it, unless None. Not part of the type, and does not travel."""

    def __str__(self) -> str:
        return f"{self.name}: {self.type}{' or null' if self.nullable else ''}"


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a stream, in order. Names are unique and do not start with two underscores."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for field in self.fields:
            if field.name in seen:
                raise PipelineError(f"column {field.name!r} is there twice; rename one of them")
            if _UNWRITABLE.search(field.name):
                raise PipelineError(
                    f"column {field.name!r}: a name has no quotation marks, backslashes or control characters, is not "
                    "empty, not * and does not stand between ^ and $; rename it where the data is written"
                )
            if field.name.startswith("__"):
                raise PipelineError(f"column {field.name!r}: names with two leading underscores are reserved")
            seen.add(field.name)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __contains__(self, name: object) -> bool:
        return any(field.name == name for field in self.fields)

    def __str__(self) -> str:
        return ", ".join(str(field) for field in self.fields)

    @property
    def names(self) -> tuple[str, ...]:
        """The column names in order."""
        return tuple(field.name for field in self.fields)

    def field(self, name: str, where: str = "") -> Field:
        """The field of that name.

        Raises:
            PipelineError: there is none; `where` (such as `"key_by"`) leads the message, the nearest name ends it.
        """
        for field in self.fields:
            if field.name == name:
                return field
        prefix = f"{where}: " if where else ""
        raise PipelineError(f"{prefix}there is no column {name!r}; {nearest(name, self.names)}")

    def select(self, names: Iterable[str], where: str = "") -> Schema:
        """The schema of only these columns, in this order."""
        return Schema(tuple(self.field(name, where) for name in names))

    def polars(self) -> dict[str, pl.DataType]:
        """Column name to Polars type."""
        return {field.name: polars_type(field.type) for field in self.fields}

    def arrow(self) -> pa.Schema:
        """The Arrow schema that frames, files and user functions see."""
        import pyarrow as pa

        return pa.schema([_arrow_field(field) for field in self.fields])

    def stored_arrow(self) -> pa.Schema:
        """As `arrow`, but members of a struct that may be null may be null as well.

        Polars has null in them where the struct is null, which Arrow does not cast to a member without null.
        """
        import pyarrow as pa

        return pa.schema([_stored_field(field) for field in self.arrow()])


def schema_of(declared: object, what: str = "schema") -> Schema:
    """The schema that a dataclass, a `msgspec.Struct`, a `pyarrow.Schema` or a `Schema` declares.

    Raises:
        PipelineError: it is none of these, or a field has a type that no column can have; `what` names it.
    """
    if isinstance(declared, Schema):
        return declared
    if isinstance(declared, type):
        return _schema_of_class(declared, what)
    if type(declared).__module__.startswith("pyarrow") and type(declared).__name__ == "Schema":
        arrow = typing.cast("pa.Schema", declared)
        return Schema(tuple(Field(f.name, of_arrow(f.type, f"{what}: {f.name}"), f.nullable) for f in arrow))
    raise PipelineError(f"{what}: need a dataclass, a msgspec.Struct or a pyarrow.Schema, got {declared!r}")


def is_row_class(declared: object) -> bool:
    """Whether `declared` is a dataclass or a msgspec.Struct class."""
    return isinstance(declared, type) and (dataclasses.is_dataclass(declared) or hasattr(declared, "__struct_fields__"))


def _schema_of_class(cls: type, what: str) -> Schema:
    if not is_row_class(cls):
        raise PipelineError(f"{what}: class {cls.__name__} is neither a dataclass nor a msgspec.Struct")
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise PipelineError(f"{what}: an annotation of {cls.__name__} cannot be resolved: {error}") from error
    names: Iterable[str] = (
        [field.name for field in dataclasses.fields(cls)]
        if dataclasses.is_dataclass(cls)
        else typing.cast("tuple[str, ...]", getattr(cls, "__struct_fields__"))  # noqa: B009 (set by msgspec)
    )
    defaults = _defaults(cls)
    return Schema(
        tuple(_field(name, hints[name], defaults.get(name), f"{what}: {cls.__name__}.{name}") for name in names)
    )


def _defaults(cls: type) -> dict[str, Any]:
    """Field to its default; of a factory what it makes now."""
    if dataclasses.is_dataclass(cls):
        fields: Iterable[Any] = dataclasses.fields(cls)
        missing: Any = dataclasses.MISSING
    else:
        import msgspec

        fields, missing = msgspec.structs.fields(cls), msgspec.NODEFAULT
    found: dict[str, Any] = {}
    for field in fields:
        factory: Any = field.default_factory
        if field.default is not missing:
            found[field.name] = field.default
        elif factory is not missing:
            found[field.name] = factory()
    return found


def _field(name: str, hint: Any, default: Any, where: str) -> Field:
    kind, nullable = of_python(hint, where)
    if default is not None and isinstance(kind, (Scalar, DecimalType)):
        _check_default(default, kind, where)
    return Field(name, kind, nullable, default)


def _check_default(default: Any, kind: Scalar | DecimalType, where: str) -> None:
    expected = Decimal if isinstance(kind, DecimalType) else _python_of(kind)
    accepted = (float, int) if expected is float else expected
    if not isinstance(default, accepted) or (isinstance(default, bool) and kind != BOOLEAN):
        raise PipelineError(f"{where}: the default {default!r} is no {kind}; write one of that type, or None")
    if isinstance(default, datetime) and (kind == DATE or default.tzinfo is None):
        raise PipelineError(f"{where}: the default {default!r} is no {kind}; write datetime(..., tzinfo=UTC) or a date")
    if isinstance(default, Decimal) and isinstance(kind, DecimalType):
        _check_digits(default, kind, where)


def _check_digits(default: Decimal, kind: DecimalType, where: str) -> None:
    if units_of(default, kind.precision, kind.scale) is None:
        reason = misfit(default, kind.precision, kind.scale)
        raise PipelineError(f"{where}: the default {default!r} is no {kind}; {reason}")


def of_python(hint: Any, where: str) -> tuple[DataType, bool]:
    """Type and nullability of a Python annotation.

    Raises:
        PipelineError: no column has such values; `where` says whose annotation it is.
    """
    if isinstance(hint, typing.NewType):
        return of_python(hint.__supertype__, where)
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if origin is typing.Annotated:
        digits = next((part for part in args[1:] if isinstance(part, DecimalType)), None)
        return of_python(args[0], where) if digits is None else _decimal(args[0], digits, where)
    if isinstance(hint, DecimalType):
        return hint, False
    if origin in (typing.Union, types.UnionType):
        others = [arg for arg in args if arg is not type(None)]
        if len(others) == 1 and len(others) < len(args):
            return of_python(others[0], where)[0], True
        raise PipelineError(f"{where}: a column has one type, not {hint}; only 'X | None' is possible")
    if origin is list or origin is typing.Sequence:
        return ListType(of_python(args[0], where)[0]), False
    if origin is dict and args[0] is str:
        return MapType(of_python(args[1], where)[0]), False
    if hint in _OF_PYTHON:
        return _OF_PYTHON[hint], False
    if is_row_class(hint):
        return StructType(_schema_of_class(hint, where).fields), False
    advice = _INSTEAD.get(origin or hint)
    raise PipelineError(
        f"{where}: {hint!r} is no column type; there are bool, int, float, str, bytes, datetime, date, time, timedelta, "
        "Annotated[Decimal, DecimalType(...)], list[...], dict[str, ...] and nested dataclasses"
        + (f"; {advice}" if advice else "")
    )


def _decimal(hint: Any, kind: DecimalType, where: str) -> tuple[DataType, bool]:
    """Of `Annotated[hint, kind]`; `Decimal | None` may stand within it."""
    parts = set(typing.get_args(hint)) or {hint}
    if parts - {type(None)} != {Decimal}:
        raise PipelineError(f"{where}: {kind} is a Decimal, not {hint!r}; write Annotated[Decimal, {kind!r}]")
    return kind, type(None) in parts


def parts_of(kind: DataType) -> Iterator[DataType]:
    """The type and all types within it."""
    yield kind
    if isinstance(kind, ListType):
        yield from parts_of(kind.inner)
    if isinstance(kind, MapType):
        yield from parts_of(kind.value)
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from parts_of(field.type)


def family(kind: DataType) -> DataType:
    """The type by which one is found among others: `DECIMAL` for all decimals, every other type itself."""
    return DECIMAL if isinstance(kind, DecimalType) else kind


def row_class(schema: Schema, name: str = "Row") -> type[Any]:
    """A new `msgspec.Struct` class whose instances are rows of `schema`, for streams that have no class of the user.

    A column whose name is no identifier is an attribute with underscores instead: `a-b` is `row.a_b`, `1x` is `row._1x`,
    `class` is `row.class_`, with one more underscore where that is a column as well. `getattr(row, "a-b")` works too.
    """
    import msgspec

    def hint(kind: DataType, nullable: bool, path: str) -> Any:
        plain: Any
        if isinstance(kind, ListType):
            plain = list[hint(kind.inner, True, path)]  # there may be nulls in any list and map
        elif isinstance(kind, MapType):
            plain = dict[str, hint(kind.value, True, path)]
        elif isinstance(kind, StructType):
            plain = row_class(Schema(kind.fields), path)
        elif isinstance(kind, DecimalType):
            plain = typing.Annotated[Decimal, kind]
        else:
            plain = _python_of(kind)
        return plain | None if nullable else plain

    attributes = _attributes(schema.names)
    renamed = {column: attribute for column, attribute in attributes.items() if column != attribute}

    def by_column(row: Any, column: str) -> Any:
        if column not in renamed:
            raise AttributeError(f"{name!r} object has no attribute {column!r}")
        return getattr(row, renamed[column])

    fields = [(attributes[f.name], hint(f.type, f.nullable, f"{name}_{attributes[f.name]}")) for f in schema.fields]
    return msgspec.defstruct(
        name,
        fields,
        gc=False,
        rename={attribute: column for column, attribute in renamed.items()} or None,
        namespace={"__getattr__": by_column} if renamed else None,
    )


def _attributes(columns: Sequence[str]) -> dict[str, str]:
    """Column to the attribute that holds it."""
    found = {column: column for column in columns if _is_attribute(column)}
    for column in columns:
        if column not in found:
            # Python gives names with two leading underscores another meaning within classes.
            attribute = re.sub(r"^__+", "_", re.sub(r"\W", "_", column))
            while not _is_attribute(attribute) or attribute in found.values():
                attribute = f"{attribute}_" if attribute.isidentifier() else f"_{attribute}"
            found[column] = attribute
    return found


def _is_attribute(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def attribute_of(row_type: type[Any], column: str) -> str:
    """The attribute of a row that holds a column: its own name but in classes of `row_class` where that is none."""
    attributes: tuple[str, ...] = getattr(row_type, "__struct_fields__", ())
    if column in attributes:
        return column
    columns: tuple[str, ...] = getattr(row_type, "__struct_encode_fields__", ())
    return dict(zip(columns, attributes, strict=True)).get(column, column)


def _python_of(kind: Scalar) -> Any:
    if kind in INTEGERS:
        return int
    if kind in FLOATS:
        return float
    return next((python for python, scalar in _OF_PYTHON.items() if scalar == kind), Any)


# -- Arrow and Polars -------------------------------------------------------------------------------------------------


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type of a column; strings and binaries have 64-bit offsets, as Polars writes them."""
    import pyarrow as pa

    if isinstance(kind, ListType):
        return pa.large_list(arrow_type(kind.inner))
    if isinstance(kind, MapType):
        return pa.map_(pa.large_string(), arrow_type(kind.value))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, StructType):
        return pa.struct([_arrow_field(field) for field in kind.fields])
    match kind.name:
        case "boolean":
            return pa.bool_()
        case "string":
            return pa.large_string()
        case "binary":
            return pa.large_binary()
        case "date":
            return pa.date32()
        case "time":
            return pa.time64("ns")
        case "timestamp":
            return pa.timestamp("us", tz="UTC")
        case "duration":
            return pa.duration("us")
        case name:
            return getattr(pa, name)()


def _arrow_field(field: Field) -> pa.Field[Any]:
    import pyarrow as pa

    return pa.field(field.name, arrow_type(field.type), nullable=field.nullable)


def _stored_field(field: pa.Field[Any], *, parent_nullable: bool = False) -> pa.Field[Any]:
    nullable = field.nullable or parent_nullable
    return field.with_type(_stored_type(field.type, nullable)).with_nullable(nullable)


def _stored_type(kind: Any, nullable: bool) -> Any:
    """The type of values in a column that may be null or not; elements of lists and values of maps always may."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([_stored_field(member, parent_nullable=nullable) for member in kind])
    if pa.types.is_large_list(kind):
        return pa.large_list(_stored_type(kind.value_type, nullable=True))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _stored_type(kind.item_type, nullable=True))
    return kind


def can_be_key(kind: DataType) -> bool:
    """Whether rows can be told apart by values of this type."""
    return not isinstance(kind, ListType | MapType) and kind != TIME


def polars_type(kind: DataType) -> pl.DataType:
    """The Polars type of a column."""
    import polars as pl

    if isinstance(kind, ListType):
        return pl.List(polars_type(kind.inner))
    if isinstance(kind, MapType):
        return pl.Map(pl.String(), polars_type(kind.value))
    if isinstance(kind, DecimalType):
        return pl.Decimal(kind.precision, kind.scale)
    if isinstance(kind, StructType):
        return pl.Struct([pl.Field(f.name, polars_type(f.type)) for f in kind.fields])
    match kind.name:
        case "timestamp":
            return pl.Datetime("us", "UTC")
        case "duration":
            return pl.Duration("us")
        case "int8" | "int16" | "int32" | "int64":
            return getattr(pl, kind.name.capitalize())()
        case "uint8" | "uint16" | "uint32" | "uint64":
            return getattr(pl, "UInt" + kind.name[4:])()
        case name:
            return getattr(pl, name.capitalize())()


def of_arrow(kind: pa.DataType, where: str) -> DataType:
    """The column type of an Arrow type. Timestamps must have a time zone; any unit is read as microseconds.

    Raises:
        PipelineError: it has no counterpart.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return of_arrow(kind.value_type, where)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return ListType(of_arrow(kind.value_type, where))
    if pa.types.is_map(kind):
        if of_arrow(kind.key_type, where) != STRING:
            raise PipelineError(
                f"{where}: the keys of a map are text, not {kind.key_type}; cast them when it is written"
            )
        return MapType(of_arrow(kind.item_type, where))
    if pa.types.is_struct(kind):
        return StructType(tuple(Field(f.name, of_arrow(f.type, where), f.nullable) for f in kind))
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            raise PipelineError(f"{where}: timestamps need a time zone; name it with timezone= at the source")
        return TIMESTAMP
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return STRING
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return BINARY
    if pa.types.is_date(kind):
        return DATE
    if pa.types.is_time(kind):
        return TIME
    if pa.types.is_duration(kind):
        return DURATION
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= MOST_DIGITS:
        return DecimalType(kind.precision, kind.scale)
    simple: dict[Any, Scalar] = {
        pa.bool_(): BOOLEAN, pa.int8(): INT8, pa.int16(): INT16, pa.int32(): INT32, pa.int64(): INT64,
        pa.uint8(): UINT8, pa.uint16(): UINT16, pa.uint32(): UINT32, pa.uint64(): UINT64,
        pa.float16(): FLOAT32, pa.float32(): FLOAT32, pa.float64(): FLOAT64, pa.null(): NULL,
    }  # fmt: skip
    if kind in simple:
        return simple[kind]
    raise PipelineError(f"{where}: the Arrow type {kind} is not supported; cast it when the data is written")


# -- JSON ---------------------------------------------------------------------------------------------------------------


def type_to_json(kind: DataType) -> Any:
    """`"int64"`, `{"decimal": [12, 2]}`, `{"list": ...}`, `{"map": ...}` or `{"struct": [...]}`."""
    if isinstance(kind, DecimalType):
        return {"decimal": [kind.precision, kind.scale]}
    if isinstance(kind, ListType):
        return {"list": type_to_json(kind.inner)}
    if isinstance(kind, MapType):
        return {"map": type_to_json(kind.value)}
    if isinstance(kind, StructType):
        return {"struct": [_field_to_json(field) for field in kind.fields]}
    return kind.name


def type_from_json(value: Any) -> DataType:
    """The inverse of `type_to_json`."""
    if isinstance(value, str):
        return Scalar(typing.cast("ScalarName", value))
    if "decimal" in value:
        return DecimalType(*value["decimal"])
    if "list" in value:
        return ListType(type_from_json(value["list"]))
    if "map" in value:
        return MapType(type_from_json(value["map"]))
    return StructType(tuple(_field_from_json(field) for field in value["struct"]))


def _field_to_json(field: Field) -> dict[str, Any]:
    return {"name": field.name, "type": type_to_json(field.type), "nullable": field.nullable}


def _field_from_json(value: Any) -> Field:
    return Field(value["name"], type_from_json(value["type"]), value["nullable"])


def reads_described(now: Any, then: Any) -> bool:
    """Whether what was written under one description can be read under another, both made of schemas or types as JSON.

    They are the same, but that what was never null may be null now.
    """
    match now, then:
        case dict(), dict():
            return now.keys() == then.keys() and all(
                reads_described(now[name], was) or (name, now[name], was) == ("nullable", True, False)
                for name, was in then.items()
            )
        case list(), list():
            return len(now) == len(then) and all(map(reads_described, now, then))
        case _:
            return bool(now == then)


def schema_to_json(schema: Schema) -> list[dict[str, Any]]:
    """A JSON list with one object per column."""
    return [_field_to_json(field) for field in schema.fields]


def schema_from_json(value: Any) -> Schema:
    """The inverse of `schema_to_json`."""
    return Schema(tuple(_field_from_json(field) for field in value))
