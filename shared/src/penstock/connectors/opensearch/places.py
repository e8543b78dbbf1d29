"""An OpenSearch (or Elasticsearch) that a connector talks to: its nodes, its client, and what its answers mean."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from penstock.connectors.http_requests import is_passing, revealed
from penstock.errors import ExternalError, PipelineError
from penstock.settings import Secret

if TYPE_CHECKING:
    import httpx2

CALL_TIMEOUT_S: Final = 60.0
_NO_LOGIN: Final = (401, 403)
REFUSED: Final = 400
NOT_THERE: Final = 404
CONFLICT: Final = 409
TOO_LARGE: Final = 413


class OpenSearchPlace:
    """A cluster of OpenSearch or Elasticsearch.

    Args:
        what: the connector, which leads errors.
        url: `https://user:password@host:9200`, of one node or of several.
        headers: sent with every request.

    Raises:
        PipelineError: it is no such address.
    """

    def __init__(
        self, what: str, url: str | Secret | Sequence[str | Secret], headers: Mapping[str, str | Secret] | None
    ) -> None:
        given = [url] if isinstance(url, str | Secret) else list(url)
        self._nodes: Final = [_node(what, node.reveal() if isinstance(node, Secret) else node) for node in given]
        self.headers: Final = dict(headers or {})
        if not self._nodes:
            raise PipelineError(f"{what}: url= has no address")
        self.address: Final = ",".join(node for node, _ in self._nodes)

    def client(self) -> httpx2.AsyncClient:
        """A client of one node, any of them; whoever gets no answer makes another one."""
        import httpx2

        address, login = random.choice(self._nodes)
        auth = None if login is None else tuple(map(unquote, login.reveal().split(":", 1)))
        return httpx2.AsyncClient(
            base_url=address,
            auth=None if auth is None else (auth[0], auth[1] if len(auth) > 1 else ""),
            headers=revealed(self.headers),
            timeout=CALL_TIMEOUT_S,
        )

    async def ask(
        self, client: httpx2.AsyncClient, where: str, method: str, path: str, body: bytes | None = None
    ) -> tuple[int, dict[str, Any]]:
        """The status of an answer (200, 201, 400, 404, 409 or 413) and its JSON.

        Args:
            client: of this place.
            where: leads errors.
            method: of HTTP.
            path: with its query.
            body: JSON, or lines of it.

        Raises:
            ExternalError: no answer, or none that would be the same after a while.
            PipelineError: it refuses the login.
        """
        import httpx2

        kind = "application/x-ndjson" if "_bulk" in path else "application/json"
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):  # that of the client starts anew with every piece of an answer
                answer = await client.request(method, path, content=body, headers={"Content-Type": kind})
        except (httpx2.HTTPError, TimeoutError) as error:
            raise ExternalError(f"{where}{str(error) or type(error).__name__}; check that it runs, and url=") from error
        try:
            found = msgspec.json.decode(answer.content, type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError):
            found = {"error": f"{answer.reason_phrase}, and no JSON object; check url="}
        said = f"{where}{answer.status_code}: {reason(found)}"
        if "cluster_block_exception" in str(found.get("error", "")):
            raise ExternalError(f"{said}; lift the block")
        if answer.status_code in _NO_LOGIN:
            raise PipelineError(f"{said}; check user and password in url=, or headers=, and their rights")
        if is_passing(answer.status_code):
            raise ExternalError(said)
        if not answer.is_success and answer.status_code not in (REFUSED, NOT_THERE, CONFLICT, TOO_LARGE):
            raise PipelineError(f"{said}; check url=")
        return answer.status_code, found


def _node(what: str, url: str) -> tuple[str, Secret | None]:
    """The address of a node, and its login, `user:password`, percent-encoded."""
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    try:
        fits = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:  # of the port: the password has a slash in it
        fits = False
    if not fits or parts.query or parts.fragment or "@" in parts.path:
        raise PipelineError(
            f"{what}: url= is an address such as https://host:9200, or several of one cluster; percent-encode what is no "
            "letter or digit in user and password"
        )
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}", Secret(login) if login else None


def reason(answer: dict[str, Any]) -> str:
    """What an answer, or an item of one, says of an error."""
    error: Any = answer.get("error", answer)
    if isinstance(error, str):
        return error[:300]
    cause: Any = error.get("caused_by") or {}
    texts = (error.get("reason") or error.get("type"), cause.get("reason"))
    return ": ".join(str(text) for text in texts if text)[:300]
