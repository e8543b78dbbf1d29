"""Columns whose values stand in the names of folders, as Hive, Spark, DuckDB and Polars have them: `day=2026-11-21/`.

A file in such a folder does not hold the column. Text is percent-encoded where a name could not have it; null is
`__HIVE_DEFAULT_PARTITION__`.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.base import Fetched, Position, SplitReader
from penstock.errors import BadRecordError, PipelineError
from penstock.expressions import Expr, columns_of, conditions_of, to_polars
from penstock.types import BOOLEAN, DATE, INT64, INTEGERS, STRING, DataType, Field, Schema, polars_type

if TYPE_CHECKING:
    import polars as pl

NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and Spark write for null."""
TYPES: Final = frozenset({BOOLEAN, DATE, STRING, *INTEGERS})
_PLAIN: Final = " !$&'()+,-.;@^_`{}~"
"""What beside letters and digits stands for itself in the name of a folder."""
_NAME_BYTES: Final = 255
"""The longest name of file systems."""
_FOLDER_BYTES: Final = 640
"""Object stores take names of 1,024 bytes; the sink's folder and the names of its files need some of them."""


# -- writing ------------------------------------------------------------------------------------------------------------


def check_partition_by(columns: Sequence[str], schema: Schema, what: str) -> None:
    """Raises `PipelineError` if rows of the schema cannot be parted by these columns."""
    for name in columns:
        if name.startswith("."):
            raise PipelineError(
                f"{what}: partition_by={name!r}: readers leave out folders that begin with a dot; rename it"
            )
        field = schema.field(name, f"{what}: partition_by=")
        if field.type not in TYPES:
            raise PipelineError(
                f"{what}: partition_by={name!r}: a folder can be named for text, whole numbers, booleans and dates, not "
                f"for {field.type}; make such a column before, as .with_columns(day=col({name!r}).dt.date())"
            )
    if set(columns) >= set(schema.names):
        raise PipelineError(f"{what}: partition_by= names all columns; at least one must be in the files")


def folder_of(columns: Sequence[str], values: Sequence[Any]) -> str:
    """The folder of rows with these values: `day=2026-11-21/shop=berlin/`."""
    names = [f"{escaped(name)}={_text(name, value)}" for name, value in zip(columns, values, strict=True)]
    folder = "".join(f"{name}/" for name in names)
    if max(map(len, names)) > _NAME_BYTES or len(folder) > _FOLDER_BYTES:
        raise BadRecordError(
            f"files.Sink: the values of partition_by={list(columns)} make a folder's name of more than {_NAME_BYTES} "
            f"bytes, or of more than {_FOLDER_BYTES} all together, which disks or stores refuse: {folder[:80]}...; "
            "filter such rows, or name folders by something shorter"
        )
    return folder


def _text(name: str, value: Any) -> str:
    match value:
        case None:
            return NO_VALUE
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case date():
            return value.isoformat()
        case _ if not value or value == NO_VALUE:
            raise BadRecordError(
                f"files.Sink: column {name!r} of partition_by= is {value!r}, which readers take for null; filter such "
                "rows, or write another word for them"
            )
        case _:
            return escaped(value)


def escaped(text: str) -> str:
    """As it stands in the name of a folder."""
    return urllib.parse.quote(text, safe=_PLAIN)


# -- reading ------------------------------------------------------------------------------------------------------------


def values_in(path: str) -> dict[str, str]:
    """Column to text, as the folders of a path say it; still encoded."""
    parts = path.replace("\\", "/").split("/")[:-1]
    pairs = [part.split("=", 1) for part in parts if "=" in part]
    return {urllib.parse.unquote(name): text for name, text in pairs if name}


def inferred(paths: Iterable[str], taken: Iterable[str]) -> tuple[Field, ...]:
    """The columns that the folders of all these paths name, but those `taken`; a type is what fits every value."""
    seen: dict[str, list[str]] = {}
    found = [values_in(path) for path in paths]
    for values in found:
        for name, text in values.items():
            seen.setdefault(name, []).append(text)
    in_all = {name: texts for name, texts in seen.items() if len(texts) == len(found) and name not in set(taken)}
    return tuple(Field(name, _type_of(texts), nullable=NO_VALUE in texts) for name, texts in in_all.items())


