"""An OpenID Connect provider as a dispatcher knows it: what it says of itself, and the keys that it signs with.

Both are asked for at the start, after that at times in the background, and at once when a token names a key that is not
known, so that a change of keys is seen. Nobody waits who has a key that is: while the provider is away, those go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import msgspec
import structlog
from jwt import PyJWK, PyJWTError

from penstock.errors import ExternalError
from penstock.ports import Clock
from penstock.service.access import is_loopback
from penstock.service.credentials import WrongTokenError

ANSWER_S: Final = 5.0
"""How long the provider is waited for, its whole answer included."""
MOST_BYTES: Final = 1 << 18
"""Of an answer. Large providers have some ten keys, of two kilobytes each."""
RENEW_MS: Final = 600_000
"""So old keys are asked for again: one that was withdrawn is good no longer than that, if the provider answers."""
AGAIN_MS: Final = 10_000
"""Not more often than this, however many tokens name keys that nobody knows."""
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Those with a public key. `none` proves nothing, and with HS256 the public key would be the secret."""
_OF_RSA: Final = ALGORITHMS[:6]
DISCOVERY: Final = "/.well-known/openid-configuration"

_log = structlog.get_logger("penstock.dispatcher")


class Metadata(msgspec.Struct, frozen=True):
    """What a provider says of itself (OpenID Connect Discovery 1.0, section 3), as far as it is wanted here."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


Keys = dict[str, dict[str, PyJWK]]
"""By the key's id (`kid`) and the algorithm."""


