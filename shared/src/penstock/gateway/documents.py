"""Bodies of requests, as Flink's REST endpoint takes them."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from starlette.requests import Request

from penstock.gateway.refusing import RestError

MAX_BODY_BYTES: Final = 1 << 20
Document = TypeVar("Document", bound=msgspec.Struct)


class OpenSession(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """`POST /sessions`."""

    session_name: str | None = None
    properties: dict[str, str] | None = None


class ConfigureSession(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """`POST /sessions/{session_handle}/configure-session`."""

    statement: str
    execution_timeout: int | None = None


class ExecuteStatement(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """`POST /sessions/{session_handle}/statements`."""

    statement: str
    execution_timeout: int | None = None
    execution_config: dict[str, str] | None = None


class CompleteStatement(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """`GET /sessions/{session_handle}/complete-statement`."""

    statement: str
    position: int


async def body_of(request: Request, kind: type[Document]) -> Document:
    """The document of a request; no body at all counts as `{}`.

    Raises:
        RestError: it is too large (413), or not such a document (400).
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise RestError(413, f"the body is larger than {MAX_BODY_BYTES >> 20} MiB, the most that is taken here")
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RestError(400, f"Request did not match expected format {kind.__name__}RequestBody: {error}") from None
