"""`http.Lookup`: joins a stream with what a service answers in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Unpack
from urllib.parse import urlsplit, urlunsplit

import msgspec

from penstock.connectors import lookups
from penstock.connectors.base import T
from penstock.connectors.http_requests import AddressTemplate, check_address, is_passing, revealed, side_by_side
from penstock.connectors.lookups import ATTEMPT_S, Key, LookupClient, LookupOptions, template_parts
from penstock.core.arguments import checked
from penstock.errors import BadRecordError, ExternalError, PipelineError
from penstock.settings import Secret
from penstock.types import Schema

if TYPE_CHECKING:
    import httpx2
    import pyarrow as pa

_WHAT: Final = "http.Lookup"
_NO_ROW: Final = (204, 404, 410)
_CONNECTIONS: Final = 100
_MOST_REDIRECTS: Final = 20


class Lookup(lookups.Lookup[T], Generic[T]):
    """What a service answers in JSON, to join a stream with: `orders.join(http.Lookup(...), on=...)`.

    A `GET` per key. An object is a row, a list of objects are several; 404, 410, 204, `null` and `[]` are none. Members
    that no column names are ignored. 5xx, 408, 425 and 429 are asked again, other answers fail the job. Redirects are
    followed where scheme, host and port stay the same; others fail the job, too.

    Args:
        url: address with the columns of the key in braces, percent-encoded: `"http://crm/customers/{id}"`. No text has in
            it what separates it from the next column, in `"{shop}-{item}"` a `-`: such a row fails the job.
        schema: dataclass, msgspec.Struct or pyarrow.Schema of the rows, the columns of the key included.
        headers: sent with every request; a `Secret` where it is one, such as the value of `Authorization`.
        **options: as at every lookup, see `LookupOptions`.

    Raises:
        PipelineError: something of it does not fit.

    Example:
        >>> @dataclass
        ... class Seller:
        ...     auction: int
        ...     seller: str
        >>> sellers = http.Lookup("http://crm/auctions/{auction}", schema=Seller, cache_ttl="1m", retries=5)
        >>> bids.join(sellers, on="auction").schema.names
        ('auction', 'price', 'at', 'tags', 'seller')
    """

    kind: ClassVar[str] = "http"

    @checked
    def __init__(
        self,
        url: str,
        *,
        schema: type[T] | Schema | pa.Schema,
        headers: Mapping[str, str | Secret] | None = None,
        **options: Unpack[LookupOptions],
    ) -> None:
        given: LookupOptions = {"rows_per_call": 1, "capacity": 100, **options}
        self._declare(schema, **given)
        check_address(_WHAT, url)
        template_parts(_WHAT, url)
        self.url: Final = url
        self.headers: Final = dict(headers or {})

    @property
    def name(self) -> str:
        """See `Lookup.name`."""
        return urlunsplit(urlsplit(self.url)._replace(fragment=""))

    def client(self, columns: Schema, keys: Schema) -> LookupClient:
        """See `Lookup.client`."""
        return _Service(self, AddressTemplate(_WHAT, self.url, keys))

    def describe(self) -> Mapping[str, Any]:
        """See `Lookup.describe`."""
        return {"url": self.url} | ({"headers": sorted(self.headers)} if self.headers else {})


class _Service:
    """See `LookupClient`: a request per key, those of one call at once."""

    def __init__(self, lookup: Lookup[Any], template: AddressTemplate) -> None:
        self._lookup = lookup
        self._template = template
        self._http: httpx2.AsyncClient | None = None

    async def open(self) -> None:
        import httpx2

        self._http = httpx2.AsyncClient(
            headers={"Accept": "application/json", **revealed(self._lookup.headers)},
            timeout=ATTEMPT_S,
            limits=httpx2.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS),
        )

    async def ask(self, keys: Sequence[Key]) -> Sequence[Sequence[bytes]]:
        return await side_by_side(map(self._rows, keys))

    async def _rows(self, key: Key) -> Sequence[bytes]:
        import httpx2

        if self._template.stray(key) is not None:
            return ()
        address = self._template.asked(key)
        assert self._http is not None
        try:
            answer = await self._answer(self._http, address)
        except httpx2.InvalidURL as error:
            raise PipelineError(f"{address}: {error}; check url=") from error
        except httpx2.HTTPError as error:
            raise ExternalError(
                f"{address}: {str(error) or type(error).__name__}; check that it runs, and url="
            ) from error
        if answer.status_code in _NO_ROW:
            return ()
        reason = f"{address}: {answer.status_code} {answer.reason_phrase}"
        if is_passing(answer.status_code):
            raise ExternalError(f"{reason}; check that it runs")
        if not answer.is_success:
            raise PipelineError(f"{reason}; check url=, and headers= if it wants a login")
        return _documents(address, answer.content)

    async def _answer(self, http: httpx2.AsyncClient, address: str) -> httpx2.Response:
        """That of where the service sends on to, if that is itself: headers may be secrets, and are nobody else's."""
        answer = await http.get(address)
        for _ in range(_MOST_REDIRECTS):
            if (further := answer.next_request) is None:
                return answer
            if _origin(further.url) != _origin(answer.url):
                raise PipelineError(
                    f"{address}: {answer.status_code} {answer.reason_phrase} to {str(further.url)[:200]}, another place, "
                    "which is not asked: it would get headers=; name it in url= if it is the right one"
                )
            answer = await http.send(further)
        raise PipelineError(f"{address}: it redirects more than {_MOST_REDIRECTS} times; check url=")

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _documents(address: str, content: bytes) -> Sequence[bytes]:
    content = content.strip()
    if not content.startswith(b"["):
        return () if content in (b"", b"null") else (content,)
    try:
        return [bytes(row) for row in msgspec.json.decode(content, type=list[msgspec.Raw])]
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadRecordError(f"{address}: the answer is no JSON ({error}): {content[:100]!r}") from error
