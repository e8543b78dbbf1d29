"""Documents of a real OpenSearch: what the sink writes and refuses, and that every row is there once."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import threading
import uuid
from base64 import b64encode
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time_ns
from typing import Any

import httpx2
import polars as pl
import pytest
from tests.integration.failing_workers import with_failing_workers
from tests.integration.publishing_by_hand import (
    check_a_stopped_publisher_is_refused,
    check_doubt_changes_nothing,
    check_kills_change_nothing,
    check_rows_are_visible_once,
    published,
)
from tests.integration.sink_rows import ALL, EMPTY, Everything, Sale, sales, sales_by_shop, write
from tests.opensearch_server import OpenSearchServer, running_opensearch
from tests.unit.task.publishing_parts import Exchange

from penstock import Pipeline, PipelineError, col, count
from penstock.connectors import iterables, opensearch
from penstock.connectors.base import ProducerFencedError, PublishContext, PublishedMark
from penstock.connectors.opensearch import publishing
from penstock.connectors.opensearch.places import OpenSearchPlace
from penstock.connectors.opensearch.publishing import MARKS, DocumentPublisher, DocumentWriting
from penstock.errors import BadRecordError, ExternalError, RefusedRowError
from penstock.settings import Secret

pytestmark = [pytest.mark.timeout(180), pytest.mark.servers]


@pytest.fixture(scope="module")
def server() -> Iterator[OpenSearchServer]:
    with running_opensearch() as found:
        yield found


class Index:
    """An index of one test."""

    def __init__(self, server: OpenSearchServer) -> None:
        self.server = server
        self.name = f"t{secrets.token_hex(4)}"

    def sink(self, index: str = "", **options: Any) -> opensearch.Sink:
        return opensearch.Sink(f"{self.name}{index}", url=self.server.url, **options)

    def documents(self) -> dict[str, dict[str, Any]]:
        return self.server.documents(f"{self.name}*")

    def mapped(self, **properties: str) -> None:
        mapping: dict[str, Any] = {"properties": {name: {"type": kind} for name, kind in properties.items()}}
        self.server.ask("PUT", f"/{self.name}", {"mappings": {"dynamic": "strict", **mapping}})


@pytest.fixture
def index(server: OpenSearchServer) -> Index:
    return Index(server)


# -- what is written ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_document_has_each_type(index: Index, delivery: Any) -> None:
    """As JSON has it; the cluster makes the index."""
    write(
        index.sink(document_id="{id}", delivery=delivery), [ALL, EMPTY, replace(ALL, id=3, ratio=math.nan)], Everything
    )
    found = index.documents()
    assert found["1"] == {
        "id": 1, "text": 'say "é"\n\\', "small": -5, "amount": 10.10, "ratio": 0.1, "truth": True,
        "data": b64encode(bytes(range(256))).decode(), "span": "-P399DT23H59M58.5S",
        "at": "2026-01-01T12:30:15.123456Z", "day": "2026-02-03", "moment": "04:05:06.000007",
        "tags": ["a", "b,"], "weights": {"k": 1}, "absent": None,
    }  # fmt: skip
    assert (found["2"]["absent"], found["2"]["tags"], found["3"]["ratio"]) == (7, [], None)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_rows_are_added(index: Index, delivery: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ids that are drawn; in several requests."""
    monkeypatch.setattr(publishing, "BODY_BYTES", 10_000)
    write(index.sink(delivery=delivery), sales(2_345), Sale)
    assert sorted(found["id"] for found in index.documents().values()) == list(range(2_345))


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_updates_by_id(index: Index, delivery: Any) -> None:
    """The newest row of every key."""
    p = Pipeline("p")
    totals = p.read(iterables.Source(sales(), schema=Sale)).key_by("shop").agg(total=col("amount").sum())
    totals.write(index.sink(document_id='shop "{shop}"', delivery=delivery))
    assert p.run().state == "FINISHED"
    found = {name: document["total"] for name, document in index.documents().items()}
    assert found == {f'shop "{shop}"': total for shop, total in sales_by_shop().items()}


def test_changes_delete(index: Index) -> None:
    """What is taken back and does not come again is no document."""
    p = Pipeline("p")
    read = p.read(iterables.Source(sales(), schema=Sale, rate=2_000))
    totals = read.key_by("shop").agg(total=col("amount").sum())
    totals.filter((col("total") < 100) | (col("shop") > "s3")).write(index.sink(document_id="{shop}"))
    assert p.run().state == "FINISHED"
    found = {name: document["total"] for name, document in index.documents().items()}
    assert found == {shop: total for shop, total in sales_by_shop().items() if shop > "s3"}


