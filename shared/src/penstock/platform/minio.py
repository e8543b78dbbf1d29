"""A MinIO server of this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import urllib3
from minio.error import MinioException, S3Error

from penstock.platform.buckets import make_bucket
from penstock.platform.errors import ServerStartError
from penstock.platform.parts import Parts
from penstock.platform.server import Recorder, Server, accepts, no_recorder
from penstock.settings import Secret, StoreSettings


class MinioServer(Server):
    """One MinIO on one folder; ready when its bucket exists."""

    start_deadline_s = 60.0
    stop_grace_s = 10.0

    def __init__(
        self,
        parts: Parts,
        folder: Path,
        port: int,
        *,
        access_key: str,
        secret_key: str,
        bucket: str = "penstock",
        name: str = "minio",
        record: Recorder = no_recorder,
        mark: str = "",
    ) -> None:
        super().__init__(name, folder, port, record=record, mark=mark)
        self.bucket = bucket
        self._program = parts.minio
        self._access_key = access_key
        self._secret_key = secret_key

    @property
    def settings(self) -> StoreSettings:
        """How to reach it."""
        return StoreSettings(
            endpoint=f"http://{self.address}",
            bucket=self.bucket,
            access_key=self._access_key,
            secret_key=Secret(self._secret_key),
        )

    async def prepare(self) -> None:
        pass  # everything is on the command line and in the environment

    def command(self) -> list[str]:
        return [str(self._program), "server", str(self.data), "--address", self.address, "--quiet"]

    def environment(self) -> Mapping[str, str]:
        others = {name: value for name, value in os.environ.items() if not name.startswith("MINIO_")}
        return {
            **others,
            "MINIO_ROOT_USER": self._access_key,
            "MINIO_ROOT_PASSWORD": self._secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "MINIO_CONFIG_DIR": str(self.folder / "config"),
        }

    async def is_ready(self) -> bool:
        return accepts(self.port) and await asyncio.to_thread(self._make_bucket)

    def _make_bucket(self) -> bool:
        """Create the bucket unless it exists; False while the server does not serve yet."""
        try:
            make_bucket(self.settings)
        except S3Error as error:
            if error.code in ("InvalidAccessKeyId", "SignatureDoesNotMatch"):
                raise ServerStartError(f"{self.address}: another store answers there; give it another port") from error
            return False
        except (MinioException, urllib3.exceptions.HTTPError, OSError):
            return False  # it still starts; whoever waits has the deadline
        return True
