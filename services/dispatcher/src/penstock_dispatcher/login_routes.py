"""The routes of the dashboard's login, which are open to who has no token yet."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from penstock.client.documents import LoginCode, LoginOffer, LoginToken
from penstock.service.access import LOGIN, LOGIN_TOKEN
from penstock_dispatcher.bodies import read_body
from penstock_dispatcher.describing import answers, takes
from penstock_dispatcher.oidc.login import Login
from penstock_dispatcher.penstock_routes import sent
from penstock_dispatcher.refusing import RestError


class LoginRoutes:
    """The handlers."""

    def __init__(self, login: Login | None) -> None:
        self._login = login

    def router(self) -> APIRouter:
        """All routes."""
        router = APIRouter(tags=["penstock"])
        add: Any = router.add_api_route
        add(LOGIN, self.offer, methods=["GET"], responses=answers(LoginOffer))
        add(
            LOGIN_TOKEN, self.token, methods=["POST"], responses=answers(LoginToken), openapi_extra=takes(LoginCode)
        )  # fmt: skip
        return router

    async def offer(self) -> Response:
        """Where the dashboard's users log in, if they do."""
        return sent(LoginOffer() if self._login is None else await self._login.offer())

    async def token(self, request: Request) -> Response:
        """The token of a login, for the code that it came back with."""
        if self._login is None:
            raise RestError(404, "nobody logs in at this dispatcher: oidc.client_id is not set")
        answer = sent(LoginToken(await self._login.token(await read_body(request, LoginCode))))
        answer.headers["cache-control"] = "no-store"
        return answer