def _type_of(texts: Sequence[str]) -> DataType:
    for kind in (INT64, DATE):
        if all(text == NO_VALUE or _fits(kind, text) for text in texts) and set(texts) != {NO_VALUE}:
            return kind
    return STRING


def _fits(kind: DataType, text: str) -> bool:
    """Whether it stands there as it would be written: `007`, `2026-W47-6` and what is too large are text."""
    try:
        value = _value(kind, text)
        _column(Field("", kind), value, 1)
    except (ValueError, TypeError, OverflowError):
        return False
    return _text("", value) == text


def _value(kind: DataType, text: str) -> Any:
    if text == NO_VALUE:
        return None
    if kind == BOOLEAN:
        return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else _refuse(text)
    if kind == DATE:
        return date.fromisoformat(text)
    if kind in INTEGERS:
        return int(text)
    return urllib.parse.unquote(text)


def _refuse(text: str) -> Any:
    raise ValueError(text)


def constants_of(path: str, schema: Schema) -> dict[str, Any]:
    """The columns of the schema that the folders of a file name, with their values.

    Raises:
        PipelineError: a value does not fit the column's type.
    """
    constants: dict[str, Any] = {}
    for name, text in values_in(path).items():
        if name not in schema:
            continue
        field = schema.field(name)
        if field.type not in TYPES:
            raise PipelineError(
                f"files.Source: {path}: column {name!r} is named by a folder, which cannot hold {field.type}"
            )
        try:
            constants[name] = _value(field.type, text)
            _column(field, constants[name], 1)
        except (ValueError, TypeError, OverflowError):
            raise PipelineError(
                f"files.Source: {path}: {text!r} is no {field.type}, as the schema declares {name!r}"
            ) from None
        if constants[name] is None and not field.nullable:
            raise PipelineError(
                f"files.Source: {path}: {name!r} is null there; declare it as optional, or leave such folders out"
            )
    return constants


class WantedFolders:
    """Which folders may hold rows for which a condition is true."""

    def __init__(self, predicate: Expr, schema: Schema) -> None:
        self._conditions = conditions_of(predicate)
        self._schema = schema
        self._known: dict[str, bool] = {}

    def keeps(self, path: str) -> bool:
        """Whether a file of this path, or one below this folder if it ends with a slash, may hold such a row."""
        folder = path.replace("\\", "/").rpartition("/")[0]
        if folder not in self._known:
            self._known[folder] = self._may_hold(f"{folder}/")
        return self._known[folder]

    def _may_hold(self, folder: str) -> bool:
        try:
            values = constants_of(folder, self._schema)
        except PipelineError:
            return True  # whoever reads it says what is wrong
        return all(self._may_be_true(each, values) for each in self._conditions)

    def _may_be_true(self, condition: Expr, values: Mapping[str, Any]) -> bool:
        import polars as pl

        names = columns_of(condition)
        if not names or not names <= values.keys():
            return True
        row = pl.DataFrame([_column(self._schema.field(name), values[name], 1) for name in names])
        try:
            return row.select(to_polars(condition, self._schema)).to_series()[0] is True
        except pl.exceptions.PolarsError:
            return True  # the operator says what is wrong, if a row comes there


def _column(field: Field, value: Any, rows: int) -> pl.Series:
    import polars as pl

    return pl.Series(field.name, [value], dtype=polars_type(field.type)).new_from_index(0, rows)


class PartitionedReader:
    """A `SplitReader` that adds the columns of the file's folders."""

    def __init__(self, reader: SplitReader, schema: Schema, constants: Mapping[str, Any]) -> None:
        self._reader = reader
        self._schema = schema
        self._constants = constants

    async def read(self, max_rows: int) -> Fetched | None:
        """See `SplitReader.read`."""
        fetched = await self._reader.read(max_rows)
        if fetched is None:
            return None
        frame = fetched.frame
        added = [_column(self._schema.field(name), value, frame.height) for name, value in self._constants.items()]
        return replace(fetched, frame=frame.with_columns(added).select(self._schema.names))

    def position(self) -> Position:
        """See `SplitReader.position`."""
        return self._reader.position()

    async def close(self) -> None:
        """See `SplitReader.close`."""
        await self._reader.close()
