"""The bucket of a cluster's store: made where it is missing."""

from __future__ import annotations

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
    authorities = settings.authorities()
    pool = urllib3.PoolManager(
        timeout=urllib3.Timeout(connect=1, read=5), retries=False,
        ca_cert_data=None if authorities is None else authorities.decode(),
    )  # fmt: skip
    address = urlsplit(settings.endpoint)
    client = Minio(
        address.netloc,
        access_key=settings.access_key,
        secret_key=settings.secret_key.reveal(),
        secure=address.scheme == "https",
        region=settings.region,
        http_client=pool,
    )
    try:
        if not client.bucket_exists(settings.bucket):
            client.make_bucket(settings.bucket)
    except S3Error as error:
        if error.code not in _THERE:
            raise
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
