"""The part of a traceback that is the user's own code: what an error in a function of theirs needs to show."""

from __future__ import annotations

import os
import sysconfig
import traceback

_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def is_users(filename: str) -> bool:
    """Whether a file is neither ours, nor Python's, nor installed."""
    return not (filename.startswith((_LIBRARY, _STANDARD_LIBRARY, "<frozen")) or "site-packages" in filename)


def user_frames(error: BaseException) -> str:
    """The frames of the user's files, formatted as in a traceback; empty if there are none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    return "".join(traceback.format_list(frames))
