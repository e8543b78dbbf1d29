"""The form of a savepoint in a folder, or below a URL of an object store: everything it consists of, movable anywhere.

`manifest.json` is the savepoint's manifest with the keys of its objects relative to the folder, `objects/` holds them,
`savepoint.json` comes last and vouches for the manifest. Where that is, `penstock.savepoint.places` knows; copying to and
from a cluster's store is `penstock.savepoint.transfer`'s business.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

import msgspec

from penstock.adapters.directory.records import fsync_path
from penstock.errors import CorruptDataError, ExternalError, UsageError
from penstock.protocol.manifests import Manifest, decode_manifest, encode_manifest
from penstock.protocol.messages import Handle, OperatorHandles

if TYPE_CHECKING:
    from penstock.savepoint.objects import Objects

FORMAT: Final = 1
SEAL: Final = "savepoint.json"
MANIFEST: Final = "manifest.json"
_UNFINISHED: Final = ".unfinished"


class Seal(msgspec.Struct, frozen=True):
    """What `savepoint.json` says."""

    checkpoint: int
    job: str
    sha256: str
    """Of manifest.json."""
    format: int = FORMAT


class SavepointPlace(Protocol):
    """Where one savepoint lies, whose parts have names relative to it. In messages it is called what its user calls it.

    Whatever cannot be reached, read or written raises `PenstockError`.
    """

    @property
    def address(self) -> str:
        """Its absolute path or URL: what every machine finds it by."""
        ...

    def is_free(self) -> bool:
        """Whether nothing is there."""
        ...

    def sizes(self) -> dict[str, int]:
        """All parts, with their bytes."""
        ...

    def read(self, name: str) -> bytes:
        """A part; raises `CorruptDataError` if it is missing."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write or replace a part that only the manifest makes one; durable."""
        ...

    def adopt(self, name: str, former: SavepointPlace, key: str) -> None:
        """Have a part of another savepoint, which never changes, as one of its own; durable, and what becomes of the
        other one does not matter. Its bytes are not sent or written again where the two places allow it."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write a part that is the same whenever it is written; on a store raises `UsageError` if there is another."""
        ...

    def remove(self, name: str) -> None:
        """Remove a part; nothing happens if there is none."""
        ...

    def objects(self) -> Objects:
        """The bytes of its state."""
        ...


def check_target(place: SavepointPlace, what: str = "--to ") -> None:
    """Raise `UsageError` if something is there already."""
    if not place.is_free():
        raise UsageError(f"{what}{place}: there is something already; name a new folder")


def seal_folder(place: SavepointPlace, manifest: Manifest) -> None:
    """Write the manifest of a savepoint whose objects are all there, and the seal behind it."""
    # A savepoint is published: what its sinks' exchanges held concerns nobody who starts from it elsewhere.
    data = encode_manifest(msgspec.structs.replace(manifest, intervals={}))
    place.write(MANIFEST, data)
    seal = Seal(manifest.checkpoint, manifest.job, hashlib.sha256(data).hexdigest())
    place.write(SEAL, msgspec.json.encode(seal))


def is_sealed(place: SavepointPlace) -> bool:
    """Whether a savepoint is there, whole."""
    return SEAL in place.sizes()


def read_folder(place: SavepointPlace) -> tuple[Manifest, str]:
    """The manifest of an exported savepoint and its checksum.

    Raises:
        UsageError: none is there.
        CorruptDataError: it is damaged, or the copy was never finished.
    """
    if not is_sealed(place):
        raise UsageError(f"{place}: no savepoint is there, or its export was not finished: it has no {SEAL}")
    try:
        seal = msgspec.json.decode(place.read(SEAL), type=Seal)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise CorruptDataError(f"{place}/{SEAL}: not readable: {error}") from error
    if seal.format != FORMAT:
        raise CorruptDataError(f"{place}/{SEAL}: format {seal.format}; this program reads {FORMAT}")
    data = place.read(MANIFEST)
    if hashlib.sha256(data).hexdigest() != seal.sha256:
        raise CorruptDataError(f"{place}/{MANIFEST}: not what was written (checksum)")
    manifest = decode_manifest(data, f"{place}/{MANIFEST}")
    for handle in handles_of(manifest):
        path = PurePosixPath(handle.key)
        if path.is_absolute() or ".." in path.parts:
            raise CorruptDataError(f"{place}/{MANIFEST}: it names an object outside the folder: {handle.key!r}")
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


def read_file(place: SavepointPlace, handle: Handle) -> bytes:
    """An object of an exported savepoint; raises `CorruptDataError` if it is missing or not what was written."""
    return checked(handle.inline or place.read(handle.key), handle, f"{place}/{handle.key}")


def checked(data: bytes, handle: Handle, where: str) -> bytes:
    """The bytes, if they are what was written; else raises `CorruptDataError`."""
    if hashlib.sha256(data).hexdigest() != handle.sha256:
        raise CorruptDataError(f"{where}: not what was written (checksum)")
    return data


def write_file(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, whole and durable or not at all, and the folders on its way.

    Raises:
        ExternalError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_UNFINISHED}")
    try:
        temporary.unlink(missing_ok=True)  # of a process that died and had the same number
        with open_private(temporary) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        fsync_path(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise ExternalError(f"{path}: cannot be written: {error.strerror}") from error


def link_file(before: Path, path: Path) -> bool:
    """Give a file that never changes one more name, durably, and make the folders on its way.

    False where that cannot be: there is none, it is on another file system, or that has no links.

    Raises:
        ExternalError: there is a file of that name, or the disk fails.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.hardlink_to(before)
    except FileExistsError:
        raise ExternalError(f"{path}: is there already; nobody else may write there") from None
    except OSError:
        return False
    try:
        fsync_path(path.parent)
    except OSError as error:
        raise ExternalError(f"{path}: cannot be written: {error.strerror}") from error
    return True


def is_unfinished(path: Path) -> bool:
    """Whether a file is what `write_file` leaves if it dies: no part of anything."""
    return path.name.startswith(".") and path.name.endswith(_UNFINISHED)


def open_private(path: Path) -> BinaryIO:
    """A new file for writing, which only its owner may read: state is what the rows were about.

    Folders that are missing on its way become its owner's too; those that are there stay as they are.
    """
    for folder in [one for one in reversed(path.parents) if not one.exists()]:
        folder.mkdir(mode=0o700, exist_ok=True)
        fsync_path(folder.parent)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
