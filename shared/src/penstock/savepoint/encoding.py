"""From tables to the rows of segments: the inverse of `tables`, with every column and value checked by name.

A value that is as it was keeps its bytes, so what a column cannot tell apart (1 and 1.0 in a float, a field that was left
out and a null one) does not change where nobody changed it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import polars as pl

from penstock.core.batches import KEY_GROUP
from penstock.errors import UsageError, nearest
from penstock.savepoint.shapes import Shape, UnstorableError, accepted_types, shape_of
from penstock.savepoint.tables import DOMAINS, UTC_MICROS, Columns, Segment, elements, rows_of_state, state_table
from penstock.state.hashing import key_groups
from penstock.state.keyed_state import array_of
from penstock.state.operator_state import encode_broadcast
from penstock.types import Schema

INDEX: Final = "__index"
"""Int64: the number of a list's element; null for other entries."""
_SHOWN: Final = "__shown"
"""String: map key and value as the table shows them."""

Accepted = Mapping[str, tuple[pl.DataType, ...]]
"""Column name to the types that it may have."""


def as_frame(frame: Any) -> pl.DataFrame:
    """A table as Polars has it, from a frame of pandas' (its index is left out) or whatever exports Arrow.

    Raises:
        UsageError: it is no table.
    """
    if isinstance(frame, pl.DataFrame):
        return frame
    if type(frame).__module__.partition(".")[0] == "pandas":
        return pl.from_pandas(frame)
    if hasattr(frame, "__arrow_c_stream__"):
        return pl.DataFrame(frame)
    raise UsageError(f"a table is a DataFrame of Polars' or pandas', or of Arrow's, not {type(frame).__name__}")


def checked_columns(frame: pl.DataFrame, needed: Accepted, optional: Accepted, where: str) -> pl.DataFrame:
    """The frame with exactly these columns, the optional ones only if it has them.

    Raises:
        UsageError: a column is missing, too many or of another type; names it.
    """
    accepted = {**needed, **optional}
    for name in frame.columns:
        if name not in accepted:
            raise UsageError(f"{where}: there is no column {name!r}; {nearest(name, accepted)}")
    for name in needed:
        if name not in frame.columns:
            raise UsageError(f"{where}: column {name!r} is missing; it has {', '.join(accepted)}")
    frame = frame.with_columns(_same_values(frame[name], accepted[name]) for name in frame.columns)
    for name, dtype in frame.schema.items():
        if dtype not in accepted[name]:
            raise UsageError(f"{where}: column {name!r} is {dtype}, need {accepted[name][0]}; cast it")
    return frame.select(name for name in accepted if name in frame.columns)


def _same_values(column: pl.Series, accepted: Sequence[pl.DataType]) -> pl.Series:
    """The column in a type that is accepted, if only its width or unit differs: pandas and Spark have fewer types."""
    wanted = accepted[0]
    whole = column.dtype.is_integer() or (isinstance(column.dtype, pl.Decimal) and column.dtype.scale == 0)
    alike = (whole and wanted.is_integer()) or (
        isinstance(column.dtype, pl.Datetime) and isinstance(wanted, pl.Datetime) and bool(column.dtype.time_zone)
    )
    if column.dtype in accepted or not alike:
        return column
    cast = column.cast(wanted, strict=False)
    same = cast.null_count() == column.null_count() and (cast.cast(column.dtype) == column).all()
    return cast if same else column


def entries_of_frame(frame: pl.DataFrame, keys: Schema, described: dict[str, Any], where: str) -> pl.DataFrame:
    """The entries of a state (one row per value, element or map entry) from a table in long form.

    Raises:
        UsageError: the table is not one of such a state: a wrong column or value.
    """
    columns = Columns(keys.names)
    needed: dict[str, tuple[pl.DataType, ...]] = {name: (kind,) for name, kind in keys.polars().items()}
    optional: dict[str, tuple[pl.DataType, ...]] = {}
    if described["kind"] == "map":
        needed[columns.map_key] = accepted_types(described["key"])
    needed[columns.value] = accepted_types(described["value"])
    if described["kind"] == "list":
        optional[columns.index] = (pl.Int64(), pl.Int32(), pl.UInt32(), pl.UInt64())
    if "ttl_us" in described:
        optional[columns.expires] = (UTC_MICROS,)
    frame = checked_columns(frame, needed, optional, where)
    if described["kind"] == "list":
        frame = _numbered(frame, columns, where)
    subkeys: list[bytes] | list[None] = [None] * frame.height
    if described["kind"] == "map":
        subkeys = _encoded(frame, columns, columns.map_key, described["key"], where)
    return frame.select(keys.names).with_columns(
        frame[columns.index].cast(pl.Int64).alias(INDEX)
        if columns.index in frame.columns
        else pl.lit(None, pl.Int64).alias(INDEX),
        pl.Series("__subkey", subkeys, pl.Binary),
        pl.Series("__value", _encoded(frame, columns, columns.value, described["value"], where), pl.Binary),
        frame[columns.expires].cast(pl.Int64).alias("__time_us")
        if columns.expires in frame.columns
        else pl.lit(None, pl.Int64).alias("__time_us"),
        _shown(frame, columns),
    )


