"""How Flink answers: headers, ids of 32 hexadecimal digits, and what it says to an id that is none."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from penstock_dispatcher.describing import answers
from penstock_dispatcher.refusing import RestError

ANY_ORIGIN: Final = {"access-control-allow-origin": "*"}
_HEX: Final = frozenset("0123456789abcdef")


class Nothing(msgspec.Struct, frozen=True):
    """`{}`: the request is on its way."""


def sent(document: Any, status: int = 200) -> Response:
    """A document as an answer."""
    return Response(msgspec.json.encode(document), status, ANY_ORIGIN, "application/json; charset=UTF-8")


def text(content: str) -> Response:
    """A log file as an answer."""
    return Response(content, 200, ANY_ORIGIN, "text/plain; charset=UTF-8")


def path_id(name: str, given: str) -> str:
    """An id in a path, in lower case; raises `RestError` 400 with Flink's words."""
    found = given.lower()
    if len(found) != 32 or not set(found) <= _HEX:
        raise RestError(
            400,
            f'Bad request, could not parse parameters: Cannot resolve path parameter ({name}) from value "{given}". '
            "An id has 32 hexadecimal digits.",
        )
    return found


def hex_id(name: str) -> str:
    """The id that Flink's clients know something by that has a name of its own here: a vertex, a slot group. The same on
    every dispatcher, at every time."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def get(router: APIRouter, path: str, handler: Any, kind: type[msgspec.Struct] | None = None) -> None:
    """Add a route that looks at something; `kind` is the document that it answers with, where it is one."""
    add: Any = router.add_api_route
    add(path, handler, methods=["GET"], responses=answers(kind) if kind is not None else None)
