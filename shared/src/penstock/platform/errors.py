"""What can go wrong with the local platform."""

from __future__ import annotations

from penstock.errors import ExternalError


class PlatformError(ExternalError):
    """A part of the local platform could not be fetched, started or stopped; the message has the way out."""

    retryable = False


class MissingPrerequisitesError(PlatformError):
    """Programs that the platform needs are not on this machine; the message lists all of them."""


class ServerStartError(PlatformError):
    """A server ended before it was ready, or was not ready in time; the message has the end of its log."""
