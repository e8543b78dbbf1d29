"""Publishes documents so that whatever is sent twice, or late, is there once.

Documents of rows that are added have ids which were drawn before the exchange, and are only created: one that is there
already is the same. Documents by key have versions that grow: OpenSearch refuses one that is older than what it has. The
version is the number that the mark's index gave the publisher's taking of the mark, so what a stopped publisher sends
late loses against whoever has taken over. The mark is changed only as it was read (`if_seq_no`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
import structlog

from penstock.connectors.base import ProducerFencedError, PublishContext, PublishedMark
from penstock.connectors.http_requests import is_passing
from penstock.connectors.opensearch.encoding import DOCUMENT, ID, INDEX, MARKS
from penstock.connectors.opensearch.places import CONFLICT, NOT_THERE, REFUSED, TOO_LARGE, OpenSearchPlace, reason
from penstock.errors import ExternalError, PipelineError, RefusedRowError
from penstock.protocol.publishing import ProducerEpoch

if TYPE_CHECKING:
    import httpx2
    import polars as pl

_MARKS: Final = msgspec.json.encode(
    {"settings": {"number_of_shards": 1, "auto_expand_replicas": "0-1"}, "mappings": {"enabled": False}}
)
BODY_BYTES: Final = 5 << 20
"""About how much one request has, unless that is refused as too large."""
_FIRST_PAUSE_S: Final = 0.1
_PATIENCE_S: Final = 30.0
"""For how long documents are sent again that were refused because there was too much to do."""
_log = structlog.get_logger("penstock.opensearch")
_EPOCH_S: Final = 1_577_836_800
"""2020; versions count from here, so that they fit into 63 bits until 2088."""


@dataclass
class DocumentWriting:
    """How documents get there."""

    place: OpenSearchPlace
    name: str
    """As errors call the destination."""
    keyed: bool
    """Whether a document replaces the one that has its id."""
    skips: bool = False
    """Whether documents that are refused for what they are are left out, instead of failing."""
    body_bytes: int = BODY_BYTES
    left_out: int = 0
    """How many documents were, so far."""

    async def write(
        self, client: httpx2.AsyncClient, frames: Sequence[pl.DataFrame], version: int | None
    ) -> Sequence[str]:
        """Encoded rows; `version` is that of documents by key, None: they have none.

        Returns:
            Ids of documents that have a newer version.

        Raises:
            ExternalError: not all are written for certain.
            RefusedRowError: one is refused, and would be again.
            PipelineError: all are.
        """
        conflicts: list[str] = []
        for lines in self._bodies([line.encode() for line in self._lines(frames, version)]):
            conflicts += await self._send(client, lines)
        return conflicts

    def _bodies(self, lines: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
        """Lines of one request each; what is found out about its size while one is sent holds of the next ones."""
        size, begin = 0, 0
        for number, line in enumerate(lines):
            if size and size + len(line) > self.body_bytes:
                yield lines[begin:number]
                size, begin = 0, number
            size += len(line)
        if begin < len(lines):
            yield lines[begin:]

    def _lines(self, frames: Sequence[pl.DataFrame], version: int | None) -> Sequence[str]:
        """One for each document that is to be changed: what to do, and the document."""
        import polars as pl

        if not frames:
            return ()
        rows = pl.concat(frames)
        if self.keyed:  # of several for one document only the newest is sent: what is sent again cannot undo it
            rows = rows.unique([INDEX, ID], keep="last", maintain_order=True)
        versioned = "" if version is None else f',"version":{version},"version_type":"external_gte"'
        place = pl.concat_str(pl.lit('":{"_index":'), INDEX, pl.lit(',"_id":'), ID, pl.lit(versioned + "}}\n"))
        write = pl.concat_str(pl.lit('{"index' if self.keyed else '{"create'), place, DOCUMENT, pl.lit("\n"))
        delete = pl.concat_str(pl.lit('{"delete'), place)
        return rows.select(pl.when(pl.col(DOCUMENT).is_null()).then(delete).otherwise(write)).to_series().to_list()

    async def _send(self, client: httpx2.AsyncClient, lines: Sequence[bytes]) -> Sequence[str]:
        """One request, and what of it was refused because there was too much to do, until it is not.

        One that is refused as too large, by a proxy or by the node itself, is sent in parts.
        """
        conflicts: list[str] = []
        pause_s, until_s = _FIRST_PAUSE_S, asyncio.get_running_loop().time() + _PATIENCE_S
        while lines:
            refused = await self._refused(client, lines)
            if refused is None:
                self.body_bytes = sum(map(len, lines)) // 2
                for part in self._bodies(lines):
                    conflicts += await self._send(client, part)
                return conflicts
            conflicts += [item["_id"] for _, item in refused if item["status"] == CONFLICT]
            passing = [(number, item) for number, item in refused if _passes(item)]
            self._check([item for _, item in refused if item["status"] != CONFLICT and not _passes(item)])
            if passing and asyncio.get_running_loop().time() > until_s:
                raise ExternalError(f"{self.name}: {len(passing)} documents: {reason(passing[0][1])}")
            lines = [lines[number] for number, _ in passing]
            if lines:
                await asyncio.sleep(pause_s)
                pause_s *= 2
        return conflicts

    async def _refused(
        self, client: httpx2.AsyncClient, lines: Sequence[bytes]
    ) -> list[tuple[int, dict[str, Any]]] | None:
        """Items of the answer that are errors, each with its place among the lines; None: these are too many at once."""
        path = "/_bulk?filter_path=errors,error,items.*.status,items.*.error,items.*._id"
        status, answer = await self.place.ask(client, f"{self.name}: ", "POST", path, b"".join(lines))
        if status == TOO_LARGE:
            if len(lines) > 1:
                return None
            what = lines[0][:200].decode(errors="replace").partition("\n")[0]
            self._refuse(
                f"{self.name}: {status}: a document of {len(lines[0])} bytes is too large ({what}); let the node "
                "(http.max_content_length) and what is before it (client_max_body_size of nginx) take such requests, "
                "write less",
                1,
            )
            return []
        if "errors" not in answer:
            raise PipelineError(f"{self.name}: {status}: {reason(answer)}; check url=")
        if not answer["errors"]:
            return []
        items = [(kind, item) for found in answer["items"] for kind, item in found.items()]
        if len(items) != len(lines):
            raise ExternalError(f"{self.name}: it answered {len(items)} of {len(lines)} documents")
        return [
            (number, item)
            for number, (kind, item) in enumerate(items)
            if "error" in item
            and not (kind == "create" and item["status"] == CONFLICT)  # it is there: the same one, sent before
            and not (kind == "delete" and item["status"] == NOT_THERE)  # there is no such index
        ]

    def _check(self, refused: Sequence[dict[str, Any]]) -> None:
        """What becomes of documents that are refused for good: for what they are, or because of the index."""
        for item in refused:
            if item["status"] != REFUSED:
                raise PipelineError(
                    f"{self.name}: document {item['_id']}: {item['status']}: {reason(item)}; check index="
                )
        if refused:
            self._refuse(
                f"{self.name}: document {refused[0]['_id']}: {reason(refused[0])} ({len(refused)} in this request); "
                "change the mapping, or what the pipeline writes",
                len(refused),
            )

    def _refuse(self, why: str, documents: int) -> None:
        if not self.skips:
            raise RefusedRowError(f"{why}, or say bad_rows='skip' to leave such rows out")
        self.left_out += documents
        _log.warning("documents are refused and left out", documents=documents, reason=why)


def _passes(item: dict[str, Any]) -> bool:
    """Whether a document may be taken after a while; the block of an index, as of a full disk, is lifted."""
    return is_passing(item["status"]) or item["error"].get("type") == "cluster_block_exception"


@dataclass(frozen=True)
class _Mark:
    """A mark as it was read or written: whoever changes it names both numbers."""

    fields: dict[str, Any]
    sequence: int
    term: int


class DocumentPublisher:
    """The publisher of one partition of a sink; see `SinkPublisher`.

    Each transaction has a number of its own because `init_producer` writes the mark before each.
    """

    def __init__(self, writing: DocumentWriting, context: PublishContext) -> None:
        self._writing = writing
        self._path = f"/{MARKS}/_doc/{quote(mark_id(context, context.partition), safe='')}"
        self._client: httpx2.AsyncClient | None = None
        self._mark: _Mark | None = None
        self._created_s: int | None = None

    async def open(self) -> None:
        """See `SinkPublisher.open`."""
        async with self._certain() as client:
            self._created_s = await prepare_marks(self._writing.place, client, f"{self._writing.name}: ")

    async def init_producer(self) -> ProducerEpoch:
        """See `SinkPublisher.init_producer`.

        Something of an earlier publisher may still be under way, but all of it is published again with a newer version
        (or the same ids), and loses.
        """
        async with self._certain() as client:
            found = await self._read(client)
            if found is None:  # its index may have been made anew
                self._created_s = await prepare_marks(self._writing.place, client, f"{self._writing.name}: ")
            fields = found.fields if found else {}
            self._mark = await self._changed(client, found, {**fields, "producer": fields.get("producer", 0) + 1})
        if self._mark is None:
            raise ExternalError(f"{self._writing.name}: another publisher takes the mark at this moment")
        return ProducerEpoch(0, self._mark.fields["producer"])

    async def read_mark(self) -> PublishedMark | None:
        """See `SinkPublisher.read_mark`: as it was taken."""
        fields = self._mark.fields if self._mark else {}
        return PublishedMark(fields["position"], fields["metadata"]) if "position" in fields else None

    async def commit(self, frames: Sequence[pl.DataFrame], mark: PublishedMark) -> int:
        """See `SinkPublisher.commit`."""
        assert self._mark is not None
        self._writing.left_out = 0
        async with self._certain() as client:
            newer = await self._writing.write(client, frames, self._version() if self._writing.keyed else None)
            fields = {**self._mark.fields, "position": mark.position, "metadata": mark.metadata}
            if newer:
                await self._explain(client, newer)
            changed = await self._changed(client, self._mark, fields)
            if changed is None:
                raise self._fenced()
            self._mark = changed
        return self._writing.left_out

    def _version(self) -> int:
        assert self._mark is not None
        assert self._created_s is not None
        return ((self._created_s - _EPOCH_S) << 32) + self._mark.sequence

    def _fenced(self) -> ProducerFencedError:
        return ProducerFencedError(f"{self._writing.name}: another publisher of {self._path} has started")

    async def _explain(self, client: httpx2.AsyncClient, newer: Sequence[str]) -> None:
        """Raise what it means that documents have newer versions than they were to get."""
        found = await self._read(client)
        if found != self._mark:
            raise self._fenced()
        raise PipelineError(
            f"{self._writing.name}: {len(newer)} documents have newer versions than Penstock gives, such as {newer[0]}: "
            "something else writes there (also this sink, when it was at-least-once), two keys make one id, or "
            f"{MARKS} is an older copy; write to another index"
        )

    async def _read(self, client: httpx2.AsyncClient) -> _Mark | None:
        status, found = await self._writing.place.ask(client, f"{self._writing.name}: ", "GET", self._path)
        if status == NOT_THERE:
            return None
        if "_source" not in found:
            raise PipelineError(f"{self._writing.name}: the mark cannot be read: {reason(found)}; check index {MARKS}")
        return _Mark(found["_source"], found["_seq_no"], found["_primary_term"])

    async def _changed(self, client: httpx2.AsyncClient, was: _Mark | None, fields: dict[str, Any]) -> _Mark | None:
        """The mark with these fields; None if it is not as it was."""
        how = f"if_seq_no={was.sequence}&if_primary_term={was.term}" if was else "op_type=create"
        status, answer = await self._writing.place.ask(
            client, f"{self._writing.name}: ", "PUT", f"{self._path}?{how}", msgspec.json.encode(fields)
        )
        if status in (CONFLICT, NOT_THERE):
            return None
        if "_seq_no" not in answer:
            raise PipelineError(f"{self._writing.name}: the mark is refused: {reason(answer)}; check index {MARKS}")
        return _Mark(fields, answer["_seq_no"], answer["_primary_term"])

    async def close(self) -> None:
        """See `SinkPublisher.close`."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @contextlib.asynccontextmanager
    async def _certain(self) -> AsyncGenerator[httpx2.AsyncClient]:
        """A client; whatever is not certain throws it away, and the next one may be of another node."""
        if self._client is None:
            self._client = self._writing.place.client()
        try:
            yield self._client
        except ProducerFencedError:
            raise
        except BaseException:
            await self.close()
            raise


