"""The text of a job's sources, for people who look at it."""

from __future__ import annotations

import zipfile
from io import BytesIO
from typing import Final

from penstock.client.documents import JobSource
from penstock_dispatcher.refusing import RestError

SHOWN_BYTES: Final = 256 << 10
SHOWN_FILES: Final = 1_000


def source_of(job: str, target: str, data: bytes) -> JobSource:
    """The pipeline's file, or its beginning, and the names of all files.

    Raises:
        RestError: the zip cannot be read, or the file is not in it.
    """
    file = target.partition(":")[0]
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive, archive.open(file) as opened:
            beginning = opened.read(SHOWN_BYTES + 1)  # a bomb is not unpacked any further
            names = tuple(sorted(archive.namelist()))[:SHOWN_FILES]
    except KeyError as error:
        raise RestError(404, f"job {job}: {file!r} is not in its sources") from error
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, RuntimeError, EOFError) as error:
        raise RestError(404, f"job {job}: its sources are no zip that can be read: {error}") from error
    text = beginning[:SHOWN_BYTES].decode("utf-8", "replace")
    return JobSource(job, target, names, text, len(beginning) <= SHOWN_BYTES)