@dataclass
class Reading:
    day: date
    on: bool
    value: float | None


def test_rows_say_which_index(index: Index) -> None:
    """A column in its name; that of a document as well where it replaces another."""
    days = [date(2026, 1, 1), date(2026, 1, 2)]
    rows = [Reading(day, on, float(n)) for day in days for n, on in enumerate((True, False, True))]
    write(index.sink("-{day}", document_id="{day}/{on}"), rows, Reading)
    for day in days:
        found = index.server.documents(f"{index.name}-{day}")
        assert {name: document["value"] for name, document in found.items()} == {
            f"{day}/true": 2.0,
            f"{day}/false": 1.0,
        }
    write(index.sink("-{day}"), rows, Reading)
    assert len(index.documents()) == 4 + 6


def test_a_data_stream(index: Index) -> None:
    """Takes what is added."""
    template = {
        "index_patterns": [f"{index.name}*"],
        "data_stream": {"timestamp_field": {"name": "at"}},
        "priority": 500,
    }
    index.server.ask("PUT", f"/_index_template/{index.name}", template)
    write(index.sink(), [ALL, EMPTY], Everything)
    assert sorted(found["id"] for found in index.server.documents(index.name).values()) == [1, 2]


# -- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_document_that_is_refused(index: Index, delivery: Any) -> None:
    """The job fails with what OpenSearch says; those of the same checkpoint may be there. Or they are left out."""
    index.mapped(id="long", shop="ip", amount="long")
    said = rf"opensearch index {index.name} at http.*: document .*failed to parse field \[shop\].*change the mapping"
    with pytest.raises(RefusedRowError, match=said):
        write(index.sink(delivery=delivery), sales(10), Sale)
    write(index.sink(delivery=delivery, document_id="{id}", bad_rows="skip"), [*sales(3), Sale(9, "::1", 5)], Sale)
    assert [found["id"] for found in index.documents().values()] == [9]


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"id": "long", "shop": "keyword"}, r"is strict and has no amount; add it, or drop it"),
        (
            {"id": "long", "shop": "object", "amount": "long"},
            r"shop is string, and .* has it as object, .*single values",
        ),
        (
            {"id": "boolean", "shop": "text", "amount": "long"},
            r"id is int64, and .* has it as boolean, which is none of",
        ),
    ],
)
def test_an_index_that_does_not_take_the_columns(index: Index, properties: dict[str, str], said: str) -> None:
    """Said before rows flow."""
    index.mapped(**properties)
    with pytest.raises(PipelineError, match=said):
        write(index.sink(), sales(1), Sale)


def test_an_index_that_takes_them(index: Index) -> None:
    """Mapped as users map."""
    index.mapped(
        id="keyword", text="text", small="integer", amount="double", ratio="half_float", truth="boolean", data="binary",
        at="date_nanos", day="date", moment="keyword", span="keyword", tags="keyword", weights="flat_object",
        absent="short",
    )  # fmt: skip
    write(index.sink(document_id="{id}"), [ALL, EMPTY], Everything)
    assert len(index.documents()) == 2


@dataclass
class Named:
    id: str | None
    index: str | None


def test_rows_that_make_no_id(index: Index) -> None:
    """They fail the job by name, or are counted and left out."""
    for row, options, said in (
        (Named(None, "x"), {"document_id": "{id}"}, r"a row has no key .column id is null.: .*bad_rows=.skip."),
        (Named("c" * 513, "x"), {"document_id": "{id}"}, "an id has more than 512 bytes"),
        (Named("", "x"), {"document_id": "{id}"}, "an id is empty"),
        (Named("a", None), {"index": "-{index}"}, r"a column of the name of the index .index. is null"),
        (Named("a", "No"), {"index": "-{index}"}, r"'.*-No' cannot be the name of an index"),
        (Named("a", "b c"), {"index": "-{index}"}, r"'.*-b c' cannot be the name of an index"),
    ):
        with pytest.raises(BadRecordError, match=said):
            write(index.sink(**options), [row], Named)
    rows = [Named("a", "x"), Named(None, "x"), Named("b", None), Named("c", "C"), Named("d" * 600, "x"), Named("", "y")]
    write(index.sink("-{index}", document_id="{id}:{index}", bad_rows="skip"), rows, Named)
    assert sorted(index.documents()) == [":y", "a:x"]


