"""The dashboard: files of this package, read once, served at `/` and below `/ui/`; they ask REST for the rest.

Beside it the documentation below `/documentation/`: where it was built into the package, as it is in the images, or where
`make docs` has built it in the clone that the dispatcher runs from. It is read when it is first asked for.

The files hold nothing of the cluster, so they need no token (see `penstock.service.access`); the page asks for one when
the interface does. What the browser may do with them is said in headers: nothing comes from, or goes to, another site.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.service.access import DOCUMENTATION, PAGE, PAGE_FILES
from penstock_dispatcher.conditional import tag_of

KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-cache",  # asked for again each time, answered with 304: a new version is seen at once
}
INDEX: Final = "index.html"
PACKAGE: Final = files("penstock_dispatcher")
NO_DOCUMENT: Final = "there is no such page of the documentation; it begins at /documentation/"
NO_DOCUMENTATION: Final = (
    "this dispatcher was installed without the documentation, which images have; in a clone `make docs` builds it in a "
    "few seconds, without network, and then it is here"
)


@dataclass(frozen=True)
class _File:
    data: bytes
    kind: str
    etag: str


def page_routes(documentation: Traversable | None = None) -> list[Route]:
    """The page and its files, and the documentation; `documentation`: its folder, if it is another one."""
    dashboard = _known(PACKAGE / "dashboard")
    documents: dict[str, _File] = {}
    folder = _documentation() if documentation is None else documentation

    async def page(request: Request) -> Response:
        return _answer(request, dashboard[INDEX])

    async def file(request: Request) -> Response:
        found = dashboard.get(request.path_params["path"])
        return _answer(request, found) if found else _missing("there is no such file of the dashboard")

    async def document(request: Request) -> Response:
        if not documents and folder.is_dir():
            documents.update(_known(folder))
        found = documents.get(request.path_params["path"] or INDEX)
        return _answer(request, found) if found else _missing(NO_DOCUMENT if documents else NO_DOCUMENTATION)

    return [
        Route(PAGE, page, methods=["GET"], include_in_schema=False),
        Route(PAGE_FILES + "{path:path}", file, methods=["GET"], include_in_schema=False),
        Route(DOCUMENTATION + "{path:path}", document, methods=["GET"], include_in_schema=False),
    ]


def _documentation() -> Traversable:
    """Where the documentation is, or would be."""
    clone = next(iter(Path(__file__).parents[4:5]), Path())
    is_in_package = (PACKAGE / "documentation").is_dir() or not (clone / "zensical.toml").is_file()
    return PACKAGE / "documentation" if is_in_package else clone / "build" / "site"


def _missing(text: str) -> Response:
    return Response(text + "\n", 404, HEADERS, "text/plain; charset=utf-8")


def _known(folder: Traversable) -> dict[str, _File]:
    return {path: _file(entry) for path, entry in _walk(folder)}


def _answer(request: Request, file: _File) -> Response:
    headers = {**HEADERS, "etag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.data, 200, headers, file.kind)


def _walk(folder: Traversable, below: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{below}{entry.name}/")
        elif _ending(entry.name) in KINDS:
            yield below + entry.name, entry


def _file(entry: Traversable) -> _File:
    data = entry.read_bytes()
    return _File(data, KINDS[_ending(entry.name)], tag_of(data))


def _ending(name: str) -> str:
    return name[name.rfind(".") :]
