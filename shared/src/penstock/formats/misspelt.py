"""Optional fields that are spelled otherwise in the records.

A required field that a record lacks makes it a bad row. An optional one is null, or its default, and nobody hears of it:
so whoever decodes records compares the names of the first ones with the schema, once, and readers pass on what they find
(`Fetched.misspelt`). Nothing is looked at per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from penstock.errors import closest
from penstock.types import Field, StructType

RECORDS: Final = 100
"""So many records are looked at where each has names of its own."""


def has_optional(fields: Iterable[Field]) -> bool:
    """Whether a field of these, or one within it, may be missing in a record."""
    return any(_is_optional(field) or has_optional(_members(field)) for field in fields)


def misspelt_in_names(fields: Sequence[Field], names: Iterable[str]) -> dict[str, str]:
    """Optional fields that are not among the names, each with the name nearest to it that no field has."""
    there = set(names)
    unknown = sorted(there.difference(field.name for field in fields))
    lacking = [field.name for field in fields if field.name not in there and _is_optional(field)]
    return {name: near for name in lacking if (near := closest(name, unknown)) is not None}


def misspelt_in_records(fields: Sequence[Field], records: Sequence[Any], path: str = "") -> dict[str, str]:
    """The same of records, which are mappings (others do not count); fields of nested rows by path, `buyer.name`."""
    found = [cast("Mapping[str, Any]", record) for record in records if isinstance(record, Mapping)]
    if not found:
        return {}
    misspelt = misspelt_in_names(fields, {name for record in found for name in record})
    within = {f"{path}{name}": near for name, near in misspelt.items()}
    for field in fields:
        if members := _members(field):
            within |= misspelt_in_records(members, [each.get(field.name) for each in found], f"{path}{field.name}.")
    return within


def advice(field: str, near: str) -> str:
    """What users are told of such a field."""
    return (
        f"{field} is in none of the first records, and becomes null (or its default); did you mean {near!r}, which they "
        "have? Call the field so, or remove it"
    )


def _is_optional(field: Field) -> bool:
    return field.nullable or field.default is not None


def _members(field: Field) -> Sequence[Field]:
    return field.type.fields if isinstance(field.type, StructType) else ()
