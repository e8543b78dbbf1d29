"""Who asks, and what they may do: named tokens, each with a role. Only their digests are known here.

A token is 32 random bytes (`penstock token`), so a plain SHA-256 keeps it: there is nothing to guess that a slow function
would protect. One that people chose themselves would be, so there is no way to enter one but `token` of the settings,
which is the cluster's own, is shared by its services, and may do everything.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import IntEnum
from pathlib import Path
from typing import Final

from penstock.errors import UsageError, nearest
from penstock.settings import ClusterSettings, Secret


class Role(IntEnum):
    """What somebody may do; each includes those before."""

    VIEW = 1
    """See everything that the interface shows: rows that jobs collect, logs and pipelines' sources among it."""
    OPERATE = 2
    """Change what is there: cancel, stop, savepoints, rescaling, pausing and removing schedules."""
    SUBMIT = 3
    """Add jobs, runs and schedules: run any code, with whatever the cluster itself has access to."""

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Identity:
    """Who asks."""

    name: str
    role: Role | None
    """None: who has proved nothing, and sees what is open to all."""


PASSER_BY: Final = Identity("anonymous", None)
ANYBODY: Final = Identity("anonymous", Role.SUBMIT)
"""Whoever reaches a service that wants no token."""
SHARED: Final = Identity("shared", Role.SUBMIT)
"""Whoever has `token` of the settings: the cluster's services themselves among them."""

_HASH: Final = "sha256:"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_FORM: Final = "NAME ROLE sha256:DIGEST, and perhaps the last day it is good for, as penstock token prints it"


class WrongTokenError(Exception):
    """Nobody has this token, or nobody any longer; the message says which, and what to do."""


@dataclass(frozen=True)
class NamedToken:
    """A token as a service knows it."""

    identity: Identity
    digest: str
    expires: date | None = None
    """Its last day, in UTC."""

    def line(self) -> str:
        """How it stands in the settings."""
        last = f" {self.expires.isoformat()}" if self.expires is not None else ""
        return f"{self.identity.name} {self.identity.role} {_HASH}{self.digest}{last}"


@dataclass(frozen=True)
class Credentials:
    """The tokens that are good."""

    tokens: tuple[NamedToken, ...] = ()
    now_s: Callable[[], float] = time.time

    def __bool__(self) -> bool:
        return bool(self.tokens)

    def identify(self, given: str) -> Identity:
        """Who has this token; all are compared, each in the same time whatever is given.

        Raises:
            WrongTokenError: nobody, or it has expired.
        """
        digest = digest_of(given)
        found = [token for token in self.tokens if hmac.compare_digest(token.digest, digest)]
        if not found:
            raise WrongTokenError("this token is none of the cluster's")
        today = datetime.fromtimestamp(self.now_s(), UTC).date()
        for token in found:
            if token.expires is None or today <= token.expires:
                return token.identity
        raise WrongTokenError(
            f"the token of {found[0].identity.name} expired at the end of {found[0].expires} (UTC); "
            "ask for another: penstock token"
        )


def digest_of(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def shared_token(token: Secret) -> NamedToken:
    """The one of the settings, as all others."""
    return NamedToken(SHARED, digest_of(token.reveal()))


def inner_credentials_of(settings: ClusterSettings) -> Credentials:
    """What a service takes that only other services ask, and those who have the cluster's own token."""
    if not settings.token:
        return Credentials()
    inner = NamedToken(Identity("services", Role.VIEW), digest_of(token_between_services(settings.token).reveal()))
    return Credentials((shared_token(settings.token), inner))


def token_between_services(token: Secret) -> Secret:
    """What a dispatcher shows to task managers for their logs: made from the cluster's token, and good for nothing else,
    because it travels without TLS to an address that a worker named."""
    proof = hmac.new(token.reveal().encode(), b"penstock: logs of task managers", hashlib.sha256)
    return Secret(proof.hexdigest()) if token else token


def credentials_of(settings: ClusterSettings) -> Credentials:
    """The tokens that the settings name.

    Raises:
        UsageError: `tokens` or the file `tokens_file` is not readable; says where, and never what stands there.
    """
    shared = (shared_token(settings.token),) if settings.token else ()
    named = read_tokens(settings.tokens.reveal(), "tokens")
    return Credentials((*shared, *named, *_tokens_in(settings.tokens_file)))


def _tokens_in(path: str) -> list[NamedToken]:
    if not path:
        return []
    try:
        return read_tokens(Path(path).read_text(), f"tokens_file: {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"tokens_file: {path} cannot be read: {error}") from error


def read_tokens(text: str, where: str) -> list[NamedToken]:
    """The tokens of a text with one in a line, or separated by commas; what follows a # is a comment.

    Raises:
        UsageError: an entry is none; it is not repeated, since it may be a token by mistake.
    """
    return [
        _read_token(entry.split(), f"{where}, line {number}")
        for number, line in enumerate(text.splitlines(), 1)
        for entry in line.partition("#")[0].split(",")
        if entry.strip()
    ]


def _read_token(parts: Sequence[str], where: str) -> NamedToken:
    if len(parts) not in (3, 4):
        raise UsageError(f"{where}: an entry is {_FORM}")
    digest = parts[2].lower().removeprefix(_HASH)
    if not _DIGEST.fullmatch(digest):
        raise UsageError(f"{where}: the third part is no sha256:DIGEST; an entry is {_FORM}")
    return NamedToken(
        Identity(checked_name(parts[0], where), role_called(parts[1], where)), digest,
        last_day(parts[3], where) if len(parts) == 4 else None,
    )  # fmt: skip


def checked_name(name: str, where: str) -> str:
    """A name that a token may have; raises `UsageError`."""
    if not _NAME.fullmatch(name) or name in (SHARED.name, ANYBODY.name):
        raise UsageError(
            f"{where}: a token is named by up to 64 letters, digits, dots, dashes, underscores and @, and not "
            f"{SHARED.name} or {ANYBODY.name}, which say something else in the audit log"
        )
    return name


def role_called(name: str, where: str) -> Role:
    """The role of that name; raises `UsageError`."""
    roles = {str(role): role for role in Role}
    if name not in roles:
        raise UsageError(f"{where}: there is no such role; {nearest(name if len(name) < 20 else '', roles)}")
    return roles[name]


def last_day(text: str, where: str) -> date:
    """A day as 2026-12-31; raises `UsageError`."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{where}: the last day of a token is written as 2026-12-31") from error
