"""How errors are shown to users: the frames of their own code, and one line that says what is wrong."""

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
    """Whether a file is the user's: not Penstock's, the standard library's, an installed package's, or generated code."""
    return not (
        filename.startswith((_LIBRARY, _STANDARD_LIBRARY, "<frozen", "<string>")) or "site-packages" in filename
    )


def user_frames(error: BaseException) -> str:
    """The frames in the user's files, formatted as in a traceback; an empty string if there are none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    return "".join(traceback.format_list(frames))


def place_of(function: Any) -> str:
    """Where a function is defined, such as `orders.py, line 12`; empty if that is unknown or not in a user's file."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not is_users(code.co_filename):
        return ""
    return f"{os.path.relpath(code.co_filename)}, line {code.co_firstlineno}"


def shown_frames(error: BaseException) -> str:
    """The user's frames of an error that their code raised, here or in another process; empty for all others."""
    if isinstance(error, UserCodeError) and error.frames:
        return error.frames
    if isinstance(error, PenstockError) and not isinstance(error, UserCodeError):
        return ""  # the message of these errors is sufficient
    return user_frames(error.__cause__ or error)


def shown_text(error: BaseException) -> str:
    """What is wrong, in one line, with the place in the user's file where a verb was used wrongly."""
    text = str(error) if isinstance(error, PenstockError) else described(error)
    return f"{_place(error)}{text}"


def describe_error(error: BaseException) -> str:
    """An error in one line: the message of Penstock's own errors, and the type and message of all others."""
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
