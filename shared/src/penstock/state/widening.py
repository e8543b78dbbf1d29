"""Values that were stored where `int` was declared, and are read where `float` is declared now.

They are written anew when a snapshot is restored, so that behind it a state has nothing but floats, on every backend.
Whether types fit at all is `penstock.state.compatibility`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import inspect

from penstock.errors import IncompatibleStateError
from penstock.state.codec import ValueCodec, type_name
from penstock.state.compatibility import is_widened
from penstock.state.keyed_state import StoredRow, array_of, items_of


def as_declared(
    rows: Iterable[StoredRow], stored: Mapping[str, Any], declared: Mapping[str, Any], codec: ValueCodec
) -> Iterable[StoredRow]:
    """The rows of a state as it is declared now; `check_states` has taken what the snapshot says of it.

    Raises:
        IncompatibleStateError: an int would lose digits as a float; names state and int.
    """
    return _widened(rows, declared["kind"], codec) if is_widened(stored, declared) else rows


def _widened(rows: Iterable[StoredRow], kind: str, codec: ValueCodec) -> Iterator[StoredRow]:
    info = inspect.type_info(codec.hint)
    for key, subkey, data, time in rows:
        if kind == "list":
            yield key, subkey, array_of([_as_floats(item, info, codec) for item in items_of(data)]), time
        else:
            yield key, subkey, _as_floats(data, info, codec), time


def _as_floats(data: bytes, info: inspect.Type, codec: ValueCodec) -> bytes:
    value = codec.decode(data)
    try:
        lost = _inexact(info, msgspec.msgpack.decode(data))
    except msgspec.DecodeError as error:  # what has its types was decoded above
        raise _refused(codec, "a dict whose keys are records, beside which ints do not become floats") from error
    if lost is not None:
        raise _refused(codec, f"{lost}, which no float is")
    return codec.encode(value)


def _refused(codec: ValueCodec, what: str) -> IncompatibleStateError:
    return IncompatibleStateError(
        f"{codec.where}: the snapshot holds {what}, and {type_name(codec.hint)} is declared now; declare int as before, "
        "give the state another name to begin empty, or change the value in the savepoint"
    )


def _inexact(info: Any, plain: Any) -> int | None:
    """An int in a value without its types that stands where its type has a float which cannot be it, if there is one."""
    match info:
        case inspect.FloatType():
            return plain if plain.__class__ is int and float(plain) != plain else None
        case inspect.Metadata():
            return _inexact(info.type, plain)
        case inspect.UnionType():
            kinds = [getattr(part, "type", part) for part in info.types]  # what Metadata is of
            stays = plain.__class__ is int and any(isinstance(kind, inspect.IntType) for kind in kinds)
            return None if stays else _first_inexact((kind, plain) for kind in kinds)
        case inspect.DictType() if isinstance(plain, dict):
            return _first_inexact((info.value_type, each) for each in plain.values())
        case inspect.TupleType() if isinstance(plain, list):
            return _first_inexact(zip(info.item_types, plain, strict=True))
        case inspect.CollectionType() if isinstance(plain, list):
            return _first_inexact((info.item_type, each) for each in plain)
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            return _first_inexact(_fields(info, plain))
        case _:
            return None


def _first_inexact(parts: Iterable[tuple[Any, Any]]) -> int | None:
    return next((found for info, plain in parts if (found := _inexact(info, plain)) is not None), None)


def _fields(info: Any, plain: Any) -> Iterable[tuple[Any, Any]]:
    """The types of the fields of a record, and what it has there; nothing if it is another one of a union."""
    tag = getattr(info, "tag", None)
    if isinstance(plain, dict) and (tag is None or plain.get(info.tag_field) == tag):
        return [(field.type, plain[field.encode_name]) for field in info.fields if field.encode_name in plain]
    if isinstance(plain, list) and (tag is None or plain[0] == tag):
        return zip((field.type for field in info.fields), plain if tag is None else plain[1:], strict=False)
    return ()
