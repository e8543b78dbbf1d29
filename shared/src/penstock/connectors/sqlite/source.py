"""`sqlite.Source`: rows of a table, a view or a query, in the order of a key, from where a position says."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Unpack

from penstock.connectors import base
from penstock.connectors.base import BadRow, EndOfSplit, Fetched, Position, ReadContext, Split, T
from penstock.connectors.declaring import SourceOptions, declare, zone
from penstock.connectors.sqlite.database import Database, folded
from penstock.connectors.sqlite.pages import Key, Pages, key_of_json, key_to_json, range_of, relation
from penstock.connectors.sqlite.sink import Sink
from penstock.core.arguments import checked
from penstock.core.times import Duration
from penstock.errors import PipelineError
from penstock.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa

_WHAT: Final = "sqlite.Source"
_ALONE: Final = "0"
"""The id of the split of what is not read in several."""


class Source(base.Source[T], Generic[T]):
    """Rows of a table of SQLite, of a view or a query, to the end.

    A table is read in the order of its row numbers (`rowid`, an `integer primary key`), up to the largest one that is
    there when the job begins; one `WITHOUT ROWID` in the order of its primary key. It is read page by page, without a
    lock between two pages: rows that others change, add or delete behind the position meanwhile come as they are then. A
    restart reads the same rows again as long as nobody changes them. Columns of SQLite have values of any type: one that
    is not of the type of the schema makes a bad row.

    Args:
        database: the path of its file, which is only read. On a cluster it must lead to the file wherever a subtask runs.
        table: the name of a table or view.
        query: a `select` in its place.
        order_by: column or columns that are never null and together different in every row, in whose order a view or
            query is read: each page asks for the rows behind the last one. Two rows that they do not tell apart fail the
            job, and so does null.
        schema: dataclass, msgspec.Struct or pyarrow.Schema; only these columns are read. If not given, all columns, by
            their declared types as they are when the source is declared.
        splits: into how many ranges of row numbers a table is cut, which as many subtasks read side by side. A job that
            is resumed keeps its number.
        lock_timeout: how long a page waits for a connection that writes.
        **options: as at every source, see `SourceOptions`.

    Raises:
        PipelineError: something of it does not fit; also the table, where its columns are asked for.

    Example:
        >>> written = bids.select("auction", "price").write(sqlite.Sink("shop.db", table="bids"))
        >>> p.run().state
        'FINISHED'
        >>> dear = Pipeline("dear").read(sqlite.Source("shop.db", table="bids")).filter(col("price") > 100)
        >>> dear.collect().height
        2
        >>> totals = "select auction, sum(price) as price from bids group by auction"
        >>> read = Pipeline("totals").read(sqlite.Source("shop.db", query=totals, order_by="auction", schema=Total))
        >>> read.collect().rows()
        [(1, 170.0), (2, 330.0)]
    """

    kind: ClassVar[str] = "sqlite"
    has_moment: ClassVar[bool] = True

    @checked
    def __init__(
        self,
        database: str | os.PathLike[str],
        table: str | None = None,
        *,
        query: str | None = None,
        order_by: str | Sequence[str] | None = None,
        schema: type[T] | Schema | pa.Schema | None = None,
        splits: int = 1,
        lock_timeout: Duration = "60s",
        **options: Unpack[SourceOptions],
    ) -> None:
        self.database: Final = Database(_WHAT, database, lock_timeout)
        self.relation: Final = relation(self.database, table, query, order_by, splits)
        self.splits: Final = splits
        self._moment: Position = None
        vars(self).update(vars(declare(_WHAT, self.relation.inferred() if schema is None else schema, **options)))

    # -- splits -------------------------------------------------------------------------------------------------------

    def moment(self) -> Position:
        """See `Source.moment`: the first and the last row number, and how many splits; nothing of what has no numbers."""
        numbers = self.relation.numbers()
        return [*numbers, self.splits] if numbers else None if numbers is None else []

    def at(self, moment: Position) -> Source[T]:
        """See `Source.at`."""
        bound = copy.copy(self)
        bound._moment = moment
        return bound

    def discover(self) -> Sequence[Split]:
        """See `Source.discover`. The id of a split is its number; a table without rows has none."""
        order = self.relation.look(self.schema)
        if order.by_rowid:
            _, _, splits = self._numbers() or (None, None, 0)
            return sorted((Split(str(number)) for number in range(splits)), key=lambda split: split.id)
        if self.splits > 1:
            raise PipelineError(f"{self.relation.where}it has no row numbers, so it is one split; leave splits= out")
        return [Split(_ALONE)]

    def _numbers(self) -> Position:
        return self.moment() if self._moment is None else self._moment

    def resolve(self, split: Split, *, late: bool) -> Position:
        """See `Source.resolve`: a range of row numbers; of a split that other `splits=` have added, an empty one."""
        numbers = self._numbers()
        after, until = range_of(int(split.id), *numbers, empty=late) if numbers else (None, None)
        return {"after": key_to_json(after), "until": until}

    @property
    def relative_path(self) -> str:
        """See `Source.relative_path`."""
        return self.database.relative_path

    def dataset(self) -> base.Dataset | None:
        """See `Source.dataset`: the table; a query has no name."""
        table = self.relation.table
        return None if table is None else base.Dataset(self.database.namespace, table)

    def conflict(self, sink: base.Sink) -> str:
        """See `Source.conflict`."""
        if not isinstance(sink, Sink) or self.relation.table is None or not self.database.same(sink.database):
            return ""
        if folded(self.relation.table) != folded(sink.table):
            return ""
        return f"{self!r} would read what {sink!r} writes; write to another table"

    # -- reading ------------------------------------------------------------------------------------------------------

    def open(self, split: Split, position: Position, context: ReadContext) -> base.SplitReader:
        """See `Source.open`."""
        begin = self.resolve(split, late=False) if position is None else position
        pages = Pages(self.relation, self.schema, zone(self.timezone, _WHAT), begin["until"])
        return TableReader(pages, key_of_json(begin["after"]))

    @property
    def bounded(self) -> bool:
        """True: a table ends."""
        return True

    @property
    def replayable(self) -> bool:
        """True, as long as nobody changes the rows."""
        return True

    def describe(self) -> Mapping[str, Any]:
        """See `Source.describe`."""
        described: dict[str, Any] = {
            "database": self.database.path, "table": self.relation.table, "query": self.relation.query,
            "order_by": list(self.relation.order_by), "splits": self.splits, "timezone": self.timezone,
        }  # fmt: skip
        return {name: value for name, value in described.items() if value not in (None, [])}


@dataclass
class TableReader:
    """Follows one split; see `SplitReader`. Its position has the last row's key, and the last number of the split."""

    _pages: Pages
    _after: Key | None

    async def read(self, max_rows: int) -> Fetched:
        """See `SplitReader.read`."""
        page = await asyncio.to_thread(self._pages.page, max_rows, self._after)
        if page is None:
            raise EndOfSplit
        self._after = page.last  # behind the only `await`: a read that is cancelled has read nothing
        return Fetched(page.frame, [BadRow(*bad) for bad in page.bad], int(page.frame.estimated_size()))

    def position(self) -> Position:
        """See `SplitReader.position`."""
        return {"after": key_to_json(self._after), "until": self._pages.until}

    async def close(self) -> None:
        """See `SplitReader.close`: nothing is open."""
