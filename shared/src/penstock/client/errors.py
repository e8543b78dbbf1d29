"""What can go wrong between a client and a cluster."""

from __future__ import annotations

from penstock.errors import ExternalError, PenstockError


class NoAnswerError(ExternalError):
    """No dispatcher answers, or the cluster behind it does not; a retry may help."""


class NoLeaderError(NoAnswerError):
    """Dispatchers answer, and no coordinator leads the cluster: it has just started, or another one takes over."""


class BusyError(NoAnswerError):
    """Dispatchers are busy, and say when to ask again."""

    def __init__(self, message: str, again_s: float) -> None:
        """`again_s`: in how many seconds."""
        super().__init__(message)
        self.again_s = again_s


class RefusedError(PenstockError):
    """The cluster understood what was asked and says no."""

    domain = "user"

    def __init__(self, message: str, status: int) -> None:
        """`status` is the HTTP status."""
        super().__init__(message)
        self.status = status