def no_entries(keys: Schema) -> pl.DataFrame:
    """What `entries_of_frame` and `timer_entries` give of a table without rows."""
    fixed = {
        INDEX: pl.Int64(),
        "__subkey": pl.Binary(),
        "__value": pl.Binary(),
        "__time_us": pl.Int64(),
        _SHOWN: pl.String(),
    }
    return pl.DataFrame(schema=keys.polars() | fixed)


def _numbered(frame: pl.DataFrame, columns: Columns, where: str) -> pl.DataFrame:
    """The elements in order of their index; without one, as they stand."""
    if columns.index not in frame.columns:
        return frame.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).over(columns.keys).alias(columns.index))
    if frame[columns.index].null_count():
        raise UsageError(f"{where}: column {columns.index!r} has a null")
    return frame.sort(columns.index, maintain_order=True)


def _encoded(frame: pl.DataFrame, columns: Columns, name: str, described: Any, where: str) -> list[bytes]:
    """The msgpack bytes of a column of values."""
    shape = shape_of(described, wide=frame.schema[name] != shape_of(described).dtype)
    encoded: list[bytes] = []
    for row, value in enumerate(frame[name].to_list()):
        try:
            encoded.append(_bytes_of(value, shape))
        except (UnstorableError, OverflowError, TypeError, msgspec.EncodeError) as error:
            raise UsageError(f"{where}, key {frame.row(row)[: len(columns.keys)]}: {name} {error}") from error
    return encoded


def _bytes_of(value: Any, shape: Shape) -> bytes:
    return msgspec.msgpack.encode(shape.write(value))


def _shown(frame: pl.DataFrame, columns: Columns) -> pl.Series:
    names = [name for name in (columns.map_key, columns.value) if name in frame.columns]
    return pl.Series(_SHOWN, list(map(repr, frame.select(names).iter_rows())), pl.String)


def check_once(entries: pl.DataFrame, keys: Sequence[str], others: Sequence[str], where: str) -> None:
    """Raise `UsageError` if two rows have the same keys and others."""
    twice = entries.filter(entries.select(*keys, *others).is_duplicated())
    if twice.height:
        raise UsageError(f"{where}: key {twice.row(0)[: len(keys)]} has the same entry twice")


def timer_entries(frame: pl.DataFrame, keys: Schema, where: str) -> dict[str, pl.DataFrame]:
    """Where timers stand in a segment to their entries, from a table of timers; raises `UsageError`."""
    columns = Columns(keys.names)
    needed: dict[str, tuple[pl.DataType, ...]] = {name: (kind,) for name, kind in keys.polars().items()}
    needed |= {columns.domain: (pl.String(),), columns.timestamp: (UTC_MICROS,)}
    frame = checked_columns(frame, needed, {}, where)
    for domain in frame[columns.domain].unique().to_list():
        if domain not in DOMAINS:
            raise UsageError(f"{where}: {columns.domain} is {domain!r}; there are: {', '.join(DOMAINS)}")
    if frame[columns.timestamp].null_count():
        raise UsageError(f"{where}: column {columns.timestamp!r} has a null")
    entries = frame.select(
        *keys.names,
        pl.lit(None, pl.Int64).alias(INDEX),
        pl.lit(None, pl.Binary).alias("__subkey"),
        pl.lit(b"").alias("__value"),
        pl.col(columns.timestamp).cast(pl.Int64).alias("__time_us"),
        pl.col(columns.domain).alias(_SHOWN),
    )
    return {name: entries.filter(pl.col(_SHOWN) == domain) for domain, name in DOMAINS.items()}


