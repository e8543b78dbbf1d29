"""Tables of Iceberg as sinks: the declaration. `writing` and `appending` do the work when rows flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.connectors import base
from penstock.connectors.base import Guarantee, WriteContext
from penstock.connectors.iceberg.catalogs import table_place
from penstock.connectors.iceberg.columns import check_partitions, partition_spec, table_schema
from penstock.core.arguments import checked
from penstock.errors import PipelineError
from penstock.settings import Secret
from penstock.types import Schema

if TYPE_CHECKING:
    from pyiceberg.table import Table

_WHAT: Final = "iceberg.Sink"


class Sink(base.Sink):
    """A table of Apache Iceberg, exactly once: rows are in the table with the checkpoint that covers them.

    Every subtask that had rows appends them by one commit per checkpoint; a run on Spark appends all of its rows by one.
    Others may write to the table at the same time, compact it, and expire its snapshots. Needs
    `penstock-streaming[iceberg]`.

    Args:
        table: namespace and name: `"shop.orders"`. It is made if there is none, and its namespace, too.
        catalog: how pyiceberg finds it: settings by pyiceberg's own names, such as `{"type": "rest", "uri":
            "http://catalog:8181"}` or `{"type": "sql", "uri": "postgresql+psycopg2://...", "warehouse": "s3://..."}`,
            with `"name"` for the catalog's name (`"default"`); or the name of one that pyiceberg is configured with
            (`.pyiceberg.yaml`, `PYICEBERG_CATALOG__...`) where the tasks run. Keys may be `Secret`s; plans show none.
        partition_by: how a table that is made is partitioned: columns, `"day(at)"` (`year`, `month`, `hour`),
            `"bucket(16, id)"`, `"truncate(4, name)"`. A table that is there keeps its own partitions.

    Raises:
        PipelineError: something of it does not fit.

    Example:
        >>> lake = {"type": "sql", "uri": "sqlite:///lake/catalog.db", "warehouse": Path("lake").absolute().as_uri()}
        >>> written = bids.select("auction", "price").write(iceberg.Sink("shop.bids", catalog=lake))
        >>> p.run().state
        'FINISHED'
    """

    kind: ClassVar[str] = "iceberg"

    @checked
    def __init__(
        self,
        table: str,
        *,
        catalog: str | Mapping[str, str | Secret] = "default",
        partition_by: Sequence[str] = (),
    ) -> None:
        self._place: Final = table_place(_WHAT, table, catalog)
        self.table: Final = table
        self.partition_by: Final = tuple(partition_by)

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once: rows are in the table with the checkpoint that covers them."""
        return "exactly-once"

    def dataset(self) -> base.Dataset:
        """See `Sink.dataset`: the table."""
        return self._place.dataset()

    def check(self, schema: Schema, *, updates: bool) -> None:
        """See `Sink.check`."""
        if updates:
            raise PipelineError(
                f"{_WHAT}: a stream of updates: rows are appended, and nobody could tell which one of a key is the "
                "newest; write the final rows (.final()), or to a Kafka topic"
            )
        check_partitions(self.partition_by, schema, _WHAT)

    def reach(self, schema: Schema) -> None:
        """See `Sink.reach`: the table is made if there is none."""
        from penstock.connectors.iceberg.writing import check_table

        check_table(self._made(schema), schema, self._place)

    def _made(self, schema: Schema) -> Table:
        from pyiceberg.catalog import Catalog

        with self._place.asking("make"):
            catalog = self._place.open()
            if not catalog.table_exists(self.table):
                namespace = Catalog.namespace_from(self.table)
                _made_by_anybody(catalog.namespace_exists, namespace, lambda: catalog.create_namespace(namespace))
                columns = table_schema(schema, _WHAT)
                spec = partition_spec(self.partition_by, columns, _WHAT)
                _made_by_anybody(
                    catalog.table_exists,
                    self.table,
                    lambda: catalog.create_table(self.table, columns, partition_spec=spec),
                )
            return catalog.load_table(self.table)

    def open(self, schema: Schema, context: WriteContext) -> base.SinkWriter:
        """See `Sink.open`."""
        from penstock.connectors.iceberg.writing import TableWriter

        return TableWriter(self._place, schema, context)

    def describe(self) -> Mapping[str, Any]:
        """See `Sink.describe`."""
        described = self._place.describe()
        return described | ({"partition_by": list(self.partition_by)} if self.partition_by else {})


def _made_by_anybody(exists: Callable[[Any], bool], name: object, make: Callable[[], object]) -> None:
    """Make what is missing. Who is overtaken gets an error that differs by catalog, and what is wanted is there."""
    try:
        if not exists(name):
            make()
    except Exception:
        if not exists(name):
            raise
