"""Rows of two inputs that have the same key and meet in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.core.times import format_duration
from penstock.functions.windows.definitions import AsOf, FixedWindow, JoinTime, Within, describe_join_time, reach_us
from penstock.plan.operation import Columns, Operation, Settings, UpsertKey, key_columns, undetermined
from penstock.plan.traits import LateBehindWatermark, LateForWindows, Traits, keyed
from penstock.types import schema_to_json

if TYPE_CHECKING:
    from penstock.expressions import Expr
    from penstock.plan.logical import Node

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]
"""`semi`: the left rows that meet any, once; `anti`: those that meet none."""


def describe_pairs(where: Expr | None, *, nulls_equal: bool) -> Settings:
    """What is said of a pair beside its time; nothing if its keys alone decide, and null equals nothing."""
    said: Settings = {} if where is None else {"where": str(where)}
    return {**said, "nulls_equal": True} if nulls_equal else said


@dataclass(frozen=True, eq=False)
class Join(Operation):
    """Rows of two inputs that have the same key and meet in time. Keys, and all other columns, have unlike names.

    The right input has the names of the left one for the keys. Output: the left columns, the right ones but the keys, and
    of windows `window_start` and `window_end`; of `semi` and `anti` the left columns.
    """

    how: JoinKind
    time: JoinTime
    where: Expr | None = None
    """What must be true of a pair, too, over the columns of both inputs; never of `AsOf`."""
    nulls_equal: bool = False
    """Whether null is a key like others; otherwise it equals nothing."""

    @property
    def verb(self) -> str:
        return "join"

    def traits(self, node: Node) -> Traits:
        equal = "which of a key's right rows with equal event times is the newest"
        return keyed(
            undetermined=undetermined(() if self.where is None else (self.where,)),
            arrival=equal if isinstance(self.time, AsOf) else "",
            state="scanned",
            kept=self._kept(),
            reach_us=reach_us(self.time),
            late=LateForWindows(self.time, 0) if isinstance(self.time, FixedWindow) else LateBehindWatermark(),
        )

    def _kept(self) -> str:
        match self.time:
            case AsOf():
                return "left rows until event time is past them, and the newest right row of a key, for ever"
            case Within(lower_us=lower, upper_us=upper):
                return f"a row until event time is {format_duration(max(upper, -lower, 0))} past it"
            case _:
                return "the rows of a window, until it ends"

    def describe(self, node: Node) -> Settings:
        said = describe_pairs(self.where, nulls_equal=self.nulls_equal)
        return {"keys": list(node.inputs[0].keys), "how": self.how, **describe_join_time(self.time), **said}

    def state_signature(self, node: Node) -> Settings | None:
        rows = [schema_to_json(each.schema) for each in node.inputs]
        said = {"how": self.how, **describe_join_time(self.time), "rows": rows}
        pairs = describe_pairs(self.where, nulls_equal=self.nulls_equal)
        return {"verb": "join", "keys": key_columns(node), **said, **pairs}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: rows are kept whole."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
