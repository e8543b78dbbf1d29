"""Patterns as text: `fails[col("status") == "fail"]{3,} -> ok[...]`."""

from __future__ import annotations

from typing import Final

from penstock.core.times import format_duration
from penstock.functions.patterns.definitions import Alternatives, Contiguity, Forbidden, Group, Part, Times, Variable

SIGNS: Final[dict[Contiguity, str]] = {
    "next": "next",
    "followed_by": "followed by",
    "followed_by_any": "followed by any",
}
_QUANTIFIERS: Final = {(0, 1): "?", (0, None): "*", (1, None): "+"}


def text_of(pattern: Group, *, conditions: bool = True) -> str:
    """A pattern as one line; without `conditions` only what the places of its rows depend on."""
    return " ".join(_part(part, first=place == 0, conditions=conditions) for place, part in enumerate(pattern.parts))


def regular_text_of(pattern: Group) -> str:
    """A regular expression over rows as SQL writes it: `A B+? (C | D){2}`."""
    return " ".join(_regular_part(part) for part in pattern.parts)


def _regular_part(part: Part) -> str:
    match part.body:
        case Variable(name=name) | Forbidden(name=name):
            body = name
        case Group(shown=False) as group:
            body = f"{{- {regular_text_of(group)} -}}"
        case Group() as group:
            body = f"({regular_text_of(group)})"
        case Alternatives(groups=groups):
            body = f"({' | '.join(map(regular_text_of, groups))})"
    least, most = part.times.least, part.times.most
    if (least, most) == (1, 1):
        return body
    many = f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"
    sign = _QUANTIFIERS.get((least, most), many)
    return f"{body}{sign}{'' if part.times.greedy or least == most else '?'}"


def _part(part: Part, *, first: bool, conditions: bool) -> str:
    if isinstance(part.body, Forbidden):
        sign = "not next" if part.body.immediately else "not followed by"
    else:
        sign = "" if first else SIGNS[part.contiguity]
    within = "" if part.within_us is None else f" within {format_duration(part.within_us)}"
    return f"{sign} {_body(part, conditions=conditions)}{_times(part.times, conditions=conditions)}{within}".lstrip()


def _body(part: Part, *, conditions: bool) -> str:
    match part.body:
        case Variable(name=name, condition=condition) | Forbidden(name=name, condition=condition):
            return name if condition is None or not conditions else f"{name}[{condition}]"
        case Group() as group:
            return f"({text_of(group, conditions=conditions)})"
        case Alternatives(groups=groups):
            return f"({' | '.join(text_of(group, conditions=conditions) for group in groups)})"


def _times(times: Times, *, conditions: bool) -> str:
    if (times.least, times.most) == (1, 1):
        return ""
    often = f"{{{times.least},{'' if times.most is None else times.most}}}"
    near = "" if times.contiguity == "followed_by" else f" {SIGNS[times.contiguity]}"
    until = "" if times.until is None else " until" + (f" {times.until}" if conditions else "")
    return f"{often}{near}{' greedy' if times.greedy else ''}{until}"
