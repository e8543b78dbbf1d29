"""Joins with lookups on real servers: Redis and HTTP, their types, absences and refusals."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import pytest
import redis as redis_client
from tests.integration.embedded_runs import finish, rows
from tests.integration.sink_rows import joined

from penstock import DecimalType, Pipeline, PipelineError
from penstock.connectors import http, iterables, redis
from penstock.errors import BadRecordError, ExternalError, PenstockError
from penstock.loading import load_pipeline
from penstock.settings import Secret

START = datetime(2026, 1, 1, tzinfo=UTC)
QUICK = {"retries": 2, "retry_delay": "1ms"}


@dataclass
class Key:
    id: int
    name: str


@dataclass
class Inner:
    a: int
    b: str | None


@dataclass
class Everything:
    id: int
    name: str
    text: str
    number: int
    amount: Annotated[Decimal, DecimalType(12, 2)]
    ratio: float
    truth: bool
    data: bytes
    at: datetime
    day: date
    moment: time
    span: timedelta
    tags: list[str]
    weights: dict[str, int]
    inner: Inner
    absent: int | None = None


ALL = Everything(
    1, "x", 'say "é", 1', -5, Decimal("10.10"), 0.1, True, b"\x00\xff", START, date(2026, 2, 3), time(4, 5, 6, 7),
    timedelta(seconds=1.5), ["a", "b"], {"k": 1}, Inner(1, None),
)  # fmt: skip
JSON = {
    "text": 'say "é", 1', "number": -5, "amount": "10.10", "ratio": 0.1, "truth": True, "data": "AP8=",
    "at": "2026-01-01T00:00:00Z", "day": "2026-02-03", "moment": "04:05:06.000007", "span": "PT1.5S",
    "tags": ["a", "b"], "weights": {"k": 1}, "inner": {"a": 1}, "beside": "ignored",
}  # fmt: skip


@dataclass
class Named:
    id: int
    label: str


@dataclass
class ByName:
    name: str
    label: str


@dataclass
class TwoNames:
    shop: str
    item: str


@dataclass
class Labelled:
    shop: str
    item: str
    label: str


def met(lookup: Any) -> Everything:
    """The one row, as an object."""
    found: list[Everything] = []

    def keep(row: Everything) -> Everything:
        found.append(row)
        return row

    stream = Pipeline("p").read(iterables.Source([Key(1, "x")], schema=Key)).join(lookup, on=["id", "name"])
    assert stream.as_(Everything).map(keep).collect().height == 1
    return found[0]


# -- Redis --------------------------------------------------------------------------------------------------------------


class Hashes:
    """Keys of one test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = redis_client.Redis.from_url(url)
        self.prefix = secrets.token_hex(4)

    def set(self, key: str, **fields: str | bytes) -> None:
        self.client.hset(f"{self.prefix}:{key}", mapping=fields)

    def lookup(self, key: str = "{id}", schema: type = Named, **options: Any) -> redis.Lookup[Any]:
        return redis.Lookup(f"{self.prefix}:{key}", schema=schema, url=Secret(self.url), **{**QUICK, **options})


@pytest.fixture
def hashes(platform: Any) -> Iterator[Hashes]:
    made = Hashes(platform.settings().redis.url.reveal())
    yield made
    made.client.close()


def test_hashes_of_redis(hashes: Hashes) -> None:
    """A hash is a row; what is not there, or has none of the fields, is none."""
    hashes.set("1", label="one", other="x")
    hashes.set("3", other="x")
    keys = [Key(n, "") for n in (1, 2, 3, 1)]
    assert joined(hashes.lookup(), *keys) == [(1, "", "one"), (1, "", "one")]
    assert [row[-1] for row in joined(hashes.lookup(), *keys, how="left")] == ["one", None, None, "one"]


def test_all_types_in_redis(hashes: Hashes) -> None:
    """Text is text, numbers, truth and nested values are JSON, bytes are as they are."""
    given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in JSON.items()}
    hashes.set("1:x", **{**given, "data": b"\x00\xff"})
    assert met(hashes.lookup("{id}:{name}", Everything)) == ALL


def test_strings_of_redis(hashes: Hashes) -> None:
    """A string is the one column that is not in the key, or an object of all of them."""
    hashes.client.set(f"{hashes.prefix}:1", "one")
    assert joined(hashes.lookup(structure="string"), Key(1, ""), Key(2, ""), how="left") == [
        (1, "", "one"),
        (2, "", None),
    ]
    hashes.client.set(f"{hashes.prefix}:1:x", json.dumps({**JSON, "id": 7, "more": [1]}))
    assert met(hashes.lookup("{id}:{name}", Everything, structure="string")) == ALL
    hashes.client.set(f"{hashes.prefix}:1:x", "no object")
    with pytest.raises(PenstockError, match=r"id=1, name='x' is none of the schema: .* it is b'no object'"):
        met(hashes.lookup("{id}:{name}", Everything, structure="string"))


