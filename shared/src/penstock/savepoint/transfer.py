"""Savepoints between a store and a folder (whose form is `penstock.savepoint.folder`).

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
from penstock.savepoint.folder import handles_of, read_file, read_folder, seal_folder, with_keys, write_file
from penstock.savepoint.objects import read_object

IMPORTED: Final = "imported/"


async def export_savepoint(blobs: Blobs, restore: Restore, folder: Path) -> None:
    """Copy a savepoint into a folder.

    Raises:
        UsageError: rows behind it are visible, which whoever starts from the folder would make again.
    """
    store = JobReader(blobs)
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
            await asyncio.to_thread(write_file, folder / names[handle.key], data)
    await asyncio.to_thread(seal_folder, folder, with_keys(manifest, lambda key: names[key]))


async def import_savepoint(blobs: Blobs, folder: Path) -> Restore:
    """Copy the savepoint in a folder into a store; its manifest goes last.

    Raises:
        UsageError: the folder holds no savepoint.
        CorruptDataError: it is not whole.
    """
    manifest, digest = read_folder(folder)
    prefix = f"{IMPORTED}{digest[:32]}/"
    for handle in {handle.key: handle for handle in handles_of(manifest)}.values():
        await blobs.put(prefix + handle.key, await asyncio.to_thread(read_file, folder, handle))
    data = encode_manifest(with_keys(manifest, lambda key: prefix + key))
    await blobs.put(f"{prefix}manifest.json", data)
    return Restore(manifest.checkpoint, f"{prefix}manifest.json", hashlib.sha256(data).hexdigest())
