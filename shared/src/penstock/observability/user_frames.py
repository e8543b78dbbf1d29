"""How errors are shown to users: the frames of their own code, and one line that says what is wrong."""

from __future__ import annotations

import inspect
import os
import sysconfig
import traceback
from typing import Any

from penstock.core.interactive import shell
from penstock.errors import PenstockError, PipelineError, UserCodeError, described
from penstock.protocol.unsendable import cut

_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
SHOWN_BY_IPYTHON = "_render_traceback_"
"""The method that IPython asks an error for its lines; the errors themselves know nothing of frames."""
_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def is_users(filename: str) -> bool:
    """Whether a file is the user's: not Penstock's, the standard library's, an installed package's, or generated code."""
    return not (
        filename.startswith((_LIBRARY, _STANDARD_LIBRARY, "<frozen", "<string>")) or "site-packages" in filename
    )


def user_frames(error: BaseException) -> str:
    """The frames in the user's files, formatted as in a traceback; an empty string if there are none."""
    return "".join(traceback.format_list(_frames(error)))


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]


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
    frames = _frames(error)
    return f"{os.path.relpath(frames[-1].filename)}, line {frames[-1].lineno}: " if frames else ""


def cell_lines(error: PenstockError) -> list[str]:
    """The lines by which a notebook shows an error: the cell, where the user's code failed, and the message.

    Of a defect of Penstock all frames, which a report of it needs.
    """
    if error.domain == "internal" and type(error) is not UserCodeError:
        return [line.rstrip("\n") for line in traceback.format_exception(error)]
    frames = _cell_frames(error)
    if isinstance(error, UserCodeError):
        frames += _cell_frames(error.__cause__) or error.frames.splitlines()
    return [*frames, f"{type(error).__name__}: {error}"]


def _cell_frames(error: BaseException | None) -> list[str]:
    return [] if error is None else [line for frame in _frames(error) for line in _cell_frame(frame)]


def _cell_frame(frame: traceback.FrameSummary) -> list[str]:
    code_name = getattr(getattr(shell(), "compile", None), "format_code_name", lambda _: None)
    found = code_name(frame.filename)  # of a cell "Cell" and "In[3]"; of a file None
    where = " ".join(found) if found else frame.filename
    inside = "" if frame.name == "<module>" else f", in {frame.name}"
    return [f"{where}, line {frame.lineno}{inside}", *([f"    {frame.line}"] if frame.line else [])]


setattr(PenstockError, SHOWN_BY_IPYTHON, cell_lines)
