"""The form of a savepoint in a folder: everything it consists of, movable anywhere.

`manifest.json` is the savepoint's manifest with the keys of its objects relative to the folder, `objects/` holds them,
`savepoint.json` comes last and vouches for the manifest. Copying between folders and a cluster's store is
`penstock.savepoint.transfer`'s business.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from penstock.errors import CorruptDataError, ExternalError, UsageError
from penstock.protocol.manifests import Manifest, decode_manifest, encode_manifest
from penstock.protocol.messages import Handle, OperatorHandles

FORMAT: Final = 1
SEAL: Final = "savepoint.json"
MANIFEST: Final = "manifest.json"


class Seal(msgspec.Struct, frozen=True):
    """What `savepoint.json` says."""

    checkpoint: int
    job: str
    sha256: str
    """Of manifest.json."""
    format: int = FORMAT


def check_target(folder: Path, what: str = "--to ") -> None:
    """Raise `UsageError` if something is in the folder already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{what}{folder}: there is something already; name a new folder")


def seal_folder(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a folder whose objects are all there, and the seal behind it."""
    # A savepoint is published: what its sinks' exchanges held concerns nobody who starts from it elsewhere.
    data = encode_manifest(msgspec.structs.replace(manifest, intervals={}))
    write_file(folder / MANIFEST, data)
    seal = Seal(manifest.checkpoint, manifest.job, hashlib.sha256(data).hexdigest())
    write_file(folder / SEAL, msgspec.json.encode(seal))


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
    data = _read(folder / MANIFEST)
    if hashlib.sha256(data).hexdigest() != seal.sha256:
        raise CorruptDataError(f"{folder / MANIFEST}: not what was written (checksum)")
    manifest = decode_manifest(data, str(folder / MANIFEST))
    for handle in handles_of(manifest):
        if Path(handle.key).is_absolute() or ".." in Path(handle.key).parts:
            raise CorruptDataError(f"{folder / MANIFEST}: it names an object outside the folder: {handle.key!r}")
    return manifest, seal.sha256


def handles_of(manifest: Manifest) -> list[Handle]:
    """All objects that a savepoint consists of."""
    return [
        handle
        for subtasks in manifest.subtasks.values()
        for snapshot in subtasks.values()
        for operator in snapshot.operators.values()
        for run in operator.runs
        for handle in run
        if not handle.inline
    ]


def with_keys(manifest: Manifest, rename: Callable[[str], str]) -> Manifest:
    """The same savepoint with its objects under other keys; what stood beside the manifest stands in it."""

    def renamed(_uid: str, _subtask: int, operator: OperatorHandles) -> OperatorHandles:
        runs = [
            [handle if handle.inline else msgspec.structs.replace(handle, key=rename(handle.key)) for handle in run]
            for run in operator.runs
        ]
        alone = msgspec.structs.replace(operator, beside=None)
        return alone.with_runs(runs) if operator.incremental else alone.with_parts(runs[0])

    return with_operators(manifest, renamed)


def with_operators(manifest: Manifest, change: Callable[[str, int, OperatorHandles], OperatorHandles]) -> Manifest:
    """The same savepoint with what `change` makes of an operator's id, a subtask's index and what it put there."""
    subtasks = {
        vertex: {
            index: msgspec.structs.replace(
                snapshot,
                operators={uid: change(uid, index, operator) for uid, operator in snapshot.operators.items()},
            )
            for index, snapshot in snapshots.items()
        }
        for vertex, snapshots in manifest.subtasks.items()
    }
    return msgspec.structs.replace(manifest, subtasks=subtasks)


def read_file(folder: Path, handle: Handle) -> bytes:
    """An object of an exported savepoint; raises `CorruptDataError` if it is missing or not what was written."""
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


def write_file(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, and the folders on its way; raises `ExternalError`."""
    try:
        with open_private(path) as file:
            file.write(data)
    except OSError as error:
        raise ExternalError(f"{path}: cannot be written: {error.strerror}") from error


def open_private(path: Path) -> BinaryIO:
    """A new file for writing, which only its owner may read: state is what the rows were about.

    Folders that are missing on its way become its owner's too; those that are there stay as they are.
    """
    for folder in [one for one in reversed(path.parents) if not one.exists()]:
        folder.mkdir(mode=0o700, exist_ok=True)
    path.unlink(missing_ok=True)  # whatever may be done with it would be done with the new one
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
