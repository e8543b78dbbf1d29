"""Files and folders as sources and sinks: JSON lines, CSV, Parquet, Arrow.

This module is the declaration; `reading` and `writing` do the work when rows flow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Unpack

from penstock.arguments import checked
from penstock.connectors import base
from penstock.connectors.base import Guarantee, Position, ReadContext, Split, T
from penstock.connectors.declaring import SourceOptions, declare, zone
from penstock.connectors.formats.names import Format, format_of, is_compressed
from penstock.connectors.pacing import Pace, checked_rate
from penstock.errors import PipelineError
from penstock.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.connectors.files.reading import Content, TextFile

_HEAD_BYTES = 1 << 20
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Source(base.Source[T], Generic[T]):
    """Rows of files, each file one split, in the order in which they stand there. Ends where the files end.

    Args:
        path: a file, a folder (all files in it and below, sorted; names that begin with a dot or an underscore are left
            out) or a pattern with `*`, `?`, `[...]`, `**`. Relative to the current directory; URLs are refused.
        schema: dataclass, msgspec.Struct or pyarrow.Schema of the rows; Parquet and Arrow files can do without.
        format: `jsonl`, `csv`, `parquet`, `arrow`; by the file's extension if not given. Text may be compressed with
            gzip (`.gz`): such a file is read again from its beginning after a restart, up to the position. The first row
            of a CSV file is its header, the names of the columns.
        rate: rows per second of all files together, to replay data slowly; counts from the start of the job or of its
            resumption.
        batch_rows: rows that are read at a time. Smaller ones cost more per row, and where windows allow lateness each
            batch sends the corrections of its rows.
        delimiter, null: of CSV: between columns; the unquoted text that means null.
        **options: as at every source, see `SourceOptions`.

    Raises:
        PipelineError: something of it does not fit.

    Example:
        >>> bids = p.read(files.Source("bids.jsonl", schema=Bid, event_time="at", max_out_of_orderness="5s"))
        >>> bids.collect().height
        4
    """

    kind: ClassVar[str] = "files"

    @checked
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: type[T] | Schema | pa.Schema | None = None,
        format: Format | None = None,
        rate: float | None = None,
        batch_rows: int | None = None,
        delimiter: str = ",",
        null: str = "",
        **options: Unpack[SourceOptions],
    ) -> None:
        what = "files.Source"
        self.path: Final = _checked_path(path, what)
        self.format: Final = format
        self.rate: Final = checked_rate(rate, what)
        self.batch_rows: Final = _checked_batch(batch_rows, what)
        self.delimiter: Final = _checked_delimiter(delimiter, what)
        self.null: Final = null
        vars(self).update(vars(declare(what, self._inferred() if schema is None else schema, **options)))

    def _inferred(self) -> pa.Schema:
        """The schema of the first file, if it says."""
        from penstock.connectors.files.reading import arrow_schema

        path = self._file(self.discover()[0])
        if self._format(path) in ("jsonl", "csv"):
            raise PipelineError(
                f"files.Source: {path} does not tell the types of its columns; give schema=, a dataclass with a field "
                "per column"
            )
        return arrow_schema(path)

    # -- splits -------------------------------------------------------------------------------------------------------

    def discover(self) -> Sequence[Split]:
        """See `Source.discover`. The id of a split is the file's path below the folder (before the pattern)."""
        root, found = self._found()
        splits = [Split(path.relative_to(root).as_posix(), path.stat().st_size) for path in found]
        return sorted(splits, key=lambda split: split.id)

    def _found(self) -> tuple[Path, list[Path]]:
        path = Path(self.path)
        if path.is_file():
            return path.parent, [path]
        if path.is_dir():
            root, candidates = path, path.rglob("*")
        elif any(character in self.path for character in "*?["):
            root, pattern = _split_pattern(path)
            candidates = root.glob(pattern)
        else:
            raise PipelineError(f"files.Source: there is neither a file nor a folder {self.path!r} in {Path.cwd()}")
        found = [other for other in candidates if other.is_file() and not _is_hidden(other.relative_to(root))]
        if path.is_dir() and self.format is None:
            found = [other for other in found if format_of(other) is not None]
        if not found:
            raise PipelineError(
                f"files.Source: no file in {self.path!r}"
                + ("" if self.format else " has a known extension; name the format with format=")
            )
        return root, found

    def _file(self, split: Split) -> Path:
        path = Path(self.path)
        if path.is_dir():
            return path / split.id
        return (path.parent if path.name == split.id else _split_pattern(path)[0]) / split.id

    def _format(self, path: Path) -> Format:
        found = self.format or format_of(path)
        if found is None:
            raise PipelineError(f"files.Source: {path} has no known extension; name the format with format=")
        return found

    # -- reading ------------------------------------------------------------------------------------------------------

    def open(self, split: Split, position: Position, context: ReadContext) -> base.SplitReader:
        """See `Source.open`."""
        from penstock.connectors.files.reading import ColumnarReader, GzipContent, PlainContent, TextReader

        path = self._file(split)
        rate = None if self.rate is None else self.rate / len(self.discover())
        pace = Pace(rate, context.monotonic_ms, self.batch_rows)
        kind = self._format(path)
        if kind in ("parquet", "arrow"):
            return ColumnarReader(path, split.id, self.schema, self.timezone, position, pace)
        content = (
            GzipContent(path) if is_compressed(path) else PlainContent(path, position["end"] if position else None)
        )
        try:
            return TextReader(self._text_file(path, split.id, kind, content), position, pace)
        except BaseException:
            content.close()
            raise

    def _text_file(self, path: Path, name: str, kind: Format, content: Content) -> TextFile:
        from penstock.connectors.files.reading import TextFile
        from penstock.connectors.formats.csv_decoding import CsvDecoder, header_of
        from penstock.connectors.formats.decoding import JsonDecoder

        naive = zone(self.timezone, "files.Source")
        head = content.read(0, _HEAD_BYTES)
        begin = len(_BYTE_ORDER_MARK) if head.startswith(_BYTE_ORDER_MARK) else 0
        if kind == "jsonl":
            return TextFile(path, name, content, JsonDecoder(self.schema, naive), begin, 0)
        behind = head.find(b"\n") + 1 or len(head)
        header = header_of(head[:behind], self.delimiter, str(path))
        decoder = CsvDecoder(self.schema, header, str(path), delimiter=self.delimiter, null=self.null, zone=naive)
        return TextFile(path, name, content, decoder, behind, 1)

    @property
    def bounded(self) -> bool:
        """True: files end."""
        return True

    @property
    def replayable(self) -> bool:
        """True: a file can be read again."""
        return True

    def describe(self) -> Mapping[str, Any]:
        """See `Source.describe`."""
        described = {"path": self.path, "format": self.format, "timezone": self.timezone, "rate": self.rate}
        described["batch_rows"] = self.batch_rows
        return {name: value for name, value in described.items() if value is not None}


