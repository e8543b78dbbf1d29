"""`penstock state`: read a savepoint, from the cluster's store or from a folder that it was exported to."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import polars as pl
from rich.console import Console

from penstock.cli.cluster import ClusterOptions, print_json, print_table
from penstock.client.client import client_of
from penstock.errors import ExternalError, UsageError
from penstock.protocol.messages import Restore
from penstock.savepoint import OperatorState, Savepoint, read
from penstock.savepoint.listing import entries_of, only_key, rows_of
from penstock.savepoint.operators import checked_uid
from penstock.savepoint.places import find_place
from penstock.savepoint.reading import read_restore
from penstock.settings import ClusterSettings, load_settings

SHOWN = 100
"""How many rows are printed; `--to` and `--json` give all."""


@dataclass(frozen=True)
class ShowState(ClusterOptions):
    """`penstock state`."""

    savepoint: str
    uid: str | None
    key: str | None
    to: str | None


def state_command(command: ShowState) -> int:
    """Print what is in the savepoint."""
    if (command.key is not None or command.to is not None) and command.uid is None:
        raise UsageError("--key and --to are for one operator: name it with --uid")
    if command.to is not None and not command.to.endswith(".parquet"):
        raise UsageError(f"--to {command.to}: the file's name ends in .parquet")
    savepoint = _opened(command)
    if command.uid is None:
        _show_all(command, savepoint)
        return 0
    return _show_uid(command, command.uid, savepoint)


def _opened(command: ShowState) -> Savepoint:
    if find_place(command.savepoint) is not None:
        return read(command.savepoint)
    settings = load_settings(command.cluster)
    return read_restore(asyncio.run(_restore(settings, command.savepoint)), settings)


async def _restore(settings: ClusterSettings, name: str) -> Restore:
    async with client_of(settings) as cluster:
        return (await cluster.savepoint(name)).restore


def _show_uid(command: ShowState, uid: str, savepoint: Savepoint) -> int:
    uid = checked_uid(savepoint.manifest, uid)
    operator = savepoint.operator(uid)
    rows = rows_of(savepoint, uid)
    if command.key is not None:
        rows = only_key(rows, operator.schema, command.key)
    if command.to is not None:
        try:
            rows.write_parquet(command.to)
        except OSError as error:
            raise ExternalError(f"--to {command.to}: {error}") from error
        print(f"{rows.height:,} rows in {command.to}")
        return 0
    _show_one(command, operator, _of_calendar(rows), entries_of(savepoint.manifest, uid))
    return 0


def _of_calendar(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with moments and days of which Python has none as texts: a span may end behind the year 9999."""
    beyond = [
        column.name
        for column in rows.iter_columns()
        if isinstance(column.dtype, pl.Datetime | pl.Date)
        and not column.dt.year().drop_nulls().is_between(1, 9999).all()
    ]
    return rows.with_columns(pl.col(beyond).cast(pl.String)) if beyond else rows


def _show_all(command: ShowState, savepoint: Savepoint) -> None:
    if command.json:
        print_json(
            {
                "job": savepoint.job,
                "checkpoint": savepoint.checkpoint,
                "parallelism": savepoint.parallelism,
                "max_parallelism": savepoint.max_parallelism,
                "operators": savepoint.operators,
            }
        )
        return
    print(f"savepoint {savepoint.checkpoint} of job {savepoint.job}, parallelism {savepoint.parallelism}")
    rows = [
        (
            operator.uid,
            operator.verb,
            ", ".join(f"{part['name']}: {part['type']}" for part in operator.schema.get("keys", [])),
            str(operator.subtasks),
            f"{operator.keyed_bytes:,}",
            ", ".join(f"{name}: {count}" for name, count in sorted(operator.entries.items())),
        )
        for operator in savepoint.operators
    ]
    print_table(("uid", "verb", "keys", "subtasks", "keyed bytes", "lists"), rows, right=("subtasks", "keyed bytes"))


def _show_one(command: ShowState, operator: OperatorState, rows: pl.DataFrame, entries: dict[str, list[str]]) -> None:
    if command.json:
        print(
            json.dumps(
                {
                    "uid": operator.uid,
                    "verb": operator.verb,
                    "schema": operator.schema,
                    "rows": rows.to_dicts(),
                    "entries": entries,
                },
                indent=2,
                default=str,
            )
        )
        return
    print(f"{operator.uid}: {operator.verb}, {operator.keyed_bytes:,} bytes in {operator.key_groups} key groups")
    for name, value in operator.schema.items():
        print(f"{name}: {json.dumps(value)}")
    if rows.width:
        print_table(rows.columns, [tuple(map(_cell, row)) for row in rows.head(SHOWN).iter_rows()])
    if rows.height > SHOWN:
        Console(stderr=True).print(f"{rows.height - SHOWN:,} more rows: --to FILE.parquet or --json gives all")
    for name, values in sorted(entries.items()):
        for value in values[:SHOWN]:
            print(f"{name}: {value}")


def _cell(value: Any) -> str:
    return "" if value is None else str(value)
