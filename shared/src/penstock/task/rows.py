"""Frames to row objects and back: the edge between columnar operators and per-row Python functions.

`RowReader` makes objects of the user's class (nested ones included) from the columns of a frame; `RowWriter` makes a
frame of exactly the declared types from what a function returned, and names the value that does not fit. Both work
column by column, which is several times faster than row by row. What a function gives is taken at once (`taken`): it may
change the same object for the next row, or keep it in its state, as Flink's operators may without object reuse.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NoReturn, cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME
from penstock.errors import PipelineError, UserCodeError
from penstock.state.columns import WrongValueError, scalar_column, to_python
from penstock.types import (
    STRING,
    DataType,
    Field,
    ListType,
    MapType,
    Schema,
    StructType,
    attribute_of,
    is_row_class,
    polars_type,
    row_class,
)

Values = list[Any]


# -- reading ------------------------------------------------------------------------------------------------------------


class RowReader:
    """Makes row objects of `row_type` from frames with the columns of `schema`."""

    def __init__(self, schema: Schema, row_type: type[Any]) -> None:
        self._schema = schema
        self._build = _record_builder(schema.fields, row_type)

    def rows(self, frame: pl.DataFrame) -> list[Any]:
        """One object per row, in order; timestamps are aware datetimes in UTC."""
        return self._build([frame[field.name] for field in self._schema])


def _record_builder(fields: Sequence[Field], row_type: type[Any]) -> Callable[[Sequence[pl.Series]], Values]:
    """A function from the columns of `fields` to objects of `row_type`."""
    hints = typing.get_type_hints(row_type)
    names = [attribute_of(row_type, field.name) for field in fields]
    readers = [_column_reader(field.type, hints.get(name)) for field, name in zip(fields, names, strict=True)]
    parameters = inspect.signature(row_type).parameters
    missing = [
        name for name, parameter in parameters.items() if name not in names and parameter.default is parameter.empty
    ]
    unknown = [name for name in names if name not in parameters]
    if missing or unknown:
        raise PipelineError(
            f"rows of class {row_type.__name__} cannot be made from the columns {', '.join(names)}: "
            + (f"missing {', '.join(missing)}" if missing else f"its constructor does not take {', '.join(unknown)}")
        )
    by_position = list(parameters)[: len(names)]
    positional = set(by_position) == set(names) and all(
        parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for name in names
    )
    order = [names.index(name) for name in by_position] if positional else list(range(len(names)))

    def build(columns: Sequence[pl.Series]) -> Values:
        lists = [readers[index](columns[index]) for index in order]
        if not lists:
            return []
        if positional:
            return list(map(row_type, *lists))
        return [row_type(**dict(zip(names, values, strict=True))) for values in zip(*lists, strict=True)]

    return build


def _column_reader(kind: DataType, hint: Any) -> Callable[[pl.Series], Values]:
    if isinstance(kind, StructType):
        return _struct_reader(kind, hint)
    if isinstance(kind, ListType):
        return _list_reader(kind, hint)
    if isinstance(kind, MapType):
        return _map_reader(kind, hint)
    return lambda series: to_python(series, kind)


def _struct_reader(kind: StructType, hint: Any) -> Callable[[pl.Series], Values]:
    nested = _class_in(hint) or row_class(Schema(kind.fields))
    build = _record_builder(kind.fields, nested)

    def read(series: pl.Series) -> Values:
        present = series.drop_nulls()
        made = build([present.struct.field(field.name) for field in kind.fields])
        return _spread(made, series)

    return read


def _list_reader(kind: ListType, hint: Any) -> Callable[[pl.Series], Values]:
    inner = _column_reader(kind.inner, _element_hint(hint))

    def read(series: pl.Series) -> Values:
        present = series.drop_nulls()
        lengths = present.list.len()
        elements = inner(present.filter(lengths > 0).explode())
        ends = np.cumsum(lengths.to_numpy(), dtype=np.int64).tolist()
        starts = [0, *ends][: len(ends)]
        return _spread([elements[start:end] for start, end in zip(starts, ends, strict=True)], series)

    return read


def _map_reader(kind: MapType, hint: Any) -> Callable[[pl.Series], Values]:
    keys, values = _list_reader(ListType(STRING), None), _list_reader(ListType(kind.value), list[_value_hint(hint)])

    def read(series: pl.Series) -> Values:
        present = series.drop_nulls().to_frame("m").select(k=pl.col("m").map.keys(), v=pl.col("m").map.values())
        pairs = zip(keys(present["k"]), values(present["v"]), strict=True)
        return _spread([dict(zip(*pair, strict=True)) for pair in pairs], series)

    return read


def _spread(made: Values, series: pl.Series) -> Values:
    """`made`, which has a value for every row that is not null, with None for the others."""
    if not series.null_count():
        return made
    remaining = iter(made)
    return [None if null else next(remaining) for null in series.is_null()]


def _class_in(hint: Any) -> type[Any] | None:
    return next((cast("type[Any]", part) for part in _alternatives(hint) if is_row_class(part)), None)


def _element_hint(hint: Any) -> Any:
    for part in _alternatives(hint):
        arguments = typing.get_args(part)
        if arguments:
            return arguments[0]
    return None


def _value_hint(hint: Any) -> Any:
    return next((typing.get_args(part)[1] for part in _alternatives(hint) if len(typing.get_args(part)) == 2), Any)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) is typing.Annotated:
        return _alternatives(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


# -- writing ------------------------------------------------------------------------------------------------------------


class RowWriter:
    """Makes frames with exactly the columns of `schema` from row objects, or from dicts with these keys.

    Args:
        schema: the columns.
        row_type: class of the rows, if rows of another one are to be refused.
        where: what produced the rows, such as `map: to_euros`; leads error messages.
        emitted: whether a function emits the rows, and does not return them.
    """

    def __init__(
        self, schema: Schema, row_type: type[Any] | None = None, where: str = "rows", *, emitted: bool = False
    ) -> None:
        self._schema = schema
        self._row_type = row_type
        self._where = where
        self._emitted = emitted
        self._getters = [(field, _attribute_getter(field.name), itemgetter(field.name)) for field in schema]
        self.copied = _copier_of(schema, row_type)
        """The values of a row, or of a dict with its columns, as they are now: for `frame_of_copies`."""

    def frame_of_copies(self, copies: Sequence[Any], event_times: Sequence[int] | None = None) -> pl.DataFrame:
        """As `frame`, of rows that `copied` returned."""
        if _Unfit in set(map(type, copies)):
            self._refuse(next(each.row for each in copies if isinstance(each, _Unfit)))
        try:
            made = [_column(field, [*map(itemgetter(index), copies)]) for index, field in enumerate(self._schema)]
        except WrongValueError as error:
            raise UserCodeError(f"{self._where}: {error}") from error
        return _with_times(made, event_times)

    def _refuse(self, row: Any) -> NoReturn:
        self.frame([row])  # which says what is wrong with it
        raise UserCodeError(f"{self._where}: this is no row: {row!r}")

    def frame(self, rows: Sequence[Any], event_times: Sequence[int] | pl.Series | None = None) -> pl.DataFrame:
        """The rows as a frame, with `EVENT_TIME` if event times are given.

        Raises:
            UserCodeError: a row is no row, or a value does not belong into its column.
        """
        as_dicts = self._check_class(rows)
        try:
            columns = [
                _column(field, [*map(item if as_dicts else attribute, rows)])
                for field, attribute, item in self._getters
            ]
        except WrongValueError as error:
            raise UserCodeError(f"{self._where}: {error}") from error
        except (AttributeError, KeyError) as error:
            raise UserCodeError(f"{self._where}: a returned row has no {error}") from error
        return _with_times(columns, event_times)

    def _check_class(self, rows: Sequence[Any]) -> bool:
        """Whether all rows are dicts; raises if some row is of another class than was declared."""
        classes = set(map(type, rows))
        if self._row_type is None or classes <= {self._row_type}:
            return dict in classes
        if classes == {dict}:
            self._check_names(rows)
            return True
        expected = self._row_type
        wrong = next((row for row in rows if not isinstance(row, expected)), None)
        if wrong is not None or type(None) in classes:
            raise UserCodeError(f"{self._where}: {self._wanted(expected.__name__)}, got {wrong!r}{self._advice(wrong)}")
        return False

    def _wanted(self, expected: str) -> str:
        return f"takes one {expected}" if self._emitted else f"must return a {expected}"

    def _advice(self, wrong: object) -> str:
        """What was probably meant by something that is no row."""
        if inspect.iscoroutine(wrong):
            wrong.close()  # or Python says that it was never awaited, of a place inside Penstock
            return "; the function is async: write map_async(...)"
        if wrong is None:
            return "" if self._emitted else "; a return is missing"
        if self._emitted:
            if isinstance(wrong, list | tuple | types.GeneratorType):
                return "; emit each row by itself: for row in rows: ctx.emit(row)"
            return ""
        several = isinstance(wrong, list | types.GeneratorType) and ".map_batches" not in self._where
        return "; a function that gives several rows is for flat_map(...)" if several else ""

    def _check_names(self, rows: Sequence[dict[str, Any]]) -> None:
        names = set(self._schema.names)
        for row in rows:
            if row.keys() != names:
                lacks, more = sorted(names - row.keys()), sorted(map(str, row.keys() - names))
                parts = [f"lacks {', '.join(lacks)}"] if lacks else []
                parts += [f"has {', '.join(more)}, which is no column"] if more else []
                made = "a dict of all columns" if self._row_type is None else f"{self._row_type.__name__}(...)"
                raise UserCodeError(f"{self._where}: a dict {' and '.join(parts)}; write {made}")


def _with_times(columns: list[pl.Series], event_times: Sequence[int] | pl.Series | None) -> pl.DataFrame:
    beside = [] if event_times is None else [pl.Series(EVENT_TIME, event_times, pl.Int64)]
    return pl.DataFrame([*columns, *beside])


class _Unfit:
    """Something that a function gave and that is no row; what is wrong with it is said when a frame is made."""

    __slots__ = ("row",)

    def __init__(self, row: Any) -> None:
        self.row = row


def _copier_of(schema: Schema, row_type: type[Any] | None) -> Callable[[Any], Any]:
    """A function from a row to a tuple of its values, or to `_Unfit`."""
    names = schema.names
    of_object, of_dict = _all_of(attrgetter, names), _all_of(itemgetter, names)
    copies = [(index, copy) for index, field in enumerate(schema) if (copy := _copier(field.type)) is not None]

    def copied(row: Any) -> Any:
        values_of = of_object
        if row.__class__ is not row_type:
            if row.__class__ is dict:
                values_of = of_dict
                if row_type is not None and row.keys() != set(names):
                    return _Unfit(row)
            elif row is None or (row_type is not None and not isinstance(row, row_type)):
                return _Unfit(row)
        try:
            values = values_of(row)
        except (AttributeError, KeyError):
            return _Unfit(row)
        if not copies:
            return values
        kept = list(values)
        for index, copy in copies:
            kept[index] = copy(kept[index])
        return tuple(kept)

    return copied


def _all_of(getter: Any, names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A getter of all these at once, which gives a tuple of one name, too, and takes dots for what they are."""
    if len(names) > 1 and (getter is itemgetter or all(map(str.isidentifier, names))):
        return getter(*names)
    each = [itemgetter(name) if getter is itemgetter else _attribute_getter(name) for name in names]
    return lambda row: tuple(get(row) for get in each)


