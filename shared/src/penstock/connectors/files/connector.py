"""Files and folders as sources and sinks: JSON lines, CSV, Parquet, Arrow.

This module is the declaration; `reading` and `writing` do the work when rows flow.
"""

from __future__ import annotations

import copy
import os
from codecs import BOM_UTF8
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Unpack

from penstock.connectors import base
from penstock.connectors.base import ExistingRowsError, Guarantee, Position, ReadContext, ScanRequest, Split, T
from penstock.connectors.declaring import SourceOptions, declare, zone
from penstock.connectors.files.checks import checked_batch, checked_columns, checked_delimiter, checked_place
from penstock.connectors.files.local import LocalFiles, LocalParts
from penstock.connectors.files.object_store import StoredFiles, StoredParts
from penstock.connectors.files.overlaps import Place, dataset_of, is_staged, reads_what_is_written, removes_what_is_read
from penstock.connectors.files.partitions import (
    PartitionedReader,
    WantedFolders,
    check_partition_by,
    constants_of,
    inferred,
)
from penstock.connectors.files.ranges import FileRange, behind, ranges, surveyed
from penstock.connectors.files.store_clients import Location
from penstock.connectors.files.writing import FileWriter, leftovers, remove_visible, staged_file, visible_parts
from penstock.connectors.pacing import Pace, checked_rate
from penstock.core.arguments import checked
from penstock.errors import PipelineError
from penstock.formats.names import Format, format_of, is_compressed
from penstock.types import INT64, Field, Schema

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.connectors.files.reading import Content, InputFile, InputFiles, TextFile
    from penstock.connectors.files.writing import PartFolder

_HEAD_BYTES = 1 << 20
_NO_COLUMNS: Final = Schema((Field("no column (penstock)", INT64, nullable=True),))
"""Read of files of which no column is wanted: they lack it, so it is null in every row."""