def test_a_cluster_that_is_away_or_refuses() -> None:
    """Said before rows flow; no password."""
    away = opensearch.Sink("t", url=["http://someone:topsecret@127.0.0.1:1", Secret("http://x:topsecret@127.0.0.1:1")])
    with pytest.raises(
        ExternalError, match=r"opensearch index t at http://127.0.0.1:1,http.*check that it runs"
    ) as caught:
        write(away, sales(1), Sale)
    assert "topsecret" not in f"{caught.value} {away!r}"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: {"index": "Totals"}, "names of indices are in lower case"),
        (lambda: {"index": "a*"}, "names of indices are in lower case"),
        (lambda: {"index": ""}, "names of indices are in lower case"),
        (lambda: {"index": "penstock-marks"}, "is where Penstock keeps what is published"),
        (lambda: {"index": "a", "url": "host:9200"}, "url= is an address such as https://"),
        (lambda: {"index": "a", "url": []}, "url= has no address"),
        (lambda: {"index": "a", "document_id": "b"}, "has to name the columns of the key in braces"),
        (lambda: {"index": "a", "document_id": "{nope}"}, "key: there is no column .nope."),
        (lambda: {"index": "a", "document_id": "{value}"}, "value is float64, by which rows"),
        (lambda: {"index": "a-{value}"}, "value is float64"),
        (lambda: {"index": "a-{day}", "document_id": "{on}"}, "has day, which document_id= has not"),
    ],
)  # fmt: skip
def test_wrong_sinks(make: Any, said: str) -> None:
    """When the pipeline is built."""
    with pytest.raises(PipelineError, match=said):
        Pipeline("p").read(iterables.Source([], schema=Reading)).write(
            opensearch.Sink(**{"url": "http://h:1", **make()})
        )


def test_updates_want_an_id() -> None:
    """A row that may replace another."""
    totals = Pipeline("p").read(iterables.Source([], schema=Reading)).key_by("on").agg(n=count())
    with pytest.raises(PipelineError, match=r"every update .* write opensearch.Sink\('t', document_id"):
        totals.write(opensearch.Sink("t", url="http://h:1"))


def test_several_indices_behind_a_name(index: Index) -> None:
    """An id is that of one document in each of them."""
    for number in (1, 2):
        aliases = {index.name: {"is_write_index": number == 2}}
        index.server.ask("PUT", f"/{index.name}-{number}", {"aliases": aliases})
    with pytest.raises(PipelineError, match=r"it stands for t.*-1, t.*-2, and a document that is replaced may be in"):
        write(index.sink(document_id="{id}"), sales(1), Sale)
    write(index.sink(), sales(3), Sale)
    assert len(index.server.documents(f"{index.name}-2")) == 3


def test_logins_with_signs(server: OpenSearchServer) -> None:
    """Percent-encoded they are no part of what is shown; else they are refused, and not shown either."""
    sink = opensearch.Sink("t", url="https://us%40er:pa%2Fss@host:9200/below/")
    assert sink.describe()["url"] == "https://host:9200/below"
    client = sink._place.client()
    assert (str(client.base_url), "pa" in str(client.base_url)) == ("https://host:9200/below/", False)
    request = next(client._auth.auth_flow(client.build_request("GET", "/")))
    assert request.headers["Authorization"] == f"Basic {b64encode(b'us@er:pa/ss').decode()}"
    for wrong in ("https://user:pa/ss@host:9200", "https://user:pa?ss@host", "https://user:pa#ss@host"):
        with pytest.raises(PipelineError, match="percent-encode what is no letter or digit") as caught:
            opensearch.Sink("t", url=wrong)
        assert "pa" not in str(caught.value).replace("password", "")


@pytest.mark.parametrize("name", ["_id", ".a", "a..b"])
def test_members_that_no_document_has(name: str) -> None:
    """Said when the pipeline is built."""
    rows = Pipeline("p").read(iterables.Source([], schema=Reading)).with_columns(**{name: col("on")})
    with pytest.raises(PipelineError, match="a document has no member"):
        rows.write(opensearch.Sink("t", url="http://h:1"))


def test_points_and_vectors_are_taken(index: Index) -> None:
    """Objects and lists are more than they look like."""
    index.server.ask("PUT", f"/{index.name}", {"mappings": {"properties": {"place": {"type": "geo_point"}}}})
    write(index.sink(document_id="{id}"), [Placed(1, Point(1.0, 2.0))], Placed)
    assert index.documents()["1"]["place"] == {"lat": 1.0, "lon": 2.0}


@dataclass
class Point:
    lat: float
    lon: float


@dataclass
class Placed:
    id: int
    place: Point


