"""Prints a node as the user wrote it, for error messages and plans.

Operators stand between their operands with no more parentheses than Python needs, functions are methods again. The
text is for people: what travels is `penstock.expressions.json_form`.
"""

from __future__ import annotations

import json
from typing import Final

from penstock.expressions.nodes import Aggregate, Alias, Call, Case, Cast, Column, Literal, Node, Option, implied_name
from penstock.types import type_from_json

_BINARY: Final = {
    "or": ("|", 1), "xor": ("^", 2), "and": ("&", 3),
    "shift_left": ("<<", 4), "shift_right": (">>", 4),
    "add": ("+", 5), "sub": ("-", 5),
    "mul": ("*", 6), "truediv": ("/", 6), "floordiv": ("//", 6), "mod": ("%", 6),
    "pow": ("**", 8),
    "eq": ("==", 0), "ne": ("!=", 0), "lt": ("<", 0), "le": ("<=", 0), "gt": (">", 0), "ge": (">=", 0),
}  # fmt: skip
"""Sign and how tightly Python binds it; comparisons bind loosest and are always bracketed within another operator."""
_UNARY: Final = {"neg": ("-", 7), "not": ("~", 7)}
_ATOM: Final = 9
PREFIX_FUNCTIONS: Final = frozenset(
    {"arctan2", "coalesce", "concat_list", "concat_str", "max_horizontal", "min_horizontal", "struct"}
)
"""Functions written `f(a, b)` instead of `a.f(b)`."""


KEYWORDS: Final = frozenset({"closed", "ddof", "ignore_nulls", "literal", "separator", "strict", "ties"})
"""Settings written with their name; others are known by their place."""


def display_name(function: str) -> str:
    """How a message speaks of a function: `+`, `.abs()`, `coalesce()`."""
    if function in _BINARY or function in _UNARY:
        return (_BINARY.get(function) or _UNARY[function])[0]
    if function.startswith("sql."):
        return f"{function.removeprefix('sql.').upper()}()"
    return f"{function}()" if function in PREFIX_FUNCTIONS else f".{function}()"


def render(node: Node) -> str:
    """The text of a node in Python."""
    return _render(node)[0]


def _render(node: Node) -> tuple[str, int]:
    match node:
        case Column(name=name):
            return f"col({_quote(name)})", _ATOM
        case Literal(value=value):
            return f"lit({_value(value)})", _ATOM
        case Cast(operand=operand, to=to, strict=strict):
            return f"{_receiver(operand)}.cast({to}{'' if strict else ', strict=False'})", _ATOM
        case Alias(operand=operand, name=name):
            return f"{_receiver(operand)}.alias({_quote(name)})", _ATOM
        case Case():
            return _render_case(node), _ATOM
        case Aggregate():
            return _render_aggregate(node), _ATOM
        case Call(function=function, args=args) if function in _BINARY and len(args) == 2:
            return _render_binary(function, args[0], args[1])
        case Call(function=function, args=(operand,)) if function in _UNARY:
            sign, tightness = _UNARY[function]
            text, inner = _render(operand)
            return sign + (text if inner >= tightness else f"({text})"), tightness
        case Call():
            return _render_call(node), _ATOM


def _render_binary(function: str, left: Node, right: Node) -> tuple[str, int]:
    sign, tightness = _BINARY[function]
    both_constant = isinstance(left, Literal) and isinstance(right, Literal)
    left_text, left_binds = _render(left) if both_constant else _operand(left)
    right_text, right_binds = _operand(right)
    # Equal tightness groups to the left in Python (to the right for **); comparisons would chain, so never bare.
    left_bare = left_binds > tightness or (left_binds == tightness and function != "pow" and tightness > 0)
    right_bare = right_binds > tightness
    left_text = left_text if left_bare else f"({left_text})"
    return f"{left_text} {sign} {right_text if right_bare else f'({right_text})'}", tightness


