"""DataFrames and tables of Spark as a source, for pipelines that run there: whatever Spark reads, Penstock reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, TypeGuard, Unpack

from penstock.connectors import base
from penstock.connectors.base import Position, ReadContext, Split, T
from penstock.connectors.declaring import SourceOptions, declare
from penstock.core.arguments import checked
from penstock.errors import PipelineError
from penstock.formats.schema_matching import SchemaMatcher
from penstock.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_WHAT: Final = "spark.Source"
_ROW: Final = "__row"
"""A column that is read only so that there are rows, where the schema has none of those that are there."""


class Source(base.Source[T], Generic[T]):
    """Rows of a DataFrame. Its partitions are the splits, read in the order in which Spark gives their rows.

    Args:
        data: a DataFrame; the name of a table or view, as `spark.table` takes it; or a function that makes a DataFrame of
            the session, such as `lambda spark: spark.read.format("jdbc").options(...).load()`. A file that is run by
            `penstock run` names a table or gives a function: there is no session yet when it is imported.
        schema: dataclass, msgspec.Struct or pyarrow.Schema; Spark reads these columns alone. If not given, all columns
            of the DataFrame that is.
        **options: as at every source, see `SourceOptions`. `timezone` is the zone of timestamps that have none.

    Event time comes on by the order of rows in a partition, and keyed operators are given rows in the order of event
    time, as everywhere on Spark. A DataFrame that is not the same when Spark computes it again (a sample, rows numbered
    in no order) gives rows that are not the same either: write it to a table first.

    Example:
        >>> orders = p.read(spark.Source("warehouse.orders", schema=Bid, event_time="at"))
        >>> orders.schema.names
        ('auction', 'price', 'at', 'tags')
    """

    kind: ClassVar[str] = "spark"
    on_spark_alone: ClassVar[bool] = True

    @checked
    def __init__(
        self,
        data: DataFrame | str | Callable[[SparkSession], DataFrame],
        *,
        schema: type[T] | Schema | pa.Schema | None = None,
        **options: Unpack[SourceOptions],
    ) -> None:
        if schema is None and _is_frame(data):
            schema = _arrow_schema(data)
        if schema is None:
            raise PipelineError(
                f"{_WHAT}: give schema=, the columns of the rows: a table is looked at when the pipeline runs"
            )
        vars(self).update(vars(declare(_WHAT, schema, **options)))
        self.data: Final = data
        if _is_frame(data):
            self._check(data)

    def frame(self, session: SparkSession) -> DataFrame:
        """The columns of the schema by their numbers in it: Spark does not take every name for one in Python functions.

        Raises:
            PipelineError: a column is missing, or of another type; or the function gave no DataFrame.
        """
        made: Any = self.data
        if isinstance(made, str):
            made = session.table(made)
        elif not _is_frame(made):
            made = made(session)
        if not _is_frame(made):
            raise PipelineError(f"{_WHAT}: {self._name()} gave {made!r:.100}, not a DataFrame")
        wanted: list[tuple[str, int | str]] = [(name, self.schema.names.index(name)) for name in self._check(made)]
        wanted = wanted or [(name, _ROW) for name in made.columns[:1]]  # Python has no rows without columns from Spark
        return made.select(*(made["`" + name.replace("`", "``") + "`"].alias(str(number)) for name, number in wanted))

    def named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of that frame with the names of the schema."""
        names = [name if name == _ROW else self.schema.names[int(name)] for name in batch.schema.names]
        return batch.rename_columns(names)

    def _check(self, frame: DataFrame) -> list[str]:
        """The columns that must be read."""
        return SchemaMatcher(self.schema, _arrow_schema(frame), f"{_WHAT}: {self._name()}", self.timezone).names

    def _name(self) -> str:
        if isinstance(self.data, str):
            return self.data
        return "the DataFrame" if _is_frame(self.data) else getattr(self.data, "__qualname__", "the function")

    def __getstate__(self) -> dict[str, Any]:
        """Without the DataFrame, which is the driver's: tasks are given its rows."""
        return {**vars(self), "data": self._name()}

    def discover(self) -> Sequence[Split]:
        """Not asked: the splits are the partitions."""
        self._refuse()

    def open(self, split: Split, position: Position, context: ReadContext) -> base.SplitReader:
        """Not asked: Spark gives tasks the rows."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise PipelineError(f"{_WHAT}: Spark alone reads {self._name()}; run the pipeline there")

    @property
    def bounded(self) -> bool:
        """A DataFrame is as long as it is when it is computed."""
        return True

    @property
    def replayable(self) -> bool:
        """As far as the DataFrame is the same when it is computed again."""
        return True

    def describe(self) -> Mapping[str, Any]:
        """See `Source.describe`."""
        return {"data": self._name()}


def _is_frame(data: object) -> TypeGuard[DataFrame]:
    """Whether it is a DataFrame, of classic Spark or Connect: neither is imported for it."""
    return hasattr(data, "mapInArrow")


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(frame.schema, timezone="UTC")
    except Exception as error:  # PySpark's own classes, which differ by version
        raise PipelineError(f"{_WHAT}: {error}; select the columns that the pipeline needs") from error