def test_an_index_that_is_blocked_is_waited_for(index: Index) -> None:
    """As of a full disk: it is no wrong login."""
    index.server.ask("PUT", f"/{index.name}", {"settings": {"index.blocks.write": True}})
    place = OpenSearchPlace("s", index.server.url, None)
    writing = DocumentWriting(place, "s", keyed=False)

    async def blocked() -> None:
        async with place.client() as client:
            await writing.write(client, [_frame(index, [("a", "{}")])], None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "_PATIENCE_S", 0.2)
        with pytest.raises(ExternalError, match=r"1 documents: .*blocked by: \[FORBIDDEN/8/index write"):
            asyncio.run(blocked())


async def test_too_much_to_do_is_sent_again(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was refused alone, and the newest document of an id stays it; after a while the transaction is in doubt."""
    writing = DocumentWriting(OpenSearchPlace("s", index.server.url, None), "s", keyed=True)
    frame = _frame(index, [("a", '{"n":1}'), ("b", '{"n":2}'), ("a", '{"n":3}')])
    refused, sent = writing._refused, []
    busy = {"status": 429, "_id": "a", "error": {"type": "es_rejected_execution_exception", "reason": "queue is full"}}

    async def sometimes(_: Any, client: Any, lines: Any) -> Any:
        sent.append(len(lines))
        if len(sent) == 3:
            return await refused(client, lines)
        assert lines[1:] == [] or await refused(client, lines[1:]) == []
        return [(0, busy)]

    monkeypatch.setattr(DocumentWriting, "_refused", sometimes)
    monkeypatch.setattr(publishing, "_FIRST_PAUSE_S", 0.01)
    async with writing.place.client() as client:
        assert await writing.write(client, [frame], 7) == []
        assert sent == [2, 1, 1]
        assert index.documents() == {"a": {"n": 3}, "b": {"n": 2}}
        monkeypatch.setattr(publishing, "_PATIENCE_S", -1.0)
        sent.clear()
        with pytest.raises(ExternalError, match="1 documents: queue is full"):
            await writing.write(client, [frame], 8)


@dataclass
class Note:
    id: int
    text: str


@contextmanager
def proxy(server: OpenSearchServer, most_bytes: int) -> Generator[tuple[str, list[int]]]:
    """One that takes no larger requests, as nginx does by default with 1 MB; and how large those were that it saw."""
    seen: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.append(len(body))
            status, answer = 413, b"<html>413 Request Entity Too Large</html>"
            if len(body) <= most_bytes:
                headers = {"Content-Type": self.headers["Content-Type"]}
                found = httpx2.request(self.command, server.url + self.path, content=body, headers=headers)
                status, answer = found.status_code, found.content
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_PUT = do_POST = _forward  # noqa: N815 # names of the base class

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}", seen
        found.shutdown()


@pytest.mark.parametrize("document_id", [None, "{id}"])
def test_requests_that_are_too_large_are_sent_in_parts(index: Index, document_id: str | None) -> None:
    """All documents are there; that less is taken is found out once, and a document that is too large alone is named."""
    rows = [Note(n, "x" * 1_000) for n in range(2_000)]
    with proxy(index.server, 300_000) as (url, seen):
        sink = opensearch.Sink(index.name, url=url, document_id=document_id)
        write(sink, rows, Note)
        assert sorted(found["id"] for found in index.documents().values()) == list(range(2_000))
        assert 1 <= len([size for size in seen if size > 300_000]) < 6
        with pytest.raises(
            RefusedRowError, match=r"413: a document of 400\d{3} bytes is too large \(.*max_content_length"
        ):
            write(sink, [Note(-1, "y" * 400_000), *rows[:5]], Note)


# -- once ---------------------------------------------------------------------------------------------------------------


def _frame(index: Index, rows: list[tuple[str, str | None]]) -> pl.DataFrame:
    return pl.DataFrame(
        [(json.dumps(index.name), json.dumps(name), document) for name, document in rows],
        schema={"index": pl.String, "id": pl.String, "document": pl.String},
        orient="row",
    )


class Target:
    """Documents of numbers, published by hand."""

    def __init__(self, index: Index, *, keyed: bool) -> None:
        self.index = index
        self.writing = replace(index.sink()._writing(), keyed=keyed)
        self.context = PublishContext(uuid.uuid4().hex, "out", 0, 0, 1, lambda: time_ns() // 1_000)

    def publisher(self) -> Any:
        return _OfNumbers(self)

    def numbers(self) -> list[int]:
        return sorted(found["n"] for found in self.index.documents().values())


class _OfNumbers(DocumentPublisher):
    """Frames of the exchange of these tests have a column `value`."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.writing, target.context)
        self._index = target.index

    async def commit(self, frames: Any, mark: PublishedMark) -> None:
        made = [_frame(self._index, [(str(n), f'{{"n":{n}}}') for n in map(int, frame["value"])]) for frame in frames]
        await super().commit(made, mark)


@pytest.fixture(params=[False, True], ids=["added", "by id"])
def target(index: Index, request: pytest.FixtureRequest) -> Target:
    return Target(index, keyed=request.param)


async def test_rows_are_visible_once(target: Target) -> None:
    """And the mark says how far; a second attempt goes on behind it."""
    await check_rows_are_visible_once(target)


async def test_a_publisher_that_was_stopped_is_refused(target: Target) -> None:
    """Before its transaction another one starts."""
    await check_a_stopped_publisher_is_refused(target)


async def test_what_a_stopped_publisher_sends_late_loses(index: Index) -> None:
    """Documents that were written, and deleted, by whoever has taken over stay as they are."""
    target = Target(index, keyed=True)
    stopped, newer = (DocumentPublisher(target.writing, target.context) for _ in range(2))
    for publisher in (stopped, newer):
        await publisher.open()
        await publisher.init_producer()
    await newer.commit([_frame(index, [("a", '{"n":1}'), ("b", None)])], PublishedMark(1, ""))
    with pytest.raises(ProducerFencedError, match=r"another publisher of .* has started"):
        await stopped.commit([_frame(index, [("a", '{"n":0}'), ("b", '{"n":0}')])], PublishedMark(2, ""))
    assert index.documents() == {"a": {"n": 1}}
    assert (await newer.init_producer()).epoch == 3
    assert await newer.read_mark() == PublishedMark(1, "")
    await stopped.close()
    await newer.close()


async def test_versions_of_somebody_else(index: Index) -> None:
    """Nothing can be promised then, and the job fails by the document."""
    target = Target(index, keyed=True)
    path = f"/{index.name}/_doc/a?version_type=external&version={2**63 - 1}"
    index.server.ask("PUT", path, {"n": 0})
    publisher = target.publisher()
    await publisher.open()
    await publisher.init_producer()
    with pytest.raises(
        PipelineError, match=r"1 documents have newer versions than Penstock gives, such as a: something"
    ):
        await DocumentPublisher.commit(publisher, [_frame(index, [("a", "{}")])], PublishedMark(1, ""))
    await publisher.close()


async def test_a_request_whose_answer_is_lost(target: Target) -> None:
    """It was carried out, or not, or in part, and the publisher does not know: it is there once."""
    publisher, write = target.publisher(), target.writing.write

    async def before(turn: int, frames: Any) -> None:
        if turn == 1:
            raise ExternalError("not sent")
        if turn == 3:
            half = [_frame(target.index, [(str(n), f'{{"n":{n}}}') for n in map(int, frames[0]["value"][:5])])]
            async with target.writing.place.client() as client:
                await write(client, half, publisher._version() if target.writing.keyed else None)
            raise ExternalError("rows, and no mark")

    await check_doubt_changes_nothing(target, publisher, 4, before)


async def test_a_server_that_is_killed_changes_nothing() -> None:
    """It writes what it answers to its disk, and publishing goes on where it was."""
    with running_opensearch() as server:

        async def kill() -> None:
            server.kill()
            await asyncio.to_thread(server.start)

        await check_kills_change_nothing(Target(Index(server), keyed=True), 8, 4, kill)


async def test_marks_are_forgotten(index: Index) -> None:
    """Those of one generation alone; where there are none, that is fine."""
    target = Target(index, keyed=False)
    run, _ = await published(target, Exchange())
    await run.stop()

    def left() -> int:
        return len([name for name in index.server.documents(MARKS) if name.startswith(target.context.job)])

    await index.sink().forget(replace(target.context, generation=1))
    assert left() == 1
    await index.sink().forget(target.context)
    assert left() == 0


@pytest.mark.parametrize("document_id", [None, "{key}:{window_start}"])
async def test_a_job_with_failing_workers_and_a_rescale_writes_every_row_once(index: Index, document_id: Any) -> None:
    """Workers die again and again, the job gets wider: every window is there once."""
    cluster = await with_failing_workers(index.sink(document_id=document_id))
    rows = list((await asyncio.to_thread(index.documents)).values())
    counted = Counter((row["key"], row["window_start"]) for row in rows)
    assert set(counted.values()) == {1}
    assert len(rows) == 7 * cluster.input.rows // 100
    assert sum(row["n"] for row in rows) == cluster.input.rows
    assert sum(row["total"] for row in rows) == sum(range(cluster.input.rows))
