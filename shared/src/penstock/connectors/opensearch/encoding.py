"""Rows as OpenSearch gets them: the id of a document and its JSON, and its index where rows say which."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.base import Encoded
from penstock.connectors.keyed_rows import RETRACTED, KeyedRows, without_bad
from penstock.connectors.lookups import KeyTemplate
from penstock.formats.encoding import json_texts, json_values
from penstock.types import STRING, Field, Schema

if TYPE_CHECKING:
    import polars as pl

INDEX: Final = "index"
ID: Final = "id"
DOCUMENT: Final = "document"
ENCODED: Final = Schema((Field(INDEX, STRING), Field(ID, STRING), Field(DOCUMENT, STRING, nullable=True)))
"""Index and id are JSON texts, so that they can stand in a request as they are; a document that is null is deleted."""
LONGEST_ID: Final = 512
LONGEST_INDEX: Final = 255
FORBIDDEN: Final = r'[\\/*?"<>| ,#:\x00-\x1f]|^[-_+]|^\.{1,2}$'
"""What names of indices do not have; capital letters neither."""
_ID_BYTES: Final = 12
MARKS: Final = "penstock-marks"
"""The index of all marks; of one shard, so that the numbers of its writes are in one order."""


class DocumentEncoder:
    """The encoder of one subtask; see `SinkEncoder`."""

    def __init__(
        self,
        where: str,
        schema: Schema,
        rows: KeyedRows,
        index: str | KeyTemplate,
        index_columns: Sequence[str],
        document_id: KeyTemplate | None,
        *,
        skips: bool,
    ) -> None:
        """`where` leads errors; `document_id`: None draws one for each row; `skips`: bad rows are counted."""
        self._where = where
        self._rows = rows
        self._columns = rows.columns(schema)
        self._deletes = rows.deletes
        self._index, self._index_columns = index, index_columns
        self._document_id = document_id
        self._skips = skips
        self._prefix, self._numbers = secrets.token_urlsafe(_ID_BYTES), itertools.count()

    def encode(self, frame: pl.DataFrame) -> Encoded:
        """See `SinkEncoder.encode`."""
        import polars as pl

        frame = self._rows.newest(frame)
        names, ids = self._names(frame), self._ids(frame)
        bad = _unfit(names, LONGEST_INDEX) | _unfit(ids, LONGEST_ID) | _misnamed(names)
        documents = json_texts(frame, self._columns).alias(DOCUMENT)
        if self._deletes:
            gone = frame[RETRACTED].fill_null(value=False)
            documents = pl.DataFrame([documents]).select(pl.when(~gone).then(DOCUMENT)).to_series()
        made = pl.DataFrame([_quoted(names, INDEX), _quoted(ids, ID), documents])
        shown = frame.select(self._columns.names).with_columns(names.alias(" index"), ids.alias(" id"))
        return without_bad(self._where, shown, made, bad, self._reason, skips=self._skips)

    def _names(self, frame: pl.DataFrame) -> pl.Series:
        import polars as pl

        if isinstance(self._index, str):
            return pl.repeat(self._index, frame.height, eager=True)
        return _texts(self._index, frame.select(self._index_columns))

    def _ids(self, frame: pl.DataFrame) -> pl.Series:
        import polars as pl

        if self._document_id is not None:
            return _texts(self._document_id, frame.select(self._rows.key))
        numbers = itertools.islice(self._numbers, frame.height)
        return pl.Series([f"{self._prefix}{number}" for number in numbers], dtype=pl.String)

    def _reason(self, row: dict[str, Any]) -> str:
        index, found = row.pop(" index"), row.pop(" id")
        if missing := self._rows.missing(row):
            return missing
        if index is None:
            return f"a column of the name of the index ({', '.join(self._index_columns)}) is null"
        if found is None and self._document_id is not None:
            return f"a row has no id: {self._document_id.problem(tuple(row[name] for name in self._rows.key))}"
        if not found or len(found.encode()) > LONGEST_ID:
            return f"an id has more than {LONGEST_ID} bytes" if found else "an id is empty"
        return f"{index[:300]!r} cannot be the name of an index (lower case, without spaces and most signs)"


def _texts(template: KeyTemplate, columns: pl.DataFrame) -> pl.Series:
    import polars as pl

    texts = [None if None in values else template.text(values) for values in columns.iter_rows()]
    return pl.Series(texts, dtype=pl.String)


def _unfit(texts: pl.Series, longest: int) -> pl.Series:
    """Which are null, empty or too long."""
    return ~texts.str.len_bytes().is_between(1, longest).fill_null(value=False)


def _misnamed(names: pl.Series) -> pl.Series:
    return (names.str.contains(FORBIDDEN) | (names.str.to_lowercase() != names) | (names == MARKS)).fill_null(
        value=True
    )


def _quoted(texts: pl.Series, name: str) -> pl.Series:
    """As JSON texts."""
    return json_values(texts.alias(name).to_frame(), Field(name, STRING, nullable=True)).alias(name)
