"""Savepoints outside of a cluster's store: a folder that holds everything, movable anywhere.

`manifest.json` is the savepoint's manifest with the keys of its objects relative to the folder, `objects/` holds them,
`savepoint.json` comes last and vouches for the manifest. Brought into a store, everything lies below
`imported/<checksum>/`; the same folder brought in twice is the same savepoint.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from penstock.adapters.system_clock import SystemClock
from penstock.errors import CorruptDataError, ExternalError, UsageError
from penstock.ports import BlobNotFoundError, Blobs
from penstock.protocol.manifests import Manifest, decode_manifest, encode_manifest
from penstock.protocol.messages import Handle, Restore
from penstock.runtime.cluster_ports import cluster_store
from penstock.runtime.job_store import JobStore
from penstock.settings import ClusterSettings

FORMAT: Final = 1
IMPORTED: Final = "imported/"
SEAL: Final = "savepoint.json"


class Seal(msgspec.Struct, frozen=True):
    """What `savepoint.json` says."""

    checkpoint: int
    job: str
    sha256: str
    """Of manifest.json."""
    format: int = FORMAT


def check_target(folder: Path) -> None:
    """Raise `UsageError` if something is in the folder already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--to {folder}: there is something already; name a new folder")


def export_from(settings: ClusterSettings, restore: Restore, folder: Path) -> None:
    """Copy a savepoint of the cluster's store into a folder; raises `CorruptDataError` if it is not whole there."""

    async def export() -> None:
        async with cluster_store(settings) as blobs:
            await export_savepoint(blobs, restore, folder)

    asyncio.run(export())


async def export_savepoint(blobs: Blobs, restore: Restore, folder: Path) -> None:
    """Copy a savepoint into a folder."""
    manifest = await JobStore(blobs, SystemClock()).manifest(restore)
    names: dict[str, str] = {}
    for handle in handles_of(manifest):
        if handle.key not in names:
            names[handle.key] = f"objects/{len(names):06d}-{handle.key.rpartition('/')[2]}"
            data = await read_object(blobs, handle)
            await asyncio.to_thread(_write, folder / names[handle.key], data)
    # A savepoint is published: what its sinks' exchanges held concerns nobody who starts from it elsewhere.
    data = encode_manifest(msgspec.structs.replace(with_keys(manifest, lambda key: names[key]), intervals={}))
    await asyncio.to_thread(_write, folder / "manifest.json", data)
    seal = Seal(manifest.checkpoint, manifest.job, hashlib.sha256(data).hexdigest())
    await asyncio.to_thread(_write, folder / SEAL, msgspec.json.encode(seal))


async def import_into(settings: ClusterSettings, folder: Path) -> Restore:
    """Copy the savepoint in a folder into the cluster's store."""
    async with cluster_store(settings) as blobs:
        return await import_savepoint(blobs, folder)


async def import_savepoint(blobs: Blobs, folder: Path) -> Restore:
    """Copy the savepoint in a folder into a store; its manifest goes last.

    Raises:
        UsageError: the folder holds no savepoint.
        CorruptDataError: it is not whole.
    """
    manifest, digest = read_folder(folder)
    prefix = f"{IMPORTED}{digest[:32]}/"
    for key in dict.fromkeys(handle.key for handle in handles_of(manifest)):
        handle = next(handle for handle in handles_of(manifest) if handle.key == key)
        await blobs.put(prefix + key, await asyncio.to_thread(read_file, folder, handle))
    data = encode_manifest(with_keys(manifest, lambda key: prefix + key))
    await blobs.put(f"{prefix}manifest.json", data)
    return Restore(manifest.checkpoint, f"{prefix}manifest.json", hashlib.sha256(data).hexdigest())


def read_folder(folder: Path) -> tuple[Manifest, str]:
    """The manifest of an exported savepoint and its checksum.

    Raises:
        UsageError: the folder holds none.
        CorruptDataError: it is damaged, or the copy was never finished.
    """
    if not (folder / SEAL).is_file():
        raise UsageError(f"{folder}: no savepoint is there, or its export was not finished: it has no {SEAL}")
    try:
        seal = msgspec.json.decode(_read(folder / SEAL), type=Seal)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise CorruptDataError(f"{folder / SEAL}: not readable: {error}") from error
    if seal.format != FORMAT:
        raise CorruptDataError(f"{folder / SEAL}: format {seal.format}; this program reads {FORMAT}")
    data = _read(folder / "manifest.json")
    if hashlib.sha256(data).hexdigest() != seal.sha256:
        raise CorruptDataError(f"{folder / 'manifest.json'}: not what was written (checksum)")
    manifest = decode_manifest(data, str(folder / "manifest.json"))
    for handle in handles_of(manifest):
        if Path(handle.key).is_absolute() or ".." in Path(handle.key).parts:
            raise CorruptDataError(f"{folder / 'manifest.json'}: it names an object outside the folder: {handle.key!r}")
    return manifest, seal.sha256


def handles_of(manifest: Manifest) -> list[Handle]:
    """All objects that a savepoint consists of."""
    return [
        operator.keyed
        for subtasks in manifest.subtasks.values()
        for snapshot in subtasks.values()
        for operator in snapshot.operators.values()
        if operator.keyed is not None and not operator.keyed.inline
    ]


def with_keys(manifest: Manifest, rename: Callable[[str], str]) -> Manifest:
    """The same savepoint with its objects under other keys."""
    replace = msgspec.structs.replace
    subtasks = {
        vertex: {
            index: replace(
                snapshot,
                operators={
                    name: replace(operator, keyed=replace(operator.keyed, key=rename(operator.keyed.key)))
                    if operator.keyed is not None and not operator.keyed.inline
                    else operator
                    for name, operator in snapshot.operators.items()
                },
            )
            for index, snapshot in snapshots.items()
        }
        for vertex, snapshots in manifest.subtasks.items()
    }
    return replace(manifest, subtasks=subtasks)


async def read_object(blobs: Blobs, handle: Handle) -> bytes:
    """An object of a savepoint; raises `CorruptDataError` if it is missing or not what was written."""
    try:
        data = handle.inline or await blobs.get(handle.key)
    except BlobNotFoundError as error:
        raise CorruptDataError(f"{handle.key}: an object of the savepoint is missing") from error
    return await asyncio.to_thread(checked, data, handle, handle.key)


def read_file(folder: Path, handle: Handle) -> bytes:
    """The same of an exported savepoint."""
    return checked(handle.inline or _read(folder / handle.key), handle, str(folder / handle.key))


def checked(data: bytes, handle: Handle, where: str) -> bytes:
    """The bytes, if they are what was written; else raises `CorruptDataError`."""
    if hashlib.sha256(data).hexdigest() != handle.sha256:
        raise CorruptDataError(f"{where}: not what was written (checksum)")
    return data


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise CorruptDataError(f"{path}: a part of the savepoint is missing") from error
    except OSError as error:
        raise ExternalError(f"{path}: cannot be read: {error.strerror}") from error


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise ExternalError(f"{path}: cannot be written: {error.strerror}") from error
