"""The bucket of a cluster's store, and folders in it: made where they are missing."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from io import BytesIO
from urllib.parse import urlsplit

import urllib3
from minio import Minio
from minio.error import MinioException, S3Error

from penstock.errors import ExternalError
from penstock.settings import StoreSettings

_THERE = ("BucketAlreadyOwnedByYou", "BucketAlreadyExists")


def make_bucket(settings: StoreSettings) -> None:
    """Make the bucket unless it is there.

    Raises:
        S3Error: the store refuses.
        MinioException, OSError, urllib3.exceptions.HTTPError: it does not answer.
        UsageError: the file of certificates cannot be used.
    """
    with _client(settings) as client:
        try:
            if not client.bucket_exists(settings.bucket):
                client.make_bucket(settings.bucket)
        except S3Error as error:
            if error.code not in _THERE:
                raise


def make_folder(settings: StoreSettings, folder: str) -> None:
    """Make an empty object whose name ends in `/`: what Hadoop's clients take for a folder that exists, and keep.

    Raises:
        ExternalError: the store refuses or does not answer, or the bucket is missing.
    """
    try:
        with _client(settings) as client:
            client.put_object(settings.bucket, f"{folder.rstrip('/')}/", BytesIO(), 0)
    except (MinioException, urllib3.exceptions.HTTPError, OSError) as error:
        raise ExternalError(
            f"store at {settings.endpoint}: cannot make the folder {folder} in the bucket {settings.bucket}: {error}; "
            "check the settings store.endpoint, store.ssl_cafile, store.access_key and store.secret_key, and that the "
            "bucket exists (penstock doctor --create-bucket)"
        ) from error


@contextmanager
def _client(settings: StoreSettings) -> Generator[Minio]:
    authorities = settings.authorities()
    pool = urllib3.PoolManager(
        timeout=urllib3.Timeout(connect=1, read=5), retries=False,
        ca_cert_data=None if authorities is None else authorities.decode(),
    )  # fmt: skip
    address = urlsplit(settings.endpoint)
    try:
        yield Minio(
            address.netloc,
            access_key=settings.access_key,
            secret_key=settings.secret_key.reveal(),
            secure=address.scheme == "https",
            region=settings.region,
            http_client=pool,
        )
    finally:
        pool.clear()


def ensure_bucket(settings: StoreSettings) -> None:
    """Make the bucket unless it is there; raises `ExternalError` with what to do."""
    try:
        make_bucket(settings)
    except (MinioException, urllib3.exceptions.HTTPError, OSError) as error:
        raise ExternalError(
            f"store at {settings.endpoint}: cannot make the bucket {settings.bucket}: {error}; check the settings "
            "store.endpoint, store.ssl_cafile, store.access_key and store.secret_key, or make the bucket yourself"
        ) from error
