"""The dashboard's login: the authorization code flow with PKCE (RFC 7636), of a public client.

The page sends the browser to the provider and checks the state that comes back. The code is exchanged here, because the
page talks to its own address only; what it gets is a token that is good here, or an error that says why it is not.
"""

from __future__ import annotations

import hmac
import re
from typing import Final

import msgspec

from penstock.client.documents import LoginCode, LoginOffer
from penstock.errors import ExternalError
from penstock.service.access import NotAdmittedError
from penstock.service.credentials import WrongTokenError
from penstock.settings import OidcSettings
from penstock_dispatcher.oidc.provider import Metadata, Provider
from penstock_dispatcher.oidc.tokens import ProviderTokens
from penstock_dispatcher.refusing import RestError

_ERROR: Final = re.compile(r"[a-z_]{1,40}")


class _Answer(msgspec.Struct, frozen=True):
    access_token: str = ""
    id_token: str = ""
    error: str = ""


class Login:
    """By one provider, for one client."""

    def __init__(self, settings: OidcSettings, provider: Provider, tokens: ProviderTokens) -> None:
        self._settings = settings
        self._provider = provider
        self._tokens = tokens

    async def offer(self) -> LoginOffer:
        """Where to log in; raises `ExternalError` if the provider has never said so."""
        metadata = await self._metadata()
        return LoginOffer(
            issuer=metadata.issuer, authorization_endpoint=metadata.authorization_endpoint,
            client_id=self._settings.client_id, scopes=self._settings.scopes,
        )  # fmt: skip

    async def token(self, given: LoginCode) -> str:
        """A token that is good here, for the code of a login.

        Raises:
            RestError: the provider does not take the code, or its tokens are not good here.
            ExternalError: the provider does not answer.
        """
        answer = await self._exchanged(given)
        try:
            claims = await self._tokens.claims(answer.id_token, self._settings.client_id)
            nonce = claims.get("nonce")
            if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), given.nonce.encode()):
                raise RestError(400, "the login's ID token is of another login (nonce); log in again")
            token = answer.access_token if self._settings.login_token == "access_token" else answer.id_token
            await self._tokens.identify(token)
        except WrongTokenError as error:
            raise RestError(400, f"the login gave a token that is not good here: {error}") from error
        except NotAdmittedError as error:
            raise RestError(error.status, error.reason) from error
        return token

    async def _metadata(self) -> Metadata:
        """Of a provider that has this login; raises `ExternalError`."""
        metadata = await self._provider.metadata()
        if not metadata.authorization_endpoint or not metadata.token_endpoint:
            raise ExternalError(f"the OpenID Connect provider {metadata.issuer} has no login by authorization code")
        return metadata

    async def _exchanged(self, given: LoginCode) -> _Answer:
        form = {
            "grant_type": "authorization_code", "code": given.code, "redirect_uri": given.redirect_uri,
            "client_id": self._settings.client_id, "code_verifier": given.code_verifier,
        }  # fmt: skip
        status, data = await self._provider.post((await self._metadata()).token_endpoint, form)
        try:
            answer = msgspec.json.decode(data, type=_Answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ExternalError(f"the provider's token_endpoint answers with HTTP {status}, and no tokens") from error
        if status != 200 or not answer.id_token:
            why = answer.error if _ERROR.fullmatch(answer.error) else f"HTTP {status}, no ID token"
            raise RestError(400, f"the provider does not take this login ({why}); log in again")
        return answer
