"""What a user is shown of an error: the part of a traceback that is their code, and a line that says what is wrong."""

from __future__ import annotations

import inspect
import os
import sysconfig
import traceback
from typing import Any

from penstock.errors import PenstockError, PipelineError, UserCodeError, described
from penstock.protocol.unsendable import cut

_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def is_users(filename: str) -> bool:
    """Whether a file is neither ours, nor Python's, nor installed, nor made by one of those while it runs."""
    return not (
        filename.startswith((_LIBRARY, _STANDARD_LIBRARY, "<frozen", "<string>")) or "site-packages" in filename
    )


def user_frames(error: BaseException) -> str:
    """The frames of the user's files, formatted as in a traceback; empty if there are none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    return "".join(traceback.format_list(frames))


def place_of(function: Any) -> str:
    """Where a function is written, such as `orders.py, line 12`; empty if that is unknown or not the user's file."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not is_users(code.co_filename):
        return ""
    return f"{os.path.relpath(code.co_filename)}, line {code.co_firstlineno}"


def shown_frames(error: BaseException) -> str:
    """The user's frames of an error that their code raised, here or in another process; empty for all others."""
    if isinstance(error, UserCodeError) and error.frames:
        return error.frames
    if isinstance(error, PenstockError) and not isinstance(error, UserCodeError):
        return ""  # the message says it all
    return user_frames(error.__cause__ or error)


def shown_text(error: BaseException) -> str:
    """What is wrong, in one line, with the place in the user's file where a verb was used wrongly."""
    text = str(error) if isinstance(error, PenstockError) else described(error)
    return f"{_place(error)}{text}"


def describe_error(error: BaseException) -> str:
    """One line: our own errors speak for themselves, others are named."""
    error = first_cause(error)
    return cut(str(error) if isinstance(error, PenstockError) else described(error))


def first_cause(error: BaseException) -> BaseException:
    """The first cause inside exception groups."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


def _place(error: BaseException) -> str:
    if not isinstance(error, PipelineError):
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    return f"{os.path.relpath(frames[-1].filename)}, line {frames[-1].lineno}: " if frames else ""
