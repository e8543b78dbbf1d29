"""INT96 timestamps in the Parquet files of a table, which Spark, Hive and Impala wrote before it became an Iceberg table.

By default pyiceberg reads them as nanoseconds, which overflow before 1677 and after 2262: 9999 becomes 1816.
"""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def keep_far_moments() -> None:
    """Let pyiceberg read them as microseconds, in this process."""
    from pyiceberg.io import pyarrow as reading
    from pyiceberg.manifest import FileFormat

    made = reading._get_file_format  # pyright: ignore[reportPrivateUsage]

    def in_micros(file_format: FileFormat, **options: Any) -> Any:
        unit = {"coerce_int96_timestamp_unit": "us"} if file_format == FileFormat.PARQUET else {}
        return made(file_format, **unit, **options)

    reading._get_file_format = in_micros  # type: ignore[assignment]  # pyright: ignore[reportPrivateUsage]
