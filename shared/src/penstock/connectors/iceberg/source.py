"""Tables of Iceberg as sources: the declaration. `scanning` and `reading` do the work when rows flow."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Unpack

from penstock.connectors import base
from penstock.connectors.base import Position, ReadContext, Split, T
from penstock.connectors.declaring import SourceOptions, declare
from penstock.connectors.iceberg.catalogs import table_place
from penstock.connectors.iceberg.reading import TableReader, Watched, plain_schema
from penstock.connectors.iceberg.scanning import Changes, TableScanSpec, newest, plan, table_columns
from penstock.connectors.iceberg.sink import Sink
from penstock.core.arguments import checked
from penstock.core.times import Duration, duration_us
from penstock.errors import PipelineError
from penstock.formats.schema_matching import SchemaMatcher
from penstock.settings import Secret
from penstock.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa

_WHAT: Final = "iceberg.Source"


class Source(base.Source[T], Generic[T]):
    """Rows of a table of Apache Iceberg: as it is at a snapshot, or that and then whatever is appended (`follow=True`).

    Without `follow` each data file is a split, and the snapshot is fixed when the job starts: restarts read the same.
    With it there are `splits=` splits, each of which reads its share of the files, in the order of the commits. Rows that
    delete files (by position, deletion vectors) take away are left out; a table with equality deletes is refused. Needs
    `penstock-streaming[iceberg]`.

    Args:
        table: namespace and name: `"shop.orders"`.
        catalog: as at `iceberg.Sink`.
        schema: dataclass, msgspec.Struct or pyarrow.Schema; only these columns are read. If not given, all columns of the
            table as it is when the source is declared. Fixed-size bytes and UUIDs are bytes.
        snapshot: the id of the one that is read (with `follow`: where it begins); if not given the newest one.
        row_filter: which rows are read, as pyiceberg understands it: `"price > 10 and shop = 'berlin'"`. Partitions and
            files without such rows are not opened, if their statistics tell.
        follow: go on with what is appended to the table, without end.
        changes: with `follow`, what a snapshot does that takes rows away or replaces them: `"fail"`, or `"skip"` to read
            on without it. Compaction changes no row and is passed over.
        splits: with `follow`, into how many shares the files are dealt; no more subtasks than that have work. A job that
            is resumed keeps its number.
        look_every: with `follow`, how often the catalog is asked for new snapshots.
        **options: as at every source, see `SourceOptions`.

    Raises:
        PipelineError: something of it does not fit; also the table, where its columns are asked for.

    Example:
        >>> lake = {"type": "sql", "uri": "sqlite:///lake/catalog.db", "warehouse": Path("lake").absolute().as_uri()}
        >>> written = bids.select("auction", "price").write(iceberg.Sink("shop.bids", catalog=lake))
        >>> p.run().state
        'FINISHED'
        >>> dear = Pipeline("dear").read(iceberg.Source("shop.bids", catalog=lake, row_filter="price > 100"))
        >>> dear.collect().height
        2
    """

    kind: ClassVar[str] = "iceberg"
    has_moment: ClassVar[bool] = True
    ends_on_request: ClassVar[bool] = True

    @checked
    def __init__(
        self,
        table: str,
        *,
        catalog: str | Mapping[str, str | Secret] = "default",
        schema: type[T] | Schema | pa.Schema | None = None,
        snapshot: int | None = None,
        row_filter: str = "",
        follow: bool = False,
        changes: Changes = "fail",
        splits: int = 8,
        look_every: Duration = "5s",
        **options: Unpack[SourceOptions],
    ) -> None:
        self._place: Final = table_place(_WHAT, table, catalog)
        self.table: Final = table
        self.snapshot: Final = snapshot
        self.row_filter: Final = _checked_filter(row_filter)
        self.follow: Final = follow
        self.changes: Final[Changes] = changes
        self.splits: Final = splits
        self.look_every_us: Final = duration_us(look_every, f"{_WHAT}: look_every", positive=True)
        self._moment: Position = None
        if splits < 1:
            raise PipelineError(f"{_WHAT}: splits= is a whole number from 1, got {splits}")
        vars(self).update(vars(declare(_WHAT, self._inferred() if schema is None else schema, **options)))

    def _inferred(self) -> pa.Schema:
        table = self._place.load()
        with self._place.asking("read the columns of"):
            return plain_schema(table_columns(self._place, table, self.snapshot).as_arrow())

    @property
    def _spec(self) -> TableScanSpec:
        """What is read: columns that the table lacks are null, if the schema allows that."""
        table = self._place.load()
        with self._place.asking("read the columns of"):
            return self._of(table_columns(self._place, table, self.snapshot).as_arrow())

    def _of(self, found: pa.Schema) -> TableScanSpec:
        names = SchemaMatcher(self.schema, plain_schema(found), f"{_WHAT}: {self._place}", self.timezone).names
        # A column, though none is wanted, so that there are rows.
        return TableScanSpec(self._place, tuple(names or found.names[:1]), self.row_filter, self.snapshot)

    # -- what is read -------------------------------------------------------------------------------------------------

    def moment(self) -> Position:
        """See `Source.moment`: the snapshot."""
        return {"snapshot": newest(self._place.load()) if self.snapshot is None else self.snapshot}

    def at(self, moment: Position) -> Source[T]:
        """See `Source.at`."""
        bound = copy.copy(self)
        bound._moment = moment
        return bound

    def discover(self) -> Sequence[Split]:
        """See `Source.discover`. The id of a split is the path of its file, or its number."""
        spec = self._spec
        if self.follow:
            return sorted((Split(str(number)) for number in range(self.splits)), key=lambda split: split.id)
        snapshot = (self._moment or self.moment())["snapshot"]
        if snapshot is None:
            return []
        files = plan(spec, snapshot, whole=True).files
        return [Split(path, task.file.file_size_in_bytes) for path, task in files.items()]

    def resolve(self, split: Split, *, late: bool) -> Position:
        """See `Source.resolve`."""
        snapshot = (self._moment or self.moment())["snapshot"]
        begin = {"snapshot": snapshot, "whole": True, "file": 0, "row": 0, "done": False}
        return begin | {"ends": not self.follow, "until": None if self.follow else snapshot}

    def until_now(self, split: Split, position: Position) -> Position:
        """See `Source.until_now`."""
        position = position or self.resolve(split, late=False)
        return position if position["ends"] else position | {"ends": True, "until": newest(self._place.load())}

    def at_end(self, position: Position) -> bool:
        """See `Source.at_end`."""
        return bool(position) and position["ends"] and position["done"] and position["snapshot"] == position["until"]

    def go_on_from(self, position: Position) -> Position | None:
        """See `Source.go_on_from`."""
        return position | {"ends": False, "until": None} if self.follow else None

    def dataset(self) -> base.Dataset:
        """See `Source.dataset`: the table."""
        return self._place.dataset()

    def conflict(self, sink: base.Sink) -> str:
        """See `Source.conflict`: a snapshot that is fixed may be read by who appends to the table."""
        if self.follow and isinstance(sink, Sink) and self._place.same(sink._place):
            return f"{self!r} would read what {sink!r} writes, without end; write to another table"
        return ""

    def open(self, split: Split, position: Position, context: ReadContext) -> base.SplitReader:
        """See `Source.open`."""
        from penstock.connectors.files.reading import RemoteReader

        return RemoteReader(lambda: self._opened(split, position, context), position)

    def _opened(self, split: Split, position: Position, context: ReadContext) -> base.SplitReader:
        spec = self._spec
        begin = position or self.resolve(split, late=False)
        watched = context.shared.setdefault(
            f"iceberg:{self._place}", Watched(spec, self.look_every_us // 1_000, context.monotonic_ms)
        )
        return TableReader(spec, self.schema, self.timezone, self._share(split), begin, watched, self.changes)

    def _share(self, split: Split) -> Callable[[str], bool]:
        if not self.follow:
            return lambda path: path == split.id
        number, splits = int(split.id), self.splits
        return lambda path: zlib.crc32(path.encode()) % splits == number

    @property
    def bounded(self) -> bool:
        """Whether it ends with its snapshot."""
        return not self.follow

    @property
    def replayable(self) -> bool:
        """True: snapshots never change, as long as they are kept."""
        return True

    def describe(self) -> Mapping[str, Any]:
        """See `Source.describe`."""
        described = self._place.describe() | {"snapshot": self.snapshot, "row_filter": self.row_filter or None}
        if self.follow:
            described |= {"follow": True, "changes": self.changes, "splits": self.splits}
        return {name: value for name, value in described.items() if value is not None}


def _checked_filter(row_filter: str) -> str:
    from pyiceberg.expressions import parser

    try:
        if row_filter:
            parser.parse(row_filter)
    except Exception as error:  # pyparsing's own classes
        raise PipelineError(
            f'{_WHAT}: row_filter={row_filter!r} is not understood: {error}; write for example "price > 10 and shop = '
            "'berlin'\""
        ) from None
    return row_filter
