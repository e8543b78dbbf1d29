"""Whether clients with these settings get through to a dispatcher: its certificate, their token."""

from __future__ import annotations

from penstock.client.client import client_of
from penstock.client.errors import NoAnswerError
from penstock.platform.doctor_checks import Checks, Finding
from penstock.settings import ClusterSettings

_NOBODY = "no dispatcher answers there"


async def check_rest(settings: ClusterSettings) -> list[Finding]:
    """The finding on REST. Where nothing listens there is none to find: the parts are checked before services start."""
    if settings.rest == ClusterSettings().rest:
        return []
    checks = Checks("rest")
    await checks.run("certificate, token", _whoami(settings), "")
    return checks.findings


async def _whoami(settings: ClusterSettings) -> str:
    try:
        async with client_of(settings) as client:
            who = await client.whoami()
    except NoAnswerError as error:
        if _NOBODY in str(error):
            return f"{_NOBODY} yet"
        raise
    return f"{who.name} has the role {who.role}"
