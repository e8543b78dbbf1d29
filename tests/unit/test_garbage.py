"""Searching for garbage in cycles less often."""

from __future__ import annotations

import gc

from penstock.core.garbage import COLLECT_AFTER, ease_collection


def test_collection_is_eased_once_and_never_switched_on() -> None:
    """Who has switched the collector off, or eased it more, is left alone."""
    before = gc.get_threshold()
    try:
        for first, expected in ((700, COLLECT_AFTER), (0, 0), (COLLECT_AFTER + 1, COLLECT_AFTER + 1)):
            gc.set_threshold(first, 10, 10)
            ease_collection()
            assert gc.get_threshold() == (expected, 10, 10)
    finally:
        gc.set_threshold(*before)