def _copier(kind: DataType) -> Callable[[Any], Any] | None:
    """How a value of a column is kept as it is now; None where values cannot be changed in place.

    What does not belong into the column stays what it is: it is named when a frame is made.
    """
    if isinstance(kind, ListType):
        element = _copier(kind.inner) or _same
        return lambda value: [*map(element, value)] if isinstance(value, list | tuple) else value
    if isinstance(kind, MapType):
        of_value = _copier(kind.value) or _same
        return lambda value: {k: of_value(v) for k, v in value.items()} if isinstance(value, dict) else value
    if isinstance(kind, StructType):
        members = [(member.name, _copier(member.type) or _same) for member in kind.fields]
        return lambda value: _struct_copy(value, members)
    return None


def _same(value: Any) -> Any:
    return value


def _struct_copy(value: Any, members: Sequence[tuple[str, Callable[[Any], Any]]]) -> Any:
    if value is None:
        return None
    try:
        return {name: copy(value[name] if isinstance(value, dict) else getattr(value, name)) for name, copy in members}
    except (KeyError, AttributeError):
        return value


def _attribute_getter(name: str) -> Callable[[Any], Any]:
    """`attrgetter` takes a dot within a name for the attribute of an attribute."""
    return attrgetter(name) if name.isidentifier() else lambda row: getattr(row, name)


