"""Arrow's timestamps and durations in seconds, as milliseconds; and lists of a fixed size and float16 as others are.

Polars has no seconds. Where it takes them from Arrow it multiplies them without a look, so that what is 300 million years
away becomes any other time; here they are multiplied with one. Vectors of models are often lists of a fixed size, of
float16: they become lists and float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

Beyond = dict[str, dict[int, str]]
"""By column the rows that have a value which milliseconds of 64 bits do not hold, and what is wrong there."""


def in_millis(batch: pa.RecordBatch | pa.Table) -> tuple[pa.RecordBatch | pa.Table, Beyond]:
    """The batch with milliseconds for seconds, however deep they stand, and the rows where that cannot be, null there.

    And with lists for those of a fixed size, and float32 for float16.
    """
    beyond: Beyond = {}
    for index, field in enumerate(batch.schema):
        kind = _finer(field.type)
        if kind != field.type:
            column, beyond[field.name] = _cast(batch.column(index), kind)
            batch = batch.set_column(index, field.with_type(kind).with_nullable(True), column)
    return batch, beyond


def _finer(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return kind if _finer(kind.value_type) == kind.value_type else _finer(kind.value_type)
    if pa.types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "s":
        return pa.duration("ms")
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_finer_field(kind.value_field))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return (pa.list_ if pa.types.is_list(kind) else pa.large_list)(_finer_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _finer_field(kind.item_field), kind.keys_sorted)
    return pa.struct([_finer_field(each) for each in kind]) if pa.types.is_struct(kind) else kind


def _finer_field(field: Any) -> Any:
    return field.with_type(_finer(field.type))


def _cast(column: Any, kind: Any) -> tuple[Any, dict[int, str]]:
    import pyarrow as pa
    from pyarrow import compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if _fits(column, kind):
        return column.cast(kind), {}
    rows = [
        row for row in range(len(column)) if not _fits(column.take(pa.array([row])), kind)
    ]  # a slice casts all lists
    problems = {row: _problem(column[row]) for row in rows}
    wrong = pa.array([row in problems for row in range(len(column))])
    return pc.if_else(wrong, pa.scalar(None, column.type), column).cast(kind), problems


def _fits(column: Any, kind: Any) -> bool:
    import pyarrow as pa

    try:
        column.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _problem(value: Any) -> str:
    number = getattr(value, "value", None)
    what = f"{number} seconds are" if isinstance(number, int) else "a value in it is"
    return f"{what} more than 64 bits of milliseconds hold"