def mark_id(context: PublishContext, partition: int) -> str:
    """The id of the mark of a partition."""
    return f"{context.job}:{context.operator}:{context.generation}:{partition}"


async def prepare_marks(place: OpenSearchPlace, client: httpx2.AsyncClient, where: str) -> int:
    """Make the index of marks if there is none; when it was made, in seconds since 1970."""
    path = f"/{MARKS}/_settings/index.creation_date"
    status, found = await place.ask(client, where, "GET", path)
    if status == NOT_THERE:
        _, answer = await place.ask(client, where, "PUT", f"/{MARKS}", _MARKS)
        if not answer.get("acknowledged") and "already exists" not in reason(answer):
            raise PipelineError(f"{where}index {MARKS} cannot be made: {reason(answer)}; make it, or allow that")
        _, found = await place.ask(client, where, "GET", path)
    return max(int(index["settings"]["index"]["creation_date"]) for index in found.values()) // 1_000


async def forget_marks(place: OpenSearchPlace, context: PublishContext) -> None:
    """Remove the marks of all partitions of a context."""
    ids = [mark_id(context, number) for number in range(context.partitions)]
    lines = (msgspec.json.encode({"delete": {"_index": MARKS, "_id": found}}) + b"\n" for found in ids)
    async with place.client() as client:
        await place.ask(client, f"opensearch at {place.address}: removing marks: ", "POST", "/_bulk", b"".join(lines))
