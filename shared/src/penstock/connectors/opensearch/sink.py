"""`opensearch.Sink`: rows as documents of OpenSearch or Elasticsearch, added or by id, once each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal
from urllib.parse import quote

from penstock.connectors import base
from penstock.connectors.base import Guarantee, PublishContext, SinkEncoder, SinkPublisher, WriteContext
from penstock.connectors.gathering import GatheringWriter
from penstock.connectors.keyed_rows import KeyedRows, TakesChanges
from penstock.connectors.lookups import KeyTemplate, template_columns, template_parts
from penstock.connectors.opensearch.encoding import ENCODED, FORBIDDEN, MARKS, DocumentEncoder
from penstock.connectors.opensearch.mappings import check_mapping
from penstock.connectors.opensearch.places import NOT_THERE, OpenSearchPlace, reason
from penstock.core.arguments import checked
from penstock.core.blocking import run_blocking
from penstock.errors import PipelineError
from penstock.settings import Secret
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl

    from penstock.connectors.opensearch.publishing import DocumentWriting

Delivery = Literal["exactly-once", "at-least-once"]

_WHAT: Final = "opensearch.Sink"
_FOUND: Final = 200
_OF_ITS_OWN: Final = frozenset(
    {
        "_id", "_index", "_source", "_routing", "_version", "_seq_no", "_primary_term", "_field_names", "_ignored",
        "_nested_path", "_doc_count", "_type", "_tier",
    }
)  # fmt: skip
"""Members that OpenSearch has itself."""


class Sink(TakesChanges, base.PublishedSink):
    """Rows as documents of OpenSearch or Elasticsearch: JSON objects with a member per column.

    Without `document_id` rows are added, under ids that are drawn. With it, a row replaces the document of its id, and a
    row that is retracted deletes it (of changes; of updates only where the id has `window_start` or `window_end`): the
    index is the result. Documents are sent when their checkpoint is complete; searches see them with the next refresh,
    those of one checkpoint not all at the same moment. Ids and versions see to it that none is there twice, and that
    nothing older replaces something newer, whatever is sent again.

    Args:
        index: its name, or that of a data stream or an alias; with columns in braces rows say which: `"logs-{day}"`.
            What is not there is made by the cluster, by its templates.
        url: `https://user:password@host:9200`, a `Secret` if it has a password; several are nodes of one cluster.
        document_id: what makes the id of a document, with columns in braces: `"{shop}-{day}"`. Those of the index have
            to be among them.
        headers: sent with every request; a `Secret` where it is one, such as an API key as value of `Authorization`.
        delivery: `exactly-once`; or `at-least-once`, whose documents are sent when a checkpoint begins instead of when it
            is complete: added ones are there again after a failure, and of an id an older one until its newest is sent.
        bad_rows: what becomes of a row that makes no id or no name of an index (null, too long, or an id with text that
            has in it what separates it from the next column, in `"{shop}-{day}"` a shop with a `-`), or whose document
            OpenSearch refuses (a mapping, its size): `fail`, or `skip`, which counts it.

    Raises:
        PipelineError: something of it does not fit.

    Example:
        >>> search = "https://search:9200"
        >>> written = bids.select("auction", "price").write(opensearch.Sink("bids", url=search))
        >>> totals = bids.key_by("auction").agg(bids=count())
        >>> written = totals.write(opensearch.Sink("totals", url=search, document_id="{auction}"))
    """

    kind: ClassVar[str] = "opensearch"

    @checked
    def __init__(
        self,
        index: str,
        *,
        url: str | Secret | Sequence[str | Secret],
        document_id: str | None = None,
        headers: Mapping[str, str | Secret] | None = None,
        delivery: Delivery = "exactly-once",
        bad_rows: Literal["fail", "skip"] = "fail",
    ) -> None:
        self.index: Final = index
        self.document_id: Final = document_id
        self.delivery: Final = delivery
        self.bad_rows: Final = bad_rows
        self._place: Final = OpenSearchPlace(_WHAT, url, headers)
        self._key: Final = template_columns(_WHAT, document_id) if document_id is not None else ()
        self._index_columns: Final = template_columns(_WHAT, index) if "{" in index else ()
        _check_name(index)
        if document_id is not None and (strange := set(self._index_columns) - set(self._key)):
            raise PipelineError(
                f"{_WHAT}: index={index!r} has {', '.join(sorted(strange))}, which document_id= has not: a document that "
                "is replaced may be in another index; name it in both"
            )

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once unless declared otherwise."""
        return self.delivery

    def dataset(self) -> base.Dataset:
        """See `Sink.dataset`."""
        return base.Dataset(self._place.address, self.index)

    def check(self, schema: Schema, *, updates: bool) -> None:
        """See `Sink.check`."""
        self._rows.check(schema, updates=updates, instead=f"write opensearch.Sink({self.index!r}, document_id=...)")
        for name in self._rows.columns(schema).names:
            if name in _OF_ITS_OWN or name.startswith(".") or name.endswith(".") or ".." in name:
                raise PipelineError(f"{_WHAT}: a document has no member {name!r}; give the column another name")
        self._encoder(schema)

    @property
    def upsert_key(self) -> tuple[str, ...] | None:
        """See `Sink.upsert_key`."""
        return self._key or None

    def describe(self) -> Mapping[str, Any]:
        """See `Sink.describe`."""
        described: dict[str, Any] = {
            "index": self.index, "url": self._place.address, "document_id": self.document_id,
            "headers": sorted(self._place.headers), "delivery": self.delivery, "bad_rows": self.bad_rows,
        }  # fmt: skip
        return {name: value for name, value in described.items() if value not in (None, [])}

    # -- running --------------------------------------------------------------------------------------------------------

    @property
    def _rows(self) -> KeyedRows:
        return KeyedRows(_WHAT, self._key, self._changes)

    @property
    def _name(self) -> str:
        return f"opensearch index {self.index} at {self._place.address}"

    def _writing(self) -> DocumentWriting:
        from penstock.connectors.opensearch.publishing import DocumentWriting

        return DocumentWriting(self._place, self._name, keyed=bool(self._key), skips=self.bad_rows == "skip")

    def _encoder(self, schema: Schema) -> DocumentEncoder:
        index: str | KeyTemplate = self.index
        if self._index_columns:
            index = KeyTemplate(_WHAT, self.index, schema.select(self._index_columns), apart=False)
        ids = None if self.document_id is None else KeyTemplate(_WHAT, self.document_id, schema.select(self._key))
        skips = self.bad_rows == "skip"
        return DocumentEncoder(self._name, schema, self._rows, index, self._index_columns, ids, skips=skips)

    async def _prepared(self, schema: Schema) -> None:
        from penstock.connectors.opensearch.publishing import prepare_marks

        where = f"{self._name}: "
        async with self._place.client() as client:
            if self.delivery == "exactly-once":
                await prepare_marks(self._place, client, where)
            if not self._index_columns:
                path = f"/{quote(self.index, safe='')}/_mapping"
                status, found = await self._place.ask(client, where, "GET", path)
                if status not in (_FOUND, NOT_THERE):
                    raise PipelineError(f"{where}{reason(found)}; check index=")
                mappings = found if status == _FOUND else {}
                self._check_target(mappings)
                check_mapping(self._name, self._rows.columns(schema), mappings)

    def _check_target(self, found: Mapping[str, Any]) -> None:
        """Raise `PipelineError` if documents by id would be in several indices: each has its own of an id."""
        if self._key and (len(found) > 1 or any(name.startswith(".ds-") for name in found)):
            raise PipelineError(
                f"{self._name}: it stands for {', '.join(sorted(found)[:3])}, and a document that is replaced may be in "
                "another one; name one index, or leave document_id= out"
            )

    def reach(self, schema: Schema) -> None:
        """See `Sink.reach`: it answers, and the index takes such rows if it is there."""
        run_blocking(self._prepared(schema))

    def encoded_schema(self, schema: Schema) -> Schema:
        """See `PublishedSink.encoded_schema`."""
        return ENCODED

    async def encoder(self, schema: Schema, operator: str) -> SinkEncoder:
        """See `PublishedSink.encoder`."""
        return self._encoder(schema)

    def publisher(self, context: PublishContext) -> SinkPublisher:
        """See `PublishedSink.publisher`."""
        from penstock.connectors.opensearch.publishing import DocumentPublisher

        return DocumentPublisher(self._writing(), context)

    async def forget(self, context: PublishContext) -> None:
        """See `PublishedSink.forget`."""
        from penstock.connectors.opensearch.publishing import forget_marks

        await forget_marks(self._place, context)

    def open(self, schema: Schema, context: WriteContext) -> base.SinkWriter:
        """See `Sink.open`: the writer where the guarantee is at-least-once."""
        return GatheringWriter(self._encoder(schema), self._written)

    async def _written(self, frames: Sequence[pl.DataFrame]) -> int:
        writing = self._writing()
        async with self._place.client() as client:
            await writing.write(client, frames, None)
        return writing.left_out


def _check_name(index: str) -> None:
    """Raise `PipelineError` if what stands in the name as it is cannot stand there."""
    import polars as pl

    literal = "".join(text for text, _ in template_parts(_WHAT, index)) if "{" in index else index
    if index == MARKS:
        raise PipelineError(f"{_WHAT}: index={index!r} is where Penstock keeps what is published; write elsewhere")
    if not index or literal != literal.lower() or pl.Series([literal]).str.contains(FORBIDDEN).any():
        raise PipelineError(
            f"{_WHAT}: index={index!r}: names of indices are in lower case, have no spaces and none of "
            '\\ / * ? " < > | , # : and begin with no - _ or +'
        )
