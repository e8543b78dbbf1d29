"""Savepoints between a cluster's store and a folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.adapters.cluster_ports import cluster_store
from penstock.protocol.messages import Restore
from penstock.savepoint.transfer import export_savepoint, import_savepoint
from penstock.settings import ClusterSettings


def export_from(settings: ClusterSettings, restore: Restore, folder: Path) -> None:
    """Copy a savepoint of the cluster's store into a folder; raises `CorruptDataError` if it is not whole there."""

    async def export() -> None:
        async with cluster_store(settings) as blobs:
            await export_savepoint(blobs, restore, folder)

    asyncio.run(export())


async def import_into(settings: ClusterSettings, folder: Path) -> Restore:
    """Copy the savepoint in a folder into the cluster's store."""
    async with cluster_store(settings) as blobs:
        return await import_savepoint(blobs, folder)
