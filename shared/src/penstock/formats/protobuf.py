"""Protobuf for rows of a schema: columns are the fields of a message that have their names.

A message is known by its descriptors, which are carried along: tasks need no generated module. Timestamps and durations
are `google.protobuf.Timestamp` and `Duration`, structs messages, lists repeated fields, maps maps; wrappers such as
`Int64Value` are what they hold, or null. A field that can be absent (optional ones, those of a oneof, messages) is null
then; one that cannot has its default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PipelineError
from penstock.types import (
    BINARY,
    BOOLEAN,
    DURATION,
    FLOAT32,
    FLOATS,
    INTEGERS,
    STRING,
    TIMESTAMP,
    DataType,
    Field,
    ListType,
    MapType,
    Schema,
    StructType,
)

if TYPE_CHECKING:
    import polars as pl
    from google.protobuf.message import Message

Descriptor = FieldDescriptor = Any
"""Of `google.protobuf.descriptor`, whose stubs are not those of the classes that are there."""
Getter = Callable[[Any], Any]
"""From a message to a value of a column."""
Setter = Callable[[Any, Any], None]
"""Puts a value, which is not null, into a message."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_DURATION: Final = "google.protobuf.Duration"
_WRAPPED: Final = ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
_WRAPPERS: Final = frozenset(f"google.protobuf.{kind}Value" for kind in _WRAPPED)
_KINDS: Final[dict[str, frozenset[DataType]]] = {
    "bool": frozenset({BOOLEAN}), "string": frozenset({STRING}), "bytes": frozenset({BINARY}), "float": FLOATS,
    "double": FLOATS, "int": INTEGERS, "enum": INTEGERS | {STRING}, _TIMESTAMP: frozenset({TIMESTAMP}),
    _DURATION: frozenset({DURATION}),
}  # fmt: skip
_TYPES: Final = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "uint64", 7: "uint32", 8: "bool", 9: "string",
    12: "bytes", 13: "uint32", 14: "enum", 15: "int32", 16: "int64", 17: "int32", 18: "int64",
}  # fmt: skip
"""Of `FieldDescriptor.type`: what its values are; 10 and 11 are groups and messages."""
_WRITTEN: Final[dict[str, frozenset[DataType]]] = _KINDS | {
    "double": FLOATS, "float": frozenset({FLOAT32}), "enum": INTEGERS,
}  # fmt: skip
"""Columns that are written as such a field: nothing is rounded."""


@dataclass(frozen=True)
class ProtobufMessage:
    """A type of message."""

    name: str
    """Such as `shop.Order`."""
    files: tuple[bytes, ...]
    """The descriptors of the files it is made of, each behind those that it imports."""

    @staticmethod
    def of(generated: object, what: str) -> ProtobufMessage:
        """That of a generated class; raises `PipelineError`, led by `what`, if it is none."""
        found: Any = getattr(generated, "DESCRIPTOR", None)
        if not isinstance(generated, type) or not hasattr(found, "file") or not hasattr(found, "fields_by_name"):
            raise PipelineError(f"{what}: message= is a class that protoc has made, such as orders_pb2.Order")
        files: dict[str, bytes] = {}
        _gather(found.file, files)
        return ProtobufMessage(found.full_name, tuple(files.values()))

    def type(self) -> type[Message]:
        """The class of such messages."""
        return _class_of(self)

    def getters(self, schema: Schema, what: str) -> list[Getter]:
        """What reads each column of a message; raises `PipelineError` if its fields have no such values."""
        return _getters(self.type().DESCRIPTOR, schema.fields, what)

    def setters(self, schema: Schema, what: str) -> list[Setter]:
        """What writes each column into one; raises `PipelineError` if some value of a column has no place there."""
        return _setters(self.type().DESCRIPTOR, schema.fields, what)


def protobuf_message(what: str, format: str, generated: object) -> ProtobufMessage | None:
    """The type of message that a connector with these options reads or writes; None if it has another format.

    Raises:
        PipelineError: one of them is missing, or fits nothing.
    """
    if format != "protobuf":
        if generated is not None:
            raise PipelineError(f'{what}: message= is for format="protobuf", this one is {format!r}')
        return None
    if generated is None:
        raise PipelineError(f'{what}: format="protobuf" needs message=, a class that protoc has made')
    return ProtobufMessage.of(generated, what)


