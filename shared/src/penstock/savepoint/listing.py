"""What `penstock state` prints of a savepoint: the rows of an operator as one table, whatever states it has, and lists.

Object state has a row per value, list, map entry and timer: `state`, `entry` (the key in a map), `value` (JSON) and
`time_us` (when it expires, or fires). Aggregates have their partial columns. Typed tables are `tables`' business.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import polars as pl

from penstock.errors import CorruptDataError, UsageError
from penstock.protocol.manifests import Manifest
from penstock.savepoint.operators import parts_of, stored_broadcast
from penstock.savepoint.reading import PENDING_ROWS, Savepoint
from penstock.savepoint.tables import OBJECTS
from penstock.state.segments import is_segment


def rows_of(savepoint: Savepoint, uid: str) -> pl.DataFrame:
    """The keyed state of an operator as a table, key columns first.

    Raises:
        CorruptDataError: an object is missing or damaged.
    """
    if savepoint.operator(uid).verb in PENDING_ROWS:
        return savepoint.table(uid)
    frames = [
        _readable(header, rows) if header["kind"] == OBJECTS else rows for _, header, rows in savepoint.segments(uid)
    ]
    return pl.concat(frames, how="diagonal_relaxed") if frames else pl.DataFrame()


def _readable(header: dict[str, Any], rows: pl.DataFrame) -> pl.DataFrame:
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


def entries_of(manifest: Manifest, uid: str) -> dict[str, list[str]]:
    """The entries of list, union and broadcast states, as text where they are text.

    Those of a broadcast state, which is the same in all subtasks, are `key: value`, as JSON.
    """
    found: dict[str, list[str]] = {}
    for part in parts_of(manifest, uid):
        for name, data in part.broadcast.items():
            entries = stored_broadcast(data, f"operator {uid!r}, state {name!r}")
            found.setdefault(name, [f"{_json(key)}: {_json(value)}" for key, value in entries])
        named: Iterable[tuple[str, Iterable[bytes]]] = (*part.lists.items(), *part.unions.items())
        for name, values in named:
            texts = [_text(value) for value in values if not is_segment(value)]  # segments are among the rows
            found.setdefault(name, []).extend(texts)
    return found


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.hex()
