"""Catalogue rows: operators, comparisons, logic, nulls and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.expressions.decimal_rules import rounded_to
from penstock.expressions.functions import Function, Lowering, constants_of, polars
from penstock.expressions.typing_operators import (
    arithmetic,
    comparison,
    equality,
    logical,
    membership,
    multiplication,
    negation,
    power,
    true_division,
)
from penstock.expressions.typing_rules import (
    Arguments,
    TypeMismatchError,
    Typing,
    anything,
    check,
    first_of,
    keeps,
    meet,
    meets,
    never_null,
    takes,
    to_float,
)
from penstock.types import (
    ANY_NUMBER,
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT64,
    FLOATS,
    INT64,
    INTEGERS,
    NUMERIC,
    STRING,
    TIMESTAMP,
    DecimalType,
    polars_type,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl

_HORIZONTAL: Final = ANY_NUMBER | {STRING, BOOLEAN, DATE, TIMESTAMP, DURATION}
_SIZED: Final = ANY_NUMBER | {DURATION}


def _duration_by_integer(call: Lowering) -> pl.Expr:
    """`//` and `%` of durations, which Polars only knows of integers."""
    left, right = (arg.cast(polars_type(INT64)) for arg in call.args)
    return (left // right).cast(polars_type(call.result))


def divided(left: pl.Expr, right: pl.Expr) -> pl.Expr:
    """The quotient of floats. Polars multiplies by the reciprocal of a divisor that all rows share, unless there is only
    one row: the last bit would depend on the size of batches. Multiplied by ones it is a divisor of each row."""
    return left / (right * left.is_not_null().cast(polars_type(FLOAT64)))


def _add(call: Lowering) -> pl.Expr:
    return _of_decimals(call, "+") if isinstance(call.result, DecimalType) else call[0] + call[1]


def _subtract(call: Lowering) -> pl.Expr:
    return _of_decimals(call, "-") if isinstance(call.result, DecimalType) else call[0] - call[1]


def _multiply(call: Lowering) -> pl.Expr:
    return _of_decimals(call, "*") if isinstance(call.result, DecimalType) else call[0] * call[1]


def _of_decimals(call: Lowering, sign: str) -> pl.Expr:
    # Imported here because it loads Polars.
    from penstock.expressions.decimal_arithmetic import compute

    return compute(call, sign)


def _divide(call: Lowering) -> pl.Expr:
    if isinstance(call.result, DecimalType):
        return _of_decimals(call, "/")
    if call.operands[0] != DURATION:
        return divided(call[0], call[1])
    left, right = (arg.cast(polars_type(INT64)).cast(polars_type(FLOAT64)) for arg in call.args)
    return divided(left, right)


def _floor_divide(call: Lowering) -> pl.Expr:
    if isinstance(call.result, DecimalType):
        return _of_decimals(call, "//")
    if call.operands[0] == DURATION:
        return _duration_by_integer(call)
    if call.operands[0] in FLOATS:
        return _by_numpy(call, "floor_divide")
    return call[0] // call[1]


def _by_numpy(call: Lowering, ufunc: str) -> pl.Expr:
    """By a function of NumPy, which takes `//` and `%` of floats from the exact remainder, as Python does. Polars takes
    them from the rounded quotient: 1.0 // 0.1 would be 10, and the remainder of 5.0 by infinity NaN."""

    def apply(columns: Sequence[pl.Series]) -> pl.Series:
        import numpy as np

        left, right = columns
        with np.errstate(all="ignore"):
            found = getattr(np, ufunc)(left.to_numpy(), right.to_numpy())
        nulls = left.is_null() | right.is_null()
        made = polars().Series(left.name, found)
        return made.set(nulls, None) if nulls.any() else made

    return polars().map_batches(call.args, apply, polars_type(call.result), is_elementwise=True)


def _remainder(call: Lowering) -> pl.Expr:
    if isinstance(call.result, DecimalType):
        return _of_decimals(call, "%")
    if call.operands[0] in FLOATS:
        return _by_numpy(call, "remainder")
    if call.operands[0] != DURATION:
        return call[0] % call[1]
    left, right = (arg.cast(polars_type(INT64)) for arg in call.args)
    return (left % right).cast(polars_type(DURATION))


