"""Patterns of Java's SimpleDateFormat and DateTimeFormatter as formats of chrono, which Polars uses."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import PipelineError

_TOKENS: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']")
_FORMATS: Final[dict[str, str]] = {
    "yyyy": "%Y", "uuuu": "%Y", "yy": "%y", "uu": "%y", "MMMM": "%B", "MMM": "%b", "MM": "%m", "M": "%-m",
    "dd": "%d", "d": "%-d", "DDD": "%j", "HH": "%H", "H": "%-H", "hh": "%I", "h": "%-I", "mm": "%M", "m": "%-M",
    "ss": "%S", "s": "%-S", "SSS": "%3f", "SSSSSS": "%6f", "SSSSSSSSS": "%9f", "a": "%p", "EEEE": "%A", "E": "%a",
    "EE": "%a", "EEE": "%a", "u": "%u", "XXX": "%:z", "xxx": "%:z", "Z": "%z", "XX": "%z", "xx": "%z",
}  # fmt: skip
CLOCK: Final = frozenset("HhmsSa")
"""Letters of the time of day."""


def chrono_of(pattern: str, where: str) -> str:
    """The format of a pattern.

    Raises:
        PipelineError: it has a letter that has none; `where` leads the message.
    """
    parts: list[str] = []
    place = 0
    for found in _TOKENS.finditer(pattern):
        if found.start() != place:
            break
        place = found.end()
        token = found[0]
        if token.startswith("'"):
            parts.append((found[1].replace("''", "'") if len(token) > 2 else "'").replace("%", "%%"))
        elif found[2] is None:
            parts.append(token.replace("%", "%%"))
        elif token in _FORMATS:
            parts.append(_FORMATS[token])
        else:
            raise PipelineError(f"{where}: {token!r} in the pattern {pattern!r} is not supported; there are {_known()}")
    if place != len(pattern):
        raise PipelineError(f"{where}: the pattern {pattern!r} has a quotation mark that is not closed")
    return "".join(parts)


def _known() -> str:
    return ", ".join(_FORMATS)


def has_clock(pattern: str) -> bool:
    """Whether a pattern names parts of the time of day."""
    return any(found[2] in CLOCK for found in _TOKENS.finditer(pattern) if found[2])