@pytest.mark.parametrize("command", ["HGET", "get"])
def test_redis_in_sql(hashes: Hashes, command: str, tmp_path: Path) -> None:
    """What is of the key is there without being held, and a row is, though none of its columns is shown."""
    if command == "get":
        hashes.client.set(f"{hashes.prefix}:1", '{"label": "one", "size": 5}')
    else:
        hashes.set("1", label="one", size="5")
    place, of_file = urlsplit(hashes.url), "WITH ('connector' = 'filesystem', 'format' = 'json', 'path' ="
    said = {"host": place.hostname, "port": place.port, "username": place.username, "password": place.password}
    address = "".join(f", '{name}' = '{value}'" for name, value in said.items() if value)
    names = "names FOR SYSTEM_TIME AS OF PROCTIME() AS n ON i.id = n.id"
    (tmp_path / "ids.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    (tmp_path / "names.sql").write_text(f"""
        CREATE TABLE names (id BIGINT, label STRING, size INT) WITH ('connector' = 'redis'{address},
            'key' = '{hashes.prefix}:{{id}}', 'command' = '{command}', 'lookup.cache' = 'PARTIAL',
            'lookup.partial-cache.max-rows' = '10', 'lookup.partial-cache.expire-after-write' = '1 min');
        CREATE TABLE ids (id BIGINT) {of_file} '{tmp_path}/ids.jsonl');
        CREATE TABLE rows_met (id BIGINT, other BIGINT, size INT, label STRING) {of_file} '{tmp_path}/met');
        CREATE TABLE there (id BIGINT) {of_file} '{tmp_path}/there');
        INSERT INTO rows_met SELECT i.id, n.id, size, label FROM ids AS i LEFT JOIN {names};
        INSERT INTO there SELECT i.id FROM ids AS i JOIN {names};
    """)
    finish(load_pipeline(str(tmp_path / "names.sql"), {}), tmp_path / "state")
    assert [[*row.values()] for row in rows(tmp_path / "met")] == [[1, 1, 5, "one"], [2, None, None, None]]
    assert rows(tmp_path / "there") == [{"id": 1}]


def test_many_hashes(hashes: Hashes) -> None:
    """More than one call takes."""
    with hashes.client.pipeline(transaction=False) as pipeline:
        for n in range(0, 5_000, 2):
            pipeline.hset(f"{hashes.prefix}:{n}", "label", f"l{n}")
        pipeline.execute()
    found = joined(hashes.lookup(), *(Key(n, "") for n in range(5_000)))
    assert found == [(n, "", f"l{n}") for n in range(0, 5_000, 2)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"number": '1, "label": 2'}, r"the row of id=1 is none of the schema: Expected `int . null`, got `str`"),
        ({"number": "many"}, r"Expected `int . null`, got `str`.*many"),
        ({"label": b"\xff"}, "field label is not UTF-8"),
    ],
)
def test_fields_that_do_not_fit(hashes: Hashes, fields, said) -> None:
    """The error names the hashes and the key; a value cannot be taken for another field."""

    @dataclass
    class Numbered:
        id: int
        number: int | None
        label: str | None

    hashes.set("1", **fields)
    with pytest.raises(BadRecordError, match=rf"redis hashes {hashes.prefix}:{{id}} at redis://.*{said}.*key id=1"):
        joined(hashes.lookup(schema=Numbered), Key(1, ""))


def test_redis_refuses(hashes: Hashes) -> None:
    """Another kind of value, a wrong login, and nobody at all."""
    hashes.client.set(f"{hashes.prefix}:1", "text")
    with pytest.raises(PipelineError, match=r"redis hashes .*WRONGTYPE.*key id=1"):
        joined(hashes.lookup(), Key(1, ""))
    wrong = redis.Lookup("{id}", schema=Named, url="redis://someone:topsecret@127.0.0.1:1/0", **QUICK)
    with pytest.raises(ExternalError, match=r"redis://127.0.0.1:1/0: .*check that it runs.*key id=1") as caught:
        joined(wrong, Key(1, ""))
    assert "topsecret" not in f"{caught.value} {wrong!r}"


# -- HTTP ---------------------------------------------------------------------------------------------------------------


class Service(ThreadingHTTPServer):
    """Answers by path; counts."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.redirects: dict[str, str] = {}
        self.asked: list[str] = []
        self.failures = 0
        self.token = ""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def lookup(self, path: str = "/{id}", schema: type = Named, **options: Any) -> http.Lookup[Any]:
        return http.Lookup(f"{self.address}{path}", schema=schema, **{**QUICK, **options})

    def row(self, path: str, value: Any, status: int = 200) -> None:
        self.answers[path] = status, json.dumps(value).encode()


