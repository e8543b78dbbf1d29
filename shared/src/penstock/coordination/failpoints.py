"""Named steps of the protocol at which a test can make a process stop existing, or stand still.

Nothing happens unless `PENSTOCK_FAILPOINTS` names a folder. A file there with the name of a step is an order: the first
process that reaches the step takes it (by renaming it to `<step>.hit`) and sends itself the signal that stands in it.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

VARIABLE: Final = "PENSTOCK_FAILPOINTS"

BEFORE_COMPLETE: Final = "before-complete"
"""All acks are in and the manifest is stored; COMPLETE is not in the job log."""
AFTER_COMPLETE: Final = "after-complete"
"""COMPLETE is in the job log; nobody was told."""
BEFORE_INIT: Final = "before-init-producer"
"""A publisher knows of COMPLETE; its producer is not made."""
AFTER_INIT: Final = "after-init-producer"
"""Older producers are fenced; nothing is published."""
BEFORE_COMMIT: Final = "before-commit"
"""The rows of a chunk are about to be sent and committed."""
AFTER_COMMIT: Final = "after-commit"
"""They are committed; the publisher has noted nothing yet."""

_folder: Final = os.environ.get(VARIABLE, "")


def reached(step: str) -> None:
    """This process is at the step."""
    if not _folder:
        return
    order = Path(_folder) / step
    try:
        number = signal.Signals[order.read_text().strip()]
        order.rename(order.with_suffix(".hit"))
    except FileNotFoundError:  # no order, or another process was first
        return
    os.kill(os.getpid(), number)
