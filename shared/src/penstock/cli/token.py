"""`penstock token`: makes a token for somebody, with a role. Nothing is kept: who configures it has the digest alone."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Final

from penstock.service.credentials import Identity, NamedToken, checked_name, digest_of, last_day, role_called

PREFIX: Final = "penstock_"
"""So that programs that look for secrets in what is published know one."""


@dataclass(frozen=True)
class Token:
    """`penstock token`."""

    name: str
    role: str
    expires: str | None
    json: bool


def token_command(command: Token) -> int:
    """Make one and print it, with the line that dispatchers need."""
    token = PREFIX + secrets.token_urlsafe(32)
    identity = Identity(checked_name(command.name, "NAME"), role_called(command.role, "--role"))
    expires = last_day(command.expires, "--expires") if command.expires else None
    line = NamedToken(identity, digest_of(token), expires).line()
    if command.json:
        print(json.dumps({"token": token, "line": line}, indent=2))
        return 0
    print(f"token  {token}")
    print(f"line   {line}")
    print(
        f"The token is shown this once; {identity.name} sets it as PENSTOCK_TOKEN, or token of the cluster's settings.\n"
        "The line is for the dispatchers, in the file that tokens_file (PENSTOCK_TOKENS_FILE) names, or in tokens "
        "(PENSTOCK_TOKENS), separated by commas; they read it when they start."
    )
    return 0
