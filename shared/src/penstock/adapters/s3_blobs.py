"""The Blobs port on any S3 store (MinIO, AWS), or another one that a client is given of, through obstore.

A conditional create is one PUT with `If-None-Match: *`. Two things can pose as "it exists" (obstore reports both so): a
409 of a store that was deciding between two writers, and the client's own retry that met its own first try. So an
object is looked for before that is believed; whose it is, the caller finds out by its nonce.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from penstock.adapters.naming import checked_key
from penstock.errors import ExternalError
from penstock.ports import BlobExistsError, BlobNotFoundError
from penstock.settings import StoreSettings

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

RETRY_TIMEOUT_S: Final = 10
"""How long the client repeats a failing request by itself."""
TIMEOUT_S: Final = 20.0
"""How long an operation may take before its outcome counts as unknown, besides the time its bytes take."""
SLOWEST_BYTES_PER_S: Final = 1 << 20
"""A transfer slower than this counts as failed."""
LARGEST_GET_S: Final = 300.0
_CREATE_TRIES: Final = 3
_UNTRUSTED: Final = re.compile(r"InvalidCertificate\(\s*(\w+)")
_REFUSED: Final = re.compile("SignatureDoesNotMatch|InvalidAccessKeyId|AccessDenied")
"""Answers that the client has no class of errors for in every operation."""
_NO_KEYS: Final = re.compile("/latest/api/token|/latest/meta-data/")
"""The client asks the machine's own service for keys, which only machines of AWS have, where nobody has given it any."""
_REASON: Final = re.compile(r"<Code>(.*?)</Code><Message>(.*?)</Message>", re.DOTALL)


@dataclass(frozen=True)
class StoreAdvice:
    """What a user may look at when a store refuses or is not reached: where its settings stand."""

    credentials: str
    bucket: str
    authorities: str
    endpoint: str


SETTINGS: Final = StoreAdvice(
    "the settings store.access_key and store.secret_key",
    "the setting store.bucket",
    "the settings store.ssl_cafile (who signed the store's certificate) and store.endpoint",
    "the setting store.endpoint",
)


