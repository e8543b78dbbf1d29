"""Mutants: functions of production with one rule taken out, named by symbols.

What a mutant changes is found in the function's syntax tree by the names that occur in it (`condition("last_seq", "<=")`
is the comparison of `last_seq` by `<=`), never by its text: code may be formatted, reordered and moved, as long as the
symbols keep their names. A symbol that is gone, or that no longer points at one thing alone, fails loudly.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

KEPT = "KEPT"
"""In the code of an edit: what stood there."""
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Add: "+",
}  # fmt: skip

Nodes = Callable[[ast.AST], Iterator[ast.AST]]


@dataclass(frozen=True)
class Edit:
    """The innermost node of a kind in which all these symbols occur, and the code that stands there instead."""

    kind: Nodes
    symbols: frozenset[str]
    code: str

    def made(self, tree: ast.AST) -> ast.AST:
        """The tree with the change."""
        found = [node for node in self.kind(tree) if self.symbols <= _symbols(node)]
        inner = [node for node in found if not any(other is not node and other in ast.walk(node) for other in found)]
        if len(inner) != 1:
            lines = sorted(cast("Any", node).lineno for node in inner)
            places = ", ".join(f"line {line}" for line in lines) or "nowhere"
            raise AssertionError(f"{sorted(self.symbols)} should stand in one place, and do in: {places}")
        return _Replacing(inner[0], self.code).visit(tree)


def condition(*symbols: str, becomes: str = "False") -> Edit:
    """What is tested, or one part of an `and` or `or`."""
    return Edit(_conditions, frozenset(symbols), becomes)


def statement(*symbols: str, becomes: str = "pass") -> Edit:
    """A statement that holds no others."""
    return Edit(_statements, frozenset(symbols), becomes)


def returned(*symbols: str, becomes: str) -> Edit:
    """A `return`; the code is one or more statements."""
    return Edit(
        lambda tree: (node for node in ast.walk(tree) if isinstance(node, ast.Return)), frozenset(symbols), becomes
    )


def called(function: str, *symbols: str, becomes: str) -> Edit:
    """A call of that function or method."""
    return Edit(lambda tree: _calls(tree, function), frozenset({function, *symbols}), becomes)


def value(symbol: str, becomes: str) -> Edit:
    """The variable or attribute of that name."""
    kinds = (ast.Name, ast.Attribute)
    return Edit(lambda tree: (node for node in ast.walk(tree) if isinstance(node, kinds)), frozenset({symbol}), becomes)


def begins(code: str) -> Edit:
    """The function begins with this code."""
    return Edit(lambda tree: iter([cast("Any", tree).body[0].body[0]]), frozenset(), f"{code}\n{KEPT}")


def _conditions(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
                yield test
            case ast.comprehension(ifs=tests) | ast.BoolOp(values=tests):
                yield from tests
            case ast.match_case(guard=ast.expr() as test):
                yield test
            case _:
                pass


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    return (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and not isinstance(node, ast.Match)
    )


def _calls(tree: ast.AST, function: str) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and function in (getattr(node.func, "attr", ""), getattr(node.func, "id", "")):
            yield node


def _symbols(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        found.update(str(name) for name in (getattr(node, key, None) for key in ("id", "attr", "arg")) if name)
        found.update(symbol for kind, symbol in _OPERATORS.items() if isinstance(node, kind))
    return found


class _Replacing(ast.NodeTransformer):
    """Puts code in the place of a node."""

    def __init__(self, old: ast.AST, code: str) -> None:
        self._old = old
        self._code = code

    def visit(self, node: ast.AST) -> Any:
        if node is not self._old:
            return self.generic_visit(node)
        if isinstance(node, ast.stmt):
            return _Keeping(node).visit(ast.parse(self._code)).body
        return _Keeping(node).visit(ast.parse(self._code, mode="eval")).body


class _Keeping(ast.NodeTransformer):
    """Puts what stood there where the code says `KEPT`."""

    def __init__(self, old: ast.AST) -> None:
        self._old = old

    def visit_Expr(self, node: ast.Expr) -> Any:
        kept = isinstance(node.value, ast.Name) and node.value.id == KEPT
        return self._old if kept else self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        return self._old if node.id == KEPT else node


# -- mutants ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, init=False)
class Patch:
    """Edits of one function of a class or a module.

    Args:
        owner: the class or module.
        function: its name there.
        edits: are made one after the other.
        also: modules that imported the function by name.
    """

    owner: Any
    function: str
    edits: tuple[Edit, ...]
    also: tuple[Any, ...]

    def __init__(self, owner: Any, function: str, *edits: Edit, also: tuple[Any, ...] = ()) -> None:
        for name, given in (("owner", owner), ("function", function), ("edits", edits), ("also", also)):
            object.__setattr__(self, name, given)

    def mutated(self) -> Any:
        """The function with the edits made."""
        original = inspect.getattr_static(self.owner, self.function)
        function = original.__func__ if isinstance(original, staticmethod) else original
        tree: ast.AST = ast.parse(textwrap.dedent(inspect.getsource(function)))
        for edit in self.edits:
            try:
                tree = ast.fix_missing_locations(edit.made(tree))
            except AssertionError as error:
                raise AssertionError(f"{self.owner.__name__}.{self.function}: {error}") from None
        namespace: dict[str, Any] = {}
        flags = __future__.annotations.compiler_flag
        code = compile(cast("ast.Module", tree), f"<mutant of {self.function}>", "exec", flags)
        exec(code, function.__globals__, namespace)
        return namespace[self.function]


@dataclass(frozen=True)
class Mutant:
    """Broken code."""

    number: int
    name: str
    patches: tuple[Patch, ...]

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """With production broken."""
        with contextlib.ExitStack() as stack:
            for patch in self.patches:
                mutated = patch.mutated()
                for owner in (patch.owner, *patch.also):
                    original = inspect.getattr_static(owner, patch.function)
                    setattr(owner, patch.function, mutated)
                    stack.callback(setattr, owner, patch.function, original)
            yield
