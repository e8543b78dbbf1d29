"""Which extra of the distribution brings a package, for the error where one is missing."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from penstock.errors import UsageError

DISTRIBUTION: Final = "penstock-streaming"
"""What is installed; it is imported as `penstock`."""

EXTRAS: Final = {
    "aiokafka": "kafka", "confluent_kafka": "kafka", "fastavro": "kafka", "google": "kafka", "obstore": "stores",
    "cronsim": "cluster", "httpx2": "cluster", "minio": "cluster", "redis": "cluster", "starlette": "cluster",
    "urllib3": "cluster", "uvicorn": "cluster", "pyiceberg": "iceberg", "sqlalchemy": "iceberg", "psycopg": "postgres",
    "rocksdict": "rocksdb", "lightkube": "kubernetes", "docker": "testing", "pytest": "testing",
    "testcontainers": "testing", "opentelemetry": "tracing", "openlineage": "lineage", "pandas": "spark",
    "pyspark": "spark", "grpc": "connect", "grpc_status": "connect", "zstandard": "connect",
}  # fmt: skip
"""Importable package to the smallest extra whose purpose it serves."""
_OF_DATA: Final = ("penstock.connectors.", "penstock.formats.", "penstock.kafka.")
"""What needs a package for data alone; who else misses a client of Kafka or of a store runs or asks a cluster."""


class MissingPackageError(UsageError):
    """A package is missing that an extra brings; no other attempt on this machine has it either."""

    terminal = True


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def missing_package(error: BaseException | None) -> MissingPackageError | None:
    """The error in words, if it or its cause is that a module of Penstock imported what an extra would have brought."""
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    if error is None or error.name is None:
        return None
    package, importer, frame = error.name.partition(".")[0], "", error.__traceback__
    while frame is not None:
        importer, frame = frame.tb_frame.f_globals.get("__name__", ""), frame.tb_next
    extra = EXTRAS.get(package)
    if extra is None or not importer.startswith("penstock"):
        return None
    if extra in ("kafka", "stores") and not importer.startswith(_OF_DATA):
        extra = "cluster"
    return MissingPackageError(f"{importer} needs {package}, which is not installed: {install(extra)}")


@contextmanager
def naming_extras() -> Generator[None]:
    """Raise a `MissingPackageError` for a package that an extra would have brought."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (missing := missing_package(error)) is not None:
            raise missing from error
        raise
