"""Savepoints between a cluster's store and a folder or a URL (their form is `penstock.savepoint.folder`'s).

Brought into a store, everything lies below `imported/<checksum>/`; the same folder brought in twice is the same
savepoint.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Final

from penstock.coordination.job_store import JobReader
from penstock.errors import UsageError
from penstock.ports import Blobs
from penstock.protocol.manifests import encode_manifest
from penstock.protocol.messages import Restore
from penstock.savepoint.folder import SavepointPlace, handles_of, read_file, read_folder, seal_folder, with_keys
from penstock.savepoint.objects import read_object
from penstock.savepoint.places import place_of

IMPORTED: Final = "imported/"


async def export_savepoint(blobs: Blobs, restore: Restore, folder: str | Path | SavepointPlace) -> None:
    """Copy a savepoint into a folder, or to its place on an object store.

    Raises:
        UsageError: rows behind it are visible, which whoever starts from the folder would make again.
    """
    place, store = place_of(folder), JobReader(blobs)
    manifest = await store.manifest(restore)
    if beyond := await store.published_beyond(restore.manifest, manifest.job):
        raise UsageError(
            f"checkpoint {restore.checkpoint} of job {manifest.job[:8]} is no savepoint: its sink {min(beyond)!r} has "
            "published rows behind it; a job of this cluster can go on from it, a folder cannot tell where"
        )
    names: dict[str, str] = {}
    for handle in handles_of(manifest):
        if handle.key not in names:
            names[handle.key] = f"objects/{len(names):06d}-{handle.key.rpartition('/')[2]}"
            data = await read_object(blobs, handle)
            await asyncio.to_thread(place.write, names[handle.key], data)
    await asyncio.to_thread(seal_folder, place, with_keys(manifest, lambda key: names[key]))


async def import_savepoint(blobs: Blobs, folder: str | Path | SavepointPlace) -> Restore:
    """Copy the savepoint in a folder, or in its place on an object store, into a cluster's store; its manifest goes last.

    Raises:
        UsageError: the folder holds no savepoint.
        CorruptDataError: it is not whole.
    """
    place = place_of(folder)
    manifest, digest = await asyncio.to_thread(read_folder, place)
    prefix = f"{IMPORTED}{digest[:32]}/"
    for handle in {handle.key: handle for handle in handles_of(manifest)}.values():
        await blobs.put(prefix + handle.key, await asyncio.to_thread(read_file, place, handle))
    data = encode_manifest(with_keys(manifest, lambda key: prefix + key))
    await blobs.put(f"{prefix}manifest.json", data)
    return Restore(manifest.checkpoint, f"{prefix}manifest.json", hashlib.sha256(data).hexdigest())
