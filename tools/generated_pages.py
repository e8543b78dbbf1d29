"""Writes the pages of docs that are made from code (settings, the command line, REST): `python -m tools.generated_pages`.

A test fails while a page is not what is written here. The reference of the API has a module of its own
(`tools.reference`); those of functions and metrics are printed by their catalogues.
"""

from __future__ import annotations

import argparse
import ast
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, get_type_hints
from unittest.mock import patch

from penstock import settings
from penstock.cli.main import _parser
from penstock.cli.services import SERVICES
from penstock.service.http_server import Readiness
from penstock.settings import ClusterSettings, Secret
from penstock_dispatcher.app import dispatcher_app
from penstock_dispatcher.describing import openapi_of
from penstock_dispatcher.route_roles import ROLES

DOCS: Final = Path(__file__).parents[1] / "docs"
MADE: Final = "Made by `python -m tools.generated_pages`; do not edit."


# -- settings -----------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Every setting of a cluster, from the classes that hold them."""
    lines = [
        "# Settings\n",
        MADE + "\n",
        "A cluster is described by a TOML file (`--cluster FILE`, the variable `PENSTOCK_CLUSTER`, or",
        "`.penstock/cluster.toml`, which `penstock up` writes). Variables override the file. The page",
        "[Kafka](kafka.md#tls-and-logins) explains how connections to Kafka, Redis and the store are secured, and",
        "[security](security.md) who may do what.\n",
        *_table("PENSTOCK_", ClusterSettings),
    ]
    for item in fields(ClusterSettings):
        kind = get_type_hints(ClusterSettings)[item.name]
        if isinstance(kind, type) and is_dataclass(kind):
            lines += ["", f"## `[{item.name}]`\n", f"{inspect.getdoc(kind)}\n"]
            lines += _table(f"PENSTOCK_{item.name.upper()}_", kind)
    return "\n".join(lines) + "\n"


def _table(prefix: str, kind: type) -> Iterator[str]:
    yield "| setting | variable | default | |"
    yield "| --- | --- | --- | --- |"
    meanings = _attribute_docs(kind)
    for item in fields(kind):
        if not is_dataclass(get_type_hints(kind)[item.name]):
            variable = f"`{prefix}{item.name.upper()}`"
            yield f"| `{item.name}` | {variable} | {_default(item.default)} | {_cell(meanings.get(item.name, ''))} |"


def _default(value: Any) -> str:
    text = value.reveal() if isinstance(value, Secret) else str(value)
    return f"`{text}`" if text else ""


def _attribute_docs(kind: type) -> dict[str, str]:
    """The text below each attribute of a class."""
    tree = ast.parse(inspect.getsource(settings))
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)
    found: dict[str, str] = {}
    for one, other in pairwise(body):
        match one, other:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
            case _:
                pass
    return found


# -- the command line ---------------------------------------------------------------------------------------------------


def command_page() -> str:
    """Every command with its options, from the parsers themselves."""
    lines = [
        "# Command line\n",
        "This page lists every command of `penstock` with its options, as `penstock COMMAND --help` prints them.\n",
        MADE + "\n",
        "Exit codes: 0 (success), 1 (failure), 2 (wrong usage), 130 (interrupted).\n",
    ]
    for name, summary, parser in commands():
        lines += [f"## `penstock {name}`\n", f"{summary}\n", *_described(parser)]
    return "\n".join(lines)


def commands() -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Each command, those in groups among them, and the services."""
    for name, parser in _below(_parser(), ""):
        if name in SERVICES:
            parser = _service_parser(name)
        yield name, parser.description or "", parser


def _below(parser: argparse.ArgumentParser, before: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                found = list(_below(inner, f"{before}{name} "))
                yield from found or [(before + name, inner)]


def _service_parser(name: str) -> argparse.ArgumentParser:
    """That which the service would read its options with."""
    module = import_module(f"penstock_{name}.__main__")
    found: list[argparse.ArgumentParser] = []
    with patch.object(module, "run_service", lambda parser, *_: found.append(parser)):
        module.main([])
    return found[0]


def _described(parser: argparse.ArgumentParser) -> Iterator[str]:
    rows = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    if rows:
        yield "| | |"
        yield "| --- | --- |"
        yield from (f"| `{_call_of(action)}` | {_cell(_help(parser, action))} |" for action in rows)
        yield ""
    if parser.epilog:
        examples = [line.strip() for line in parser.epilog.splitlines() if line.startswith("  ")]
        yield "\n".join(["```console", *examples, "```", ""])


def _call_of(action: argparse.Action) -> str:
    value = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
    if action.choices is not None:
        value = "{" + ",".join(str(choice) for choice in action.choices) + "}"
    return " ".join(part for part in (", ".join(action.option_strings), str(value)) if part)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


# -- REST ---------------------------------------------------------------------------------------------------------------


def rest_page() -> str:
    """Every path that a dispatcher answers, from its OpenAPI document and the roles of its routes."""
    app = dispatcher_app(_no_ports(), Readiness(), list)
    paths = openapi_of(app)["paths"]
    routes = [(path, method.upper(), found) for path, methods in paths.items() for method, found in methods.items()]
    own = [route for route in routes if route[0].startswith("/penstock/")]
    flinks = [route for route in routes if route not in own]
    return "\n".join(
        [
            "# REST, path by path\n",
            MADE + "\n",
            "[REST](rest.md) explains the two kinds of paths and which of Flink's are missing, and",
            "[security](security.md#roles) the roles. The fields of the documents are in `/openapi.json` and at `/docs`",
            "of a dispatcher.\n",
            "## Penstock's own\n",
            *_routes(own),
            "\n## Flink's\n",
            "With and without `/v1` before them.\n",
            *_routes(flinks),
            "\n## Open to all\n",
            *(f"* `{name}`" for name, role in ROLES.items() if role is None),
            "",
        ]
    )


def _no_ports() -> Any:
    """A cluster that is only described, never asked."""
    parts = dict.fromkeys(("log", "blobs", "metadata", "clock", "new_id", "http", "logs", "login"))
    return SimpleNamespace(**parts, settings={}, refused={})


def _routes(routes: Iterable[tuple[str, str, dict[str, Any]]]) -> Iterator[str]:
    roles = {name.replace(":path}", "}"): role for name, role in ROLES.items()}
    yield "| | role | |"
    yield "| --- | --- | --- |"
    for path, method, found in routes:
        role = roles[f"{method} {path}"]
        text = " ".join((found.get("description") or found.get("summary", "")).split())
        yield f"| `{method} {path}` | {role.name.lower() if role else ''} | {_cell(text)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


PAGES: Final[dict[str, Callable[[], str]]] = {
    "settings.md": settings_page,
    "cli.md": command_page,
    "rest-paths.md": rest_page,
}

if __name__ == "__main__":
    for file, made in PAGES.items():
        (DOCS / file).write_text(made(), encoding="utf-8")
