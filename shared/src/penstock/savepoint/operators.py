"""Which operators a savepoint has, and what their state looks like, from its manifest alone."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.errors import CorruptDataError, UsageError, nearest
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import OperatorHandles
from penstock.state.declarations import BroadcastState
from penstock.state.operator_state import broadcast_entries
from penstock.types import (
    FLOATS,
    INTEGERS,
    DataType,
    DecimalType,
    Field,
    ListType,
    MapType,
    Schema,
    StructType,
    schema_from_json,
    type_from_json,
)

REDUCED: Final = "reduced"
"""The state that the verb `reduce` keeps."""
BROADCAST: Final = BroadcastState.kind
_NAMES: Final = {
    "boolean": "bool", "string": "str", "binary": "bytes", "timestamp": "datetime", "duration": "timedelta",
    "null": "none",
}  # fmt: skip


class OperatorState(msgspec.Struct, frozen=True):
    """An operator in a savepoint. Sizes in bytes."""

    uid: str
    verb: str
    schema: dict[str, Any]
    """What its state looks like: key columns, aggregates, declared states."""
    subtasks: int
    key_groups: int
    keyed_bytes: int
    entries: dict[str, int]
    """Number of entries of its list, union and broadcast states."""

    @property
    def keys(self) -> Schema:
        """The key columns; none if its state has no key."""
        return key_schema(self.schema.get("keys", []))

    @property
    def states(self) -> dict[str, dict[str, Any]]:
        """Its declared states by name: `kind`, the type of `value` (of a map also of `key`), perhaps `ttl_us`.

        Empty for aggregates, and for windows but those of counts and triggers, whose state is one table without a name.
        """
        if self.verb == "reduce":
            return {REDUCED: {"kind": "value", "value": _described_row(schema_from_json(self.schema["row"]))}}
        return dict(self.schema.get("states", {}))

    @property
    def broadcast(self) -> frozenset[str]:
        """Which of them belong to no key: each is the same in every subtask."""
        return frozenset(name for name, described in self.states.items() if described["kind"] == BROADCAST)

    @property
    def keyed_states(self) -> dict[str, dict[str, Any]]:
        """The others."""
        return {name: described for name, described in self.states.items() if name not in self.broadcast}


def key_schema(described: list[dict[str, Any]]) -> Schema:
    """The key columns that a signature or a segment's header describes; a key may always be null."""
    return Schema(tuple(Field(part["name"], type_from_json(part["type"]), nullable=True) for part in described))


def _described_row(row: Schema | StructType) -> dict[str, Any]:
    """A row's schema as `penstock.state.declarations.describe_type` describes its class."""
    fields = [{"name": field.name, "type": _described_field(field), "required": True} for field in row.fields]
    return {"struct": "Row", "fields": fields}


def _described_field(field: Field) -> Any:
    described = _described(field.type)
    return {"union": [described, "none"]} if field.nullable else described


def _described(kind: DataType) -> Any:
    if isinstance(kind, ListType):
        return {"list": _described(kind.inner)}
    if isinstance(kind, MapType):
        return {"dict": ["str", _described(kind.value)]}
    if isinstance(kind, StructType):
        return _described_row(kind)
    if isinstance(kind, DecimalType):
        return "decimal"
    if kind in INTEGERS:
        return "int"
    return "float" if kind in FLOATS else _NAMES.get(kind.name, kind.name)


def operators_of(manifest: Manifest) -> list[OperatorState]:
    """All operators that have state, by uid."""
    return [_operator(manifest, uid) for uid in sorted(manifest.operators)]


def _operator(manifest: Manifest, uid: str) -> OperatorState:
    parts = parts_of(manifest, uid)
    schema: dict[str, Any] = msgspec.json.decode(manifest.operators[uid])
    entries: dict[str, int] = {}
    for part in parts:
        for name, values in (*part.lists.items(), *part.unions.items()):
            entries[name] = entries.get(name, 0) + len(values)
        for name, data in part.broadcast.items():
            entries[name] = len(stored_broadcast(data, f"operator {uid!r}, state {name!r}"))
    keyed = [handle for part in parts for run in part.runs for handle in run]
    return OperatorState(
        uid=uid,
        verb=str(schema.pop("verb", "")),
        schema=schema,
        subtasks=len(parts),
        key_groups=len({group for handle in keyed for group in handle.key_groups}),
        keyed_bytes=sum(handle.size_bytes for handle in keyed),
        entries=entries,
    )


def stored_broadcast(data: bytes, where: str) -> list[tuple[bytes, bytes]]:
    """Keys and values of a broadcast state; raises `CorruptDataError`."""
    try:
        return broadcast_entries(data)
    except msgspec.MsgspecError as error:
        raise CorruptDataError(f"{where}: stored broadcast state is not readable: {error}") from error


def checked_uid(manifest: Manifest, uid: str, what: str = "--uid ") -> str:
    """The uid; raises `UsageError` naming the nearest if the savepoint has no such operator."""
    if uid not in manifest.operators:
        known = sorted(manifest.operators)
        raise UsageError(f"{what}{uid}: no operator with state is called so there; {nearest(uid, known)}")
    return uid


def parts_of(manifest: Manifest, uid: str) -> list[OperatorHandles]:
    """What the subtasks of an operator put into the savepoint, by subtask."""
    return [
        snapshot.operators[uid]
        for subtasks in manifest.subtasks.values()
        for _, snapshot in sorted(subtasks.items())
        if uid in snapshot.operators
    ]