class ObjectBlobs:
    """A `Blobs` of the objects below a prefix in one bucket, which must exist, by any client of obstore's."""

    def __init__(self, store: ObjectStore, prefix: str, where: str, advice: StoreAdvice = SETTINGS) -> None:
        """`prefix` ends in a slash, or is empty: the whole bucket; `where` and `advice` are for messages."""
        self._store = store
        self._prefix = prefix
        self._where = where
        self._advice = advice

    async def put(self, key: str, data: bytes) -> None:
        """See `Blobs.put`. Large objects are sent in parts."""
        path = self._path(key)
        async with self._asking(path, _transfer_s(len(data))):
            await obstore.put_async(self._store, path, data)

    async def create(self, key: str, data: bytes) -> None:
        """See `Blobs.create`."""
        path = self._path(key)
        for _ in range(_CREATE_TRIES):
            try:
                async with self._asking(path, _transfer_s(len(data))):
                    await obstore.put_async(self._store, path, data, mode="create", use_multipart=False)
                return
            except AlreadyExistsError as error:
                if await self._size(path) is not None:
                    raise BlobExistsError(f"object {path} exists ({self._where})") from error
        raise ExternalError(
            f"object {path} ({self._where}): the store says that it exists and that it does not, {_CREATE_TRIES} times; "
            "it may or may not have been written; try again"
        )

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """See `Blobs.get`."""
        path = self._path(key)
        if start == 0 and end is None:
            async with self._asking(path, LARGEST_GET_S):
                return bytes(await (await obstore.get_async(self._store, path)).bytes_async())
        # A store answers a range behind the end with an error, so the range is cut here.
        size = await self._size(path)
        if size is None:
            raise BlobNotFoundError(f"there is no object {path} ({self._where})")
        end = size if end is None else min(end, size)
        if start >= end:
            return b""
        async with self._asking(path, _transfer_s(end - start)):
            return bytes(await obstore.get_range_async(self._store, path, start=start, end=end))

    async def list(self, prefix: str) -> list[str]:
        """See `Blobs.list`."""
        return sorted(await self.sizes(prefix))

    async def sizes(self, prefix: str) -> dict[str, int]:
        """All keys that begin with `prefix`, with the bytes of their objects.

        Asks for the whole folder: the client lists by folders, not by beginnings of names.
        """
        folder = prefix.rpartition("/")[0]
        path = self._path(folder) if folder else self._prefix
        found: dict[str, int] = {}
        async with self._asking(path, LARGEST_GET_S):
            async for chunk in obstore.list(self._store, path or None, chunk_size=1_000):
                found.update((item["path"].removeprefix(self._prefix), item["size"]) for item in chunk)
        return {key: size for key, size in found.items() if key.startswith(prefix)}

    async def delete(self, key: str) -> None:
        """See `Blobs.delete`."""
        path = self._path(key)
        try:
            async with self._asking(path, TIMEOUT_S):
                await obstore.delete_async(self._store, path)
        except BlobNotFoundError:
            return

    async def copy(self, key: str, to: str) -> None:
        """Let the store make a copy of an object, or replace one by it; raises `BlobNotFoundError`, `ExternalError`."""
        path = self._path(key)
        async with self._asking(path, LARGEST_GET_S):
            await obstore.copy_async(self._store, path, self._path(to))

    async def close(self) -> None:
        """Nothing to give back: the client closes idle connections by itself."""

    def _path(self, key: str) -> str:
        return self._prefix + checked_key(key)

    async def _size(self, path: str) -> int | None:
        try:
            async with self._asking(path, TIMEOUT_S):
                return (await obstore.head_async(self._store, path))["size"]
        except BlobNotFoundError:
            await self._check_bucket(path)  # the answer to HEAD has no body that could tell which of the two is missing
            return None

    async def _check_bucket(self, path: str) -> None:
        async with self._asking(path, TIMEOUT_S):
            await obstore.list_with_delimiter_async(self._store, path)

    @asynccontextmanager
    async def _asking(self, path: str, timeout_s: float) -> AsyncGenerator[None]:
        """Foreign errors as ours; only `AlreadyExistsError` passes, for `create` to look into."""
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except AlreadyExistsError:
            raise
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._failure(path, error) from error
            raise BlobNotFoundError(f"there is no object {path} ({self._where})") from error
        except TimeoutError as error:
            raise self._failure(path, f"no answer within {timeout_s:.0f} s") from error
        except (BaseError, OSError, ValueError) as error:
            raise self._failure(path, error) from error

    def _failure(self, path: str, error: Exception | str) -> ExternalError:
        known = self._advice
        if isinstance(error, UnauthenticatedError | PermissionDeniedError) or _REFUSED.search(str(error)):
            advice = f"check {known.credentials} and what that user may do"
        elif _NO_KEYS.search(str(error)):
            return ExternalError(
                f"object {path} ({self._where}): there are no keys, and this machine is given none: {_reason(error)}; "
                f"set {known.credentials}"
            )
        elif "NoSuchBucket" in str(error):
            advice = f"create the bucket or correct {known.bucket}"
        elif _UNTRUSTED.search(str(error)):
            advice = f"check {known.authorities}"
        else:
            advice = f"it may or may not have been done; check that the store runs and {known.endpoint}"
        return ExternalError(f"object {path} ({self._where}): {_reason(error)}; {advice}")


class S3Blobs(ObjectBlobs):
    """A `Blobs` of the objects `<cluster>/...` in the bucket of a cluster. Connects when first used."""

    def __init__(self, settings: StoreSettings, cluster: str) -> None:
        super().__init__(s3_store(settings), f"{cluster}/", f"{settings.endpoint}, bucket {settings.bucket}")


def s3_store(settings: StoreSettings) -> S3Store:
    """The client of a bucket.

    Raises:
        UsageError: the file of certificates cannot be used.
    """
    client_options: ClientConfig = {
        "allow_http": settings.endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=3),
        "timeout": timedelta(seconds=LARGEST_GET_S),
    }
    if (authorities := settings.authorities()) is not None:
        client_options["root_certificate"] = authorities
    credentials: dict[str, Any] = {}
    if settings.access_key:  # else the client looks where AWS's clients do: environment, instance profile
        credentials = {"access_key_id": settings.access_key, "secret_access_key": settings.secret_key.reveal()}
    return S3Store(
        settings.bucket,
        endpoint=settings.endpoint,
        region=settings.region,
        virtual_hosted_style_request=False,
        client_options=client_options,
        retry_config={
            "max_retries": 8,
            "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S),
            "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
        },
        **credentials,
    )


def _transfer_s(size_bytes: int) -> float:
    return TIMEOUT_S + size_bytes / SLOWEST_BYTES_PER_S


def _reason(error: Exception | str) -> str:
    """The store's own words if it answered, what is wrong with its certificate, or the first line of the client's."""
    text = str(error)
    answered = _REASON.search(text)
    if untrusted := _UNTRUSTED.search(text):  # of the chain of causes, which the client tells only for debugging
        return f"its certificate is not trusted: {untrusted[1]}"
    return f"{answered[2]} ({answered[1]})" if answered else text.splitlines()[0] if text else type(error).__name__