class _Handler(BaseHTTPRequestHandler):
    server: Service
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(self.path)
        self.server.asked.append(path)
        status, body = self.server.answers.get(path, (404, b"<html>"))
        if self.server.token and self.headers["Authorization"] != self.server.token:
            status, body = 401, b""
        if self.server.failures:
            self.server.failures -= 1
            status, body = 503, b""
        if path in self.server.redirects:
            status, body = 302, b""
        self.send_response(status)
        if status == 302:
            self.send_header("Location", self.server.redirects[path])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def running() -> Iterator[Service]:
    service = Service()
    thread = threading.Thread(target=service.serve_forever, args=(0.01,))
    thread.start()
    yield service
    service.shutdown()
    thread.join()
    service.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    with running() as found:
        yield found


def test_what_a_service_answers(service: Service) -> None:
    """An object, several, none in every way."""
    service.row("/1", {"id": 1, "label": "one", "beside": 0})
    service.row("/2", [{"label": "a"}, {"label": "b"}])
    service.row("/3", [])
    service.row("/4", None)
    service.row("/5", {}, status=404)
    service.answers["/6"] = 204, b""
    keys = [Key(n, "") for n in range(1, 8)]
    assert joined(service.lookup(), *keys) == [(1, "", "one"), (2, "", "a"), (2, "", "b")]
    assert [row[-1] for row in joined(service.lookup(rows_per_call=3), *keys, how="left")] == [
        "one", "a", "b", None, None, None, None, None,
    ]  # fmt: skip


def test_keys_that_would_be_the_address_of_something_else(service: Service) -> None:
    """Have no row, and nobody is asked."""
    for path in ("/", "/names/", "/names"):
        service.row(path, {"label": "all"})
    service.row("/names/x", {"label": "x"})
    lookup = service.lookup("/names/{name}", ByName)
    keys = [Key(n, name) for n, name in enumerate(("", ".", "..", "x"))]
    p = Pipeline("p")
    found = p.read(iterables.Source(keys, schema=Key)).join(lookup, on="name").collect()
    assert found.select("id", "label").rows() == [(3, "x")]
    assert service.asked == ["/names/x"]


def test_any_text_may_stand_in_a_query(service: Service) -> None:
    """And beside other text in a segment: only a whole segment is the address of something else."""
    for name in ("", ".", ".."):
        service.row(f"/find?name={name}", {"label": f"found {name!r}"})
        service.row(f"/v-{name}", {"label": f"beside {name!r}"})
    keys = [Key(n, name) for n, name in enumerate(("", ".", ".."))]
    for path, said in (("/find?name={name}", "found"), ("/v-{name}", "beside")):
        found = joined(service.lookup(path, ByName), *keys, on="name")
        assert found == [(n, name, f"{said} {name!r}") for n, name in enumerate(("", ".", ".."))]
    service.asked.clear()
    assert joined(service.lookup("/.{name}", ByName), *keys[:2], on="name") == []
    assert service.asked == []


def test_keys_that_would_have_the_row_of_another_one(service: Service, hashes: Hashes) -> None:
    """Are an error, by column, value and separator; one whose name it is has its row."""
    hashes.set("a:b:c", label="in redis")
    service.row("/a-b-c", {"label": "over http"})
    rows = [TwoNames("a", "b:c"), TwoNames("a", "b-c"), TwoNames("a:b", "c"), TwoNames("a-b", "c")]
    for lookup, good, bad in (
        (hashes.lookup("{shop}:{item}", Labelled), rows[0], rows[2]),
        (service.lookup("/{shop}-{item}", Labelled), rows[1], rows[3]),
    ):
        stream = Pipeline("p").read(iterables.Source([good], schema=TwoNames))
        assert stream.join(lookup, on=["shop", "item"]).collect().height == 1
        stream = Pipeline("p").read(iterables.Source([bad], schema=TwoNames))
        with pytest.raises(BadRecordError, match=r"column shop is 'a.b', and '.' stands behind it.*key shop='a.b'"):
            stream.join(lookup, on=["shop", "item"]).collect()


def test_all_types_over_http(service: Service) -> None:
    """As in JSON everywhere."""
    service.row("/1/of?name=x", JSON)
    assert met(service.lookup("/{id}/of?name={name}", Everything)) == ALL


