"""Frames that functions of the user made: checked against the declared columns, named where they do not fit.

The counterpart for whole batches of `penstock.task.rows`.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from penstock.errors import UserCodeError
from penstock.state.batch_keys import widened
from penstock.types import Field, Schema, StructType, polars_type
from penstock.types.map_columns import with_keys_once


class FrameWriter:
    """Makes frames with exactly the columns of `schema` of frames that have them in any order.

    Args:
        schema: the columns.
        row: what a row is called in messages, such as `Total`.
        where: what produced the frames, such as `process: Totals.on_batch`; leads error messages.
    """

    def __init__(self, schema: Schema, row: str, where: str) -> None:
        self._schema = schema
        self._row = row
        self.where = where
        self._dtypes = [polars_type(field.type) for field in schema]

    def checked(self, frame: Any) -> pl.DataFrame:
        """The frame, its columns in order; integers and floats that are smaller than declared are widened.

        Raises:
            UserCodeError: it is no frame, or a column is missing, too many, of another type, or must not have nulls.
        """
        if not isinstance(frame, pl.DataFrame):
            given, advice = type(frame).__name__, ""
            if isinstance(frame, pl.LazyFrame):
                advice = "; collect() it"
            elif type(frame).__module__.startswith("pandas."):
                given, advice = f"pandas.{given}", "; write polars.from_pandas(frame)"
            raise UserCodeError(f"{self.where} gave {given}, wanted is a polars.DataFrame{advice}")
        if set(frame.columns) != set(self._schema.names):
            raise self._wrong_names(frame.columns)
        columns = zip(self._schema, self._dtypes, strict=True)
        return pl.DataFrame([self._column(field, dtype, frame[field.name]) for field, dtype in columns])

    def _wrong_names(self, given: list[str]) -> UserCodeError:
        names = self._schema.names
        missing = ", ".join(name for name in names if name not in given)
        unknown = ", ".join(name for name in given if name not in names)
        wrong = [f"without {missing}" if missing else "", f"with {unknown}, which it has not" if unknown else ""]
        return UserCodeError(
            f"{self.where} gave a frame {' and '.join(filter(None, wrong))}; {self._row} has {', '.join(names)}"
        )

    def _column(self, field: Field, dtype: pl.DataType, column: pl.Series) -> pl.Series:
        fitting = widened(column, dtype)
        if fitting is None:
            raise UserCodeError(
                f"{self.where} gave column {field.name!r} as {column.dtype}, {self._row} has {field.type}; cast it to "
                f"{dtype}"
            )
        self._refuse_nulls(field, fitting, field.name)
        return with_keys_once(fitting, field.type)

    def _refuse_nulls(self, field: Field, column: pl.Series, path: str) -> None:
        """Null where nothing may be missing, also within a struct that is there."""
        if column.null_count() and not field.nullable:
            raise UserCodeError(
                f"{self.where} gave {column.null_count()} nulls in column {path!r}, which {self._row} has without; "
                "declare it as '... | None' if it may be missing"
            )
        if isinstance(field.type, StructType):
            present = column.drop_nulls()
            for member in field.type.fields:
                self._refuse_nulls(member, present.struct.field(member.name), f"{path}.{member.name}")
