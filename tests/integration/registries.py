"""A stand-in for a schema registry: what Confluent's REST interface documents of subjects, ids, logins and compatibility.

The tests run on it; `PENSTOCK_TEST_REGISTRY=http://...` runs those without a login on a real registry. Done so with
Apicurio 2.6.13 (`/apis/ccompat/v7`).
"""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import httpx2


class StandIn(ThreadingHTTPServer):
    """Keeps schemas by subject. A field that changes its type is what it finds incompatible."""

    daemon_threads = True

    def __init__(self, login: str | None = None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.login = login
        self.ids: dict[str, int] = {}
        self.subjects: dict[str, list[str]] = {}

    @property
    def address(self) -> str:
        """Without a login."""
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: list[str], asked: Any) -> tuple[int, Any]:
        """Status and body."""
        match path:
            case ["schemas", "ids", number]:
                found = [schema for schema, known in self.ids.items() if known == int(number)]
                return (200, {"schema": found[0]}) if found else (404, _error(40403, "Schema not found"))
            case ["config", _]:
                return 200, asked
            case ["subjects", subject]:
                if asked["schema"] not in self.subjects.get(subject, []):
                    return 404, _error(40403, "Schema not found") if subject in self.subjects else _error(
                        40401, f"Subject '{subject}' not found."
                    )
                return 200, {"subject": subject, "id": self.ids[asked["schema"]], "version": 1, **asked}
            case ["subjects", subject, "versions"]:
                return self._register(subject, asked["schema"])
            case _:
                return 404, _error(404, "HTTP 404 Not Found")

    def _register(self, subject: str, schema: str) -> tuple[int, Any]:
        known = self.subjects.setdefault(subject, [])
        if schema not in known:
            if any(_clash(older, schema) for older in known):
                return 409, _error(409, "Schema being registered is incompatible with an earlier schema")
            known.append(schema)
            self.ids.setdefault(schema, len(self.ids) + 1)
        return 200, {"id": self.ids[schema]}


class _Handler(BaseHTTPRequestHandler):
    server: StandIn  # type: ignore[assignment]
    content: ClassVar[str] = "application/vnd.schemaregistry.v1+json"

    def do_GET(self) -> None:
        self._do(None)

    def do_POST(self) -> None:
        self._do(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    do_PUT = do_POST  # noqa: N815 # what the base class looks for

    def _do(self, asked: Any) -> None:
        path = [urllib.parse.unquote(part) for part in self.path.strip("/").split("/")]
        wanted, login = self.server.login, self.headers["Authorization"]
        if wanted is not None and login != f"Basic {base64.b64encode(wanted.encode()).decode()}":
            status, body = 401, _error(401, "Unauthorized")
        else:
            status, body = self.server.answer(path, asked)
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", self.content)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}


def _clash(older: str, newer: str) -> bool:
    old, new = ({field["name"]: field["type"] for field in json.loads(text)["fields"]} for text in (older, newer))
    return any(old[name] != new[name] for name in old.keys() & new.keys())


@contextmanager
def served(registry: StandIn) -> Iterator[StandIn]:
    """It answers meanwhile."""
    thread = threading.Thread(target=registry.serve_forever)
    thread.start()
    try:
        yield registry
    finally:
        registry.shutdown()
        thread.join()
        registry.server_close()


def let_check(address: str, subject: str) -> None:
    """Let the registry check what is registered in this subject, which not all do by themselves."""
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    body = b'{"compatibility": "BACKWARD"}'
    httpx2.put(f"{address}/config/{subject}", content=body, headers=headers, timeout=10).raise_for_status()
