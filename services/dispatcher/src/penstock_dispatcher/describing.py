"""The OpenAPI document, and a page that shows it without fetching anything from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from penstock import __version__
from penstock.client import documents

_named: Final[dict[str, type[msgspec.Struct]]] = {}
"""All documents that some route names, by their names."""
_REFERENCE: Final = "#/components/schemas/{name}"


def reference(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of a document, by its name; no two have the same."""
    if _named.setdefault(kind.__name__, kind) is not kind:
        raise ValueError(f"two documents are called {kind.__name__}: name one of them otherwise")
    return {"$ref": _REFERENCE.format(name=kind.__name__)}


def answers(kind: type[msgspec.Struct], status: int = 200) -> dict[int | str, dict[str, Any]]:
    """The answers of a route, for FastAPI's `responses`."""
    refused = {
        "description": "what is wrong",
        "content": {"application/json": {"schema": reference(documents.Problem)}},
    }
    document = {"content": {"application/json": {"schema": reference(kind)}}, "description": kind.__doc__ or ""}
    return {status: document, "4XX": refused, "503": refused}


def takes(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The body of a route, for FastAPI's `openapi_extra`."""
    return {"requestBody": {"content": {"application/json": {"schema": reference(kind)}}}}


def submits(kind: type[msgspec.Struct], part: str) -> dict[str, Any]:
    """The body of a submission, whose document is in the part of that name."""
    sources = {"type": "string", "format": "binary", "description": "the sources as a zip"}
    properties = {part: reference(kind), "sources": sources}
    schema = {"type": "object", "required": [part, "sources"], "properties": properties}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def openapi_of(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of the application; made once."""
    if not app.openapi_schema:
        made = get_openapi(
            title="Penstock",
            version=__version__,
            routes=app.routes,
            description="The REST interface of a Penstock cluster: Flink's paths, and more under /penstock/v1.",
        )
        _, components = msgspec.json.schema_components(_named.values(), ref_template=_REFERENCE)
        made.setdefault("components", {}).setdefault("schemas", {}).update(components)
        app.openapi_schema = made
    return app.openapi_schema


_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222;background:#fff}
summary{cursor:pointer;padding:.35em .5em;border-bottom:1px solid #ddd}code,pre{font:13px/1.45 ui-monospace,monospace}
pre{background:#f5f5f5;padding:.8em;overflow:auto}b{display:inline-block;min-width:4.5em;color:#06539c}
details>div{padding:.3em 1em 1em}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre{background:#242424}summary{border-color:#333}
b{color:#7ab8f5}}
"""


def docs_page(openapi: dict[str, Any]) -> str:
    """One HTML page: all routes with their parameters and documents, then the documents' schemas."""
    info = openapi["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>{escape(info['title'])} REST</title><style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])} REST <small>{escape(info['version'])}</small></h1>",
        f"<p>{escape(info['description'])} Machines read <a href=openapi.json>openapi.json</a>.</p><h2>Routes</h2>",
        *(_route(path, method, one) for path, methods in openapi["paths"].items() for method, one in methods.items()),
        "<h2>Documents</h2>",
        *(_schema(name, schema) for name, schema in sorted(openapi["components"]["schemas"].items())),
        "</html>",
    ]
    return "\n".join(parts)


def _route(path: str, method: str, operation: dict[str, Any]) -> str:
    text = escape(operation.get("description") or operation.get("summary", ""))
    parameters = "".join(
        f"<li><code>{escape(p['name'])}</code> ({escape(p['in'])}) {escape(p.get('description', ''))}</li>"
        for p in operation.get("parameters", [])
    )
    taken = _names(operation.get("requestBody", {}))
    given = {status: _names(answer) for status, answer in operation["responses"].items() if _names(answer)}
    lines = [f"<p>{text}</p>", f"<ul>{parameters}</ul>" if parameters else ""]
    lines += [f"<p>Body: {taken}</p>"] if taken else []
    lines += [f"<p>{escape(str(status))}: {names}</p>" for status, names in given.items()]
    title = f"<b>{method.upper()}</b> <code>{escape(path)}</code> {escape(operation.get('summary', ''))}"
    return f"<details><summary>{title}</summary><div>{''.join(lines)}</div></details>"


def _names(part: Any) -> str:
    found = sorted({name.rpartition("/")[2] for name in _references(part)})
    return ", ".join(f"<a href='#{escape(name)}'><code>{escape(name)}</code></a>" for name in found)


def _references(part: Any) -> Iterable[str]:
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "$ref":
                yield value
            else:
                yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)


def _schema(name: str, schema: dict[str, Any]) -> str:
    text = msgspec.json.format(msgspec.json.encode(schema)).decode()
    title = f"<summary><code>{escape(name)}</code></summary>"
    return f"<details id='{escape(name)}'>{title}<pre>{escape(text)}</pre></details>"
