"""From the segments of an operator to tables: object state by its declared types, timers, windows, aggregates.

A table has the key columns first. Its other columns have fixed names (`value`, `index`, ...), with an underscore behind
where a key column is called so. Responsible for rows and columns; single values are `shapes`' business, the way back
`encoding`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import polars as pl

from penstock.errors import CorruptDataError
from penstock.savepoint.operators import OperatorState
from penstock.savepoint.shapes import values_column
from penstock.state.columns import joined_by_keys
from penstock.state.keyed_backend import EVENT_TIMERS, PROCESSING_TIMERS
from penstock.state.keyed_state import items_of
from penstock.types import Schema

OBJECTS: Final = "objects"
UTC_MICROS: Final = pl.Datetime("us", "UTC")
DOMAINS: Final = {"event": EVENT_TIMERS, "processing": PROCESSING_TIMERS}
"""What `domain` says of a timer, and where it stands in a segment."""

Segment = tuple[dict[str, Any], pl.DataFrame]
"""Header and rows."""


class Columns:
    """The names of a table's columns beside the keys."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = tuple(keys)
        self.value = self.free("value")
        self.index = self.free("index")
        self.map_key = self.free("map_key")
        self.expires = self.free("expires")
        self.domain = self.free("domain")
        self.timestamp = self.free("timestamp")

    def free(self, name: str) -> str:
        """The name, or with underscores behind if a key column has it."""
        while name in self.keys:
            name += "_"
        return name


def empty_segment(operator: OperatorState) -> Segment:
    """A segment of object state without rows, for an operator that held nothing."""
    header = {
        "kind": OBJECTS,
        "keys": operator.schema.get("keys", []),
        "names": [*operator.keyed_states, *DOMAINS.values()],
        "states": operator.keyed_states,
    }
    return header, no_rows(operator.keys)


def no_rows(keys: Schema) -> pl.DataFrame:
    """No rows of object state, with the columns of a segment."""
    schema = {"__state": pl.UInt16(), "__subkey": pl.Binary(), "__value": pl.Binary(), "__time_us": pl.Int64()}
    return pl.DataFrame(schema=keys.polars() | schema)


def merged(segments: Iterable[Segment]) -> list[Segment]:
    """The segments with the rows of equal headers in one frame; a segment lacks columns that none of its rows has."""
    together: list[tuple[dict[str, Any], list[pl.DataFrame]]] = []
    for header, rows in segments:
        if together and together[-1][0] == header:
            together[-1][1].append(rows)
        else:
            together.append((header, [rows]))
    return [(header, pl.concat(frames, how="diagonal")) for header, frames in together]


def rows_of_state(segment: Segment, name: str) -> pl.DataFrame:
    """The stored rows of one state, or of the timers under that name."""
    header, rows = segment
    if name not in header["names"]:
        return rows.clear()
    return rows.filter(pl.col("__state") == header["names"].index(name))


def key_names(segment: Segment) -> list[str]:
    """The key columns of a segment."""
    return [part["name"] for part in segment[0]["keys"]]


# -- object state -------------------------------------------------------------------------------------------------------


def state_table(segment: Segment, name: str, described: dict[str, Any], where: str) -> pl.DataFrame:
    """One state in long form: a row per value, per list element with its `index`, or per map entry with its `map_key`.

    With a time to live `expires` says until when a row holds.
    """
    keys = key_names(segment)
    columns = Columns(keys)
    stored = rows_of_state(segment, name)
    if described["kind"] == "list":
        stored = elements(stored, keys, columns.index, where)
        leading = [*keys, columns.index]
    else:
        leading = keys
    table = stored.select(leading)
    if described["kind"] == "map":
        subkeys = stored["__subkey"].to_list()
        table = table.with_columns(values_column(columns.map_key, described["key"], subkeys, where))
    table = table.with_columns(values_column(columns.value, described["value"], stored["__value"].to_list(), where))
    if "ttl_us" in described:
        table = table.with_columns(stored["__time_us"].cast(UTC_MICROS).alias(columns.expires))
    return table