def encode_protobuf(
    frame: pl.DataFrame, schema: Schema, message: ProtobufMessage
) -> tuple[pl.Series, Mapping[int, str]]:
    """One message per row, as Binary; null, and why, where a row makes none: a number does not fit into its field."""
    import polars as pl
    from google.protobuf.message import EncodeError

    made, setters = message.type(), message.setters(schema, "protobuf")
    data: list[bytes | None] = []
    wrong: dict[int, str] = {}
    for index, row in enumerate(frame.select(schema.names).iter_rows()):
        try:
            data.append(_filled(made(), setters, row).SerializeToString())
        except (ValueError, OverflowError, EncodeError) as error:
            data.append(None)
            wrong[index] = f"a row makes no message {message.name}: {error}"
    return pl.Series(data, dtype=pl.Binary), wrong


def _filled(message: Any, setters: list[Setter], values: Any) -> Any:
    for put, value in zip(setters, values, strict=True):
        if value is not None:
            put(message, value)
    return message


def _gather(file: Any, found: dict[str, bytes]) -> None:
    if file.name in found:
        return
    for imported in file.dependencies:
        _gather(imported, found)
    found[file.name] = file.serialized_pb


@cache
def _class_of(message: ProtobufMessage) -> type[Message]:
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for file in message.files:
        pool.AddSerializedFile(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(message.name))


# -- reading ------------------------------------------------------------------------------------------------------------


def _found(message: Descriptor, fields: tuple[Field, ...], what: str) -> Iterator[tuple[Field, FieldDescriptor, str]]:
    """Each column with its field, and how errors call it."""
    for column in fields:
        field = message.fields_by_name.get(column.name)
        if field is None:
            raise PipelineError(
                f"{what}: message {message.full_name} has no field {column.name}; there are: "
                f"{', '.join(message.fields_by_name)}"
            )
        yield column, field, f"{what}: {column.name}"


def _getters(message: Descriptor, fields: tuple[Field, ...], what: str) -> list[Getter]:
    return [_getter(field, column.type, where) for column, field, where in _found(message, fields, what)]


def _getter(field: FieldDescriptor, kind: DataType, where: str) -> Getter:
    name = field.name
    if _is_map(field):
        key, value = _entry(field)
        _expect(isinstance(kind, MapType) and _TYPES.get(key.type) == "string", where, kind, field)
        convert = _converter(value, kind.value, where)  # type: ignore[union-attr]
        return lambda message: {key: convert(value) for key, value in getattr(message, name).items()}
    if field.is_repeated:
        _expect(isinstance(kind, ListType), where, kind, field)
        convert = _converter(field, kind.inner, where)  # type: ignore[union-attr]
        return lambda message: [convert(value) for value in getattr(message, name)]
    convert = _converter(field, kind, where)
    if not field.has_presence:
        return lambda message: convert(getattr(message, name))
    return lambda message: convert(getattr(message, name)) if message.HasField(name) else None


def _converter(field: FieldDescriptor, kind: DataType, where: str) -> Getter:
    message = field.message_type
    if message is None or message.full_name in (_TIMESTAMP, _DURATION):
        name = _name_of(field)
        _expect(kind in _KINDS.get(name, ()), where, kind, field)
        return {_TIMESTAMP: _datetime, _DURATION: _timedelta}.get(name) or _scalar(field, kind)
    if message.full_name in _WRAPPERS:
        convert = _converter(message.fields_by_name["value"], kind, where)
        return lambda value: convert(value.value)
    _expect(isinstance(kind, StructType), where, kind, field)
    parts: tuple[Field, ...] = kind.fields  # type: ignore[union-attr]
    getters = dict(zip([part.name for part in parts], _getters(message, parts, where), strict=True))
    return lambda value: {name: get(value) for name, get in getters.items()}


def _scalar(field: FieldDescriptor, kind: DataType) -> Getter:
    if field.enum_type is None or kind != STRING:
        return lambda value: value
    names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
    kind_name = field.enum_type.full_name

    def name_of(number: int) -> str:
        if number not in names:
            raise ValueError(f"{kind_name} has no value {number}; declare the column as int to read it")
        return names[number]

    return name_of


def _datetime(value: Any) -> datetime:
    return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)


def _timedelta(value: Any) -> timedelta:
    micros = abs(value.nanos) // 1_000
    return timedelta(seconds=value.seconds, microseconds=micros if value.nanos >= 0 else -micros)


# -- writing ------------------------------------------------------------------------------------------------------------


