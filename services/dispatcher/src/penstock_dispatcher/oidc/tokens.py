"""What a JSON Web Token of the provider says: whether it is good, whose it is, and which role they have.

Signature, issuer, audience and times are PyJWT's to check. No message and no line of the log repeats what a claim holds,
but the name of who asks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import jwt

from penstock.errors import ExternalError, UsageError
from penstock.ports import Clock
from penstock.service.access import NotAdmittedError, is_loopback
from penstock.service.credentials import Identity, Role, WrongTokenError
from penstock.settings import OidcSettings
from penstock_dispatcher.oidc.provider import ALGORITHMS, ANSWER_S, Provider, is_protected

LEEWAY_S: Final = 30
"""By how much the provider's clock and this one's may differ."""
OF_PROVIDER: Final = "oidc:"
"""What names of the provider's begin with in the audit log: no token of the cluster's own can be called so."""
_MOST_CHARACTERS: Final = 128
_NO_TEXTS: Final = "is neither a text nor a list of texts"


class ProviderTokens:
    """Tokens of a provider (`penstock.service.access.Issuer`)."""

    def __init__(self, settings: OidcSettings, provider: Provider) -> None:
        self._settings = settings
        self._provider = provider
        self._roles = roles_of(settings)

    async def identify(self, token: str) -> Identity:
        """Who has this token, by the claims that the settings name; raises as `Issuer` says."""
        try:
            claims = await self.claims(token, self._settings.audience)
        except ExternalError as error:
            raise NotAdmittedError(503, str(error)) from error
        name = self._name(claims)
        try:
            return Identity(name, self._role(claims))
        except _NoRoleError as error:
            reason = f"the token of {name} gives no role here: its claim {self._settings.roles_claim} {error}"
            raise NotAdmittedError(403, reason, Identity(name, None)) from None

    async def claims(self, token: str, audience: str) -> dict[str, Any]:
        """What a token for this audience says, if it is the provider's, and good now.

        Raises:
            WrongTokenError: it is not.
            ExternalError: it is not known whether it is, because the provider does not answer.
        """
        try:
            header = jwt.get_unverified_header(token)
            algorithm, kid = header.get("alg"), header.get("kid")
            if algorithm not in ALGORITHMS:
                raise jwt.InvalidAlgorithmError
            if not kid:
                raise WrongTokenError("this one does not say which key it is signed with (kid)")
            return jwt.decode(
                token, await self._provider.key(kid, algorithm), ALGORITHMS, audience=audience,
                issuer=self._provider.issuer, leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True},
            )  # fmt: skip
        except (jwt.PyJWTError, ValueError, TypeError, ArithmeticError, RecursionError) as error:  # of odd JSON, too
            raise WrongTokenError(self._told(error, audience)) from error

    def _told(self, error: Exception, audience: str) -> str:
        said: dict[type[Exception], str] = {
            jwt.ExpiredSignatureError: "this one has expired: get another one from the provider, or log in again",
            jwt.ImmatureSignatureError: "this one is not good yet: compare the provider's clock with this one's",
            jwt.InvalidIssuerError: f"this one is not of {self._provider.issuer} (iss)",
            jwt.InvalidAudienceError: f"this one is not for {audience} (aud)",
            jwt.InvalidAlgorithmError: f"this one is not signed by one of {', '.join(ALGORITHMS)} (alg)",
            jwt.InvalidSignatureError: "this one's signature is wrong",
        }
        return said.get(type(error), "this one is no good JSON Web Token") + (
            f": its claim {error.claim} is missing" if isinstance(error, jwt.MissingRequiredClaimError) else ""
        )

    def _name(self, claims: Mapping[str, Any]) -> str:
        for claim in (self._settings.name_claim, "sub"):
            name = claims.get(claim)
            if isinstance(name, str) and name:
                return OF_PROVIDER + "".join(c if c.isprintable() else "?" for c in name[:_MOST_CHARACTERS])
        raise WrongTokenError(f"this one does not say whose it is ({self._settings.name_claim}, sub)")

    def _role(self, claims: Mapping[str, Any]) -> Role:
        given = _values(_found(claims, self._settings.roles_claim))
        roles = [role for value, role in self._roles.items() if value in given]
        if not roles:
            raise _NoRoleError("has none of the values that oidc.view, oidc.operate and oidc.submit name")
        return max(roles)


class _NoRoleError(Exception):
    """Why the claim of roles gives none."""


def _found(claims: Mapping[str, Any], path: str) -> Any:
    """The claim of that name, dots and all, as some providers' have; else what is there step by step."""
    if path in claims:
        return claims[path]
    inner: Any = claims
    for part in path.split("."):
        if not isinstance(inner, dict) or part not in inner:
            raise _NoRoleError("is not there")
        inner = inner[part]
    return inner


def _values(claim: Any) -> frozenset[str]:
    """The texts of a list; one text is several between spaces, as in `scope`."""
    if isinstance(claim, str):
        return frozenset(claim.split())
    if not isinstance(claim, list) or not all(isinstance(value, str) for value in claim):
        raise _NoRoleError(_NO_TEXTS)
    return frozenset(claim)


def roles_of(settings: OidcSettings) -> dict[str, Role]:
    """The role of each value of the claim; of one that stands for several, the highest."""
    texts = {Role.VIEW: settings.view, Role.OPERATE: settings.operate, Role.SUBMIT: settings.submit}
    return {value.strip(): role for role, text in texts.items() for value in text.split(",") if value.strip()}


def check_settings(settings: OidcSettings) -> None:
    """Raise `UsageError` for settings of a provider that nobody could prove anything with."""
    if not settings.issuer:
        if settings != OidcSettings():
            raise UsageError("oidc: the table says nothing without a provider; set oidc.issuer")
        return
    if not is_protected(settings.issuer):
        raise UsageError("oidc.issuer: write the provider's https:// URL (http:// is for loopback alone)")
    if urlsplit(settings.issuer).query or urlsplit(settings.issuer).fragment:
        raise UsageError("oidc.issuer: the URL of a provider has no query and no fragment")
    if not settings.audience:
        raise UsageError(
            "oidc.audience: say whom tokens are for; without, tokens for any other application would be good"
        )
    if settings.client_id and "openid" not in settings.scopes.split():
        raise UsageError("oidc.scopes: a login has to ask for openid")
    if not roles_of(settings):
        raise UsageError("oidc: nobody would have a role; set oidc.view, oidc.operate or oidc.submit")


@asynccontextmanager
async def provider_of(settings: OidcSettings, clock: Clock) -> AsyncGenerator[Provider | None]:
    """The provider that the settings name; None if they name none. It need not answer yet.

    Raises:
        UsageError: the settings are not complete, or not safe.
    """
    check_settings(settings)
    if not settings.issuer:
        yield None
        return
    proxied = not is_loopback(urlsplit(settings.issuer).hostname or "")  # HTTPS_PROXY: providers are often far away
    async with httpx2.AsyncClient(verify=settings.trust(), trust_env=proxied, timeout=ANSWER_S) as http:
        provider = Provider(settings.issuer, http, clock)
        provider.start()
        try:
            yield provider
        finally:
            await provider.stop()
