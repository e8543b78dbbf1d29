"""What the checks of a cluster's parts have in common: how one is run, and what it finds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

from penstock.errors import PenstockError

DEADLINE_S: Final = 30.0
"""How long one check may take."""
LARGEST_SKEW_S: Final = 30.0
"""How far a server's clock may be from ours before people read wrong times; S3 refuses requests from 15 minutes."""


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    part: str
    check: str
    ok: bool
    detail: str
    """What was seen; for a failure the reason."""
    advice: str = ""
    """For a failure: what to do."""


class Checks:
    """Runs the checks of one part, one after the other, and keeps what they find."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.findings: list[Finding] = []

    async def run(self, check: str, work: Awaitable[str], advice: str) -> bool:
        """One check: `work` returns what it saw or raises what is wrong; whether it passed."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                seen = await work
        except Exception as error:  # supervisor of the checks: whatever a client library raises is the finding
            own = isinstance(error, PenstockError)  # its message says what to do by itself
            self.findings.append(
                Finding(self.part, check, ok=False, detail=_reason(error), advice="" if own else advice)
            )
            return False
        self.findings.append(Finding(self.part, check, ok=True, detail=seen))
        return True


class CheckFailedError(Exception):
    """A check saw something else than it must see; the message says what."""


def skew_finding(server_s: float, before_s: float, after_s: float) -> str:
    """What a server's clock shows against ours, read before and after it was asked; all in seconds since the epoch.

    Raises:
        CheckFailedError: it is off by more than `LARGEST_SKEW_S`.
    """
    skew = server_s - after_s if server_s > after_s else before_s - server_s if server_s < before_s else 0.0
    if skew > LARGEST_SKEW_S:
        raise CheckFailedError(f"its clock is {skew:.0f} s {'ahead of' if server_s > after_s else 'behind'} ours")
    return f"within {max(skew, 1.0):.0f} s of ours"


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {DEADLINE_S:.0f} s"
    return (f"{error}" or type(error).__name__).splitlines()[0]
