"""Where a savepoint lies: a folder, or a place on an object store whose client and keys are those of the environment.

On a store a part is one object, so it is there whole or not at all; manifest and seal are created only where there is
none, so of two writers of one place the first one has it and the other is told.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.connectors.files.store_clients import Location, location
from penstock.errors import CorruptDataError, ExternalError, UsageError
from penstock.ports import BlobExistsError, BlobNotFoundError
from penstock.savepoint.folder import SavepointPlace, is_unfinished, link_file, write_file
from penstock.savepoint.objects import FolderObjects, StoreObjects, with_store

if TYPE_CHECKING:
    from penstock.adapters.s3_blobs import ObjectBlobs


def place_of(name: str | Path | SavepointPlace, what: str = "savepoint") -> SavepointPlace:
    """The place of that name: a path, or the URL of a folder on an object store.

    Args:
        name: what the user gave; a place is itself.
        what: what it is for, in messages.

    Raises:
        PipelineError: a URL names no bucket, or obstore is missing.
    """
    if isinstance(name, str):
        stored = location(name, None, what)
        return StoredPlace(stored) if stored is not None else LocalPlace(Path(name))
    return LocalPlace(name) if isinstance(name, Path) else name


def find_place(name: str | Path) -> SavepointPlace | None:
    """The place of that name if it is a folder that is there, or a URL; None if it may be the name of something else.

    Raises:
        PipelineError: a URL names no bucket, or obstore is missing.
    """
    place = place_of(name)
    return None if isinstance(place, LocalPlace) and not place.folder.is_dir() else place


@dataclass(frozen=True)
class LocalPlace:
    """See `SavepointPlace`: a folder that all who use it share."""

    folder: Path

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def address(self) -> str:
        """See `SavepointPlace.address`."""
        return str(self.folder.absolute())

    def is_free(self) -> bool:
        """See `SavepointPlace.is_free`."""
        if not self.folder.exists():
            return True
        return self.folder.is_dir() and all(is_unfinished(path) for path in self.folder.iterdir())

    def sizes(self) -> dict[str, int]:
        """See `SavepointPlace.sizes`."""
        try:
            files = [path for path in self.folder.rglob("*") if path.is_file() and not is_unfinished(path)]
            found = [(path, path.stat().st_size) for path in files]
        except OSError as error:
            raise ExternalError(f"{self.folder}: cannot be looked at: {error.strerror}") from error
        return {path.relative_to(self.folder).as_posix(): size for path, size in found}

    def read(self, name: str) -> bytes:
        """See `SavepointPlace.read`."""
        path = self.folder / name
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise CorruptDataError(f"{path}: a part of the savepoint is missing") from error
        except OSError as error:
            raise ExternalError(f"{path}: cannot be read: {error.strerror}") from error

    def put(self, name: str, data: bytes) -> None:
        """See `SavepointPlace.put`. Whoever may enter the folder may read it: a driver may be another user."""
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ExternalError(f"{path}: cannot be written: {error.strerror}") from error

    def adopt(self, name: str, former: SavepointPlace, key: str) -> None:
        """See `SavepointPlace.adopt`: a hard link, where the file system has such."""
        if not (isinstance(former, LocalPlace) and link_file(former.folder / key, self.folder / name)):
            self.put(name, former.read(key))

    def write(self, name: str, data: bytes) -> None:
        """See `SavepointPlace.write`."""
        write_file(self.folder / name, data)

    def remove(self, name: str) -> None:
        """See `SavepointPlace.remove`."""
        try:
            (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise ExternalError(f"{self.folder / name}: cannot be removed: {error.strerror}") from error

    def objects(self) -> FolderObjects:
        """See `SavepointPlace.objects`."""
        return FolderObjects(self.folder)


@dataclass(frozen=True)
class StoredPlace:
    """See `SavepointPlace`: all objects below a URL."""

    location: Location

    def __str__(self) -> str:
        return str(self.location)

    @property
    def address(self) -> str:
        """See `SavepointPlace.address`."""
        return str(self.location)

    def is_free(self) -> bool:
        """See `SavepointPlace.is_free`."""
        return not self.sizes()

    def sizes(self) -> dict[str, int]:
        """See `SavepointPlace.sizes`."""
        return with_store(self._blobs, lambda _: self._blobs.sizes(""))

    def read(self, name: str) -> bytes:
        """See `SavepointPlace.read`."""
        try:
            return with_store(self._blobs, lambda blobs: blobs.get(name))
        except BlobNotFoundError as error:
            raise CorruptDataError(f"{self}/{name}: a part of the savepoint is missing") from error

    def put(self, name: str, data: bytes) -> None:
        """See `SavepointPlace.put`."""
        with_store(self._blobs, lambda blobs: blobs.put(name, data))

    def adopt(self, name: str, former: SavepointPlace, key: str) -> None:
        """See `SavepointPlace.adopt`: the store copies it, where both are in one bucket."""
        if not isinstance(former, StoredPlace) or former.location.at("") != self.location.at(""):
            self.put(name, former.read(key))
            return
        before, after = former.location.below(key).key, self.location.below(name).key
        try:
            with_store(self._blobs, lambda _: blobs_at(self.location.at("")).copy(before, after))
        except BlobNotFoundError as error:
            raise CorruptDataError(f"{former}/{key}: a part of the savepoint is missing") from error

    def write(self, name: str, data: bytes) -> None:
        """See `SavepointPlace.write`."""
        try:
            with_store(self._blobs, lambda blobs: blobs.create(name, data))
        except BlobExistsError as error:  # it may be ours, of a process that died or a try whose answer was lost
            if self.read(name) != data:
                raise UsageError(
                    f"{self}: somebody else has written {name} there meanwhile; name a place that nobody else uses"
                ) from error

    def remove(self, name: str) -> None:
        """See `SavepointPlace.remove`."""
        with_store(self._blobs, lambda blobs: blobs.delete(name))

    def objects(self) -> StoreObjects:
        """See `SavepointPlace.objects`."""
        return StoreObjects(self._blobs)

    @property
    def _blobs(self) -> ObjectBlobs:
        return blobs_at(self.location)


def blobs_at(location: Location) -> ObjectBlobs:
    """The objects below a place on an object store."""
    from penstock.adapters.s3_blobs import ObjectBlobs, StoreAdvice  # obstore is an extra

    advice = StoreAdvice(
        "the keys in the environment (AWS_ACCESS_KEY_ID and so on)",
        "the URL",
        "the variable AWS_CA_BUNDLE (who signed the store's certificate) and AWS_ENDPOINT_URL",
        "the variable AWS_ENDPOINT_URL",
    )
    return ObjectBlobs(location.store, f"{location.key}/" if location.key else "", str(location), advice)
