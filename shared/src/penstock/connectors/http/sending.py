"""Rows as requests of `http.Sink`, and how these are sent."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.base import Encoded
from penstock.connectors.http_requests import NO_SEGMENT, AddressTemplate, is_header, is_passing, side_by_side
from penstock.connectors.keyed_rows import RETRACTED, KeyedRows, without_bad
from penstock.connectors.lookups import ATTEMPT_S, Key, KeyTemplate
from penstock.errors import ExternalError, PipelineError, RefusedRowError
from penstock.formats.encoding import json_texts
from penstock.types import Schema

if TYPE_CHECKING:
    import httpx2
    import polars as pl

ADDRESS: Final = "address"
KEY: Final = "key"
BODY: Final = "body"
"""Null where what has the address is deleted."""
_CONFLICT: Final = 409
"""Also: the same request is being worked on at this moment."""
_REFUSED: Final = (400, 413, 415, 422)
_NOT_THERE: Final = (404, 410)
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0
_PATIENCE_S: Final = 30.0
"""For how long a request is tried before the checkpoint is given up, which the next one sends again."""
_HASH_BYTES: Final = 16


class RequestEncoder:
    """The encoder of one subtask; see `SinkEncoder`."""

    def __init__(
        self,
        url: str,
        method: str,
        schema: Schema,
        rows: KeyedRows,
        address: AddressTemplate | None,
        key: KeyTemplate | None,
        *,
        skips: bool,
    ) -> None:
        """`address`: None: the same for all; `key`: None: a hash of the request, or of rows by address none; `skips`: bad
        rows are counted."""
        self._url, self._method = url, method
        self._rows = rows
        self._columns = rows.columns(schema)
        self._deletes = rows.deletes
        self._address, self._key = address, key
        self._skips = skips

    def encode(self, frame: pl.DataFrame) -> Encoded:
        """See `SinkEncoder.encode`."""
        import polars as pl

        frame = self._rows.newest(frame)
        bodies: Sequence[str | None] = json_texts(frame, self._columns).to_list()
        if self._deletes:
            gone = frame[RETRACTED].fill_null(value=False)
            bodies = [None if taken_back else body for body, taken_back in zip(bodies, gone, strict=True)]
        addresses: Sequence[str | None] = [self._url] * frame.height
        if self._address:
            addresses = self._filled(self._address, frame, self._address.stray)
        keys: Sequence[str | None] = [""] * frame.height
        if self._key:
            keys = [key if key and is_header(key) else None for key in self._filled(self._key, frame)]
        elif not self._rows.key:  # what is put twice is there once, and a value may come back
            keys = list(map(self._hash, addresses, bodies))
        types = {ADDRESS: pl.String, KEY: pl.String, BODY: pl.String}
        made = pl.DataFrame({ADDRESS: addresses, KEY: keys, BODY: bodies}, schema=types)
        bad = made[ADDRESS].is_null() | made[KEY].is_null()
        rows = frame.select(self._columns.names)
        return without_bad(self._url, rows, made, bad, self._reason, skips=self._skips)

    def _filled(
        self, template: KeyTemplate, frame: pl.DataFrame, stray: Callable[[Key], str | None] = lambda _: None
    ) -> list[str | None]:
        keys = frame.select(template.columns).iter_rows()
        return [None if None in key or stray(key) is not None else template.text(key) for key in keys]

    def _hash(self, address: str | None, body: str | None) -> str:
        text = f"{self._method} {address}\n{body}"
        return hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).hexdigest()

    def _reason(self, row: dict[str, Any]) -> str:
        for template, what in ((self._address, "address"), (self._key, "idempotency key")):
            if template is not None and (why := _lacks(template, row)):
                return f"a row makes no {what}{why}"
        return "a row makes no idempotency key: a header is printable ASCII, not empty, and has no spaces around it"


def _lacks(template: KeyTemplate, row: Mapping[str, Any]) -> str:
    """Why a row has no such text, behind the name of it; empty if it has one."""
    key = tuple(row[name] for name in template.columns)
    if None in key:
        return f" (column {template.columns[key.index(None)]} is null)"
    if isinstance(template, AddressTemplate) and (segment := template.stray(key)) is not None:
        name = next(name for name in template.columns if row[name] in NO_SEGMENT)
        return f" (column {name} is {row[name]!r}, so that {segment!r} is a segment of the path: something else's)"
    return f": {template.problem(key)}" if template.text(key) is None else ""


class Requests:
    """How the requests of one subtask are sent."""

    def __init__(self, method: str, headers: Mapping[str, str], capacity: int) -> None:
        self._method = method
        self._headers = dict(headers)
        self._capacity = capacity
        self._not_before_s = 0.0
        """When the service wants to be asked again, if it has said so."""

    async def send(self, rows: Sequence[tuple[Any, ...]], done: set[int], *, skips: bool, each_its_own: bool) -> int:
        """All of what the encoder made, as many at once as there may be.

        Args:
            rows: addresses, keys and bodies, in order.
            done: numbers of rows that were answered before; those that are answered now are added.
            skips: whether refused rows are counted instead of failing.
            each_its_own: whether addresses are those of rows, so that one which is not there is a bad row.

        Returns:
            How many rows were refused now.

        Raises:
            RefusedRowError: one was.
            ExternalError: no answer for a while.
            PipelineError: the service refuses whatever is sent.
        """
        import httpx2

        left = ((number, row) for number, row in enumerate(rows) if number not in done)
        at_once = min(self._capacity, len(rows))
        limits = httpx2.Limits(max_connections=at_once, max_keepalive_connections=at_once)
        async with httpx2.AsyncClient(headers=self._headers, timeout=ATTEMPT_S, limits=limits) as client:
            some = (self._some(client, left, done, skips=skips, each_its_own=each_its_own) for _ in range(at_once))
            return sum(await side_by_side(some))

    async def _some(
        self,
        client: httpx2.AsyncClient,
        left: Iterator[tuple[int, tuple[Any, ...]]],
        done: set[int],
        *,
        skips: bool,
        each_its_own: bool,
    ) -> int:
        refused = 0
        for number, (address, key, body) in left:  # whoever is ready takes the next one
            problem = await self._request(client, address, key, body, each_its_own=each_its_own)
            if problem and not skips:
                raise RefusedRowError(f"{problem}: {(body or '')[:200]}; say bad_rows='skip' to leave such rows out")
            done.add(number)
            refused += bool(problem)
        return refused

    async def _request(
        self, client: httpx2.AsyncClient, address: str, key: str, body: str | None, *, each_its_own: bool
    ) -> str:
        """Until it is answered; returns why the row is refused, empty if it is not."""
        import httpx2

        method = "DELETE" if body is None else self._method
        headers = {"Accept-Encoding": "identity"} | ({"Idempotency-Key": key} if key else {})
        headers |= {} if body is None else {"Content-Type": "application/json"}
        shown = f"{method} {address[:200]}"
        pause_s, until_s = _FIRST_PAUSE_S, time.monotonic() + _PATIENCE_S
        not_before_s, problem = 0.0, ""
        while True:
            await self._may_call(not_before_s, until_s, shown, problem)
            try:
                async with (
                    asyncio.timeout(ATTEMPT_S),  # that of the client starts anew with every piece of an answer
                    client.stream(method, address, content=body, headers=headers) as answer,
                ):
                    # As it came: what it has done counts, though what it says be in no encoding that it claims.
                    said = b"".join([piece async for piece in answer.aiter_raw()])
            except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.LocalProtocolError) as error:
                if each_its_own:
                    return f"{shown}: {error}"
                raise PipelineError(f"{shown}: {error}; check url=") from error
            except (httpx2.HTTPError, TimeoutError) as error:
                problem = f"{shown}: {str(error) or type(error).__name__}"
            else:
                words = said[:800].decode(errors="replace")[:200]
                problem = f"{shown}: {answer.status_code} {answer.reason_phrase} {words}".rstrip()
                if answer.is_success or (body is None and answer.status_code in _NOT_THERE):
                    return ""
                if answer.status_code in (*_REFUSED, *(_NOT_THERE if each_its_own else ())):
                    return problem
                if not is_passing(answer.status_code) and answer.status_code != _CONFLICT:
                    raise PipelineError(f"{problem}; check url=, and headers= if it wants a login")
                self._not_before_s = max(self._not_before_s, time.monotonic() + _retry_after_s(answer))
            not_before_s = time.monotonic() + pause_s
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _may_call(self, not_before_s: float, until_s: float, shown: str, problem: str) -> None:
        """Wait until then, and until the service wants to be called, whichever request it has said so to.

        Raises `ExternalError` if that is after `until_s`; `problem`: what became of the request so far.
        """
        while (left_s := max(not_before_s, self._not_before_s) - time.monotonic()) > 0:
            if time.monotonic() + left_s > until_s:
                if not problem:
                    raise ExternalError(f"{shown}: the service has asked not to be called again for {left_s:.0f} s")
                raise ExternalError(f"{problem}; check that it runs, and url=")
            await asyncio.sleep(left_s)  # others may be told of a later time meanwhile


def _retry_after_s(answer: httpx2.Response) -> float:
    """In how many seconds an answer says to come again; 0 if it does not."""
    said = answer.headers.get("Retry-After", "0")
    with contextlib.suppress(ValueError):
        return max(0.0, float(said)) if math.isfinite(float(said)) else 0.0
    with contextlib.suppress(ValueError):
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    return 0.0
