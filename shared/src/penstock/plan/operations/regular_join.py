"""Current rows of two inputs that have the same key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import PipelineError
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.operation import Columns, Operation, Settings, UpsertKey, key_columns, undetermined
from penstock.plan.operations.join import JoinKind, describe_pairs
from penstock.plan.traits import Traits, kept_for, keyed
from penstock.types import schema_to_json

if TYPE_CHECKING:
    from penstock.expressions import Expr
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class RegularJoin(Operation):
    """Current rows of two inputs that have the same key; keys and columns as those of `Join`.

    Inputs are facts or changes. Output: changes, but facts if nothing can ever be retracted.
    """

    how: JoinKind
    ttls_us: tuple[int | None, int | None] = (None, None)
    """How long rows of the left and of the right input are kept; None: as long as they hold."""
    where: Expr | None = None
    """What must be true of a pair, too, over the columns of both inputs."""
    nulls_equal: bool = False
    """Whether null is a key like others; otherwise it equals nothing."""

    @property
    def expires(self) -> bool:
        """Whether rows of any input are forgotten."""
        return self.ttls_us != (None, None)

    @property
    def verb(self) -> str:
        return "join"

    def traits(self, node: Node) -> Traits:
        arrival = "the changes of a row before its last" if node.mode == "retract" else ""
        left, right = self.ttls_us
        if left == right:
            kept = kept_for("the rows of both inputs", left, of_changes=all(each.updates for each in node.inputs))
        else:
            kept = "; ".join(
                kept_for(f"the rows of the {side} input", ttl, of_changes=input.updates)
                for side, ttl, input in zip(("left", "right"), self.ttls_us, node.inputs, strict=True)
            )
        ttl = None if left is None or right is None else max(left, right)
        free = undetermined(() if self.where is None else (self.where,))
        return keyed(undetermined=free, arrival=arrival, state="scanned", kept=kept, ttl_us=ttl)

    def describe(self, node: Node) -> Settings:
        said = describe_pairs(self.where, nulls_equal=self.nulls_equal)
        return {"keys": list(node.inputs[0].keys), "how": self.how, **said}

    def state_signature(self, node: Node) -> Settings | None:
        rows = [[each.mode, schema_to_json(each.schema)] for each in node.inputs]
        said = {"how": self.how, "expires": self.expires, "event_time": node.event_time, "rows": rows}
        pairs = describe_pairs(self.where, nulls_equal=self.nulls_equal)
        return {"verb": "regular join", "keys": key_columns(node), **said, **pairs}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: rows are kept whole."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        if not node.keys:
            raise PipelineError(
                f"{verb}: the rows of this join replace no others by a key, because a joined stream is of facts; make it "
                'one of newest rows before, such as .key_by("id").deduplicate("last")'
            )
        return node.keys, RETRACTED
