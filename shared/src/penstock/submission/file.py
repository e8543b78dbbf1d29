"""Submission files: a job that is ready, to be submitted later and from elsewhere; the dashboard takes them.

A zip of two entries, not compressed, so that a page reads it in a few lines: `job.json`, the document of a submission
(`penstock.client.documents.Submission`), and `sources.zip`, the code. Parameters stand in it as they were given.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import UsageError
from penstock.submission.application import Prepared
from penstock.submission.remote import submission_of

DOCUMENT: Final = "job.json"
SOURCES: Final = "sources.zip"
_ENTRY_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""The first that a zip knows: what was not changed makes the same file."""


def write_submission(path: Path, prepared: Prepared) -> None:
    """Write the file, in the place of an earlier one; only its owner may read it, for parameters may be secrets.

    Raises:
        UsageError: it cannot be written there.
    """
    document = msgspec.json.encode(msgspec.structs.replace(submission_of(prepared.request), job=""))
    try:
        path.unlink(missing_ok=True)
        path.touch(0o600)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, data in ((DOCUMENT, document), (SOURCES, prepared.sources)):
                archive.writestr(zipfile.ZipInfo(name, _ENTRY_TIME), data)
    except OSError as error:
        raise UsageError(f"--write {path}: cannot be written: {error.strerror}") from error
