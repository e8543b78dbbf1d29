"""What connectors that speak HTTP share: addresses, headers, and which answers may be other ones after a while."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import quote, urlsplit

from penstock.connectors.lookups import Key, KeyTemplate
from penstock.errors import PipelineError
from penstock.settings import Secret
from penstock.types import Schema

T = TypeVar("T")
NO_SEGMENT: Final = ("", ".", "..")
"""What stands in the path of an address for that of something else."""
_AGAIN: Final = (408, 425, 429)
_SERVERS_FAULT: Final = 500


class AddressTemplate(KeyTemplate):
    """An address with the columns of a key in it, percent-encoded; see `KeyTemplate`."""

    any_text: ClassVar[str] = "[^%]|%[0-9A-F]{2}"

    def __init__(self, what: str, url: str, keys: Schema, *, apart: bool = True) -> None:
        super().__init__(what, url, keys, lambda text: quote(text, safe=""), apart=apart)
        some, others = (_segments(self._joined([value] * len(keys.names))) for value in ("x", "y"))
        self._filled = [place for place, text in enumerate(some) if text != others[place]]
        """The segments of the path that have columns."""

    def stray(self, key: Key) -> str | None:
        """The segment of its path that makes a key's address that of something else, such as of all rows; None: none."""
        if not any(value in NO_SEGMENT for value in key):
            return None  # only of these is such a segment made, and to cut addresses takes long
        segments = _segments(self._joined(self._values(key)))
        return next((segments[place] for place in self._filled if segments[place] in NO_SEGMENT), None)


def _segments(address: str) -> list[str]:
    return urlsplit(address).path.split("/")


def check_address(what: str, url: str) -> None:
    """Raise `PipelineError` if it is no address, or has a login in it; `what` leads errors."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or "{" in parts.netloc:
        raise PipelineError(f"{what}: url= is an address such as http://host/customers/{{id}}")
    if "@" in parts.netloc:
        raise PipelineError(f"{what}: url= has a login in it, which errors would show; give headers= with a Secret")


def revealed(headers: Mapping[str, str | Secret]) -> dict[str, str]:
    """Headers as they are sent; raises `PipelineError`, without the value, for one that cannot be."""
    found = {name: value.reveal() if isinstance(value, Secret) else value for name, value in headers.items()}
    for name, value in found.items():
        if not (is_header(name) and is_header(value)):
            raise PipelineError(
                f"headers= {name!r}: a header is ASCII, without line breaks and spaces around it; a file with a secret "
                "may end in a line break"
            )
    return found


def is_header(text: str) -> bool:
    """Whether a text can be sent as the value of a header."""
    return text.isascii() and text.isprintable() and text == text.strip() != ""


async def side_by_side(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What each of these comes to; the first error ends the others, and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def is_passing(status: int) -> bool:
    """Whether the same request may be answered otherwise after a while."""
    return status in _AGAIN or status >= _SERVERS_FAULT