class Source(base.Source[T], Generic[T]):
    """Rows of files, each file one split, in the order in which they stand there. Ends where the files end.

    Args:
        path: a file, a folder (all files in it and below, sorted; names that begin with a dot or an underscore are left
            out, but for the folders of columns, `_day=1`) or a pattern with `*`, `?`, `[...]`, `**`. Relative to the
            current directory, or a URL of an object store: `s3://bucket/folder`, `gs://...`,
            `abfss://container@account.dfs.core.windows.net/...` (needs
            `penstock-streaming[stores]`).
        schema: dataclass, msgspec.Struct or pyarrow.Schema of the rows; Parquet and Arrow files can do without. Columns
            that folders name (`day=2026-11-21/`) count as columns of the files below.
        format: `jsonl`, `csv`, `parquet`, `arrow`; by the file's extension if not given. Text may be compressed with
            gzip (`.gz`): such a file is read again from its beginning after a restart, up to the position. The first row
            of a CSV file is its header, the names of the columns.
        rate: rows per second of all files together, to replay data slowly; counts from the start of the job or of its
            resumption.
        batch_rows: rows that are read at a time. Smaller ones cost more per row, and where windows allow lateness each
            batch sends the corrections of its rows.
        delimiter, null: of CSV: between columns; the unquoted text that means null.
        storage_options: how the object store is reached where the environment ("AWS_ENDPOINT_URL",
            "AWS_ACCESS_KEY_ID", workload identities) does not say it, by the names that Polars and Delta Lake use:
            "endpoint_url", "access_key_id", "secret_access_key", "region", "skip_signature" and others; and "ssl_cafile",
            the certificates (PEM) of an authority of one's own. Plans do not show them.
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
        storage_options: Mapping[str, str] | None = None,
        **options: Unpack[SourceOptions],
    ) -> None:
        what = "files.Source"
        self._place: Final = checked_place(path, storage_options, what)
        self.path: Final = str(self._place)
        self.format: Final = format
        self.rate: Final = checked_rate(rate, what)
        self.batch_rows: Final = checked_batch(batch_rows, what)
        self.delimiter: Final = checked_delimiter(delimiter, what)
        self.null: Final = null
        self._scan = ScanRequest()
        vars(self).update(vars(declare(what, self._inferred() if schema is None else schema, **options)))

    @property
    def relative_path(self) -> str:
        """See `Source.relative_path`."""
        return self.path if _is_relative(self._place) else ""

    @property
    def _files(self) -> InputFiles:
        return LocalFiles(self._place) if isinstance(self._place, str) else StoredFiles(self._place)

    def _inferred(self) -> pa.Schema:
        """The schema of the first file, if it says, and what all folders name."""
        import pyarrow as pa

        from penstock.connectors.files.columnar import arrow_schema

        splits = self.discover()
        names = [split.id for split in splits]
        file = self._files.file(next((split.id for split in splits if split.size_bytes), names[0]))
        if self._format(file) in ("jsonl", "csv"):
            raise PipelineError(
                f"files.Source: {file} does not tell the types of its columns; give schema=, a dataclass with a field "
                "per column"
            )
        found = arrow_schema(file)
        return pa.schema([*found, *Schema(inferred(map(self._full_name, names), found.names)).arrow()])

    def _full_name(self, name: str) -> str:
        return str(self._files.file(name))

    # -- splits -------------------------------------------------------------------------------------------------------

    def discover(self) -> Sequence[Split]:
        """See `Source.discover`. The id of a split is the file's path below the folder (before the pattern)."""
        found, folders = self._found(self._folders), self._folders
        if not found and folders is not None:
            found = self._found(None)  # there must be files, if not one that is wanted
        if not found:
            raise PipelineError(f"files.Source: {self._nothing()}")
        kept = [Split(name, size) for name, size in sorted(found)]
        return [each for each in kept if folders.keeps(self._full_name(each.id))] if folders is not None else kept

    def _nothing(self) -> str:
        """Why there is no input: no file at all, or none whose format is known."""
        kind = "matches the pattern" if any(sign in self.path for sign in "*?[") else "is in"
        if self._files.find(None):
            return f"no file that {kind} {self.path!r} has a known extension; name the format with format="
        return f"no file {kind} {self.path!r}; correct the path, or write the files before the pipeline starts"

    def _found(self, folders: WantedFolders | None) -> list[tuple[str, int]]:
        files = self._files
        every = files.find(folders.keeps if folders is not None else None)
        found = [(name, size) for name, size in every if not _is_hidden(PurePosixPath(name))]
        if self.format is None and files.is_folder:
            found = [(name, size) for name, size in found if format_of(PurePosixPath(name)) is not None]
        return found

    @property
    def _folders(self) -> WantedFolders | None:
        """What may be left out by the names of folders; None: nothing."""
        predicate = self._scan.predicate
        return None if predicate is None else WantedFolders(predicate, self.schema)

    def ranges(self, split: Split, most_bytes: int) -> Sequence[Position]:
        """See `Source.ranges`. Not of compressed text, and not at a `rate=`."""
        size = split.size_bytes
        if size is None or size <= most_bytes or self.rate is not None or is_compressed(PurePosixPath(split.id)):
            return ()
        return [each.position() for each in ranges(size, most_bytes)]

    def needs_survey(self, split: Split) -> bool:
        """See `Source.needs_survey`: of CSV, whose quoted values may have line ends."""
        return (self.format or format_of(PurePosixPath(split.id))) == "csv"

    def survey(self, split: Split, position: Position) -> list[Any]:
        """See `Source.survey`."""
        file, part = self._files.file(split.id), FileRange.of(position)
        assert part is not None
        part.check(file, may_grow=True)
        content = file.content(part.size)
        try:
            return part.look(self._text_file(file, split.id, "csv", self._own_columns(split), content))
        finally:
            content.close()

    def surveyed(self, positions: Sequence[Position], found: Sequence[Any]) -> Sequence[Position]:
        """See `Source.surveyed`."""
        planned = [part for position in positions if (part := FileRange.of(position)) is not None]
        return [each.position() for each in surveyed(planned, found)]

    def behind(self, split: Split, positions: Sequence[Position]) -> Position:
        """See `Source.behind`."""
        return behind(self._full_name(split.id), positions)

    def narrowed(self, request: ScanRequest) -> Source[T]:
        """See `Source.narrowed`. Columns and row groups of Parquet files, and folders that name columns, are left out."""
        (made := copy.copy(self))._scan = request
        return made

    def describe_narrowing(self) -> Mapping[str, str]:
        """See `Source.describe_narrowing`."""
        scan, described = self._scan, dict[str, str]()
        if scan.columns is not None:
            read = [name for name in self.schema.names if name in scan.columns]
            described["columns read"] = f"{', '.join(read) or 'none'} (of Parquet files)"
        if scan.predicate is not None:
            what = "folders" if scan.whole_splits else "folders, and row groups of Parquet files,"
            described["not read"] = f"{what} where {scan.predicate} cannot be true"
        return described

    def _format(self, file: InputFile) -> Format:
        found = self.format or format_of(PurePosixPath(str(file)))
        if found is None:
            raise PipelineError(f"files.Source: {file} has no known extension; name the format with format=")
        return found

    def dataset(self) -> base.Dataset:
        """See `Source.dataset`: the folder or file."""
        return dataset_of(self._place)

    def conflict(self, sink: base.Sink) -> str:
        """See `Source.conflict`."""
        if not isinstance(sink, Sink):
            return ""
        if reads_what_is_written(self._place, sink._place, sink.partition_by, sink.format):
            return (
                f"{self!r} reads what {sink!r} writes: rows of its own after a restart, and with existing='replace' the "
                "input is removed; write to a folder that is not read"
            )
        if sink.existing == "replace" and removes_what_is_read(self._place, sink._place):
            return f"{sink!r} removes what {self!r} reads before it is read; write to another folder, or append"
        return ""

    # -- reading ------------------------------------------------------------------------------------------------------

    def open(self, split: Split, position: Position, context: ReadContext) -> base.SplitReader:
        """See `Source.open`."""
        if isinstance(self._place, str):
            return self._opened(split, position, context)
        from penstock.connectors.files.reading import RemoteReader

        return RemoteReader(lambda: self._opened(split, position, context), position)

    def _opened(self, split: Split, position: Position, context: ReadContext) -> base.SplitReader:
        rate = None if self.rate is None else self.rate / max(1, len(self.discover()))
        pace = Pace(rate, context.monotonic_ms, self.batch_rows)
        constants = constants_of(self._full_name(split.id), self.schema)
        if not constants:
            return self._reader(split, self.schema, position, pace)
        return PartitionedReader(self._reader(split, self._own_columns(split), position, pace), self.schema, constants)

    def _own_columns(self, split: Split) -> Schema:
        """Those that stand in a file, not in the names of its folders; at least one, so that there are rows."""
        constants = constants_of(self._full_name(split.id), self.schema)
        names = [name for name in self.schema.names if name not in constants]
        return self.schema.select(names) if names else _NO_COLUMNS

    def _reader(self, split: Split, schema: Schema, position: Position, pace: Pace) -> base.SplitReader:
        from penstock.connectors.files.columnar import ColumnarReader, EmptyFile, Rows
        from penstock.connectors.files.reading import GzipContent, TextReader

        file = self._files.file(split.id)
        kind = self._format(file)
        if kind in ("parquet", "arrow"):
            form = self.event_time.form if self.event_time is not None else None
            if file.size == 0:
                return EmptyFile(file, split.id, schema, position)
            return ColumnarReader(file, split.id, Rows(schema, self.timezone, self._scan, form), position, pace)
        if (part := FileRange.of(position)) is not None:
            part.check(file, may_grow=True)
        end = part.size if part is not None else position["end"] if position else None
        compressed = is_compressed(PurePosixPath(str(file)))
        content = GzipContent(file) if compressed else file.content(end)
        try:
            text = self._text_file(file, split.id, kind, schema, content)
            return TextReader(text if part is None else part.lines(text), position, pace)
        except BaseException:
            content.close()
            raise

    def _text_file(self, file: InputFile, name: str, kind: Format, schema: Schema, content: Content) -> TextFile:
        from penstock.connectors.files.reading import TextFile
        from penstock.formats.csv_decoding import CsvDecoder, header_of
        from penstock.formats.decoding import JsonDecoder

        naive = zone(self.timezone, "files.Source")
        head = content.read(0, _HEAD_BYTES)
        begin = len(BOM_UTF8) if head.startswith(BOM_UTF8) else 0
        if kind == "jsonl":
            return TextFile(file, name, content, JsonDecoder(schema, naive), begin, 0)
        behind = head.find(b"\n") + 1 or len(head)
        header = header_of(head[:behind], self.delimiter, str(file))
        decoder = CsvDecoder(schema, header, str(file), delimiter=self.delimiter, null=self.null, zone=naive)
        return TextFile(file, name, content, decoder, behind, 1)

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


