"""Savepoints between a cluster's store and a folder, or a URL of an object store."""

from __future__ import annotations

import asyncio

from penstock.adapters.cluster_ports import cluster_store
from penstock.protocol.messages import Restore
from penstock.savepoint.folder import SavepointPlace
from penstock.savepoint.transfer import export_savepoint, import_savepoint
from penstock.settings import ClusterSettings


def export_from(settings: ClusterSettings, restore: Restore, folder: SavepointPlace) -> None:
    """Copy a savepoint of the cluster's store elsewhere; raises `CorruptDataError` if it is not whole there."""

    async def export() -> None:
        async with cluster_store(settings) as blobs:
            await export_savepoint(blobs, restore, folder)

    asyncio.run(export())


async def import_into(settings: ClusterSettings, folder: SavepointPlace) -> Restore:
    """Copy the savepoint in a folder or below a URL into the cluster's store."""
    async with cluster_store(settings) as blobs:
        return await import_savepoint(blobs, folder)
