"""A sink that counts and sums instead of writing, where the cost of writing is not what is measured.

It is a benchmark's means, not the library's: results are lost, only their number and the sums of their columns are kept
for the check against the peers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.connectors import base
from penstock.connectors.base import Guarantee, Prepared, WriteContext
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class CountingSink(base.Sink):
    """Adds up the integer columns of all rows; the sums stand in `folder`, one file per subtask, when the job ends."""

    folder: Path
    kind: ClassVar[str] = "counting"

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once only as long as nothing fails, which is all that a benchmark needs."""
        return "none"

    def check(self, schema: Schema, *, updates: bool) -> None:
        """Everything can be counted."""

    def open(self, schema: Schema, context: WriteContext) -> base.SinkWriter:
        """See `Sink.open`."""
        return _CountingWriter(self.folder, context.subtask)

    def describe(self) -> Mapping[str, Any]:
        """Nothing that matters to a plan."""
        return {}


class _CountingWriter:
    def __init__(self, folder: Path, subtask: int) -> None:
        self._path = folder / f"sums-{subtask}.json"
        self._sums: dict[str, int] = {}

    def write(self, frame: pl.DataFrame) -> None:
        for name, value in sums_of(frame).items():
            self._sums[name] = self._sums.get(name, 0) + value

    def prepare(self, checkpoint: int) -> Prepared:
        return Prepared()

    def commit(self, committable: Any) -> None:
        """Nothing is staged."""

    def discard(self, committable: Any) -> None:
        """Nothing is staged."""

    def close(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._sums))


def sums_of(frame: pl.DataFrame) -> dict[str, int]:
    """The number of rows and the sum of every integer column."""
    integers = [name for name, kind in frame.schema.items() if kind.is_integer()]
    return {"rows": frame.height, **{name: int(frame[name].sum()) for name in integers}}


def total(folder: Path) -> dict[str, int]:
    """The sums of all subtasks."""
    result: dict[str, int] = {}
    for path in sorted(folder.glob("sums-*.json")):
        for name, value in json.loads(path.read_text()).items():
            result[name] = result.get(name, 0) + value
    return result
