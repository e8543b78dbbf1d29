"""What is asked of a schema registry on the wire, and what becomes of its answers."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from penstock.connectors.kafka import schema_registry
from penstock.connectors.kafka.schema_registry import SchemaRegistry, UnknownSchemaError
from penstock.errors import ExternalError, PipelineError

CONTENT = "application/vnd.schemaregistry.v1+json"


class Registry(ThreadingHTTPServer):
    """Answers with what it is told, and remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, tuple[int, bytes, dict[str, str]]] = {}
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []

    @property
    def client(self) -> SchemaRegistry:
        """One that logs in."""
        return SchemaRegistry(f"http://ann:p%40ss@127.0.0.1:{self.server_port}/")

    def tell(self, path: str, status: int, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers[path] = (status, data, headers)


class _Handler(BaseHTTPRequestHandler):
    server: Registry  # type: ignore[assignment]

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        status, data, headers = self.server.answers[self.path]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET  # noqa: N815 # what the base class looks for

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """One that is asked once, and not again while it is away."""
    monkeypatch.setattr(schema_registry, "PATIENCE_S", 0.0)
    server = Registry()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_schema_is_registered_with_the_login_of_the_address(registry: Registry) -> None:
    """As Confluent's reference says: the schema is text in a JSON body, the subject one part of the path."""
    registry.tell("/subjects/a%2Fb%20c-value/versions", 200, {"id": 7})
    assert registry.client.register("a/b c-value", {"type": "string"}) == 7
    ((method, path, headers, body),) = registry.asked
    assert (method, path) == ("POST", "/subjects/a%2Fb%20c-value/versions")
    assert headers["content-type"] == CONTENT
    assert headers["accept"].startswith(CONTENT)
    assert headers["authorization"] == f"Basic {base64.b64encode(b'ann:p@ss').decode()}"
    assert json.loads(body) == {"schema": '{"type": "string"}'}


def test_a_schema_is_read_where_the_registry_sends_for_it(registry: Registry) -> None:
    """Gateways redirect."""
    registry.tell("/schemas/ids/3", 308, b"", Location="/v2/schemas/ids/3")
    registry.tell("/v2/schemas/ids/3", 200, {"schema": '{"type": "long"}'})
    assert registry.client.schema(3) == {"type": "long"}
    assert [method for method, *_ in registry.asked] == ["GET", "GET"]


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (404, {"error_code": 40403, "message": "Schema not found"}, UnknownSchemaError, "knows no schema 3"),
        (401, {"message": "Unauthorized"}, PipelineError, r"Unauthorized \(401\); check the user and the password"),
        (403, b"<html>", PipelineError, r"Forbidden \(403\); check the user and the password"),
        (500, {"message": "no quorum"}, ExternalError, r"no quorum \(500\); check that it runs"),
        (429, b"", ExternalError, r"Too Many Requests \(429\); check that it runs"),
        (200, b"<html>", ExternalError, "check that it runs, and registry="),
    ],
)
def test_what_a_registry_does_not_give_is_an_error(
    status: int, body: Any, kind: type[Exception], message: str, registry: Registry
) -> None:
    """Of the user, where the registry understood; of the registry where it may answer later. No password is in it."""
    registry.tell("/schemas/ids/3", status, body)
    with pytest.raises(kind, match=message) as raised:
        registry.client.schema(3)
    assert "ss@" not in str(raised.value)
    assert "p%40ss" not in str(raised.value)


def test_a_registry_that_is_away_is_named(registry: Registry) -> None:
    """By its address, without the login."""
    client = SchemaRegistry("http://ann:secret@127.0.0.1:1")
    with pytest.raises(ExternalError, match=r"http://127.0.0.1:1/schemas/ids/3: .*refused|failed") as raised:
        client.schema(3)
    assert "secret" not in str(raised.value)