def _null_if(call: Lowering) -> pl.Expr:
    """The value may be a constant, which stands on the right: see `penstock.expressions.polars_lowering`."""
    return polars().when(call[1].ne_missing(call[0])).then(call[0])


def _is_in(call: Lowering) -> pl.Expr:
    pl = polars()
    values = pl.Series(constants_of(call.constants[1:], call.operands[0]), dtype=polars_type(call.operands[0]))
    return call[0].is_in(pl.lit(values).implode())


def _round_rule(arguments: Arguments) -> Typing:
    kind = check(arguments, 0, ANY_NUMBER)
    if not isinstance(kind, DecimalType):
        return Typing(kind, arguments.nullable, (kind,))
    decimals = arguments.options.get("decimals", 0)
    if not isinstance(decimals, int) or decimals < 0:
        raise TypeMismatchError(f"{arguments.name} of {kind} needs decimals from 0, got {decimals!r}")
    return Typing(rounded_to(kind, decimals), arguments.nullable, (kind,))


def _whole_rule(arguments: Arguments) -> Typing:
    kind = check(arguments, 0, ANY_NUMBER)
    result = rounded_to(kind, 0) if isinstance(kind, DecimalType) else kind
    return Typing(result, arguments.nullable, (kind,))


def _whole(call: Lowering, *, up: bool) -> pl.Expr:
    """`floor` and `ceil`."""
    kind = call.operands[0]
    if kind in INTEGERS or (kind == call.result and isinstance(kind, DecimalType)):
        return call[0]
    if isinstance(kind, DecimalType) and isinstance(call.result, DecimalType):
        from penstock.expressions.decimal_arithmetic import floored

        return floored(call[0], kind, call.result, up=up)
    return call[0].ceil() if up else call[0].floor()


def _round(call: Lowering) -> pl.Expr:
    kind = call.operands[0]
    if isinstance(kind, DecimalType) and isinstance(call.result, DecimalType):
        from penstock.expressions.decimal_arithmetic import rounded

        return call[0] if kind == call.result else rounded(call[0], kind, call.result)
    if call.operands[0] in INTEGERS:
        return call[0]
    return call[0].round(call.option("decimals", 0), mode="half_to_even")


def _clip_rule(arguments: Arguments) -> Typing:
    answer = meets("clip", _SIZED)(arguments)
    return Typing(answer.type, arguments[0].nullable, answer.operands)


def _nullif_rule(arguments: Arguments) -> Typing:
    common = meet(arguments, "compare", _HORIZONTAL | {BINARY})
    if common != arguments[0].type and not arguments[0].literal:
        raise TypeMismatchError(f"cannot compare {arguments[0].type} with {arguments[1].type}; cast one of them")
    return Typing(common, True, (common, common))


def _fill_nan_rule(arguments: Arguments) -> Typing:
    check(arguments, 0, FLOATS)
    common = meet(arguments, "fill NaN of", FLOATS)
    return Typing(common, arguments.nullable, (common, common))


def _logarithm(call: Lowering) -> pl.Expr:
    return call[0].log(call.option("base")) if call.option("base") is not None else call[0].log()


ARITHMETIC: Final = (
    Function(
        "add", "a + b", arithmetic("add"), _add,
        "Sum; text is joined, a duration moves a timestamp. Integers wrap around when they overflow, decimals fail.",
        ("+",),
    ),
    Function(
        "sub", "a - b", arithmetic("subtract"), _subtract,
        "Difference; between timestamps or dates a duration. Integers wrap around when they overflow, decimals fail.",
        ("-",),
    ),
    Function(
        "mul", "a * b", multiplication, _multiply,
        "Product; also a duration and an integer. Integers wrap around when they overflow, decimals fail.", ("*",),
    ),
    Function(
        "truediv", "a / b", true_division, _divide,
        "True division in float64. Dividing by zero gives inf, -inf or NaN (IEEE 754); SQL engines give null. Of "
        "decimals (or one and an integer) a decimal, rounded half away from zero; by zero it fails.",
        ("/",),
    ),
    Function(
        "floordiv", "a // b", arithmetic("floor-divide", null=True), _floor_divide,
        "Division rounded down as in Python (SQL rounds towards zero). By integer or decimal zero: null; float as `/`.",
        ("//",),
    ),
    Function(
        "mod", "a % b", arithmetic("take the remainder of", null=True), _remainder,
        "Remainder with the divisor's sign as in Python (SQL: the dividend's). By integer or decimal zero: null; by "
        "float zero: NaN.",
        ("%", "mod"),
    ),
    Function(
        "pow", "a ** b", power, lambda c: c[0].pow(c[1]),
        "Power. An integer to a constant whole power stays an integer and wraps around; otherwise float64.",
        ("pow", "power"),
    ),
    Function("neg", "-a", negation, lambda c: -c[0], "Negation; the smallest integer stays itself.", ("-",)),
)  # fmt: skip

