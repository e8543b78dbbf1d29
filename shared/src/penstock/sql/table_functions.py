"""Functions in FROM that read files: `read_csv('a.csv')` and its like, whose columns are inferred."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PipelineError, nearest
from penstock.plan.building.sources import read
from penstock.sql.binding.named_arguments import named_arguments
from penstock.sql.binding.relations import Relation, relation_of
from penstock.sql.syntax import Call, Constant, NamedArgument

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.sql.binding.context import Context

_FORMATS: Final = {
    "READ_JSONL": "jsonl", "READ_JSON": "jsonl", "READ_CSV": "csv", "READ_PARQUET": "parquet", "READ_ARROW": "arrow"
}  # fmt: skip
_OPTIONS: Final = {"event_time": "'column'", "delimiter": "','", "timezone": "'UTC'"}
_INFERRED_ROWS: Final = 10_000


def called(context: Context, call: Call) -> Relation:
    """The rows of a file.

    Raises:
        SqlError: there is no such function, or no such file.
    """
    from penstock.connectors import files

    kind = _FORMATS.get(call.function.upper())
    if kind is None:
        known = nearest(call.function.lower(), [each.lower() for each in _FORMATS])
        raise context.error(call.name, f"there is no function {call.function} that gives rows; {known}")
    named = named_arguments(context, call, _OPTIONS)
    plain = [each for each in call.arguments if not isinstance(each, NamedArgument)]
    if len(plain) != 1 or not isinstance(plain[0], Constant) or not isinstance(plain[0].value, str):
        raise context.error(call, f"{call.function} takes the path of a file in quotes")
    options: dict[str, Any] = {"timezone": "UTC"}
    for name, value in named.items():
        if not isinstance(value, Constant):
            raise context.error(value, f"{name} of {call.function} is a constant: {name} => {_OPTIONS[name]}")
        options[name] = value.value
    path = plain[0].value
    with context.at(call.span):
        schema = None if kind in ("parquet", "arrow") else _inferred(path, kind, str(options.get("delimiter", ",")))
        source = files.Source(path, schema=schema, format=kind, **options)  # pyright: ignore
        return relation_of(read(context.plan, source), None)


def _inferred(path: str, kind: str, delimiter: str) -> pa.Schema:
    """The columns of a text file, from its first rows: every one may be null."""
    import polars as pl

    files = [Path(each) for each in sorted(glob.glob(path, recursive=True))]
    if len(files) == 1 and files[0].is_dir():
        files = sorted(each for each in files[0].rglob("*") if each.is_file() and each.name[0] not in "._")
    if not files:
        raise PipelineError(f"there is no file {path}")
    try:
        if kind == "jsonl":
            frame = pl.read_ndjson(files[0], infer_schema_length=_INFERRED_ROWS, n_rows=_INFERRED_ROWS)
        else:
            frame = pl.read_csv(
                files[0], separator=delimiter, try_parse_dates=True,
                infer_schema_length=_INFERRED_ROWS, n_rows=_INFERRED_ROWS,
            )  # fmt: skip
    except pl.exceptions.PolarsError as error:
        raise PipelineError(f"{files[0]}: columns cannot be inferred: {error}; write CREATE TABLE") from error
    nothing = [name for name, each in frame.schema.items() if each == pl.Null]
    return frame.with_columns(pl.col(name).cast(pl.String) for name in nothing).to_arrow().schema
