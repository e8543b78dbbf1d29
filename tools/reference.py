"""Prints the reference of the API, from signatures and docstrings: `python -m tools.reference > docs/reference.md`.

What stands in which part, and the few sentences that lead to it, are in `reference_parts`. The rest is the code's: the
examples are those of the docstrings, which tests run.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final

import penstock
from penstock import Pipeline, connectors, spark, testing
from penstock.connectors.base import Sink, Source
from tools.reference_parts import INTRODUCTION, PARTS, Part
from tools.site_reference import anchor_of

_SECTION: Final = re.compile(r"(Args|Returns|Raises|Example):$")
_WIDTH: Final = 110
_CALLED_BY_PENSTOCK: Final = (Pipeline, Source, Sink)
"""Of these a user needs the constructor; the verbs of a pipeline are entries of their own."""


def page() -> str:
    """The whole reference."""
    contents = [f"* [{part.title}](#{anchor_of(part.title)})" for part in PARTS]
    return "\n".join([INTRODUCTION, *contents, "", *(line for part in PARTS for line in _part(part))])


def entries() -> Iterator[tuple[str, Any]]:
    """Everything that the page explains, by the name under which it stands there."""
    for part in PARTS:
        yield from part.entries


def _part(part: Part) -> Iterator[str]:
    yield f"## {part.title}\n"
    yield part.text.strip() + "\n"
    yield "\n".join(["```python", *_imports(part), "```", ""])
    yield from part.made()
    for name, value in part.entries:
        yield from _entry(name, value)


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"### `{name}`\n"
    if inspect.isfunction(value) or _is_made(value):
        yield f"```python\n{_call(name, value)}\n```\n"
    yield from _documented(inspect.getdoc(value) or "")
    if isinstance(value, type) and not issubclass(value, _CALLED_BY_PENSTOCK):
        yield from _members(value)


def _is_made(value: Any) -> bool:
    """Whether users make objects of a class: one that they derive from takes nothing."""
    return isinstance(value, type) and bool(_signature(value).parameters)


# -- imports ------------------------------------------------------------------------------------------------------------

_HOMES: Final = (
    ("penstock", frozenset(penstock.__all__)),
    ("penstock.connectors", frozenset(found.name for found in pkgutil.iter_modules(connectors.__path__))),
    ("penstock.spark", frozenset(spark.__all__)),
    ("penstock.testing", frozenset(testing.__all__)),
)
"""Where a name of an example is from; streams and the like are given to users, who do not import them."""


def _imports(part: Part) -> Iterator[str]:
    """What a part explains and what its examples use, for a newcomer who has only this page."""
    explained = {name.partition(".")[0] for name, value in part.entries if "." not in name or not _is_verb(value)}
    used = explained.union(*(_names_used(value) for _, value in part.entries))
    for home, exported in _HOMES:
        if names := ", ".join(sorted(used & exported)):
            begin = f"from {home} import "
            yield from (f"{begin}{line.rstrip(',')}" for line in textwrap.wrap(names, _WIDTH - len(begin)))


def _is_verb(value: Any) -> bool:
    return inspect.isfunction(value) and "." in value.__qualname__


def _names_used(value: Any) -> set[str]:
    """The names that the examples of an entry read and do not make themselves."""
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")
    names = [node for each in examples for node in ast.walk(ast.parse(each.source)) if isinstance(node, ast.Name)]
    made = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    given = {"spark"} if inspect.isfunction(value) and "spark" in inspect.signature(value).parameters else set[str]()
    return {node.id for node in names} - made - given


# -- signatures ---------------------------------------------------------------------------------------------------------


class _Text:
    """Stands as it is, where `inspect` would show a text in quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _signature(value: Any) -> inspect.Signature:
    try:
        found = inspect.signature(value)
    except ValueError:  # a class without any: an enumeration, for one
        return inspect.Signature()
    parameters = [_shown(each) for each in found.parameters.values() if each.name not in ("self", "args", "kwargs")]
    given = inspect.isfunction(value) and found.return_annotation not in (found.empty, "None", None)
    return found.replace(
        parameters=parameters, return_annotation=_Text(str(found.return_annotation)) if given else found.empty
    )


def _shown(parameter: inspect.Parameter) -> inspect.Parameter:
    if parameter.annotation is not parameter.empty:
        parameter = parameter.replace(annotation=_Text(str(parameter.annotation)))
    if isinstance(parameter.default, str):
        parameter = parameter.replace(default=_Text(json.dumps(parameter.default)))
    return parameter


def _call(name: str, value: Any) -> str:
    """The call as one line, or a line per argument."""
    signature = _signature(value)
    line = f"{name}{signature}"
    if len(line) <= _WIDTH:
        return line
    kinds = inspect.Parameter
    lines: list[str] = []
    for kind, group in groupby(signature.parameters.values(), key=lambda each: each.kind):
        if kind is kinds.KEYWORD_ONLY and not any("*" in line for line in lines):
            lines.append("    *,")
        lines += [f"    {each}," for each in group]
    _, arrow, returned = str(signature.replace(parameters=[])).partition(" -> ")
    return "\n".join([f"{name}(", *lines, f"){arrow}{returned}"])


# -- docstrings ---------------------------------------------------------------------------------------------------------


def _documented(text: str) -> Iterator[str]:
    for title, lines in _sections(text.splitlines()):
        body = inspect.cleandoc("\n".join(["", *lines]))
        if not title:
            yield body + "\n"
        elif title == "Example":
            yield f"```python\n{body}\n```\n"
        elif title == "Returns":
            yield f"Returns: {body}\n"
        else:
            yield from _items(title, body)


def _sections(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """The parts of a docstring in their order; the title of running text is empty."""
    title: str = ""
    held: list[str] = []
    for line in lines:
        found = _SECTION.match(line)
        if found or (title and line and not line.startswith(" ")):
            if any(held):
                yield title, held
            title, held = (found[1], []) if found else ("", [line])
        else:
            held.append(line)
    if any(held):
        yield title, held


def _items(title: str, body: str) -> Iterator[str]:
    yield "Arguments:\n" if title == "Args" else f"{title}:\n"
    for line in body.splitlines():
        name, colon, meaning = line.partition(":")
        yield f"* `{name}`{colon}{meaning}" if not line.startswith(" ") else line.replace("    ", "  ", 1)
    yield ""


def _members(cls: type) -> Iterator[str]:
    """What can be called or read of an object that users make, derive from or are given."""
    lines = [line for name, value in _own(cls) for line in [_member(name, value)] if line]
    if lines:
        yield from [*lines, ""]


def _own(cls: type) -> Iterator[tuple[str, Any]]:
    """Its own names first, then those of the classes it comes from, as long as they are documented."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if base.__module__.startswith("penstock."):
            for name, value in vars(base).items():
                if not name.startswith("_") and name not in seen:
                    seen.add(name)
                    yield name, value


def _member(name: str, value: Any) -> str:
    function: Any = value.fget if isinstance(value, property) else value
    text = (inspect.getdoc(function) or "") if inspect.isfunction(function) else ""
    if not text or text.startswith("See `"):
        return ""
    shown = name if isinstance(value, property) else f"{name}{_signature(function)}"
    return f"* `{shown}`: {' '.join(' '.join(text.splitlines()).split())}"


if __name__ == "__main__":
    sys.stdout.write(page())
