"""What stands in a savepoint, for people: its operators, their schema and size, their keys and values.

Segments describe themselves (`penstock.state.segments`), so no user code is needed to read them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import CorruptDataError, UsageError, nearest
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import Handle, OperatorHandles

if TYPE_CHECKING:
    import polars as pl

ReadObject = Callable[[Handle], Awaitable[bytes]]
"""Gives the bytes of an object of the savepoint, checked."""

OBJECTS: Final = "objects"


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


def operators_of(manifest: Manifest) -> list[OperatorState]:
    """All operators that have state, by uid."""
    return [_operator(manifest, uid) for uid in sorted(manifest.operators)]


def _operator(manifest: Manifest, uid: str) -> OperatorState:
    parts = _parts(manifest, uid)
    schema: dict[str, Any] = msgspec.json.decode(manifest.operators[uid])
    entries: dict[str, int] = {}
    for part in parts:
        for name, values in (*part.lists.items(), *part.unions.items()):
            entries[name] = entries.get(name, 0) + len(values)
        for name in part.broadcast:
            entries[name] = 1
    keyed = [part.keyed for part in parts if part.keyed is not None]
    return OperatorState(
        uid=uid,
        verb=str(schema.pop("verb", "")),
        schema=schema,
        subtasks=len(parts),
        key_groups=len({group for handle in keyed for group in handle.key_groups}),
        keyed_bytes=sum(handle.size_bytes for handle in keyed),
        entries=entries,
    )


def checked_uid(manifest: Manifest, uid: str) -> str:
    """The uid; raises `UsageError` naming the nearest if the savepoint has no such operator."""
    if uid not in manifest.operators:
        known = sorted(manifest.operators)
        raise UsageError(f"--uid {uid}: no operator with state is called so there; {nearest(uid, known)}")
    return uid


async def rows_of(manifest: Manifest, uid: str, read: ReadObject) -> pl.DataFrame:
    """The keyed state of an operator as a table, key columns first.

    Object state has a row per value, list, map entry and timer: `state`, `entry` (the key in a map), `value` (JSON) and
    `time_us` (when it expires, or fires). Aggregates have their partial columns.

    Raises:
        CorruptDataError: an object is missing or damaged.
    """
    import polars as pl

    from penstock.state.segments import decode_segment

    frames: list[pl.DataFrame] = []
    for part in _parts(manifest, uid):
        if part.keyed is None:
            continue
        data = await read(part.keyed)
        for start, end in part.keyed.key_groups.values():
            header, rows = decode_segment(data[start:end], uid)
            frames.append(_readable(header, rows) if header["kind"] == OBJECTS else rows)
    return pl.concat(frames, how="vertical_relaxed") if frames else pl.DataFrame()


def _readable(header: dict[str, Any], rows: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    keys = [part["name"] for part in header["keys"]]
    names = header["names"]
    return rows.select(
        *keys,
        pl.Series("state", [names[index] for index in rows["__state"].to_list()], pl.String),
        pl.Series("entry", [_json(data) for data in rows["__subkey"].to_list()], pl.String),
        pl.Series("value", [_json(data) for data in rows["__value"].to_list()], pl.String),
        pl.col("__time_us").alias("time_us"),
    )


def _json(data: bytes | None) -> str | None:
    """A msgpack value as JSON text; types that JSON has not are written as msgspec writes them."""
    if not data:
        return None
    try:
        return msgspec.json.encode(msgspec.msgpack.decode(data, strict=False)).decode()
    except (msgspec.DecodeError, msgspec.ValidationError, TypeError) as error:
        raise CorruptDataError(f"a stored value is not readable: {error}") from error


def only_key(rows: pl.DataFrame, schema: dict[str, Any], given: str) -> pl.DataFrame:
    """The rows of one key.

    Args:
        rows: what `rows_of` returned.
        schema: the operator's schema, which names the key columns.
        given: JSON or plain text; a list for keys of several columns.

    Raises:
        UsageError: the key has another number of columns, or a part of another type.
    """
    import polars as pl

    names = [part["name"] for part in schema.get("keys", [])]
    if not names:
        raise UsageError("--key: the operator has no keys")
    if rows.is_empty():
        return rows
    values = _key_parts(given, len(names))
    if len(values) != len(names):
        raise UsageError(
            f"--key {given}: the key has {len(names)} columns: {', '.join(names)}; write them as a JSON list"
        )
    for name, value in zip(names, values, strict=True):
        kind = rows.schema[name]
        try:
            wanted = pl.Series([value]).cast(kind) if value is not None else pl.Series([None], dtype=kind)
        except (pl.exceptions.PolarsError, TypeError) as error:
            raise UsageError(f"--key {given}: {value!r} is no {kind} ({name})") from error
        rows = rows.filter(pl.col(name).eq_missing(wanted[0] if wanted.len() else None))
    return rows


def _key_parts(given: str, count: int) -> list[Any]:
    try:
        value: Any = msgspec.json.decode(given.encode())
    except (msgspec.DecodeError, UnicodeEncodeError):
        return [given]
    return list(value) if isinstance(value, list) and count > 1 else [value]


def _parts(manifest: Manifest, uid: str) -> list[OperatorHandles]:
    return [
        snapshot.operators[uid]
        for subtasks in manifest.subtasks.values()
        for _, snapshot in sorted(subtasks.items())
        if uid in snapshot.operators
    ]


def entries_of(manifest: Manifest, uid: str) -> dict[str, list[str]]:
    """The entries of list, union and broadcast states, as text where they are text."""
    found: dict[str, list[str]] = {}
    for part in _parts(manifest, uid):
        named: Iterable[tuple[str, Iterable[bytes]]] = (
            *part.lists.items(),
            *part.unions.items(),
            *((name, (value,)) for name, value in part.broadcast.items()),
        )
        for name, values in named:
            found.setdefault(name, []).extend(_text(value) for value in values)
    return found


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.hex()
