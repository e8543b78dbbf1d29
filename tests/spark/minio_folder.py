"""A folder of a bucket of MinIO that is one test's, and how drivers and tasks reach it."""

from __future__ import annotations

from typing import Any

import obstore

from penstock.adapters.s3_blobs import s3_store


class MinioFolder:
    """A folder of a bucket that is this test's."""

    def __init__(self, platform: Any) -> None:
        settings = platform.settings("kept")
        self._store, self._name = s3_store(settings.store), settings.name
        self.url = f"s3://{settings.store.bucket}/{settings.name}"
        self.environment = {
            "AWS_ENDPOINT_URL": settings.store.endpoint,
            "AWS_ACCESS_KEY_ID": settings.store.access_key,
            "AWS_SECRET_ACCESS_KEY": settings.store.secret_key.reveal(),
        }

    @property
    def conf(self) -> dict[str, str]:
        """Settings of Spark by which executors of a cluster have the same environment."""
        return {f"spark.executorEnv.{name}": value for name, value in self.environment.items()}

    def names(self) -> set[str]:
        """Of all objects in it."""
        listed = obstore.list(self._store, self._name).collect()
        return {item["path"].removeprefix(f"{self._name}/") for item in listed}