def _setters(message: Descriptor, fields: tuple[Field, ...], what: str) -> list[Setter]:
    named = {field.name for field in fields}
    if missing := [field.name for field in message.fields if field.is_required and field.name not in named]:
        raise PipelineError(f"{what}: message {message.full_name} requires {', '.join(missing)}; add such columns")
    found = list(_found(message, fields, what))
    shared = [field.containing_oneof for _, field, _ in found if field.containing_oneof is not None]
    return [
        _of_oneof(field, setter) if shared.count(field.containing_oneof) > 1 else setter
        for field, setter in ((field, _setter(field, column, where)) for column, field, where in found)
    ]


def _of_oneof(field: FieldDescriptor, put: Setter) -> Setter:
    """Puts the value of a field of which another one of the same oneof has a column, too."""
    name, oneof = field.name, field.containing_oneof.name

    def only(message: Any, value: Any) -> None:
        if other := message.WhichOneof(oneof):
            raise ValueError(f"{other} and {name} are both not null, and only one of {oneof} can be")
        put(message, value)

    return only


def _setter(field: FieldDescriptor, column: Field, where: str) -> Setter:
    name, kind = field.name, column.type
    if column.nullable and not field.has_presence:
        raise PipelineError(
            f"{where}: the column may be null, and field {field.full_name} cannot be absent, so null would be read as "
            "its default; say `optional` in the .proto file, or fill nulls before"
        )
    if column.nullable and field.is_required:
        raise PipelineError(
            f"{where}: the column may be null, and field {field.full_name} is required; fill nulls before"
        )
    if _is_map(field):
        key, value = _entry(field)
        _expect(isinstance(kind, MapType) and _TYPES.get(key.type) == "string", where, kind, field)
        make = _not_null(_maker(value, kind.value, where), name)  # type: ignore[union-attr]
        return lambda message, found: _put_map(getattr(message, name), found, make, plain=value.message_type is None)
    if field.is_repeated:
        _expect(isinstance(kind, ListType), where, kind, field)
        make = _not_null(_maker(field, kind.inner, where), name)  # type: ignore[union-attr]
        return lambda message, found: getattr(message, name).extend(map(make, found))
    make = _maker(field, kind, where)
    if field.message_type is None:
        return lambda message, found: setattr(message, name, found)
    return lambda message, found: getattr(message, name).CopyFrom(make(found))


def _put_map(target: Any, values: Any, make: Getter, *, plain: bool) -> None:
    entries = values.items() if isinstance(values, Mapping) else ((each["key"], each["value"]) for each in values)
    for key, value in entries:
        made = make(value)
        if plain:
            target[key] = made
        else:
            target[key].CopyFrom(made)


def _not_null(make: Getter, name: str) -> Getter:
    """The same for the parts of a list or map, of which none may be null."""

    def made(value: Any) -> Any:
        if value is None:
            raise ValueError(f"{name} has a null in it, which a message cannot have")
        return make(value)

    return made


def _maker(field: FieldDescriptor, kind: DataType, where: str) -> Getter:
    """What makes the value of a field."""
    from google.protobuf import message_factory

    message = field.message_type
    name = _name_of(field)
    if message is None or name in _WRITTEN:
        _expect(kind in _WRITTEN.get(name, ()), where, kind, field)
        if message is None:
            return lambda value: value
        made, fill = message_factory.GetMessageClass(message), "FromDatetime" if name == _TIMESTAMP else "FromTimedelta"
        return lambda value: _made(made(), fill, value)
    made = message_factory.GetMessageClass(message)
    if name in _WRAPPERS:
        _maker(message.fields_by_name["value"], kind, where)
        return lambda value: made(value=value)
    _expect(isinstance(kind, StructType), where, kind, field)
    parts: tuple[Field, ...] = kind.fields  # type: ignore[union-attr]
    setters = _setters(message, parts, where)
    return lambda value: _filled(made(), setters, [value[part.name] for part in parts])


def _made(message: Any, fill: str, value: Any) -> Any:
    getattr(message, fill)(value)
    return message


def _name_of(field: FieldDescriptor) -> str:
    """Of the type of its values: `int` of all whole numbers."""
    if field.message_type is not None:
        return field.message_type.full_name
    name = _TYPES.get(field.type, "group")
    return "int" if "int" in name else name


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _entry(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    return field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]


def _expect(fits: bool, where: str, kind: DataType, field: FieldDescriptor) -> None:
    if not fits:
        has = field.message_type.full_name if field.message_type is not None else _TYPES.get(field.type, "a group")
        repeated = "repeated " if field.is_repeated and not _is_map(field) else ""
        raise PipelineError(
            f"{where}: the column is {kind}, which field {field.full_name} ({repeated}{has}) is not read or written as; "
            "declare or cast it otherwise"
        )