def elements(stored: pl.DataFrame, keys: Sequence[str], index: str, where: str) -> pl.DataFrame:
    """One row per element of a list, with its number among those of its key."""
    try:
        lists = [items_of(data) for data in stored["__value"].to_list()]
    except msgspec.MsgspecError as error:
        raise CorruptDataError(f"{where}: a stored list is not readable: {error}") from error
    flat = pl.Series("__value", [element for elements in lists for element in elements], pl.Binary)
    repeated = stored[np.repeat(np.arange(stored.height), np.array([len(elements) for elements in lists], np.int64))]
    number = pl.int_range(pl.len(), dtype=pl.Int64).over(keys).alias(index)
    return repeated.with_columns(flat).with_columns(number)


def wide_table(segment: Segment, states: dict[str, dict[str, Any]], where: str) -> pl.DataFrame:
    """One row per key with a column per state: a value, a list of elements, a list of `key` and `value`."""
    keys = key_names(segment)
    columns = Columns(keys)
    table = keys_of(segment, list(states))
    for name, described in states.items():
        part = state_table(segment, name, described, f"{where}, state {name!r}")
        column = pl.col(columns.value)
        if described["kind"] == "list":
            part = part.group_by(keys, maintain_order=True).agg(column)
        elif described["kind"] == "map":
            entry = pl.struct(pl.col(columns.map_key).alias("key"), column.alias("value"))
            part = part.group_by(keys, maintain_order=True).agg(entry.alias(columns.value))
        part = part.select(*keys, column.alias(columns.free(name)))
        table = joined_by_keys(table, part, keys, "left")
    return table


def keys_of(segment: Segment, states: Sequence[str] | None = None) -> pl.DataFrame:
    """The keys that have rows, each once, in order of their first row."""
    header, rows = segment
    if states is not None:
        chosen = [header["names"].index(name) for name in states if name in header["names"]]
        rows = rows.filter(pl.col("__state").is_in(chosen))
    return rows.select(key_names(segment)).unique(maintain_order=True)


def timers_table(segment: Segment) -> pl.DataFrame:
    """Which timers are set: key, `domain` (`event` or `processing`), `timestamp`."""
    keys = key_names(segment)
    columns = Columns(keys)
    return pl.concat(
        rows_of_state(segment, name).select(
            *keys,
            pl.lit(domain).alias(columns.domain),
            pl.col("__time_us").cast(UTC_MICROS).alias(columns.timestamp),
        )
        for domain, name in DOMAINS.items()
    )


# -- windows and aggregates ---------------------------------------------------------------------------------------------


def aggregate_table(segment: Segment) -> pl.DataFrame:
    """A row per key, or per key and window, with the partial results `__p0`, `__p1`, ... of the aggregates."""
    header, rows = segment
    match header["kind"]:
        case "window":
            from penstock.task.operators.window_panes import table_of_panes

            return table_of_panes(header, rows)
        case "session":
            from penstock.task.operators.sessions import table_of_sessions

            return table_of_sessions(header, rows)
        case _:
            return rows


def stored_aggregates(header: dict[str, Any], table: pl.DataFrame) -> pl.DataFrame:
    """The inverse of `aggregate_table`; raises `ValueError` if such rows cannot be."""
    match header["kind"]:
        case "window":
            from penstock.task.operators.window_panes import panes_of_table

            return panes_of_table(header, table)
        case "session":
            from penstock.task.operators.sessions import sessions_of_table

            return sessions_of_table(header, table)
        case _:
            return table


# -- lists without key --------------------------------------------------------------------------------------------------


def list_table(parts: Sequence[Sequence[bytes]], described: dict[str, Any], where: str) -> pl.DataFrame:
    """The elements of an operator's list by subtask: `subtask`, `index`, `value`."""
    subtasks = [subtask for subtask, elements in enumerate(parts) for _ in elements]
    indices = [index for elements in parts for index in range(len(elements))]
    stored = [element for elements in parts for element in elements]
    return pl.DataFrame(
        [
            pl.Series("subtask", subtasks, pl.Int64),
            pl.Series("index", indices, pl.Int64),
            values_column("value", described["value"], stored, where),
        ]
    )


def broadcast_table(entries: Sequence[tuple[bytes, bytes]], described: dict[str, Any], where: str) -> pl.DataFrame:
    """The entries of a broadcast state: `map_key`, `value`."""
    keys, values = [key for key, _ in entries], [value for _, value in entries]
    return pl.DataFrame(
        [
            values_column("map_key", described["key"], keys, where),
            values_column("value", described["value"], values, where),
        ]
    )
