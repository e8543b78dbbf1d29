"""What sources of changes share: the columns of a change, and how images of rows become rows added or retracted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from penstock.connectors.keyed_rows import RETRACTED
from penstock.errors import PipelineError
from penstock.formats.decoding import BadLine, Decoded
from penstock.types import BOOLEAN, Field, Schema, can_be_key

if TYPE_CHECKING:
    import polars as pl

RECORD: Final = "__index"
"""Int64: which record an image is of."""
UNCHANGED: Final = "\x00unchanged"
"""Stands in a row of updates, as text or as bytes, for a large value that an update left as it was and that the source
was not told: the row that is kept of the key has it."""
_PLACE: Final = "__place"
"""Int64: the place of an image among all."""


def with_changes(rows: Schema, keys: Sequence[str], *, complete: bool) -> Schema:
    """The columns of a change: all but the key are null where only that is known of a row that is no more."""
    fields = [each if complete or each.name in keys else replace(each, nullable=True) for each in rows]
    return Schema((*fields, Field(RETRACTED, BOOLEAN)))


def check_keys(what: str, rows: Schema, keys: Sequence[str]) -> Schema:
    """The columns of the key.

    Raises:
        PipelineError: they are none, or rows have a column of the name that changes need.
    """
    if not keys:
        raise PipelineError(f"{what}: key= names no column; which ones say that two rows are the same one?")
    if len(set(keys)) < len(keys):
        raise PipelineError(f"{what}: key={list(keys)} names a column twice")
    columns = rows.select(keys, f"{what}: key")
    for field in columns:
        if not can_be_key(field.type):
            raise PipelineError(f"{what}: key: {field.name} is {field.type}, which cannot be a key")
    if RETRACTED in rows:
        raise PipelineError(f"{what}: {RETRACTED} says which changes take rows back; give the column another name")
    return columns


class ImageDecoder(Protocol):
    """Decodes images of rows, each of them JSON."""

    def decode(self, values: Sequence[bytes]) -> Decoded:
        """A row per image that is one; `BadLine.index` counts images."""
        ...


class ImagesOfRows:
    """Images of rows in order, and which records they are of; those that cannot be decoded make their record bad."""

    def __init__(self, schema: Schema, added: ImageDecoder, retracted: ImageDecoder) -> None:
        """`schema`: of the changes; the decoders: of rows that are added, and of what is known of those retracted."""
        self._schema = schema
        self._decoders = {False: added, True: retracted}
        self._data: dict[bool, list[bytes]] = {False: [], True: []}
        self._records: dict[bool, list[int]] = {False: [], True: []}
        self._places: dict[bool, list[int]] = {False: [], True: []}

    def add(self, image: bytes, record: int, *, retracted: bool) -> None:
        """The next image."""
        place = len(self._data[False]) + len(self._data[True])
        self._data[retracted].append(image)
        self._records[retracted].append(record)
        self._places[retracted].append(place)

    def rows(self, bad: dict[int, str]) -> pl.DataFrame:
        """In order, without the records of which an image is none; adds to `bad` what is wrong with these."""
        import polars as pl

        frames = [self._decoded(bad, "before", retracted=True), self._decoded(bad, "after", retracted=False)]
        empty = pl.DataFrame(schema=self._schema.polars())
        rows = pl.concat([empty, *frames], how="diagonal").sort(_PLACE)
        return rows.filter(~pl.col(RECORD).is_in(list(bad))).select(self._schema.names)

    def _decoded(self, bad: dict[int, str], which: str, *, retracted: bool) -> pl.DataFrame:
        """The rows of images, with their places and records."""
        import polars as pl

        data, records, places = self._data[retracted], self._records[retracted], self._places[retracted]
        decoded = self._decoders[retracted].decode(data)
        wrong = {line.index: line.error for line in decoded.bad}
        bad |= {records[index]: f"{which}: {error}" for index, error in wrong.items()}
        kept = [index for index in range(len(data)) if index not in wrong]
        return decoded.frame.with_columns(
            pl.lit(retracted).alias(RETRACTED),
            pl.Series(_PLACE, [places[index] for index in kept], pl.Int64),
            pl.Series(RECORD, [records[index] for index in kept], pl.Int64),
        )


def bad_lines(bad: Mapping[int, str], values: Sequence[bytes | None]) -> list[BadLine]:
    """In order, with the bytes of their records."""
    return [BadLine(index, reason, values[index] or b"") for index, reason in sorted(bad.items())]
