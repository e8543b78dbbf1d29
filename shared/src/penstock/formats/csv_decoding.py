"""Comma-separated values to frames: records with quoting (RFC 4180), a header, typed columns.

pyarrow splits records into texts; the columns are converted here, so that a text that does not fit makes its record bad
instead of null. An unquoted text equal to `null` is null (an empty text in a column of strings that may not be null).
"""

from __future__ import annotations

import base64
import csv
import io
from bisect import bisect_left
from codecs import BOM_UTF8
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import msgspec

from penstock.core.decimals import misfit, of_text, units_of
from penstock.errors import PipelineError, closest, nearest
from penstock.formats.columns import MISSING, FrameBuilder, WrongValueError, number_for_moment
from penstock.formats.csv_quotes import quoted
from penstock.formats.decoding import BadLine, Decoded, line_ends, timestamps_of, without_nanoseconds
from penstock.formats.misspelt import misspelt_in_names
from penstock.types import (
    FLOATS,
    INTEGERS,
    STRING,
    TIMESTAMP,
    DecimalType,
    Field,
    ListType,
    MapType,
    Scalar,
    Schema,
    StructType,
    polars_type,
)
from penstock.types.decimal_columns import decimals_of, decimals_of_texts

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

_UNCLOSED: Final = (
    "a quote before a value is not closed, so the line is bad; close it, or put the value in quotes and double the "
    "quotes within it"
)
_TRUTH: Final = {"true": True, "false": False}
_BY_MSGSPEC: Final[dict[str, Any]] = {"timestamp": datetime, "duration": timedelta, "date": date, "time": time}


_OTHER_DELIMITERS: Final = (";", "\t", "|", ",", ":")


