"""What a row of the function catalogue is, and the few helpers that the rows' lowerings share.

Nothing here or in the `functions_*` modules loads Polars when imported: a lowering is called when a worker compiles an
operator, a rule may load it to try out a regular expression before a row flows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from penstock.expressions.nodes import Option, Value
from penstock.expressions.typing_rules import Rule, TypeMismatchError
from penstock.types import DataType, DecimalType

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class Lowering:
    """What a lowering is given: the lowered arguments, already of exactly the types `operands`, and the settings.

    `constants` are the values of the arguments that are literals (None for others): some engines want them as such.
    """

    args: Sequence[pl.Expr]
    constants: Sequence[Value]
    options: Mapping[str, Option]
    operands: Sequence[DataType]
    result: DataType

    def __getitem__(self, index: int) -> pl.Expr:
        return self.args[index]

    def option(self, name: str, default: Any = None) -> Any:
        """A setting, or its default."""
        return self.options.get(name, default)


@dataclass(frozen=True, slots=True)
class Function:
    """A row of the catalogue.

    `exact` says that the lowering gives the rule's type by itself; otherwise its result is cast to it. `sql` are the
    names under which SQL knows the function, `polars` those of Polars where they are others; `polars_lacks` says that
    Polars has none. `free` functions give another value whenever they are computed. `doc` is one line that also says what
    engines do differently.
    """

    name: str
    usage: str
    rule: Rule
    lower: Callable[[Lowering], pl.Expr]
    doc: str
    sql: tuple[str, ...] = ()
    exact: bool = True
    polars: tuple[str, ...] = ()
    polars_lacks: bool = False
    free: bool = False


def constants_of(values: Sequence[Value], kind: DataType) -> list[Value]:
    """Constants as a column of that type takes them: whole numbers among decimals as such."""
    if not isinstance(kind, DecimalType):
        return list(values)
    return [Decimal(value) if isinstance(value, int) else value for value in values]


def polars() -> Any:
    """The Polars module, loaded when it is first needed."""
    import polars

    return polars


def dry_run(what: str, build: Callable[[Any], Any]) -> None:
    """Evaluate an expression on a constant, so that a wrong pattern or format is refused before a row flows.

    Raises:
        TypeMismatchError: Polars refused it; `what` says what was tried.
    """
    module = polars()
    try:
        module.select(build(module))
    except module.exceptions.PolarsError as error:
        lines = [line.strip() for line in str(error).split("\n\nThis error")[0].splitlines() if line.strip()]
        reason = lines[-1].removeprefix("error: ") if lines else "refused"
        raise TypeMismatchError(f"{what} is not valid: {reason}") from error
