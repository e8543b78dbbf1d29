"""Bodies of requests: read with a limit on their size, decoded into typed documents."""

from __future__ import annotations

import asyncio
import zipfile
from io import BytesIO
from typing import Final, TypeVar

import msgspec
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.client.documents import MAX_DOCUMENT_BYTES, MAX_SOURCES_BYTES
from penstock.coordination.artifacts import problem_of
from penstock_dispatcher.refusing import RestError, problem

MAX_BODY_BYTES: Final = 1 << 20
MAX_SUBMISSION_BYTES: Final = MAX_SOURCES_BYTES + MAX_DOCUMENT_BYTES + (64 << 10)
"""Both parts, and what surrounds them."""
MAX_SUBMITTING: Final = 8
"""Submissions that are read at a time: each of them is kept whole."""
SUBMISSIONS: Final = ("/penstock/v1/jobs", "/penstock/v1/runs", "/penstock/v1/schedules")

T = TypeVar("T")


class BodyLimit:
    """Refuses bodies that are too large, whether they say so or not, without keeping them; and more submissions at a time
    than there is room for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._submitting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        submits = scope["method"] == "POST" and scope["path"] in SUBMISSIONS
        if submits and self._submitting >= MAX_SUBMITTING:
            busy = problem(503, [f"{MAX_SUBMITTING} submissions are being read already; send it again in a moment"])
            busy.headers["retry-after"] = "1"
            await busy(scope, receive, send)
            return
        self._submitting += submits
        try:
            await self._limited(scope, receive, send, submits)
        finally:
            self._submitting -= submits

    async def _limited(self, scope: Scope, receive: Receive, send: Send, submits: bool) -> None:
        limit = MAX_SUBMISSION_BYTES if submits else MAX_BODY_BYTES
        said = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if said.isdigit() and int(said) > limit:
            await problem(413, [_too_large(limit)])(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > limit:
                    raise RestError(413, _too_large(limit))
            return message

        await self._app(scope, counted, send)


def _too_large(limit: int) -> str:
    return f"the body is larger than {limit >> 20} MiB, the most that is taken here"


async def read_body(request: Request, kind: type[T]) -> T:
    """The JSON document of a request, whatever its content type; nothing at all counts as `{}`.

    Raises:
        RestError: it is none.
    """
    return decoded(await request.body() or b"{}", kind, "the body")


def decoded(data: bytes, kind: type[T], where: str) -> T:
    """A document; raises `RestError` saying what is wrong with it."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise RestError(400, f"{where}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RestError(400, f"{where} is not JSON: {error}") from error


async def read_submission(request: Request, kind: type[T], part: str) -> tuple[T, bytes]:
    """The two parts of a submission: the document, in the part of that name, and the sources; raises `RestError`."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise RestError(400, f"send multipart/form-data with the parts {part} (JSON) and sources (a zip)")
    try:
        async with request.form(max_files=2, max_fields=2, max_part_size=MAX_DOCUMENT_BYTES) as form:
            unknown = sorted(form.keys() - {part, "sources"})
            if unknown:
                raise RestError(400, f"there is no part {unknown[0]!r} in a submission; send {part} and sources")
            document = await _part(form.get(part), part, MAX_DOCUMENT_BYTES)
            sources = await _part(form.get("sources"), "sources", MAX_SOURCES_BYTES)
    except HTTPException as error:
        raise RestError(400, f"the parts of the body are not readable: {error.detail}") from error
    return decoded(document, kind, part), sources


async def _part(value: UploadFile | str | None, name: str, limit: int) -> bytes:
    if value is None:
        raise RestError(400, f"the part {name!r} is missing; send a document (JSON) and sources (a zip)")
    data = value.encode() if isinstance(value, str) else await value.read(limit + 1)
    if len(data) > limit:
        raise RestError(413, f"{name}: larger than {limit >> 20} MiB, the most that is taken")
    return data


async def check_sources(data: bytes, target: str) -> None:
    """Raise `RestError` if this is no zip with the file of `target` in it that a task manager would unpack."""
    await asyncio.to_thread(_check_sources, data, target)  # a list of a million files takes seconds to read


def _check_sources(data: bytes, target: str) -> None:
    file = target.partition(":")[0]
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            names, problem = archive.namelist(), problem_of(archive)
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise RestError(400, f"sources: this is no zip: {error}") from error
    if problem:
        raise RestError(400, f"sources: {problem}")
    if file not in names:
        raise RestError(400, f"sources: {file!r}, which artifact.target names, is not in the zip")