def _column(field: Field, values: Values) -> pl.Series:
    if isinstance(field.type, ListType):
        return _list_column(field, field.type, values)
    if isinstance(field.type, StructType):
        return _struct_column(field, field.type, values)
    if isinstance(field.type, MapType):
        return _map_column(field, field.type, values)
    return scalar_column(field, values)


def _map_column(field: Field, kind: MapType, values: Values) -> pl.Series:
    for value in values:
        if value is not None and not (isinstance(value, dict) and all(isinstance(key, str) for key in value)):
            raise WrongValueError(field, value, "; write a dict whose keys are text")
    entries = [None if value is None else [{"key": k, "value": v} for k, v in value.items()] for value in values]
    return _column(Field(field.name, kind.entries, field.nullable), entries).cast(polars_type(kind))


def _list_column(field: Field, kind: ListType, values: Values) -> pl.Series:
    flat: Values = []
    lengths: list[int | None] = []
    for value in values:
        if value is None:
            lengths.append(None)
            continue
        if not isinstance(value, list | tuple):
            raise WrongValueError(field, value)
        flat.extend(cast("list[Any]", value))
        lengths.append(len(cast("list[Any]", value)))
    _refuse_nulls(field, lengths)
    inner = _column(Field(field.name, kind.inner, nullable=True), flat)
    return _sliced_lists(field, inner, lengths)


