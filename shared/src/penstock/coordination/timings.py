"""Times that more than one service must agree on."""

from __future__ import annotations

from typing import Final

HEARTBEAT_MS: Final = 500
"""Workers tell how they are so often."""