class CsvDecoder:
    """Decodes CSV records into rows of a schema.

    Args:
        schema: the columns; none of them nested.
        header: the columns of the file in order. A column of the schema that it lacks has its default, or is
            null where that is allowed.
        where: names the file in errors.
        delimiter: one ASCII character.
        null: the text that stands for null.
        zone: the zone of timestamps without offset; None: they make a record bad.

    Raises:
        PipelineError: header and schema do not go together.
    """

    quotes: ClassVar[bool] = True

    def __init__(
        self,
        schema: Schema,
        header: Sequence[str],
        where: str,
        *,
        delimiter: str = ",",
        null: str = "",
        zone: tzinfo | None = None,
    ) -> None:
        check_csv(schema, where)
        doubled = {name for name in header if header.count(name) > 1}
        if doubled:
            raise PipelineError(f"{where}: the header names {', '.join(sorted(doubled))} twice")
        for field in schema:
            if field.name not in header and not field.nullable and field.default is None:
                advice = _of_header(schema, header, delimiter) or nearest(field.name, header)
                raise PipelineError(f"{where}: the header has no column {field.name!r}; {advice}")
        self._schema = schema
        self._header = list(header)
        self._misspelt = misspelt_in_names(schema.fields, header)
        self.delimiter: int = ord(delimiter)
        self._delimiter = delimiter
        self._null = null
        self._builder = FrameBuilder(schema, zone)
        self._has_zone = zone is not None

    def ends(self, buffer: bytes, *, last: bool = False) -> npt.NDArray[np.int64]:
        """Positions behind every newline that is not within quotes."""
        ends = line_ends(buffer)
        return quoted(buffer, self.delimiter, last=last).without(ends - 1) + 1 if b'"' in buffer else ends

    def decode(self, block: bytes) -> Decoded:
        """See `LineDecoder.decode`. Blank lines are nothing."""
        records: list[bytes] = []
        start = 0
        unclosed = set[int]()
        ends, found = line_ends(block), list[int]()
        if b'"' in block:
            within = quoted(block, self.delimiter, last=True)
            ends, found = within.without(ends - 1) + 1, within.unclosed
        for end in [*ends.tolist(), len(block)]:
            if end > start:
                if found and found[0] < end:
                    unclosed.add(len(records))
                    found = found[bisect_left(found, end) :]
                records.append(block[start:end])
            start = end
        kept = [index for index, record in enumerate(records) if record.strip(b"\r\n") and index not in unclosed]
        decoded = self._decode_records([records[index] for index in kept], kept)
        bad = [*decoded.bad, *(BadLine(index, _UNCLOSED, _raw(records[index])) for index in unclosed)]
        return Decoded(decoded.frame, sorted(bad, key=lambda line: line.index), self._misspelt)

    def _decode_records(self, records: Sequence[bytes], indexes: Sequence[int]) -> Decoded:
        """Decode records, and if the parser refuses the whole, its halves: one unreadable record costs little."""
        import pyarrow as pa

        if not records:
            return Decoded(self._builder.strict([[] for _ in self._schema]))
        try:
            texts, skipped = self._split(b"".join(records))
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            return self._decode_halves(records, indexes, str(error).splitlines()[0])
        frame, wrong = self._typed(texts)
        if (skipped or wrong) and texts.height + len(skipped) != len(records):  # which of them is not known
            return self._decode_halves(records, indexes, "has a line end or a quote within an unquoted value")
        kept = [index for index in range(len(records)) if index not in skipped]
        bad = [BadLine(indexes[index], reason, _raw(records[index])) for index, reason in skipped.items()]
        bad += [BadLine(indexes[kept[row]], reason, _raw(records[kept[row]])) for row, reason in wrong]
        return Decoded(frame, sorted(bad, key=lambda line: line.index))

    def _decode_halves(self, records: Sequence[bytes], indexes: Sequence[int], reason: str) -> Decoded:
        """Each by itself; a single record is bad, for this reason."""
        import polars as pl

        if len(records) == 1:
            return Decoded(self._decode_records([], []).frame, [BadLine(indexes[0], reason, _raw(records[0]))])
        middle = len(records) // 2
        first = self._decode_records(records[:middle], indexes[:middle])
        second = self._decode_records(records[middle:], indexes[middle:])
        return Decoded(pl.concat([first.frame, second.frame]), [*first.bad, *second.bad])

    def _split(self, text: bytes) -> tuple[pl.DataFrame, dict[int, str]]:
        """Every column of the schema that the file has as texts, and the records with another number of columns."""
        import polars as pl
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        skipped: dict[int, str] = {}
        if text.startswith(BOM_UTF8):  # Arrow leaves one out, as if a file began here
            text = BOM_UTF8 + text
        if not text.endswith(b"\n"):
            text += b"\n"  # without it Arrow takes what is empty behind a quoted value for quoted

        def note(row: arrow_csv.InvalidRow) -> Literal["skip"]:
            assert row.number is not None
            skipped[row.number - 1] = f"has {row.actual_columns} columns, the header {row.expected_columns}"
            return "skip"

        names = [field.name for field in self._schema if field.name in self._header]
        table = arrow_csv.read_csv(
            io.BytesIO(text),
            read_options=arrow_csv.ReadOptions(
                column_names=self._header, use_threads=False, block_size=max(len(text) + 1, 1 << 16)
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=note, ignore_empty_lines=True
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types={name: pa.large_string() for name in self._header},
                include_columns=names,
                null_values=[self._null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        made = pl.from_arrow(table)
        assert isinstance(made, pl.DataFrame)
        return made, skipped

    def _typed(self, texts: pl.DataFrame) -> tuple[pl.DataFrame, list[tuple[int, str]]]:
        """Rows of the schema, and for every other row its index and the reason."""
        import polars as pl

        columns: list[pl.Series] = []
        reasons: dict[int, str] = {}
        for field in self._schema:
            if field.name in texts.columns:
                text = texts[field.name]
            elif field.default is not None:
                columns.append(self._builder.series(field, [field.default] * texts.height))
                continue
            else:
                text = pl.Series(field.name, [None] * texts.height, dtype=pl.String)
            if field.type == STRING and not field.nullable:
                text = text.fill_null(self._null)
            column = self._converted(field, text)
            failed = column.is_null() if not field.nullable else column.is_null() & text.is_not_null()
            for row in failed.arg_true():
                reasons.setdefault(row, self._reason(field, text[row]))
            columns.append(column)
        frame = pl.DataFrame(columns)
        if reasons:
            keep = pl.Series([row not in reasons for row in range(texts.height)], dtype=pl.Boolean)
            frame = frame.filter(keep)
        return frame, sorted(reasons.items())

    def _converted(self, field: Field, text: pl.Series) -> pl.Series:
        """The column; null where a text does not fit."""
        import polars as pl

        if field.type == STRING:
            return text
        if field.type in INTEGERS or field.type in FLOATS:
            return text.cast(polars_type(field.type), strict=False)
        if isinstance(field.type, DecimalType):
            return _decimals_of_texts(text, field.type)
        if field.type == TIMESTAMP and not self._has_zone:
            relaxed = Field(field.name, field.type, nullable=True)
            try:
                return timestamps_of(relaxed, text.to_list())
            except (ValueError, OverflowError):
                pass  # something out of the ordinary: one by one
        values = [None if value is None else self._value(field, value)[0] for value in text]
        made, _ = FrameBuilder(Schema((Field(field.name, field.type, nullable=True),))).frame([values])
        assert made.height == len(values)
        return made.to_series() if made.width else pl.Series(field.name, values)

    def _value(self, field: Field, text: str) -> tuple[Any, str]:
        """The value of a text, or None and the reason why it is none."""
        assert isinstance(field.type, Scalar)
        expected = f"{field.name}: expected {field.type}, got {text!r:.100}"
        try:
            if field.type.name in _BY_MSGSPEC:
                value = msgspec.convert(without_nanoseconds(text), _BY_MSGSPEC[field.type.name])
                return self._builder._checked(value, field.type, field.name), ""
            if field.type.name == "binary":
                return base64.b64decode(text, validate=True), ""
            return _TRUTH.get(text.lower()), expected
        except WrongValueError as error:
            return None, str(error)
        except (ValueError, msgspec.MsgspecError):
            is_number = field.type == TIMESTAMP and text.replace(".", "", 1).isdigit()
            return None, number_for_moment(field.name) if is_number else expected

    def _reason(self, field: Field, text: str | None) -> str:
        if text is None:
            return f"{field.name}: {MISSING}"
        if isinstance(field.type, DecimalType):
            value = of_text(text)
            reason = f"; {misfit(value, field.type.precision, field.type.scale)}" if value is not None else ""
            return f"{field.name}: expected {field.type}, got {text!r:.100}{reason}"
        if field.type in INTEGERS or field.type in FLOATS:
            return f"{field.name}: expected {field.type}, got {text!r:.100}"
        return self._value(field, text)[1]


def _decimals_of_texts(text: pl.Series, kind: DecimalType) -> pl.Series:
    """The numbers; null where a text is none, or one that does not fit exactly."""
    found = decimals_of_texts(text, kind)
    if found is not None:
        return found
    values = [None if one is None else of_text(one) for one in text]
    units = [None if value is None else units_of(value, kind.precision, kind.scale) for value in values]
    return decimals_of(text.name, units, kind)


def check_csv(schema: Schema, where: str) -> None:
    """Raise `PipelineError` if CSV cannot hold a column of the schema."""
    for field in schema:
        if isinstance(field.type, ListType | MapType | StructType):
            raise PipelineError(f"{where}: column {field.name!r} is a {field.type}, which CSV cannot hold; use jsonl")


def check_csv_rows(schema: Schema, null: str, where: str) -> None:
    """Raise `PipelineError` if CSV cannot hold every row of the schema, with this text for null."""
    check_csv(schema, where)
    if len(schema.names) == 1 and schema.fields[0].nullable and not null:
        raise PipelineError(
            f"{where}: {schema.names[0]!r}, which may be null, is the only column, and a row of null alone would be a "
            'blank line, which is none to readers; say null="NULL", or write another column as well'
        )


def header_of(line: bytes, delimiter: str, where: str) -> list[str]:
    """The column names of a file's first record.

    Raises:
        PipelineError: it is not UTF-8, or no line.
    """
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PipelineError(f"{where}: the header is not UTF-8: {error}") from error
    try:
        return next(csv.reader([text.rstrip("\r\n")], delimiter=delimiter), [])
    except csv.Error as error:
        if "\r" not in text.rstrip("\r\n"):
            raise PipelineError(f"{where}: the header is no CSV: {error}") from error
        raise PipelineError(
            f"{where}: its lines end with CR alone, as on old Macs, and are wanted with LF or CR LF; convert the file, "
            "for example with tr '\\r' '\\n'"
        ) from error


def _raw(record: bytes) -> bytes:
    return record.rstrip(b"\r\n")


def _of_header(schema: Schema, header: Sequence[str], delimiter: str) -> str:
    """What is wrong with the first line as a whole; empty if it does name columns of the schema."""
    if len(header) == 1:
        for other in _OTHER_DELIMITERS:
            if any(name.strip() in schema.names for name in header[0].split(other)) and other in header[0]:
                return f"the columns are separated by {other!r}: write delimiter={other!r}"
    if any(closest(name, schema.names) is not None for name in header):
        return ""
    names = delimiter.join(schema.names)
    first = delimiter.join(header)
    return (
        f"the first line, {first[:100]!r}, names none of the columns; if it is a row, put a line with their names before "
        f"it: {names[:200]}"
    )