Existing = Literal["append", "replace"]


class Sink(base.Sink):
    """Files in a folder, exactly once: rows become visible with the checkpoint that covers them, as `part-*` files.

    Whoever consumes the files may move or delete them at once. Use one folder per sink and job. Of a stream of updates
    every update is written: of the rows of one key (and window) the last one in the order of file names counts.

    Args:
        folder: is created if need be. Relative to the current directory; a local one, URLs are refused.
        existing: what a job that starts anew does with the `part-*` files of earlier jobs: `append` leaves them beside
            its own, `replace` removes them. A job that is resumed never removes anything visible.
        format: `jsonl`, `csv`, `parquet` or `arrow`. JSON has no NaN and no infinity: they are written as null.
        delimiter, null: of CSV.

    Example:
        >>> written = bids.select("auction", "price").write(files.Sink("out", format="csv"))
        >>> p.run().state
        'FINISHED'
        >>> [part.read_text().splitlines()[0] for part in Path("out").glob("part-*")]
        ['auction,price']
    """

    kind: ClassVar[str] = "files"

    @checked
    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        format: Format = "jsonl",
        existing: Existing = "append",
        delimiter: str = ",",
        null: str = "",
    ) -> None:
        what = "files.Sink"
        self.folder: Final = _checked_path(folder, what)
        self.format: Final = format
        self.existing: Final = existing
        self.delimiter: Final = _checked_delimiter(delimiter, what)
        self.null: Final = null

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once: rows become visible with the checkpoint that covers them."""
        return "exactly-once"

    @property
    def place(self) -> str:
        """The folder: of files of several sinks nobody could tell whose rows are in them."""
        return os.path.realpath(self.folder)

    def check(self, schema: Schema, *, updates: bool) -> None:
        """See `Sink.check`; updates are written as rows."""
        if self.format == "csv":
            from penstock.connectors.formats.csv_decoding import check_csv

            check_csv(schema, "files.Sink")

    def open(self, schema: Schema, context: base.WriteContext) -> base.SinkWriter:
        """See `Sink.open`."""
        from penstock.connectors.files.writing import FileWriter, staged_file

        return FileWriter(
            Path(self.folder),
            self.format,
            context,
            lambda path: staged_file(path, schema, self.format, self.delimiter, self.null),
        )

    def begin(self) -> base.Removal:
        """See `Sink.begin`."""
        if self.existing == "append":
            return base.remove_nothing
        from penstock.connectors.files.writing import removal, visible_files

        return removal(visible_files(Path(self.folder)))

    def recover(
        self, needed: Sequence[Any], operator: str | None = None, attempt: str = "", attempt_number: int | None = None
    ) -> base.Removal:
        """See `Sink.recover`."""
        from penstock.connectors.files.writing import leftovers, removal

        return removal(leftovers(Path(self.folder), needed, operator, attempt, attempt_number))

    def describe(self) -> Mapping[str, Any]:
        """See `Sink.describe`."""
        return {"folder": self.folder, "format": self.format, "existing": self.existing}


def _checked_path(path: str | os.PathLike[str], what: str) -> str:
    """A local path; `Path` makes one slash of the two of a URL."""
    text = os.fspath(path)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return text
    local = (
        "write it without the scheme" if scheme[1].lower() == "file" else "mount the store and name the mounted folder"
    )
    raise PipelineError(
        f"{what}: {text!r} is a URL, and only local files and folders are served (nothing would go to {scheme[1]}): "
        f"{local}; for a local folder that is really called {scheme[1] + ':'!r} write './{text}'"
    )


def _checked_batch(batch_rows: int | None, what: str) -> int | None:
    if batch_rows is not None and batch_rows < 1:
        raise PipelineError(f"{what}: batch_rows= is a whole number from 1, got {batch_rows}")
    return batch_rows


def _checked_delimiter(delimiter: str, what: str) -> str:
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise PipelineError(f"{what}: delimiter= is one ASCII character such as ',' or ';', got {delimiter!r}")
    return delimiter


def _split_pattern(path: Path) -> tuple[Path, str]:
    """The folder before the first part with a wildcard, and the pattern from there."""
    for index, part in enumerate(path.parts):
        if any(character in part for character in "*?["):
            return Path(*path.parts[:index]), str(Path(*path.parts[index:]))
    return path.parent, path.name


def _is_hidden(relative: Path) -> bool:
    return any(part.startswith((".", "_")) for part in relative.parts)
