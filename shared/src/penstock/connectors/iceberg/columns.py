"""Columns of rows and columns of tables: their types, whether rows fit a table, and what a table is partitioned by."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

from penstock.errors import PipelineError, nearest
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    TIME,
    TIMESTAMP,
    UINT8,
    UINT16,
    UINT32,
    DataType,
    DecimalType,
    ListType,
    MapType,
    Scalar,
    Schema,
    StructType,
)

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema as TableSchema
    from pyiceberg.transforms import Transform
    from pyiceberg.types import IcebergType, NestedField

_CLASSES: Final = {
    BOOLEAN: "BooleanType", INT8: "IntegerType", INT16: "IntegerType", INT32: "IntegerType", UINT8: "IntegerType",
    UINT16: "IntegerType", INT64: "LongType", UINT32: "LongType", FLOAT32: "FloatType", FLOAT64: "DoubleType",
    STRING: "StringType", BINARY: "BinaryType", DATE: "DateType", TIME: "TimeType", TIMESTAMP: "TimestamptzType",
}  # fmt: skip
"""The types that Iceberg has; whole numbers without a sign take the next wider one."""
_PARTITION: Final = re.compile(r"(?:(\w+)\((?:(\d+) *, *)?(.+)\)|(.+))")
_COUNTED: Final = ("bucket", "truncate")
_PLAIN: Final = ("identity", "year", "month", "day", "hour")


def table_schema(schema: Schema, what: str) -> TableSchema:
    """The schema of a table for such rows.

    Raises:
        PipelineError: Iceberg has no such type; names the column.
    """
    from pyiceberg.schema import Schema as TableSchema
    from pyiceberg.types import NestedField

    ids, fields = count(1), list[NestedField]()
    for each in schema:
        kind = _table_type(each.type, f"{what}: column {each.name!r}", ids)
        fields.append(NestedField(next(ids), each.name, kind, required=not each.nullable))
    return TableSchema(*fields)


def _table_type(kind: DataType, where: str, ids: Iterator[int]) -> IcebergType:
    from pyiceberg.types import ListType as TableList
    from pyiceberg.types import MapType as TableMap
    from pyiceberg.types import NestedField, StringType
    from pyiceberg.types import StructType as TableStruct

    match kind:
        case ListType(inner):
            return TableList(next(ids), _table_type(inner, where, ids), element_required=False)
        case MapType(value):
            return TableMap(next(ids), StringType(), next(ids), _table_type(value, where, ids), value_required=False)
        case StructType(fields):
            return TableStruct(
                *(
                    NestedField(next(ids), each.name, _table_type(each.type, where, ids), required=False)
                    for each in fields
                )
            )
        case _:
            return _primitive(kind, where)


def _primitive(kind: DataType, where: str) -> IcebergType:
    from pyiceberg import types

    if isinstance(kind, DecimalType):
        return types.DecimalType(kind.precision, kind.scale)
    name = _CLASSES.get(kind) if isinstance(kind, Scalar) else None
    if name is None:
        raise PipelineError(
            f"{where} is {kind}, which Iceberg does not have; cast it in the pipeline (int64, a decimal)"
        )
    return getattr(types, name)()


def check_columns(schema: Schema, table: TableSchema, where: str) -> None:
    """Whether rows of the schema can be appended to a table.

    Raises:
        PipelineError: a column is missing on one side, or of another type, or may be null and must not be; names all.
    """
    wanted = table_schema(schema, where)
    problems = [*_misfits(wanted.fields, table.fields, "")]
    if problems:
        raise PipelineError(f"{where}: the rows do not fit the table: {'; '.join(problems)}")


def _misfits(rows: Sequence[NestedField], table: Sequence[NestedField], path: str) -> Iterator[str]:
    have = {each.name: each for each in table}
    for each in rows:
        name = path + each.name
        if each.name not in have:
            yield f"the table has no column {name!r} ({nearest(each.name, have)})"
        elif have[each.name].required and not each.required and not path:
            yield f"{name!r} may be null, and the table does not allow that"
        else:
            yield from _misfit(each.field_type, have[each.name].field_type, name)
    names = {each.name for each in rows}
    for each in table:
        if each.name not in names and (each.required or path):
            yield f"the rows have no column {path + each.name!r}, which the table demands"


def _misfit(rows: IcebergType, table: IcebergType, name: str) -> Iterator[str]:
    from pyiceberg.types import ListType as TableList
    from pyiceberg.types import MapType as TableMap
    from pyiceberg.types import StructType as TableStruct

    if isinstance(rows, TableStruct) and isinstance(table, TableStruct):
        yield from _misfits(rows.fields, table.fields, f"{name}.")
    elif isinstance(rows, TableList) and isinstance(table, TableList):
        yield from _misfit(rows.element_type, table.element_type, f"{name}.element")
    elif isinstance(rows, TableMap) and isinstance(table, TableMap):
        yield from _misfit(rows.key_type, table.key_type, f"{name}.key")
        yield from _misfit(rows.value_type, table.value_type, f"{name}.value")
    elif not _widens(rows, table):
        yield f"{name!r} is {rows} in the rows and {table} in the table"


def _widens(rows: IcebergType, table: IcebergType) -> bool:
    """Whether every value of one type is one of the other: what Iceberg's own promotions of types allow."""
    from pyiceberg.types import DecimalType as TableDecimal

    if isinstance(rows, TableDecimal) and isinstance(table, TableDecimal):
        return rows.scale == table.scale and rows.precision <= table.precision
    return rows == table or (str(rows), str(table)) in {("int", "long"), ("float", "double")}


