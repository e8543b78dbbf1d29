"""What Penstock asks of the world: a log, a store of blobs, a small metadata service, a clock, a number of task managers.

Each port states its consistency and its errors; every implementation, the in-memory ones included, passes the same
contract suite (`tests/contract`). Adapters wrap foreign exceptions in `ExternalError` or `CorruptDataError`.
"""

from penstock.ports.blobs import BlobExistsError, BlobNotFoundError, Blobs
from penstock.ports.clock import Clock
from penstock.ports.log import (
    Log,
    LogRecord,
    NewRecord,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TopicMismatchError,
    TopicNotFoundError,
)
from penstock.ports.metadata import Metadata
from penstock.ports.scale import Scale, ScaleChangedError, TaskManagerScale

__all__ = [
    "BlobExistsError",
    "BlobNotFoundError",
    "Blobs",
    "Clock",
    "Log",
    "LogRecord",
    "Metadata",
    "NewRecord",
    "OffsetOutOfRangeError",
    "RecordTooLargeError",
    "Scale",
    "ScaleChangedError",
    "TaskManagerScale",
    "TopicMismatchError",
    "TopicNotFoundError",
]
