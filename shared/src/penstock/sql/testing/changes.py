"""Rows that replace others: which are left at the end, and what each does to those before it, as Flink writes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.building.changes import known_keys

if TYPE_CHECKING:
    from penstock.plan.logical import Node

Row = Mapping[str, Any]
Kind = Literal["+I", "-U", "+U", "-D"]
KINDS: Final[tuple[Kind, ...]] = ("+I", "-U", "+U", "-D")
OP: Final = "op"
"""What the column of kinds is called, as in Flink's client."""


@dataclass(frozen=True)
class Log:
    """The rows that a node of a plan has sent, in order."""

    rows: Sequence[Row]
    key: tuple[str, ...] | None = None
    """The columns by which a row replaces an earlier one; None if none do, or if no columns tell that."""
    retracted: str | None = None
    """The column that says of a row that it is retracted."""
    complete: bool = False
    """Whether a row that is replaced is retracted before, as it was."""

    @classmethod
    def of(cls, node: Node, rows: Sequence[Row], key: Sequence[str] | None = None) -> Log:
        """What a node has sent; `key` is that of a sink that has got it, instead of the node's own."""
        if node.mode == "retract":
            return cls(rows, known_keys(node) if key is None else tuple(key), RETRACTED, complete=True)
        if key is not None:
            return cls(rows, tuple(key), RETRACTED if node.updates and RETRACTED in node.schema else None)
        return cls(rows, *node.upsert_key("")) if node.updates else cls(rows)

    @property
    def replaces(self) -> bool:
        """Whether a row may make an earlier one no longer true."""
        return self.key is not None or self.complete

    def final(self) -> list[Row]:
        """The rows that are left at the end."""
        if not self.replaces:
            return [*self.rows]
        held: dict[str, Row] = {}
        counts = Counter[str]()
        for row in self.rows:
            same = self._all_of(row) if self.complete else self._key_of(row)
            held[same] = row
            counts[same] = counts[same] - 1 if self._is_back(row) else counts[same] + 1 if self.complete else 1
            if not self.complete and self._is_back(row):
                counts[same] = 0
        return [held[same] for same, count in counts.items() for _ in range(count)]

    def changes(self) -> Iterator[tuple[Kind, Row]]:
        """What each row does: a row that is retracted, and the one of its key that follows, are an update."""
        if not self.complete:
            yield from self._upserts()
            return
        for block in self._blocks():
            back = {self._key_of(row) for row in block if self._is_back(row)}
            new = {self._key_of(row) for row in block if not self._is_back(row)}
            for row in block:
                if self._is_back(row):
                    yield "-U" if self._key_of(row) in new else "-D", row
                else:
                    yield "+U" if self._key_of(row) in back else "+I", row

    def _upserts(self) -> Iterator[tuple[Kind, Row]]:
        held = set[str]()
        for row in self.rows:
            if self.key is None:
                yield "+I", row
                continue
            key = self._key_of(row)
            if self._is_back(row):
                yield "-D", row
                held.discard(key)
            else:
                yield "+U" if key in held else "+I", row
                held.add(key)

    def _blocks(self) -> Iterator[list[Row]]:
        """Rows that are retracted, and those that follow."""
        block: list[Row] = []
        for row in self.rows:
            if block and self._is_back(row) and not self._is_back(block[-1]):
                yield block
                block = []
            block.append(row)
        if block:
            yield block

    def _is_back(self, row: Row) -> bool:
        return self.retracted is not None and bool(row[self.retracted])

    def _key_of(self, row: Row) -> str:
        return self._all_of(row) if self.key is None else repr([row[name] for name in self.key])

    def _all_of(self, row: Row) -> str:
        return repr([value for name, value in row.items() if name != self.retracted])