# -- partitions ---------------------------------------------------------------------------------------------------------


def check_partitions(partition_by: Sequence[str], schema: Schema, what: str) -> None:
    """Raise `PipelineError` if a table of such rows could not be partitioned so."""
    partition_spec(partition_by, table_schema(schema, what), what)


def partition_spec(partition_by: Sequence[str], schema: TableSchema, what: str) -> PartitionSpec:
    """The partitions of a new table: columns, or `day(at)`, `bucket(16, id)`, `truncate(4, name)` and so on."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec

    fields: list[PartitionField] = []
    for number, text in enumerate(partition_by):
        transform, column = _transform(text, what)
        if column not in (names := [each.name for each in schema.fields]):
            raise PipelineError(
                f"{what}: partition_by={text!r}: there is no column {column!r}; {nearest(column, names)}"
            )
        source = schema.find_field(column)
        if not transform.can_transform(source.field_type):
            raise PipelineError(
                f"{what}: partition_by={text!r}: {column!r} is {source.field_type}, which has no {transform}"
            )
        name = column if str(transform) == "identity" else f"{column}_{str(transform).split('[')[0]}"
        if any(each.name == name for each in fields):
            raise PipelineError(f"{what}: partition_by= names {text!r} twice")
        fields.append(PartitionField(source.field_id, 1000 + number, transform, name))
    return PartitionSpec(*fields)


def _transform(text: str, what: str) -> tuple[Transform[object, object], str]:
    from pyiceberg.transforms import parse_transform

    found = _PARTITION.fullmatch(text.strip())
    name = "identity" if found is None or found[1] is None else found[1]
    if found is None or name not in (*_COUNTED, *_PLAIN) or (name in _COUNTED) != (found[2] is not None):
        raise PipelineError(
            f"{what}: partition_by={text!r} is no partition; write a column, or year(column), month(...), day(...), "
            "hour(...), bucket(16, column), truncate(4, column)"
        )
    if found[2] is not None and int(found[2]) == 0:
        raise PipelineError(f"{what}: partition_by={text!r}: the number is at least 1")
    return parse_transform(f"{name}[{found[2]}]" if found[2] else name), (found[3] or found[4]).strip()