COMPARISONS: Final = (
    Function(
        "eq", "a == b", equality, lambda c: c[0] == c[1],
        "Equal; null if either is null. NaN equals NaN, -0.0 equals 0.0. Integer with float: compared as float64.",
        ("=", "=="),
    ),
    Function("ne", "a != b", equality, lambda c: c[0] != c[1], "Not equal; null if either is null.", ("<>", "!=")),
    Function(
        "lt", "a < b", comparison, lambda c: c[0] < c[1],
        "Less; null if either is null. NaN is above every number; text is ordered by code point, false before true.",
        ("<",),
    ),
    Function("le", "a <= b", comparison, lambda c: c[0] <= c[1], "Less or equal; ordered as `<`.", ("<=",)),
    Function("gt", "a > b", comparison, lambda c: c[0] > c[1], "Greater; ordered as `<`.", (">",)),
    Function("ge", "a >= b", comparison, lambda c: c[0] >= c[1], "Greater or equal; ordered as `<`.", (">=",)),
    Function(
        "is_between", 'x.is_between(low, high, closed="both")', comparison,
        lambda c: c[0].is_between(c[1], c[2], closed=c.option("closed", "both")),
        'Within the bounds, ordered as `<`; `closed` is "both", "left", "right" or "none".', ("between",),
    ),
    Function(
        "is_in", "x.is_in([1, 2])", membership, _is_in,
        "Equal to one of the constants; null if x is null. An empty list gives false.", ("in",),
    ),
    Function(
        "and", "a & b", logical, lambda c: c[0] & c[1],
        "Both; three-valued (Kleene): false wins over null. For integers the bits that are set in both.", ("and", "&"),
        polars=("&", "and_", "bitwise_and"),
    ),
    Function(
        "or", "a | b", logical, lambda c: c[0] | c[1],
        "Either; three-valued (Kleene): true wins over null. For integers the bits that are set in either.",
        ("or", "|"), polars=("|", "or_", "bitwise_or"),
    ),
    Function(
        "xor", "a ^ b", logical, lambda c: c[0] ^ c[1],
        "One but not both; null if either is null. For integers the bits that are set in one only.", ("xor",),
        polars=("^", "xor", "bitwise_xor"),
    ),
    Function(
        "not", "~a", logical, lambda c: ~c[0], "Negation; null stays null. For integers, all bits are inverted.",
        ("not", "~"), polars=("~", "not_"),
    ),
)  # fmt: skip

NULLS: Final = (
    Function(
        "is_null", "x.is_null()", never_null(anything(BOOLEAN)), lambda c: c[0].is_null(),
        "Whether the value is missing. NaN is not null.", ("is null",),
    ),
    Function(
        "is_not_null", "x.is_not_null()", never_null(anything(BOOLEAN)), lambda c: c[0].is_not_null(),
        "Whether there is a value.", ("is not null",),
    ),
    Function(
        "fill_null", "x.fill_null(value)", first_of("fill null of"), lambda c: c[0].fill_null(c[1]),
        "The value, or another one where it is null.", ("ifnull",),
    ),
    Function(
        "coalesce", "coalesce(a, b, ...)", first_of("combine"), lambda c: polars().coalesce(list(c.args)),
        "The first argument that is not null.", ("coalesce",),
    ),
    Function(
        "nullif", "x.nullif(value)", _nullif_rule, _null_if,
        "The value, or null where it equals another one. NaN equals NaN.", ("nullif",), polars_lacks=True,
    ),
    Function(
        "fill_nan", "x.fill_nan(value)", _fill_nan_rule, lambda c: c[0].fill_nan(c[1]),
        "The float, or another value where it is NaN; null stays null.",
    ),
    Function(
        "is_nan", "x.is_nan()", takes(FLOATS, gives=BOOLEAN), lambda c: c[0].is_nan(),
        "Whether a float is NaN; null stays null.", ("isnan",),
    ),
    Function(
        "is_finite", "x.is_finite()", takes(FLOATS, gives=BOOLEAN), lambda c: c[0].is_finite(),
        "Whether a float is neither infinite nor NaN; null stays null.", ("isfinite",),
    ),
)  # fmt: skip