def list_elements(frame: pl.DataFrame, described: dict[str, Any], where: str) -> list[bytes]:
    """The elements of a list without key, from a table of them; raises `UsageError`."""
    numbers = (pl.Int64(), pl.Int32(), pl.UInt32(), pl.UInt64())
    needed = {"value": accepted_types(described["value"])}
    frame = checked_columns(frame, needed, {"subtask": numbers, "index": numbers}, where)
    order = [name for name in ("subtask", "index") if name in frame.columns]
    frame = frame.sort(order, maintain_order=True) if order else frame
    return _encoded(frame, Columns(()), "value", described["value"], where)


def broadcast_state(frame: pl.DataFrame, described: dict[str, Any], where: str) -> bytes:
    """A broadcast state, from a table of its entries; raises `UsageError`."""
    columns = Columns(())
    needed = {columns.map_key: accepted_types(described["key"]), columns.value: accepted_types(described["value"])}
    frame = checked_columns(frame, needed, {}, where)
    keys = _encoded(frame, columns, columns.map_key, described["key"], where)
    values = _encoded(frame, columns, columns.value, described["value"], where)
    entries = dict(zip(keys, values, strict=True))
    if len(entries) < len(keys):
        raise UsageError(f"{where}: column {columns.map_key!r} names an entry twice")
    return encode_broadcast(entries.items())


# -- into segments ------------------------------------------------------------------------------------------------------


def by_key_group(frame: pl.DataFrame, keys: Sequence[str], max_parallelism: int) -> dict[int, pl.DataFrame]:
    """The rows of each key group, in order."""
    groups = key_groups(frame, keys, max_parallelism)
    parts = frame.with_columns(groups).partition_by(KEY_GROUP, maintain_order=True, include_key=False, as_dict=True)
    return {group: part for (group,), part in parts.items()}


def with_state(
    segment: Segment, name: str, entries: pl.DataFrame, described: dict[str, Any] | None, where: str
) -> Segment:
    """A segment with these entries instead of those of a state; `described` is None for timers."""
    header: dict[str, Any]
    header, rows = segment
    keys = [part["name"] for part in header["keys"]]
    if described is not None:
        if header["states"].get(name) == described:
            entries = _with_former_bytes(entries, _stored_entries(segment, name, described, where), keys)
        header = {**header, "states": {**header["states"], name: described}}
        if described["kind"] == "list":
            entries = _runs(entries, keys)
    if name not in header["names"]:
        header = {**header, "names": [*header["names"], name]}
    number = header["names"].index(name)
    added = entries.with_columns(pl.lit(number, pl.UInt16).alias("__state")).select(rows.columns)
    kept = rows.filter(pl.col("__state") != number)
    return header, pl.concat([kept, added]).sort("__state", maintain_order=True)


def _stored_entries(segment: Segment, name: str, described: dict[str, Any], where: str) -> pl.DataFrame:
    """The entries that a segment holds of a state."""
    columns = Columns([part["name"] for part in segment[0]["keys"]])
    stored = rows_of_state(segment, name)
    if described["kind"] == "list":
        stored = elements(stored, columns.keys, INDEX, where)
    else:
        stored = stored.with_columns(pl.lit(None, pl.Int64).alias(INDEX))
    return stored.with_columns(_shown(state_table(segment, name, described, where), columns))


def _with_former_bytes(entries: pl.DataFrame, former: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    same = [*keys, INDEX, _SHOWN]
    kept = former.select(*same, pl.col("__subkey").alias("__subkey_was"), pl.col("__value").alias("__value_was"))
    joined = entries.join(kept, on=same, how="left", nulls_equal=True, maintain_order="left")
    return joined.with_columns(
        pl.coalesce("__subkey_was", "__subkey").alias("__subkey"),
        pl.coalesce("__value_was", "__value").alias("__value"),
    ).select(entries.columns)


def _runs(entries: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """The elements of lists as they are stored: a row per run of elements of a key that expire together."""
    changed = pl.col("__time_us").ne_missing(pl.col("__time_us").shift()).cast(pl.Int64).cum_sum().over(keys)
    runs = (
        entries.with_columns(changed.alias("__run"))
        .group_by([*keys, "__run"], maintain_order=True)
        .agg(pl.col("__value"), pl.col("__time_us").first(), pl.col("__subkey").first())
    )
    return runs.with_columns(pl.Series("__value", list(map(array_of, runs["__value"].to_list())), pl.Binary))
