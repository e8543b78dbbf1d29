"""What names of topics and keys of objects may look like, the same for every adapter, so that all refuse the same."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import UsageError

MAX_TOPIC_LENGTH: Final = 249
"""Kafka's limit; below the 255 bytes of a file name."""
_TOPIC: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def checked_topic(topic: str) -> str:
    """`topic`, if it may name one: Kafka's alphabet (letters, digits, dot, dash, underscore), no leading dot.

    Raises:
        UsageError: it may not.
    """
    if len(topic) > MAX_TOPIC_LENGTH or not _TOPIC.fullmatch(topic):
        raise UsageError(
            f"topic {topic!r}: a name has 1 to {MAX_TOPIC_LENGTH} letters, digits, '.', '-' or '_' and does not "
            "begin with a dot; choose another name"
        )
    return topic


def checked_key(key: str) -> str:
    """`key`, if it may name an object: non-empty parts between single slashes, none of them `.` or `..`.

    Raises:
        UsageError: it may not.
    """
    if "\x00" in key or "\\" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise UsageError(
            f"object key {key!r}: keys are relative, with non-empty parts between '/' and no '.' or '..' parts"
        )
    return key
