"""Whether a job can be run as its submission says: the command line checks what people write, this what clients send."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.protocol.joblog import JobSettings
from penstock_dispatcher.refusing import RestError

MOST: Final = 1 << 53
"""Larger numbers are not the same to every reader of JSON."""
_LEAST: Final = {"interval_ms": 1, "timeout_ms": 1, "max_concurrent": 1, "multiplier": 1}
"""Of all other numbers it is 0."""


def check_settings(settings: JobSettings) -> None:
    """Raise `RestError` if a number is none with which checkpoints would complete and restarts happen."""
    for part in ("checkpoints", "restart"):
        for name, value in msgspec.structs.asdict(getattr(settings, part)).items():
            least = _LEAST.get(name, 0)
            if isinstance(value, int | float) and not least <= value <= MOST:
                raise RestError(
                    400, f"job.settings.{part}.{name}: {value} is none; give a number from {least} to {MOST}"
                )
