"""How an error gets from a task to the driver: as a marker in the exception's text, whatever Spark wraps around it."""

from __future__ import annotations

import base64
import re
import traceback
from typing import Final

import msgspec

from penstock import errors
from penstock.errors import PenstockError, UserCodeError
from penstock.observability.user_frames import user_frames

_MARKER: Final = re.compile(r"<penstock-failure:([A-Za-z0-9+/=]+)>")
_LONGEST: Final = 8_000
"""Characters of a message or of frames: what a gRPC status carries is limited."""


class Failure(msgspec.Struct, frozen=True):
    """An error as it travels."""

    kind: str
    message: str
    frames: str
    trace: str


class TaskFailedError(Exception):
    """What a task raises: its text holds the failure."""


def wrapped(error: BaseException, where: str) -> TaskFailedError:
    """The error to raise in a task of the vertex `where`."""
    kind = type(error).__name__
    message = str(error) if isinstance(error, PenstockError) else f"{where}: {kind}: {error}"
    frames = (
        error.frames if isinstance(error, UserCodeError) and error.frames else user_frames(error.__cause__ or error)
    )
    trace = "".join(traceback.format_exception(error))
    failure = Failure(kind, message[:_LONGEST], frames[-_LONGEST:], trace[-_LONGEST:])
    return TaskFailedError(f"<penstock-failure:{base64.b64encode(msgspec.json.encode(failure)).decode()}>")


def unwrapped(error: BaseException) -> PenstockError | None:
    """The error of a task in what Spark raised on the driver, as the task raised it; None if there is none."""
    found = _MARKER.search(str(error))
    if found is None:
        return None
    failure = msgspec.json.decode(base64.b64decode(found.group(1)), type=Failure)
    kind = getattr(errors, failure.kind, None)
    if isinstance(kind, type) and issubclass(kind, PenstockError) and kind is not UserCodeError:
        known: PenstockError = kind(failure.message)
        known.add_note(failure.trace)
        return known
    raised = UserCodeError(failure.message, failure.frames)
    raised.add_note(failure.trace)
    return raised
