"""What an operation of a plan has to answer. No method has a default: an operation has to define all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.errors import PipelineError
from penstock.expressions import accumulators_in, columns_of
from penstock.expressions.catalogue import free_function
from penstock.plan.traits import structure
from penstock.types import schema_to_json

if TYPE_CHECKING:
    from penstock.expressions import Expr
    from penstock.plan.logical import Node
    from penstock.plan.traits import Traits

Columns = frozenset[str] | None
"""Names of columns; None for all that there are."""

Settings = dict[str, Any]
"""JSON values by name."""

UpsertKey = tuple[tuple[str, ...], str | None]
"""The columns by which a row replaces an earlier one, and the one that says that it is replaced by none."""

Named = tuple[tuple[str, "Expr"], ...]
"""Expressions by the names of the columns that they make."""


class Operation(ABC):
    """What one node of a plan does with the rows of its inputs. Subclasses are frozen dataclasses.

    Methods get the node, which knows the inputs and the columns. An operation holds expressions, and Python functions,
    sources and sinks as objects: a worker that runs a job imports the user's file again and finds them by the node's id.
    """

    @property
    @abstractmethod
    def verb(self) -> str:
        """The verb as the user knows it."""

    @abstractmethod
    def traits(self, node: Node) -> Traits:
        """What passes and engines rely on."""

    @abstractmethod
    def describe(self, node: Node) -> Settings:
        """What the user said, for plans: JSON values in the order in which they are shown."""

    def drawing(self) -> list[str]:
        """What plans show besides, in lines; most operations say all in their settings."""
        return []

    @abstractmethod
    def state_signature(self, node: Node) -> Settings | None:
        """What must agree for its state to be restored; None if it keeps none."""

    @abstractmethod
    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """The columns of its inputs that it needs so that `wanted` of its own columns are right. Event time is not
        among them."""

    @abstractmethod
    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        """By which columns its rows, if they are updates or changes, replace earlier ones.

        Args:
            node: where it stands.
            verb: what needs the key, for messages.

        Raises:
            PipelineError: no columns tell that.
        """


class Structure(Operation):
    """An operation that only says which rows go where. It has no operator, so there are no settings and no state."""

    def traits(self, node: Node) -> Traits:
        return structure()

    def describe(self, node: Node) -> Settings:
        return {}

    def state_signature(self, node: Node) -> Settings | None:
        return None


def key_columns(node: Node) -> list[dict[str, Any]]:
    """The key columns of the input, as a signature holds them."""
    source = node.inputs[0]
    return schema_to_json(source.schema.select(source.keys)) if source.keys else []


def key_of_subset(node: Node, verb: str) -> UpsertKey:
    """The upsert key of changes that add and retract whole rows of the input, by a key of which all rows meet.

    It is that of the input where it has the key by which rows meet: a row that replaces another comes to the same subtask
    then, and behind it.

    Raises:
        PipelineError: the input has no such key.
    """
    source = node.inputs[0]
    if source.mode == "retract":
        keys, retracted = source.upsert_key(verb)
        if {*source.keys} <= {*keys}:
            return keys, retracted
    raise PipelineError(
        f"{verb}: the rows of {node.verb} replace no others by a key, because it was made of "
        + (
            f"updates whose key is not by {', '.join(source.keys)}; add that to the key before"
            if source.mode == "retract"
            else 'facts; make them newest rows before, such as .key_by("id").deduplicate("last")'
        )
    )


def described(named: Named) -> dict[str, str]:
    """Expressions as the user wrote them."""
    return {name: str(expr) for name, expr in named}


def columns_read(expressions: Iterable[Expr]) -> frozenset[str]:
    """The columns that any of these expressions looks at."""
    return frozenset[str]().union(*map(columns_of, expressions))


def undetermined(expressions: Iterable[Expr]) -> str:
    """What of their values does not follow from rows, as `Traits.undetermined` says it: functions that give another value
    whenever they are computed, and accumulators, which are Python."""
    return joined(reason for expr in expressions for reason in _undetermined_parts(expr))


def _undetermined_parts(expr: Expr) -> Iterator[str]:
    free = free_function(expr.node)
    if free is not None:
        yield f"what {free} gives"
    for name in accumulators_in(expr):
        yield f"what {name} makes of its rows"


def joined(reasons: Iterable[str]) -> str:
    """Several ends of sentences as one, each once."""
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))