def is_protected(url: str) -> bool:
    """Whether nobody on the way can read or change what is said there: https, or http that stays on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    )


class Provider:
    """One, by its issuer's URL. It is asked through `http`, which follows no redirections."""

    def __init__(self, issuer: str, http: httpx2.AsyncClient, clock: Clock) -> None:
        self.issuer: Final = issuer
        self._http = http
        self._clock = clock
        self._metadata: Metadata | None = None
        self._keys: Keys = {}
        self._problem = "it was not asked yet"
        self._asking: asyncio.Task[None] | None = None
        self._asked_ms: int | None = None

    def start(self) -> None:
        """Begin to ask, so that a mistake in the settings is in the log before anybody comes."""
        self._ask(AGAIN_MS)

    async def stop(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            with suppress(asyncio.CancelledError):
                await self._asking

    async def key(self, kid: str, algorithm: str) -> PyJWK:
        """The key of that id, for an algorithm that it is good for.

        Raises:
            WrongTokenError: the provider has no such key.
            ExternalError: it may have one, but does not answer.
        """
        if kid not in self._keys:
            await self._asked()
        self._ask(RENEW_MS)
        if kid in self._keys:
            return _for(algorithm, self._keys[kid])
        if self._problem:
            raise self._away()
        raise WrongTokenError(f"this one is signed with a key that {self.issuer} does not have (kid)")

    async def metadata(self) -> Metadata:
        """What it says of itself; raises `ExternalError` if it never said so yet."""
        if self._metadata is None:
            await self._asked()
        if self._metadata is None:
            raise self._away()
        return self._metadata

    async def post(self, url: str, form: Mapping[str, str]) -> tuple[int, bytes]:
        """Status and body of the answer to a form; raises `ExternalError` if there is none."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._send("POST", url, form)
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, _UnusableError) as error:
            raise ExternalError(f"the OpenID Connect provider {self.issuer}: {_told(error)}") from error

    def _away(self) -> ExternalError:
        return ExternalError(
            f"the OpenID Connect provider {self.issuer} cannot be asked now ({self._problem}); its tokens whose keys are "
            "known, and the cluster's own, are good all the same"
        )

    # -- asking ---------------------------------------------------------------------------------------------------------

    def _ask(self, after_ms: int) -> None:
        """Begin to ask, if nobody does and the last time was so long ago; sooner after it failed."""
        after_ms = AGAIN_MS if self._problem else after_ms
        now_ms = self._clock.monotonic_ms()
        if self._asking is None and (self._asked_ms is None or now_ms - self._asked_ms >= after_ms):
            self._asked_ms = now_ms
            self._asking = asyncio.create_task(self._read())

    async def _asked(self) -> None:
        """Wait for the answer, if one is to come; it comes to all who wait, whoever of them leaves."""
        self._ask(AGAIN_MS)
        if self._asking is not None:
            await asyncio.shield(self._asking)

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                metadata = _metadata(self.issuer, await self._get(self.issuer.rstrip("/") + DISCOVERY))
                self._keys = await asyncio.to_thread(_keys, await self._get(metadata.jwks_uri))
                self._metadata = metadata
            self._note("")
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, _UnusableError) as error:
            self._note(_told(error))
        finally:
            self._asking = None

    def _note(self, problem: str) -> None:
        if problem and problem != self._problem:
            _log.warning("OpenID Connect provider cannot be asked", issuer=self.issuer, error=problem)
        elif self._problem and not problem:
            _log.info("OpenID Connect provider answers", issuer=self.issuer, keys=len(self._keys))
        self._problem = problem

    async def _get(self, url: str) -> bytes:
        status, data = await self._send("GET", url)
        if status != 200:
            raise _UnusableError(f"{url} answers with HTTP {status}")
        return data

    async def _send(self, method: str, url: str, form: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """The answer as it travels, so that nothing is unpacked to more than was counted."""
        data = bytearray()
        async with self._http.stream(method, url, data=form, headers={"Accept-Encoding": "identity"}) as answer:
            async for piece in answer.aiter_raw():
                data += piece
                if len(data) > MOST_BYTES:
                    raise _UnusableError(f"{url} answers with more than {MOST_BYTES >> 10} KiB")
        return answer.status_code, bytes(data)


class _UnusableError(Exception):
    """An answer with which nothing can be done; the message says why."""


def _told(error: Exception) -> str:
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return f"no answer within {ANSWER_S:g} s"
    return str(error) or type(error).__name__


def _metadata(issuer: str, data: bytes) -> Metadata:
    """What a provider says of itself, if that can be: it names itself as the settings do, and all its places are safe."""
    try:
        found = msgspec.json.decode(data, type=Metadata)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _UnusableError(f"{DISCOVERY} holds no description of a provider: {error}") from error
    if found.issuer != issuer:
        raise _UnusableError(
            f"it calls itself {found.issuer[:200]!r}, and oidc.issuer of the settings is {issuer!r}: make them the same"
        )
    for name in ("jwks_uri", "authorization_endpoint", "token_endpoint"):
        url = getattr(found, name)
        if url and not is_protected(url):
            raise _UnusableError(f"its {name} is no https:// URL")
    return found


def _keys(data: bytes) -> Keys:
    """The keys of a JSON Web Key Set that can be used here; others, of newer kinds perhaps, are passed over."""
    try:
        told = msgspec.json.decode(data, type=_KeySet).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _UnusableError(f"its jwks_uri holds no set of keys: {error}") from error
    found: Keys = {}
    for key in told:
        kid = key.get("kid")
        if isinstance(kid, str) and kid and key.get("use", "sig") == "sig":
            found.setdefault(kid, {}).update(_usable(key))
    found = {kid: usable for kid, usable in found.items() if usable}
    if not found:
        raise _UnusableError(f"its jwks_uri has no key with a kid, for one of {', '.join(ALGORITHMS)}")
    return found


def _usable(key: dict[str, Any]) -> dict[str, PyJWK]:
    """A key by the algorithms that it is good for: the one that it names, or those of its kind."""
    names: tuple[str | None, ...] = _OF_RSA if key.get("kty") == "RSA" and "alg" not in key else (None,)
    made: list[PyJWK] = []
    for name in names:
        with suppress(PyJWTError, ValueError, TypeError, KeyError, AttributeError):  # of a key that is none
            made.append(PyJWK(key, name))
    return {one.algorithm_name: one for one in made if one.algorithm_name in ALGORITHMS}


def _for(algorithm: str, keys: Mapping[str, PyJWK]) -> PyJWK:
    if algorithm not in keys:
        raise WrongTokenError(f"this one is signed by {algorithm[:16]!r}, for which its key is not (alg)")
    return keys[algorithm]