Existing = Literal["fail", "append", "replace"]


class Sink(base.Sink):
    """Files in a folder, exactly once: rows become visible with the checkpoint that covers them, as `part-*` files.

    Whoever consumes the files may move or delete them at once; one that was deleted on an object store in the moment of
    a crash may come back under its name. Use one folder per sink and job. Of a stream of updates every update is
    written: of the rows of one key (and window) the last one in the order of file names counts.

    Args:
        folder: is created if need be. Relative to the current directory, or a URL of an object store, as at
            `files.Source`.
        existing: what a job that starts anew does where there are `part-*` files of earlier jobs, in the folder or in
            those of columns (`day=1/`): `fail` refuses to start, so that a program that is run twice does not double its
            rows; `append` leaves them beside its own, `replace` removes them. A job that is resumed, or begins with a
            savepoint, goes on beside what is there. A pipeline that would read what it writes, or remove what it reads,
            is refused, and so is a folder in that of another sink, whose readers would read the rows of both.
        format: `jsonl`, `csv`, `parquet` or `arrow`. JSON has no NaN and no infinity: they are written as null.
        delimiter, null: of CSV.
        partition_by: columns that name folders instead of standing in the files, outermost first: with `["day"]` rows go
            to `day=2026-11-21/part-*`, as Hive, Spark, DuckDB and Polars read it. Text, whole numbers, booleans, dates.
        storage_options: as at `files.Source`.

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
        existing: Existing = "fail",
        delimiter: str = ",",
        null: str = "",
        partition_by: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        what = "files.Sink"
        self._place: Final = checked_place(folder, storage_options, what)
        self.folder: Final = str(self._place)
        self.format: Final = format
        self.existing: Final = existing
        self.delimiter: Final = checked_delimiter(delimiter, what)
        self.null: Final = null
        self.partition_by: Final = checked_columns(partition_by, what)

    @property
    def relative_path(self) -> str:
        """See `Sink.relative_path`."""
        return self.folder if _is_relative(self._place) else ""

    @property
    def _folder(self) -> PartFolder:
        return LocalParts(Path(self._place)) if isinstance(self._place, str) else StoredParts(self._place)

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once: rows become visible with the checkpoint that covers them."""
        return "exactly-once"

    def conflict(self, other: base.Sink) -> str:
        """See `Sink.conflict`. Of files of several sinks in a folder nobody could tell whose rows are in them."""
        if not isinstance(other, Sink):
            return ""
        one, another = self._real, other._real
        if str(one) == str(another):
            return (
                f"{one} is written by another sink already, and the rows of both would be mixed; write one stream there: "
                "a.union(b).write(...), in SQL one INSERT INTO with UNION ALL"
            )
        for outer, inner, sink in ((one, another, other), (another, one, self)):
            if reads_what_is_written(outer, inner, sink.partition_by, sink.format) or is_staged(inner, outer):
                return (
                    f"{inner} lies in {outer}, where another sink writes: whoever reads {outer} would read the rows of "
                    f"both; write to folders beside each other, such as {inner} and {outer}/rows"
                )
        return ""

    @property
    def _real(self) -> Place:
        """The folder, whatever links lead to it."""
        return os.path.realpath(self._place) if isinstance(self._place, str) else self._place

    def dataset(self) -> base.Dataset:
        """See `Sink.dataset`: the folder."""
        return dataset_of(self._place)

    def check(self, schema: Schema, *, updates: bool) -> None:
        """See `Sink.check`; updates are written as rows."""
        check_partition_by(self.partition_by, schema, "files.Sink")
        if self.partition_by and updates:
            raise PipelineError(
                "files.Sink: partition_by= of a stream of updates: a later update of a key may lie in another folder, "
                "and nobody could tell which one counts; write the final rows (.final()), or leave partition_by= out"
            )
        if self.format == "csv":
            from penstock.formats.csv_decoding import check_csv_rows

            check_csv_rows(self._written(schema), self.null, "files.Sink")

    def _written(self, schema: Schema) -> Schema:
        """What files hold: all columns but those that folders are named by."""
        return schema.select(name for name in schema.names if name not in self.partition_by)

    def open(self, schema: Schema, context: base.WriteContext) -> base.SinkWriter:
        """See `Sink.open`."""
        written = self._written(schema)
        return FileWriter(
            self._folder,
            self.format,
            context,
            lambda path: staged_file(path, written, self.format, self.delimiter, self.null),
            self.partition_by,
        )

    def begin(self) -> base.Removal:
        """See `Sink.begin`."""
        if self.existing == "append":
            return base.remove_nothing
        folder = self._folder
        found = visible_parts(folder)
        if found and self.existing == "fail":
            raise ExistingRowsError(_holds_rows(self.folder, found))
        return partial(remove_visible, folder, found)

    def recover(
        self,
        needed: Sequence[Any],
        operator: str | None = None,
        attempt: str = "",
        attempts: Collection[str] | None = None,
    ) -> base.Removal:
        """See `Sink.recover`."""
        return leftovers(self._folder, needed, operator, attempt, attempts)

    def describe(self) -> Mapping[str, Any]:
        """See `Sink.describe`."""
        described: dict[str, Any] = {"folder": self.folder, "format": self.format, "existing": self.existing}
        return described | ({"partition_by": list(self.partition_by)} if self.partition_by else {})


def _holds_rows(folder: str, found: Sequence[str]) -> str:
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"files.Sink: the folder {folder} holds rows of an earlier run ({min(found)}{others}), and those of this one "
        'would stand beside them; write existing="replace" to remove them whenever a run begins anew, existing="append" '
        "to keep them (in SQL 'existing' = 'replace' or 'append'), or name another folder"
    )


def _is_relative(place: str | Location) -> bool:
    return isinstance(place, str) and not Path(place).is_absolute()


def _is_hidden(relative: PurePosixPath) -> bool:
    # As Spark has it: `_SUCCESS` and `_temporary` are none's rows, `_day=2026-11-21` is the folder of a column.
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in relative.parts)
