"""A service that tests send requests to: it keeps them, and a resource per path."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from penstock.connectors import http


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    key: str | None
    body: Any
    token: str | None


class Service(ThreadingHTTPServer):
    """Keeps what it is sent; a resource per path."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Request] = []
        self.answer: Callable[[Request], tuple[int, dict[str, str]]] = lambda request: (200, {})
        self.said = b""
        """The body of every answer."""
        self.resources: dict[str, Any] = {}
        self.at_work = self.most_at_once = 0
        self.lock = threading.Lock()

    def sink(self, path: str = "/hook", **options: Any) -> http.Sink:
        return http.Sink(f"http://127.0.0.1:{self.server_port}{path}", **options)

    def take(self, request: Request) -> tuple[int, dict[str, str]]:
        with self.lock:
            self.requests.append(request)
            status, headers = self.answer(request)
            if status == 200:
                if request.method == "DELETE":
                    return (200 if self.resources.pop(request.path, None) else 404), headers
                self.resources[request.path] = request.body
            return status, headers


class _Handler(BaseHTTPRequestHandler):
    server: Service
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        with self.server.lock:
            self.server.at_work += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.at_work)
        headers, size = self.headers, int(self.headers.get("Content-Length", "0"))
        if len(body := self.rfile.read(size)) < size:  # the connection was cut in the middle: it is no request
            with self.server.lock:
                self.server.at_work -= 1
            return
        assert not body or headers["Content-Type"] == "application/json"
        request = Request(
            self.command,
            unquote(self.path),
            headers["Idempotency-Key"],
            json.loads(body or "null"),
            headers["Authorization"],
        )  # fmt: skip
        status, more = self.server.take(request)
        with self.server.lock:
            self.server.at_work -= 1
        self.send_response(status)
        for name, value in {"Content-Length": str(len(self.server.said)), **more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.server.said)

    do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def running_service() -> Generator[Service]:
    """One of its own, which ends here."""
    found = Service()
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield found
    finally:
        found.shutdown()
        thread.join()
        found.server_close()
