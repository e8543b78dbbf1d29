"""Patterns of LIKE and SIMILAR TO as regular expressions (Rust's)."""

from __future__ import annotations

import re

from penstock.errors import PipelineError

_SPECIAL = frozenset("\\.+*?()|[]{}^$#&-~")


def quoted(text: str) -> str:
    """The regular expression of just that text."""
    return "".join(f"\\{letter}" if letter in _SPECIAL else letter for letter in text)


def of_like(pattern: str, escape: str | None) -> str:
    """The regular expression of a pattern of LIKE.

    Raises:
        PipelineError: the escape is no character, or stands before one that needs none.
    """
    _check_escape("LIKE", escape)
    parts: list[str] = []
    letters = iter(pattern)
    for letter in letters:
        if escape is not None and letter == escape:
            following = next(letters, None)
            if following is None or following not in ("%", "_", escape):
                raise PipelineError(
                    f"LIKE {pattern!r} ESCAPE {escape!r}: behind {escape!r} comes %, _ or {escape!r} itself"
                )
            parts.append(quoted(following))
        else:
            parts.append({"%": ".*", "_": "."}.get(letter) or quoted(letter))
    return rf"(?s)\A{''.join(parts)}\z"


def of_similar(pattern: str, escape: str | None) -> str:
    """The regular expression of a pattern of SIMILAR TO.

    Raises:
        PipelineError: the escape is no character, or stands at the end.
    """
    _check_escape("SIMILAR TO", escape)
    parts: list[str] = []
    in_class = False
    letters = iter(re.sub(r"\[:(\w+):\]", lambda found: f"[:{found[1].lower()}:]", pattern))
    for letter in letters:
        if escape is not None and letter == escape:
            following = next(letters, None)
            if following is None:
                raise PipelineError(f"SIMILAR TO {pattern!r} ESCAPE {escape!r} ends with the escape")
            parts.append(quoted(following))
        elif letter in "[]":
            in_class = letter == "["
            parts.append(letter)
        elif in_class or letter in "|*+?{}()":
            parts.append("\\\\" if letter == "\\" else letter)
        else:
            parts.append({"%": ".*", "_": "."}.get(letter) or quoted(letter))
    return rf"(?s)\A(?:{''.join(parts)})\z"


def _check_escape(name: str, escape: str | None) -> None:
    if escape is not None and len(escape) != 1:
        raise PipelineError(f"{name} ... ESCAPE needs one character, got {escape!r}")