def _render_call(node: Call) -> str:
    options = dict(node.options)
    zone = options.pop("zone", None)
    if node.function == "is_in":
        values = ", ".join(_operand(arg)[0] for arg in node.args[1:])
        return f"{_receiver(node.args[0])}.is_in([{values}])"
    if node.function in ("replace", "replace_strict"):
        return _render_replace(node)
    if node.function == "struct":
        return _render_struct(node)
    settings = [_setting(name, value) for name, value in options.items()]
    if node.function in PREFIX_FUNCTIONS or node.function.startswith("sql."):
        name = node.function if node.function in PREFIX_FUNCTIONS else display_name(node.function).removesuffix("()")
        return f"{name}({', '.join([_operand(arg)[0] for arg in node.args] + settings)})"
    rest = ", ".join([_operand(arg)[0] for arg in node.args[1:]] + settings)
    method = node.function if zone is None else node.function.replace("dt.", f"dt.in_zone({_value(zone)}).", 1)
    return f"{_receiver(node.args[0])}.{method}({rest})"


def _render_replace(node: Call) -> str:
    pairs = [_operand(arg)[0] for arg in node.args[1:]]
    default = f", default={pairs.pop()}" if node.options else ""
    mapping = ", ".join(f"{key}: {value}" for key, value in zip(pairs[::2], pairs[1::2], strict=True))
    return f"{_receiver(node.args[0])}.{node.function}({{{mapping}}}{default})"


def _render_struct(node: Call) -> str:
    names = json.loads(str(dict(node.options)["names"]))
    fields = [
        _operand(arg)[0] if implied_name(arg) == name else f"{name}={_operand(arg)[0]}"
        for arg, name in zip(node.args, names, strict=True)
    ]
    return f"struct({', '.join(fields)})"


def _render_case(node: Case) -> str:
    if _is_beside_with_default(node):
        ((_, found),) = node.branches
        assert node.otherwise is not None
        return f"{_render(found)[0].removesuffix(')')}, default={_operand(node.otherwise)[0]})"
    text = "".join(
        f"{'.' if index else ''}when({_render(condition)[0]}).then({_operand(value)[0]})"
        for index, (condition, value) in enumerate(node.branches)
    )
    return text if node.otherwise is None else f"{text}.otherwise({_operand(node.otherwise)[0]})"


def _is_beside_with_default(node: Case) -> bool:
    """Whether it is what `lag` and `lead` make of `default=`: is there such a row?"""
    if len(node.branches) != 1 or node.otherwise is None:
        return False
    ((condition, found),) = node.branches
    if not isinstance(found, Aggregate) or found.function not in ("lag", "lead"):
        return False
    return condition == Aggregate(found.function, (Literal(True),), found.options)


def _render_aggregate(node: Aggregate) -> str:
    args = [_render(arg)[0] for arg in node.args]
    kept = [f"filter={args.pop()}"] if dict(node.options).get("filter") else []
    if node.function == "aggregate":
        return f"aggregate({', '.join([type(node.accumulator).__name__ + '()', *args, *kept])})"
    if not args:
        return f"{node.function}()"
    if node.function in ("lag", "lead"):
        return f"{node.function}({args[0]}, {dict(node.options)['rows']})"
    settings = [_setting(name, value) for name, value in node.options if name != "filter"]
    return f"{_receiver(node.args[0])}.{node.function}({', '.join([*args[1:], *settings, *kept])})"


def _receiver(node: Node) -> str:
    """The text of what stands before a dot."""
    text, tightness = _render(node)
    return text if tightness == _ATOM else f"({text})"


def _operand(node: Node) -> tuple[str, int]:
    """The text of an argument: a constant stands there bare, as users write it."""
    if isinstance(node, Literal):
        negative = isinstance(node.value, (int, float)) and str(node.value).startswith("-")
        return _value(node.value), _UNARY["neg"][1] if negative else _ATOM
    return _render(node)


def _setting(name: str, value: Option) -> str:
    if name == "type":
        return str(type_from_json(json.loads(str(value))))
    return f"{name}={_value(value)}" if name in KEYWORDS else _value(value)


def _value(value: object) -> str:
    return _quote(value) if isinstance(value, str) else repr(value)


def _quote(text: str) -> str:
    """A string in double quotes, as the documentation writes code."""
    return json.dumps(text, ensure_ascii=False)
