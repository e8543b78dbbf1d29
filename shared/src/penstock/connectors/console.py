"""Rows to the terminal: what other engines call the print sink."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, TextIO

from penstock.connectors import base
from penstock.connectors.base import Guarantee, Prepared, WriteContext
from penstock.core.arguments import checked
from penstock.formats.encoding import encode_jsonl
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl


class Sink(base.Sink):
    """Prints every row as a line of JSON, as soon as it comes: at-least-once, after a failure rows come again.

    Args:
        label: stands before every row.
        stream: standard output if not given.

    Example:
        >>> written = bids.select("auction", "price").write(console.Sink(label="bid"))
        >>> p.run().state
        bid> {"auction":1,"price":50.0}
        bid> {"auction":2,"price":250.0}
        bid> {"auction":1,"price":120.0}
        bid> {"auction":2,"price":80.0}
        'FINISHED'
    """

    kind: ClassVar[str] = "console"

    @checked
    def __init__(self, *, label: str = "", stream: TextIO | None = None) -> None:
        self.label: Final = label
        self.stream: Final = stream

    @property
    def guarantee(self) -> Guarantee:
        """At-least-once: a printed line cannot be retracted."""
        return "at-least-once"

    def check(self, schema: Schema, *, updates: bool) -> None:
        """Every row can be printed."""

    def open(self, schema: Schema, context: WriteContext) -> base.SinkWriter:
        """See `Sink.open`."""
        return _Writer(schema, f"{self.label}> " if self.label else "", self.stream)

    def describe(self) -> Mapping[str, Any]:
        """See `Sink.describe`."""
        return {"label": self.label} if self.label else {}


class _Writer:
    def __init__(self, schema: Schema, prefix: str, stream: TextIO | None) -> None:
        self._schema = schema
        self._prefix = prefix
        self._stream = stream

    def write(self, frame: pl.DataFrame) -> None:
        text = encode_jsonl(frame, self._schema).decode()
        if self._prefix:
            text = "".join(self._prefix + line for line in text.splitlines(keepends=True))
        stream = self._stream or sys.stdout  # looked up late: it may have been redirected since
        stream.write(text)
        stream.flush()

    def prepare(self, checkpoint: int) -> Prepared:
        return Prepared()

    def commit(self, committable: Any) -> None:
        """Nothing is staged."""

    def discard(self, committable: Any) -> None:
        """Nothing is staged."""

    def close(self) -> None:
        """Nothing is held."""