def _sliced_lists(field: Field, inner: pl.Series, lengths: list[int | None]) -> pl.Series:
    """A list column from its flat elements: through Arrow, which takes offsets as they are."""
    import pyarrow as pa

    ends = np.cumsum([length or 0 for length in lengths], dtype=np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), ends])
    mask: Any = pa.array([length is None for length in lengths], pa.bool_())
    elements: Any = inner.to_arrow()
    bounds: Any = pa.array(offsets)
    array: Any = pa.LargeListArray.from_arrays(bounds, elements, mask=mask)
    made = pl.from_arrow(array, schema={field.name: polars_type(field.type)})
    return made.to_series() if isinstance(made, pl.DataFrame) else made.rename(field.name)


def _struct_column(field: Field, kind: StructType, values: Values) -> pl.Series:
    missing = [value is None for value in values]
    _refuse_nulls(field, [None if absent else 0 for absent in missing])
    members: list[pl.Series] = []
    for member in kind.fields:
        parts = [_member(field, value, member.name) for value in values]
        relaxed = Field(member.name, member.type, member.nullable or any(missing))
        if relaxed.nullable and not member.nullable:
            _refuse_nulls(member, [0 if absent else part for part, absent in zip(parts, missing, strict=True)])
        members.append(_column(relaxed, parts))
    frame = pl.DataFrame(members).with_columns(pl.Series("__missing", missing, pl.Boolean))
    struct = pl.struct(pl.col(member.name) for member in kind.fields)
    return frame.select(pl.when(~pl.col("__missing")).then(struct).alias(field.name)).to_series()


def _member(field: Field, value: Any, name: str) -> Any:
    if value is None:
        return None
    try:
        return cast("dict[str, Any]", value)[name] if isinstance(value, dict) else getattr(value, name)
    except (KeyError, AttributeError):
        raise WrongValueError(field, value, f", which has no {name!r}") from None


def _refuse_nulls(field: Field, values: Sequence[Any]) -> None:
    if not field.nullable and any(value is None for value in values):
        raise WrongValueError(field, None, f"; declare it as '... | None' if {field.name} may be missing")
