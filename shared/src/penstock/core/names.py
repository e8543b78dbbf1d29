"""Names that users give: what is none, and how a text from elsewhere is shown so that it can pass for nothing else.

A name stands in folders, topics, logs and on terminals. Whoever writes to a cluster's topics may have given any text, so
what is shown or logged is made harmless there as well.
"""

from __future__ import annotations

from typing import Final

_SEPARATORS: Final = "/\\"
_KEPT: Final = "\n\t"
_LAST_OF_LATIN: Final = 0xFF
_LAST_OF_PLANE: Final = 0xFFFF


def wrong_name(text: str) -> str:
    """Why a text is no name; empty if it is one."""
    if not text:
        return "it is empty"
    if not text.strip("."):
        return "it has dots alone, which is a folder"
    wrong = next((each for each in text if each in _SEPARATORS or not each.isprintable()), None)
    return "" if wrong is None else f"it has {wrong!a}, which separates names or cannot be printed"


def shown(text: str, *, lines: bool = False) -> str:
    """A text as one line of what can be printed: all else, such as an escape sequence, stands there as `\\x1b`.

    With `lines` it keeps its line ends and tabs.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or (lines and each in _KEPT) else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if code <= _LAST_OF_LATIN:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= _LAST_OF_PLANE else f"\\U{code:08x}"


def is_pipeline_name(text: str) -> bool:
    """Whether a pipeline may be called so: by letters, digits, `-`, `_` and `.`, not dots alone."""
    return not wrong_name(text) and all(character.isalnum() or character in "-_." for character in text)
