"""`penstock state`: read a savepoint, from the cluster's store or from a folder that it was exported to."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from penstock.adapters.system_clock import SystemClock
from penstock.cli.cluster import print_json, print_table
from penstock.client import ClusterClient
from penstock.client.exporting import read_file, read_folder, read_object
from penstock.client.inspecting import (
    OperatorState,
    ReadObject,
    checked_uid,
    entries_of,
    only_key,
    operators_of,
    rows_of,
)
from penstock.errors import ExternalError, UsageError
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import Handle
from penstock.runtime.cluster_ports import cluster_store
from penstock.runtime.job_store import JobStore
from penstock.settings import load_settings

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
    return asyncio.run(_state(arguments))


async def _state(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.savepoint)
    if folder.is_dir():
        manifest, _ = read_folder(folder)

        async def read_there(handle: Handle) -> bytes:
            return await asyncio.to_thread(read_file, folder, handle)

        return await _show(arguments, manifest, read_there)
    settings = load_settings(arguments.cluster)
    async with ClusterClient(settings.rest) as cluster, cluster_store(settings) as blobs:
        savepoint = await cluster.savepoint(arguments.savepoint)
        manifest = await JobStore(blobs, SystemClock()).manifest(savepoint.restore)

        async def read(handle: Handle) -> bytes:
            return await read_object(blobs, handle)

        return await _show(arguments, manifest, read)


async def _show(arguments: argparse.Namespace, manifest: Manifest, read: ReadObject) -> int:
    operators = operators_of(manifest)
    if arguments.uid is None:
        _show_all(arguments, manifest, operators)
        return 0
    uid = checked_uid(manifest, arguments.uid)
    operator = next(operator for operator in operators if operator.uid == uid)
    rows = await rows_of(manifest, uid, read)
    if arguments.key is not None:
        rows = only_key(rows, operator.schema, arguments.key)
    if arguments.to is not None:
        try:
            rows.write_parquet(arguments.to)
        except OSError as error:
            raise ExternalError(f"--to {arguments.to}: {error}") from error
        print(f"{rows.height:,} rows in {arguments.to}")
        return 0
    _show_one(arguments, operator, rows, entries_of(manifest, uid))
    return 0


def _show_all(arguments: argparse.Namespace, manifest: Manifest, operators: list[OperatorState]) -> None:
    if arguments.json:
        print_json(
            {
                "job": manifest.job,
                "checkpoint": manifest.checkpoint,
                "parallelism": manifest.parallelism,
                "max_parallelism": manifest.max_parallelism,
                "operators": operators,
            }
        )
        return
    print(f"savepoint {manifest.checkpoint} of job {manifest.job}, parallelism {manifest.parallelism}")
    rows = [
        (
            operator.uid,
            operator.verb,
            ", ".join(f"{part['name']}: {part['type']}" for part in operator.schema.get("keys", [])),
            str(operator.subtasks),
            f"{operator.keyed_bytes:,}",
            ", ".join(f"{name}: {count}" for name, count in sorted(operator.entries.items())),
        )
        for operator in operators
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
