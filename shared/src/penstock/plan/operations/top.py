"""The best rows of every key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.functions.windows.definitions import RANK, RETRACTED
from penstock.plan.operation import Columns, Operation, Settings, UpsertKey, key_columns, key_of_subset, undetermined
from penstock.plan.traits import Traits, kept_for, keyed
from penstock.types import schema_to_json

if TYPE_CHECKING:
    from penstock.plan.logical import Node
    from penstock.plan.order import Order

_ALL: Final = 1 << 40
"""More rows than a key has."""


@dataclass(frozen=True, eq=False)
class Top(Operation):
    """The first `n` rows of every key in an order, behind the first `offset` ones, with their rank.

    Of facts they are updates, in which a batch emits the ranks that changed. Of changes they are changes, as of the
    current rows; a row that loses its rank is retracted. So they are without a rank, where a row is there as long as it
    is one of them, and without a limit, where nothing but the order decides.
    """

    n: int | None
    """None: all rows behind the first `offset` ones."""
    by: tuple[Order, ...]
    ttl_us: int | None = None
    offset: int = 0
    rank: str | None = RANK
    """The name of the column of ranks, which begin with 1 at the first row, whatever `offset` is; None: there is none."""

    @property
    def verb(self) -> str:
        return "top"

    @property
    def last(self) -> int:
        """The last rank that is emitted."""
        return _ALL if self.n is None else min(self.n + self.offset, _ALL)

    def keeps_all(self, source: Node) -> bool:
        """Whether all rows of a key are kept: of facts, what is behind the last rank stays there."""
        return self.n is None or source.mode == "retract"

    def sends_changes(self, source: Node) -> bool:
        """Whether what it emits are changes: of facts with a rank and a limit a rank never becomes empty."""
        return self.rank is None or self.keeps_all(source)

    def traits(self, node: Node) -> Traits:
        rows, ranks = (
            "the rows before the last ones, and which of equal rows",
            "the ranks before the last ones, and which",
        )
        source = node.inputs[0]
        what = "all current rows of a key" if self.keeps_all(source) else "the best rows of a key"
        return keyed(
            undetermined=undetermined(order.expr for order in self.by),
            arrival=f"{rows} are among these" if self.rank is None else f"{ranks} of equal rows have these",
            state="by_key",
            kept=kept_for(what, self.ttl_us, of_changes=source.updates),
            ttl_us=self.ttl_us,
        )

    def _order(self) -> Settings:
        (first, *others) = self.by
        if others or first.nulls_last is not None:
            return {"by": [str(order) for order in self.by]}
        return {"by": str(first.expr), "descending": first.descending}

    def _numbers(self) -> Settings:
        """What is said of ranks, as far as it is said."""
        ranks: Settings = {} if self.offset == 0 else {"offset": self.offset}
        return ranks if self.rank == RANK else {**ranks, "rank": self.rank}

    def describe(self, node: Node) -> Settings:
        return {"keys": list(node.inputs[0].keys), "n": self.n, **self._order(), **self._numbers()}

    def state_signature(self, node: Node) -> Settings | None:
        """Where all rows of a key are kept they are so whatever `n` is; the name of the column of ranks is none of it."""
        described = {
            "keys": key_columns(node),
            **self._order(),
            **({} if self.offset == 0 else {"offset": self.offset}),
            **({} if self.rank is not None else {"ranked": False}),
            "row": schema_to_json(node.inputs[0].schema),
        }
        if self.keeps_all(node.inputs[0]):
            return {"verb": "top of changes", **described}
        return {"verb": "top", **described, "n": self.n}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: rows are kept whole."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        if self.rank is None:
            return key_of_subset(node, verb)
        return (*node.keys, self.rank), RETRACTED if node.mode == "retract" else None