NUMBERS: Final = (
    Function(
        "abs", "x.abs()", keeps(_SIZED), lambda c: c[0].abs(),
        "Absolute value; the smallest integer stays itself.", ("abs",),
    ),
    Function(
        "round", "x.round(decimals=0)", _round_rule, _round,
        "Rounded to decimals; halves go to the even neighbour (0.5 to 0.0, 1.5 to 2.0), those of decimals away from "
        "zero. Integers stay as they are.",
        ("round_even",),
    ),
    Function(
        "floor", "x.floor()", _whole_rule, lambda c: _whole(c, up=False),
        "The next whole number below, of the same type.", ("floor",),
    ),
    Function(
        "ceil", "x.ceil()", _whole_rule, lambda c: _whole(c, up=True),
        "The next whole number above, of the same type.", ("ceil", "ceiling"),
    ),
    Function(
        "sign", "x.sign()", keeps(NUMERIC), lambda c: c[0].sign(),
        "-1, 0 or 1, of the same type; NaN stays NaN.", ("sign",),
    ),
    Function(
        "sqrt", "x.sqrt()", to_float("take the square root of"), lambda c: c[0].sqrt(),
        "Square root in float64; NaN for a negative number, where SQL engines fail.", ("sqrt",),
    ),
    Function(
        "exp", "x.exp()", to_float("exponentiate"), lambda c: c[0].exp(), "e to that power in float64.", ("exp",),
    ),
    Function(
        "log", "x.log(base=e)", to_float("take the logarithm of"), _logarithm,
        "Logarithm in float64; -inf for zero and NaN for a negative number, where SQL engines fail.", ("ln", "log"),
    ),
    Function(
        "clip", "x.clip(lower, upper)", _clip_rule, lambda c: c[0].clip(c[1], c[2]),
        "Limited to the bounds; a bound that is None or null is ignored, NaN stays NaN.",
    ),
    Function(
        "min_horizontal", "min_horizontal(a, b, ...)", first_of("compare", _HORIZONTAL),
        lambda c: polars().min_horizontal(list(c.args)),
        "The smallest argument; nulls are ignored, and so is NaN unless there is no other value.", ("least",),
    ),
    Function(
        "max_horizontal", "max_horizontal(a, b, ...)", first_of("compare", _HORIZONTAL),
        lambda c: polars().max_horizontal(list(c.args)),
        "The largest argument; nulls are ignored, and so is NaN unless there is no other value.",
        ("greatest",),
    ),
)  # fmt: skip

_ANGLES: Final = (
    ("sin", "Sine of an angle in radians"), ("cos", "Cosine of an angle in radians"),
    ("tan", "Tangent of an angle in radians"), ("arcsin", "Angle in radians of a sine; NaN outside of -1 to 1"),
    ("arccos", "Angle in radians of a cosine; NaN outside of -1 to 1"), ("arctan", "Angle in radians of a tangent"),
    ("sinh", "Hyperbolic sine"), ("cosh", "Hyperbolic cosine"), ("tanh", "Hyperbolic tangent"),
    ("degrees", "An angle in radians as degrees"), ("radians", "An angle in degrees as radians"),
)  # fmt: skip


def _angle(name: str, doc: str) -> Function:
    sql = (name.replace("arc", "a"),)
    lower: Callable[[Lowering], pl.Expr] = lambda call: getattr(call[0], name)()  # noqa: E731 (a table's cell)
    return Function(name, f"x.{name}()", to_float(f"take .{name}() of"), lower, f"{doc}, in float64.", sql)


TRIGONOMETRY: Final = (
    *(_angle(name, doc) for name, doc in _ANGLES),
    Function(
        "arctan2",
        "arctan2(y, x)",
        to_float("take the angle of"),
        lambda c: polars().arctan2(c[0], c[1]),
        "Angle in radians of the point (x, y) from the x axis, -pi to pi, in float64.",
        ("atan2",),
    ),
)

ROWS: Final = (*ARITHMETIC, *COMPARISONS, *NULLS, *NUMBERS, *TRIGONOMETRY)
