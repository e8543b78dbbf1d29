"""Values of Kafka records that are decoded one by one: a row each, or a bad record."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import Any

from penstock.errors import ExternalError, PipelineError
from penstock.formats.columns import FrameBuilder
from penstock.formats.decoding import BadLine, Decoded
from penstock.types import Schema


class RowValues(ABC):
    """See `ValueDecoder`."""

    rows_per_value = True
    asks = False

    def __init__(self, schema: Schema, kind: str, zone: tzinfo | None = None) -> None:
        """`kind`: what a value is, in words; `zone`: of timestamps that have none."""
        self._schema = schema
        self._builder = FrameBuilder(schema, zone)
        self._kind = kind
        self._misspelt: Mapping[str, str] = {}

    def decode(self, values: Sequence[bytes]) -> tuple[Decoded, None]:
        """See `ValueDecoder.decode`."""
        rows: list[Sequence[Any]] = []
        indexes: list[int] = []
        bad: list[BadLine] = []
        for index, value in enumerate(values):
            try:
                row = self._row(value)
            except (ExternalError, PipelineError):  # the registry's, not the record's
                raise
            except Exception as error:  # whatever a decoder meets in bytes that are something else
                bad.append(BadLine(index, f"no {self._kind}: {_reason(error, value)}", value))
                continue
            rows.append(row)
            indexes.append(index)
        columns = [[row[number] for row in rows] for number in range(len(self._schema.fields))]
        frame, wrong = self._builder.frame(columns)
        bad += [BadLine(indexes[index], error, values[indexes[index]]) for index, error in wrong]
        return Decoded(frame, sorted(bad, key=lambda line: line.index), self._misspelt), None

    @abstractmethod
    def _row(self, value: bytes) -> Sequence[Any]:
        """The values of the columns; what is not there is the column's default. Raises anything for what is no row."""


def _reason(error: Exception, value: bytes) -> str:
    """Decoders say in words of their own that they looked for bytes that are not there."""
    if not value:
        return "the value is empty"
    if isinstance(error, IndexError | EOFError | struct.error):
        return f"its {len(value)} bytes end before it does"
    return f"{type(error).__name__}: {error}"
