"""Whether an index that is there takes columns: its mapping against their types, before rows flow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.errors import PipelineError
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOATS,
    INTEGERS,
    STRING,
    TIME,
    TIMESTAMP,
    DataType,
    DecimalType,
    ListType,
    MapType,
    Schema,
    StructType,
)

_TEXTS: Final = frozenset({"text", "keyword", "wildcard", "match_only_text", "constant_keyword"})
_NUMBERS: Final = frozenset(
    {"long", "integer", "short", "byte", "unsigned_long", "double", "float", "half_float", "scaled_float"}
)
_SINGLE: Final = _TEXTS | _NUMBERS | {"date", "date_nanos", "boolean", "binary", "ip"}
_OBJECTS: Final = frozenset({"object", "nested", "flattened", "flat_object"})


def check_mapping(where: str, columns: Schema, mappings: Mapping[str, Any]) -> None:
    """Raise `PipelineError` if documents with these columns would be refused.

    Args:
        where: the destination, which leads errors.
        columns: what documents have.
        mappings: the answer of `GET /{index}/_mapping`.
    """
    for index, found in mappings.items():
        mapping = found["mappings"]
        properties: Mapping[str, Any] = mapping.get("properties", {})
        names = {name for name in columns.names if name.split(".")[0] not in properties}
        if mapping.get("dynamic") == "strict" and (strange := names - set(properties)):
            raise PipelineError(
                f"{where}: the mapping of {index} is strict and has no {', '.join(sorted(strange))}; add it, or drop it"
            )
        for name, kind, has, wanted in _misfits(columns, properties):
            raise PipelineError(
                f"{where}: {name} is {kind}, and {index} has it as {has}, which is none of {', '.join(wanted)}; "
                "cast the column, or write to an index with another mapping"
            )


def _misfits(columns: Schema, properties: Mapping[str, Any]) -> Iterator[tuple[str, DataType, str, list[str]]]:
    for field in columns:
        if field.name in properties:
            has, wanted = properties[field.name].get("type", "object"), _mapped_as(field.type)
            if wanted and has not in wanted:
                yield field.name, field.type, has, sorted(wanted)
            elif isinstance(field.type, MapType | StructType) and has in _SINGLE:
                yield field.name, field.type, has, sorted(_OBJECTS)
            elif field.type in (STRING, TIME, DURATION) and has in _OBJECTS:
                yield field.name, field.type, has, ["types of single values"]


def _mapped_as(kind: DataType) -> frozenset[str]:
    """Types that take values of ours; empty: others may as well, as `ip` a text."""
    if isinstance(kind, ListType | MapType | StructType):
        return frozenset()  # lists and objects are points, vectors, ranges and more
    if isinstance(kind, DecimalType) or kind in FLOATS or kind in INTEGERS:
        return _NUMBERS | _TEXTS | (frozenset({"date", "date_nanos"}) if kind in INTEGERS else frozenset())
    if kind in (TIMESTAMP, DATE):
        return _TEXTS | {"date", "date_nanos"}
    if kind in (BOOLEAN, BINARY):
        return _TEXTS | {"boolean" if kind == BOOLEAN else "binary"}
    return frozenset()
