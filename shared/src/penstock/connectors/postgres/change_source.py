"""`postgres.ChangeSource`: the rows of a table and all changes of it, by logical replication. Loads no client."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from penstock.connectors import base
from penstock.connectors.base import Policy, Position, ReadContext, Split, SplitReader, T
from penstock.connectors.change_rows import check_keys, with_changes
from penstock.connectors.declaring import declare, zone
from penstock.connectors.postgres.captured_table import Capture
from penstock.connectors.postgres.change_positions import ChangePosition
from penstock.connectors.postgres.sink import Sink
from penstock.connectors.postgres.slots import CREATE_TIMEOUT, made_slot
from penstock.connectors.postgres.tables import TablePlace, postgres_type
from penstock.core.arguments import checked
from penstock.core.blocking import run_blocking
from penstock.errors import PipelineError
from penstock.settings import Secret
from penstock.types import Schema

_WHAT: Final = "postgres.ChangeSource"
_SLOT: Final = re.compile(r"[a-z0-9_]{1,63}")


class ChangeSource(base.ChangeSource[T]):
    """The rows of a table of Postgres, then every committed change of it: a stream of changes, without end.

    The changes come from the server's log by logical replication (`pgoutput`), in the order in which transactions were
    committed, each once, whatever fails. The table needs a primary key and the server `wal_level = logical`; the user may
    log in with `replication`, read the table, and owns it or finds the publication made. Needs
    `penstock-streaming[postgres]` and Postgres 13 or newer.

    The replication slot keeps the server's log from the last complete checkpoint on, for as long as the job stands still,
    too. It stays when a job has ended: drop it with `select pg_drop_replication_slot(...)`.

    Args:
        table: its name, `"orders"` or `"shop.orders"`.
        key: column or columns of the primary key, or of another unique index that former rows are known by.
        schema: the columns that are read, those of the key too: dataclass, msgspec.Struct, pyarrow.Schema or Schema.
        url: `postgresql://user:password@host:5432/database`; a `Secret` if it has a password.
        slot: the replication slot, which no other job uses: lower case letters, digits and `_`. Made if there is none.
        publication: the publication that has the table, named as the slot if not given. Made if there is none.
        before_images: updates and deletes have the whole former row, as the table says with `replica identity full`. Then
            no state is needed to know what is retracted.
        bad_rows: what becomes of changes that cannot be read, such as a truncated table: `"fail"`, `"skip"` (counted) or
            `"dead_letter"`.
        timezone: zone of columns that are `timestamp without time zone`.

    Raises:
        PipelineError: one of them does not fit.

    Example:
        >>> shop = "postgresql://localhost/shop"
        >>> totals = p.read(postgres.ChangeSource("totals", key="auction", schema=Total, url=shop, slot="totals"))
        >>> totals.schema.names
        ('auction', 'price', 'retracted')
        >>> dear = totals.filter(col("price") > 100).key_by(all=lit(1)).agg(auctions=count())
    """

    kind: ClassVar[str] = "postgres"

    @checked
    def __init__(
        self,
        table: str,
        *,
        key: str | Sequence[str],
        schema: type[T] | Any,
        url: str | Secret,
        slot: str,
        publication: str | None = None,
        before_images: bool = False,
        bad_rows: Policy = "fail",
        timezone: str | None = None,
    ) -> None:
        self.rows = declare(_WHAT, schema, bad_rows=bad_rows, timezone=timezone).schema
        self.keys: tuple[str, ...] = (key,) if isinstance(key, str) else tuple(key)
        check_keys(_WHAT, self.rows, self.keys)
        for field in self.rows:
            postgres_type(field.type, f"{_WHAT}: {field.name}")
        if not _SLOT.fullmatch(slot):
            raise PipelineError(f"{_WHAT}: slot={slot!r} is no name of a slot: up to 63 of a-z, 0-9 and _")
        self.place: Final = TablePlace(_WHAT, table, url)
        self.slot: Final = slot
        self.publication: Final = publication or slot
        self.complete = before_images
        self.schema = with_changes(self.rows, self.keys, complete=before_images)
        self.row_type, self.event_time = None, None
        self.bad_rows, self.timezone = bad_rows, timezone
        self.zone: Final = zone(timezone, _WHAT)

    @property
    def retracted_rows(self) -> Schema:
        """The columns that are known of a row that is retracted."""
        return self.rows if self.complete else self.rows.select(self.keys)

    @property
    def capture(self) -> Capture:
        """What is read, for those who ask the server."""
        return Capture(
            self.place, self.rows, self.keys, self.complete, self.slot, self.publication, self.timezone
        )  # fmt: skip

    def discover(self) -> Sequence[Split]:
        """See `Source.discover`: the table, whose log has one order."""
        return [Split(self.place.table)]

    def resolve(self, split: Split, *, late: bool) -> Position:
        """See `Source.resolve`: makes the publication and the slot, whose beginning is the job's."""
        return run_blocking(self._begun())

    async def _begun(self) -> Position:
        capture = self.capture
        with self.place.errors(capture.where):
            connection = await self.place.connect(CREATE_TIMEOUT)
            async with connection:
                table = await capture.table(connection)
                await capture.publish(connection)
                await capture.check_publication(connection, table)
                lsn, fence, owner = await made_slot(capture, connection)
        return msgspec.to_builtins(ChangePosition(lsn, table.oid, owner, fence))

    def open(self, split: Split, position: Position, context: ReadContext) -> SplitReader:
        """See `Source.open`."""
        from penstock.connectors.postgres.change_reading import ChangeReader

        return ChangeReader(self, position, context)

    @property
    def bounded(self) -> bool:
        """See `Source.bounded`: changes never end."""
        return False

    @property
    def replayable(self) -> bool:
        """See `Source.replayable`."""
        return True

    def conflict(self, sink: base.Sink) -> str:
        """See `Source.conflict`."""
        if isinstance(sink, Sink) and (sink.target.table, sink.target.address) == (
            self.place.table,
            self.place.address,
        ):
            return f"{self!r} would read what {sink!r} writes, without end; write to another table"
        return ""

    def dataset(self) -> base.Dataset:
        """See `Source.dataset`."""
        return base.Dataset(*self.place.dataset)

    def describe(self) -> Mapping[str, Any]:
        """See `Source.describe`."""
        described: dict[str, Any] = {
            "table": self.place.table, "url": self.place.address, "key": list(self.keys), "slot": self.slot,
            "publication": self.publication, "before_images": self.complete or None, "timezone": self.timezone,
            "bad_rows": self.bad_rows,
        }  # fmt: skip
        return {name: value for name, value in described.items() if value is not None}
