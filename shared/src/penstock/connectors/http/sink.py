"""`http.Sink`: a request with an idempotency key for every row (a webhook), or rows by their address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from penstock.connectors import base
from penstock.connectors.base import Guarantee, WriteContext
from penstock.connectors.gathering import GatheringWriter, Send
from penstock.connectors.http.sending import ADDRESS, RequestEncoder, Requests
from penstock.connectors.http_requests import AddressTemplate, check_address, revealed
from penstock.connectors.keyed_rows import KeyedRows, TakesChanges
from penstock.connectors.lookups import KeyTemplate, template_columns
from penstock.core.arguments import checked
from penstock.errors import PipelineError
from penstock.settings import Secret
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl

_WHAT: Final = "http.Sink"


class Sink(TakesChanges):
    """A request to a service for every row, whose body is the row as a JSON object; at least once.

    Requests are sent when a checkpoint begins, and again after a failure, with the same `Idempotency-Key`, by which a
    service can tell that it has done so already. 5xx, 408, 409, 425, 429 and no answer: they are sent again, after
    `Retry-After` if it says so, and the checkpoint waits. 400, 413, 415 and 422, and 404 of an address that has columns,
    are bad rows. Other answers fail the job.

    With `method="PUT"` a row replaces the one that has the same address, and a row that is retracted is a `DELETE` (of
    changes; of updates only where `window_start` or `window_end` is among the columns of the address).

    Args:
        url: address, which may have columns in braces: `"https://crm/customers/{id}"`.
        method: `POST`, or `PUT`, whose address has columns.
        idempotency_key: columns in braces that tell rows apart, `"{order}-{number}"`: the value of the header. None: of
            `POST` a hash of address and body, so rows that are alike in everything are one; `PUT` needs none.
        headers: sent with every request; a `Secret` where it is one, such as the value of `Authorization`.
        capacity: most requests of a subtask at once; only with 1 those of a `POST` have the order of their rows.
        bad_rows: what becomes of a row that is refused, or that makes no address or key: `fail`, or `skip`, which counts
            it. In a key, and an address of `PUT`, no text has in it what separates it from the next column: in
            `"{shop}-{item}"` a shop with a `-` makes none.

    Raises:
        PipelineError: something of it does not fit.

    Example:
        >>> written = bids.write(http.Sink("https://hooks/bids", idempotency_key="{auction}-{at}"))
        >>> totals = bids.key_by("auction").agg(bids=count())
        >>> written = totals.write(http.Sink("https://crm/auctions/{auction}", method="PUT"))
    """

    kind: ClassVar[str] = "http"

    @checked
    def __init__(
        self,
        url: str,
        *,
        method: Literal["POST", "PUT"] = "POST",
        idempotency_key: str | None = None,
        headers: Mapping[str, str | Secret] | None = None,
        capacity: int = 10,
        bad_rows: Literal["fail", "skip"] = "fail",
    ) -> None:
        check_address(_WHAT, url)
        self.url: Final = url
        self.method: Final = method
        self.idempotency_key: Final = idempotency_key
        self.headers: Final = dict(headers or {})
        self.capacity: Final = capacity
        self.bad_rows: Final = bad_rows
        self._in_url: Final = template_columns(_WHAT, url) if "{" in url else ()
        self._in_key: Final = template_columns(_WHAT, idempotency_key) if idempotency_key is not None else ()
        if capacity < 1:
            raise PipelineError(f"{_WHAT}: capacity={capacity}: it is at least 1")
        if method == "PUT" and not self._in_url:
            raise PipelineError(
                f"{_WHAT}: every row would replace the one before at {url}: name the columns of its key in url=, such as "
                "{id}, or say method='POST'"
            )

    @property
    def guarantee(self) -> Guarantee:
        """At-least-once."""
        return "at-least-once"

    @property
    def _rows(self) -> KeyedRows:
        return KeyedRows(_WHAT, self.upsert_key or (), self._changes)

    def check(self, schema: Schema, *, updates: bool) -> None:
        """See `Sink.check`."""
        self._rows.check(schema, updates=updates, instead='write http.Sink("http://.../{id}", method="PUT")')
        self._encoder(schema)

    @property
    def upsert_key(self) -> tuple[str, ...] | None:
        """See `Sink.upsert_key`."""
        return self._in_url if self.method == "PUT" else None

    def dataset(self) -> base.Dataset:
        """See `Sink.dataset`."""
        parts = urlsplit(self.url)
        return base.Dataset(f"{parts.scheme}://{parts.netloc}", parts.path or "/")

    def describe(self) -> Mapping[str, Any]:
        """See `Sink.describe`."""
        described: dict[str, Any] = {
            "url": self.url, "method": self.method, "idempotency_key": self.idempotency_key,
            "headers": sorted(self.headers), "capacity": self.capacity, "bad_rows": self.bad_rows,
        }  # fmt: skip
        return {name: value for name, value in described.items() if value not in (None, [])}

    def reach(self, schema: Schema) -> None:
        """See `Sink.reach`: the client is installed; the service is asked with the first rows."""
        import httpx2  # noqa: F401  # pyright: ignore[reportUnusedImport]

    def open(self, schema: Schema, context: WriteContext) -> base.SinkWriter:
        """See `Sink.open`."""
        return GatheringWriter(self._encoder(schema), self._sending())

    def _sending(self) -> Send:
        requests = Requests(self.method, revealed(self.headers), self.capacity)
        begun: tuple[Sequence[pl.DataFrame], list[tuple[Any, ...]], set[int]] | None = None
        """What is being sent, as requests, and which of these were answered before a failure."""

        async def send(frames: Sequence[pl.DataFrame]) -> int:
            nonlocal begun
            if begun is None or begun[0] is not frames:
                begun = frames, self._requests_of(frames), set()
            _, rows, done = begun
            return await requests.send(rows, done, skips=self.bad_rows == "skip", each_its_own=bool(self._in_url))

        return send

    def _requests_of(self, frames: Sequence[pl.DataFrame]) -> list[tuple[Any, ...]]:
        """In order; of rows with the same address that replace each other the newest."""
        import polars as pl

        rows = pl.concat(frames)
        return (rows if self.upsert_key is None else rows.unique(ADDRESS, keep="last", maintain_order=True)).rows()

    def _encoder(self, schema: Schema) -> RequestEncoder:
        address = key = None
        if self._in_url:
            address = AddressTemplate(_WHAT, self.url, schema.select(self._in_url), apart=self.method == "PUT")
        if self.idempotency_key is not None:
            key = KeyTemplate(_WHAT, self.idempotency_key, schema.select(self._in_key))
        return RequestEncoder(self.url, self.method, schema, self._rows, address, key, skips=self.bad_rows == "skip")
