"""`penstock state`: read a savepoint, from the cluster's store or from a folder that it was exported to."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from penstock.cli.cluster import print_json, print_table
from penstock.client import ClusterClient
from penstock.errors import ExternalError, UsageError
from penstock.protocol.messages import Restore
from penstock.savepoint import OperatorState, Savepoint, read
from penstock.savepoint.listing import entries_of, only_key, rows_of
from penstock.savepoint.operators import checked_uid
from penstock.savepoint.reading import read_restore
from penstock.settings import ClusterSettings, load_settings

if TYPE_CHECKING:
    import polars as pl

SHOWN = 100
"""How many rows are printed; `--to` and `--json` give all."""


def state_command(arguments: argparse.Namespace) -> int:
    """Print what is in the savepoint."""
    if (arguments.key is not None or arguments.to is not None) and arguments.uid is None:
        raise UsageError("--key and --to are for one operator: name it with --uid")
    if arguments.to is not None and not arguments.to.endswith(".parquet"):
        raise UsageError(f"--to {arguments.to}: the file's name ends in .parquet")
    savepoint = _opened(arguments)
    if arguments.uid is None:
        _show_all(arguments, savepoint)
        return 0
    return _show_uid(arguments, savepoint)


def _opened(arguments: argparse.Namespace) -> Savepoint:
    if Path(arguments.savepoint).is_dir():
        return read(arguments.savepoint)
    settings = load_settings(arguments.cluster)
    return read_restore(asyncio.run(_restore(settings, arguments.savepoint)), settings)


async def _restore(settings: ClusterSettings, name: str) -> Restore:
    async with ClusterClient(settings.rest, token=settings.token) as cluster:
        return (await cluster.savepoint(name)).restore


def _show_uid(arguments: argparse.Namespace, savepoint: Savepoint) -> int:
    uid = checked_uid(savepoint.manifest, arguments.uid)
    operator = savepoint.operator(uid)
    rows = rows_of(savepoint, uid)
    if arguments.key is not None:
        rows = only_key(rows, operator.schema, arguments.key)
    if arguments.to is not None:
        try:
            rows.write_parquet(arguments.to)
        except OSError as error:
            raise ExternalError(f"--to {arguments.to}: {error}") from error
        print(f"{rows.height:,} rows in {arguments.to}")
        return 0
    _show_one(arguments, operator, rows, entries_of(savepoint.manifest, uid))
    return 0


def _show_all(arguments: argparse.Namespace, savepoint: Savepoint) -> None:
    if arguments.json:
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


def _show_one(
    arguments: argparse.Namespace, operator: OperatorState, rows: pl.DataFrame, entries: dict[str, list[str]]
) -> None:
    if arguments.json:
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
