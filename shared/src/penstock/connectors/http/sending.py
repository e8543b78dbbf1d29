"""Rows as requests of `http.Sink`, and how these are sent."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.base import Encoded
from penstock.connectors.http_requests import is_passing
from penstock.connectors.keyed_rows import RETRACTED, KeyedRows, without_bad
from penstock.connectors.lookups import ATTEMPT_S, KeyTemplate
from penstock.errors import BadRecordError, ExternalError, PipelineError
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
        address: KeyTemplate | None,
        key: KeyTemplate | None,
        *,
        skips: bool,
    ) -> None:
        """`address`: None: the same for all; `key`: None: a hash of the request; `skips`: bad rows are counted."""
        self._url, self._method = url, method
        self._schema, self._rows = schema, rows
        self._columns = rows.columns(schema)
        self._deletes = rows.deletes(schema)
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
        addresses = self._filled(self._address, frame) if self._address else [self._url] * frame.height
        keys = self._filled(self._key, frame) if self._key else map(self._hash, addresses, bodies)
        types = {ADDRESS: pl.String, KEY: pl.String, BODY: pl.String}
        made = pl.DataFrame({ADDRESS: addresses, KEY: list(keys), BODY: bodies}, schema=types)
        bad = made[ADDRESS].is_null() | made[KEY].is_null()
        rows = frame.select(self._columns.names)
        return without_bad(self._url, rows, made, bad, self._reason, skips=self._skips)

    def _filled(self, template: KeyTemplate, frame: pl.DataFrame) -> list[str | None]:
        values = frame.select(template.columns).iter_rows()
        return [None if None in row else template.text(row) for row in values]

    def _hash(self, address: str | None, body: str | None) -> str:
        text = f"{self._method if body else 'DELETE'} {address}\n{body}"
        return hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).hexdigest()

    def _reason(self, row: dict[str, Any]) -> str:
        columns = [*(self._address.columns if self._address else ()), *(self._key.columns if self._key else ())]
        missing = dict.fromkeys(name for name in columns if row[name] is None)
        return f"a row makes no address or idempotency key (column {', '.join(missing)} is null)"


@dataclass(frozen=True)
class Requests:
    """How requests are sent."""

    method: str
    headers: Mapping[str, str]
    capacity: int

    async def send(self, frames: Sequence[pl.DataFrame], *, keyed: bool, skips: bool, each_its_own: bool) -> int:
        """All of what the encoder made, as many at once as there may be.

        Args:
            frames: in order.
            keyed: whether a row replaces the one that has the same address: then only the newest is sent.
            skips: whether refused rows are counted instead of failing.
            each_its_own: whether addresses are those of rows, so that one which is not there is a bad row.

        Returns:
            How many rows were refused.

        Raises:
            BadRecordError: one was.
            ExternalError: no answer for a while.
            PipelineError: the service refuses whatever is sent.
        """
        import httpx2
        import polars as pl

        rows = pl.concat(frames)
        if keyed:
            rows = rows.unique(ADDRESS, keep="last", maintain_order=True)
        left, at_once = rows.iter_rows(), min(self.capacity, rows.height)
        limits = httpx2.Limits(max_connections=at_once, max_keepalive_connections=at_once)
        async with httpx2.AsyncClient(headers=dict(self.headers), timeout=ATTEMPT_S, limits=limits) as client:
            try:
                async with asyncio.TaskGroup() as group:
                    sending = [
                        group.create_task(self._some(client, left, skips=skips, each_its_own=each_its_own))
                        for _ in range(at_once)
                    ]
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None
        return sum(task.result() for task in sending)

    async def _some(
        self, client: httpx2.AsyncClient, left: Iterator[tuple[Any, ...]], *, skips: bool, each_its_own: bool
    ) -> int:
        refused = 0
        for address, key, body in left:  # whoever is ready takes the next one
            problem = await self._request(client, address, key, body, each_its_own=each_its_own)
            if problem and not skips:
                raise BadRecordError(f"{problem}: {(body or '')[:200]}; say bad_rows='skip' to leave such rows out")
            refused += bool(problem)
        return refused

    async def _request(
        self, client: httpx2.AsyncClient, address: str, key: str, body: str | None, *, each_its_own: bool
    ) -> str:
        """Until it is answered; returns why the row is refused, empty if it is not."""
        import httpx2

        pause_s, until_s = _FIRST_PAUSE_S, asyncio.get_running_loop().time() + _PATIENCE_S
        method = "DELETE" if body is None else self.method
        headers = {"Idempotency-Key": key} | ({} if body is None else {"Content-Type": "application/json"})
        while True:
            wait_s = pause_s
            try:
                answer = await client.request(method, address, content=body, headers=headers)
            except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
                raise PipelineError(f"{address}: {error}; check url=") from error
            except httpx2.HTTPError as error:
                problem = f"{address}: {error or type(error).__name__}"
            else:
                problem = (
                    f"{method} {address}: {answer.status_code} {answer.reason_phrase} {answer.text[:200]}".rstrip()
                )
                if answer.is_success or (body is None and answer.status_code in _NOT_THERE):
                    return ""
                if answer.status_code in (*_REFUSED, *(_NOT_THERE if each_its_own else ())):
                    return problem
                if not is_passing(answer.status_code) and answer.status_code != _CONFLICT:
                    raise PipelineError(f"{problem}; check url=, and headers= if it wants a login")
                wait_s = max(wait_s, _retry_after_s(answer))
            if asyncio.get_running_loop().time() + wait_s > until_s:
                raise ExternalError(f"{problem}; check that it runs, and url=")
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _retry_after_s(answer: httpx2.Response) -> float:
    """What an answer says of when to come again; 0 if nothing, or a date."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(answer.headers.get("Retry-After", "0")))
    return 0.0
