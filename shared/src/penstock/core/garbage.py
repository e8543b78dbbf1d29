"""How often a process that runs subtasks looks for garbage in cycles."""

from __future__ import annotations

import gc
from typing import Final

COLLECT_AFTER: Final = 50_000
"""Python looks for garbage in cycles whenever so many more objects came than went; by default 700. Every batch makes
thousands of rows, and every read of Kafka thousands of messages: with the default the search took a fifth of the CPU time
of a source, and of a process function on `rocksdb` with 10,000 keys. Of a leader with 1,000 jobs it took two fifths: the
more there is, the more is looked through."""


def ease_collection() -> None:
    """Let this process search for garbage in cycles less often, unless it does not or was told how often."""
    first, *others = gc.get_threshold()
    if 0 < first < COLLECT_AFTER:
        gc.set_threshold(COLLECT_AFTER, *others)