def test_keys_are_encoded(service: Service) -> None:
    """A key is never part of the path's structure."""
    service.row("/a/b?c=&d", {"label": "found"})
    found = joined(service.lookup("/{name}", ByName), Key(1, "a/b?c=&d"), on="name")
    assert found == [(1, "a/b?c=&d", "found")]


def test_a_service_that_fails_is_asked_again(service: Service) -> None:
    """As often as was said; a refusal is final and said at once."""
    service.row("/1", {"label": "one"})
    service.failures = 2
    assert joined(service.lookup(), Key(1, "")) == [(1, "", "one")]
    service.failures = 3
    with pytest.raises(ExternalError, match=r"/1: 503 Service Unavailable; check that it runs; row: key id=1"):
        joined(service.lookup(), Key(1, ""))
    service.token, asked = "Bearer topsecret", len(service.asked)
    with pytest.raises(PipelineError, match=r"/1: 401 Unauthorized; check url=, and headers="):
        joined(service.lookup(), Key(1, ""))
    assert len(service.asked) == asked + 1
    known = service.lookup(headers={"Authorization": Secret("Bearer topsecret")})
    assert joined(known, Key(1, "")) == [(1, "", "one")]
    assert "topsecret" not in repr(known)
    nobody = http.Lookup("http://127.0.0.1:1/{id}", schema=Named, **QUICK)
    with pytest.raises(ExternalError, match=r"http://127.0.0.1:1/1: .*check that it runs.*key id=1"):
        joined(nobody, Key(1, ""))


def test_redirects_are_followed_where_they_stay(service: Service) -> None:
    """Another host or port would get the headers; one that never ends is said."""
    service.row("/new/1", {"label": "one"})
    service.redirects = {"/1": "/new/1", "/2": "/2"}
    lookup = service.lookup(headers={"X-Api-Key": Secret("topsecret")})
    assert joined(lookup, Key(1, "")) == [(1, "", "one")]
    with pytest.raises(PipelineError, match=r"/2: it redirects more than 20 times; check url="):
        joined(lookup, Key(2, ""))
    with running() as other:
        other.row("/3", {"label": "other"})
        for place in (other.address, service.address.replace("127.0.0.1", "localhost")):
            service.redirects["/3"] = f"{place}/3"
            said = rf"{service.address}/3: 302 Found to {place}/3, another place, which is not asked.*name it in url="
            with pytest.raises(PipelineError, match=said) as caught:
                joined(lookup, Key(3, ""))
            assert "topsecret" not in str(caught.value)
        assert other.asked == []


def test_answers_that_are_no_rows(service: Service) -> None:
    """The error has the beginning of what came."""
    service.answers["/1"] = 200, b"<html>sorry</html>"
    with pytest.raises(BadRecordError, match=r"the row of id=1 is none of the schema.*<html>sorry"):
        joined(service.lookup(), Key(1, ""))
    service.answers["/1"] = 200, b"[{]"
    with pytest.raises(BadRecordError, match="is no JSON"):
        joined(service.lookup(), Key(1, ""))


# -- when it is built ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: redis.Lookup("customer", schema=Named, url="redis://h"),
            "has to name the columns of the key in braces",
        ),
        (lambda: redis.Lookup("{id", schema=Named, url="redis://h"), "redis.Lookup: '{id': expected '}'"),
        (lambda: redis.Lookup("{id:d}", schema=Named, url="redis://h"), "in braces"),
        (lambda: redis.Lookup("{id}", schema=Named, url="http://h"), "url= is an address such as redis://"),
        (lambda: http.Lookup("http://h/", schema=Named), "http.Lookup: 'http://h/' has to name"),
        (lambda: http.Lookup("h/{id}", schema=Named), "url= is an address"),
        (lambda: http.Lookup("http://{id}/", schema=Named), "url= is an address"),
        (lambda: http.Lookup("http://u:p@h/{id}", schema=Named), "url= has a login in it"),
        (lambda: http.Lookup("http://h/{id}", schema=Named, retrys=1), "there is no argument retrys="),
    ],
)
def test_wrong_lookups(make, said) -> None:
    """By connector and argument."""
    with pytest.raises(PipelineError, match=said):
        make()


@dataclass
class Floating:
    id: int
    ratio: float
    label: str


def test_keys_that_no_text_stands_for() -> None:
    """Which columns are in the text and which ones the join names has to be the same."""
    stream = Pipeline("p").read(iterables.Source([], schema=Floating))
    by_ratio = http.Lookup("http://h/{ratio}", schema=Floating)
    with pytest.raises(PipelineError, match=r"http.Lookup: ratio is float64, and rows are not looked up by that"):
        stream.join(by_ratio, on="ratio")
    with pytest.raises(PipelineError, match=r"has \{ratio\}, and on= of the join names \{id\}"):
        stream.join(by_ratio, on="id")
