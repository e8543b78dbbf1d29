"""Requests to a real service: what the sink sends, again and with which key, and what it makes of answers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from tests.http_service import Request, Service, running_service
from tests.integration.failing_workers import with_failing_workers
from tests.integration.sink_rows import Sale, sales, sales_by_shop, write
from tests.services import wait_for

from penstock import Pipeline, PipelineError, col, count, session, tumbling
from penstock.api.stream import SourceStream
from penstock.connectors import http, iterables
from penstock.connectors.base import WriteContext
from penstock.connectors.http import sending
from penstock.connectors.http.sending import Requests
from penstock.errors import ExternalError, PenstockError
from penstock.settings import Secret
from penstock.types import schema_of

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def service() -> Iterator[Service]:
    with running_service() as found:
        yield found


# -- what is sent -------------------------------------------------------------------------------------------------------


def test_a_request_for_every_row(service: Service) -> None:
    """With a key of its own, and the headers."""
    write(service.sink(headers={"Authorization": Secret("Bearer t")}), sales(200), Sale)
    assert sorted(request.body["id"] for request in service.requests) == list(range(200))
    assert len({request.key for request in service.requests}) == 200
    assert {(request.method, request.path, request.token) for request in service.requests} == {
        ("POST", "/hook", "Bearer t")
    }
    assert 1 < service.most_at_once <= 10


def test_one_at_a_time_keeps_the_order(service: Service) -> None:
    """Of a subtask."""
    write(service.sink(capacity=1), sales(100), Sale)
    assert [request.body["id"] for request in service.requests] == list(range(100))
    assert service.most_at_once == 1


def test_keys_of_columns_and_of_content(service: Service) -> None:
    """What users say tells rows apart, or everything that is sent."""
    rows = [Sale(1, "a b", 2), Sale(1, "a b", 2), Sale(2, "a b", 2)]
    write(service.sink("/{shop}", idempotency_key="sale-{id}"), rows, Sale)
    assert sorted((request.path, request.key) for request in service.requests) == [
        ("/a b", "sale-1"), ("/a b", "sale-1"), ("/a b", "sale-2")
    ]  # fmt: skip
    service.requests.clear()
    write(service.sink(), rows, Sale)
    write(service.sink("/other"), rows[:1], Sale)
    assert sorted(Counter(request.key for request in service.requests).values()) == [1, 1, 2]
    text = f'POST http://127.0.0.1:{service.server_port}/hook\n{{"id":2,"shop":"a b","amount":2}}'
    assert hashlib.blake2b(text.encode(), digest_size=16).hexdigest() in {request.key for request in service.requests}


def test_an_answer_that_cannot_be_decoded_is_one(service: Service) -> None:
    """What a service has done is done, whatever it says of it."""
    service.answer, service.said = lambda request: (200, {"Content-Encoding": "gzip"}), b"ok"
    write(service.sink(), sales(20), Sale)
    assert sorted(request.body["id"] for request in service.requests) == list(range(20))


def test_updates_by_address(service: Service) -> None:
    """The newest row of every key, sent once for each checkpoint."""
    p = Pipeline("p")
    totals = p.read(iterables.Source(sales(), schema=Sale)).key_by("shop").agg(total=col("amount").sum())
    totals.write(service.sink("/shops/{shop}", method="PUT"))
    assert p.run().state == "FINISHED"
    assert {path.removeprefix("/shops/"): row["total"] for path, row in service.resources.items()} == sales_by_shop()
    assert {request.method for request in service.requests} == {"PUT"}


def test_changes_delete(service: Service) -> None:
    """What is taken back and does not come again; one that is not there is gone already."""
    p = Pipeline("p")
    read = p.read(iterables.Source(sales(), schema=Sale, rate=2_000))
    totals = read.key_by("shop").agg(total=col("amount").sum())
    totals.filter((col("total") < 100) | (col("shop") > "s3")).write(service.sink("/{shop}", method="PUT"))
    assert p.run().state == "FINISHED"
    found = {path.removeprefix("/"): row["total"] for path, row in service.resources.items()}
    assert found == {shop: total for shop, total in sales_by_shop().items() if shop > "s3"}


AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Visit:
    user: str
    page: str
    left: bool
    at: datetime


def visits(*seconds: int) -> SourceStream[Visit]:
    """Of one user, each of another page."""
    rows = [
        Visit("a", f"p{number}", number == 0, AT + timedelta(seconds=second)) for number, second in enumerate(seconds)
    ]
    read = iterables.Source(rows, schema=Visit, event_time="at", max_out_of_orderness="0s", rate=40)
    return Pipeline("p").read(read)


def test_a_column_of_facts_deletes_nothing(service: Service) -> None:
    """Whatever its name is: only updates and changes say by `retracted` that a row is no more."""
    windows = visits(0, 1).key_by("user").window(tumbling("1h")).agg(retracted=col("left").any())
    assert windows.write(service.sink("/{user}/{window_start}", method="PUT"))._pipeline.run().state == "FINISHED"
    assert [row["retracted"] for row in service.resources.values()] == [True]


@pytest.mark.parametrize("shape", ["select", "all"])
def test_rows_that_move_to_another_address_leave_none_behind(service: Service, shape: str) -> None:
    """The newest page of a user, by the page."""
    newest = visits(0, 1, 2).key_by("user").deduplicate("last")
    shaped = newest.select("user", "page") if shape == "select" else newest
    assert shaped.write(service.sink("/{page}", method="PUT"))._pipeline.run().state == "FINISHED"
    assert [row["page"] for row in service.resources.values()] == ["p2"]


def test_the_key_of_updates_stands_where_it_is_needed(service: Service) -> None:
    """To take back what a row replaces; names that are made of it need nothing more."""
    newest = visits(0).key_by("user").deduplicate("last")
    with pytest.raises(
        PipelineError, match=r"changes: user, which says which row a row replaces, is not there any more"
    ):
        newest.select("page").write(service.sink("/{page}", method="PUT"))
    by_name = newest.select(name=col("user").str.to_uppercase())
    assert "changes" not in str(by_name.write(service.sink("/{name}", method="PUT"))._pipeline.plan)


def test_sessions_that_are_no_more_are_deleted(service: Service) -> None:
    """So they have to say so: without the column the sink would never know."""
    sessions = visits(0, 8, 40, 4, 200).key_by("user").window(session("5s")).allowed_lateness("100s").agg(n=count())
    for wrong, said in [
        (sessions.drop("retracted"), "write: retracted, which says which row a row replaces, is not there any more"),
        (sessions.rename({"retracted": "gone"}), "leave it that name"),
    ]:
        with pytest.raises(PipelineError, match=said):
            wrong.write(service.sink("/{user}/{window_start}", method="PUT"))
    assert sessions.write(service.sink("/{user}/{window_start}", method="PUT"))._pipeline.run().state == "FINISHED"
    assert sorted(row["n"] for row in service.resources.values()) == [1, 1, 3]
    assert not any("retracted" in row for row in service.resources.values())


async def test_a_job_with_failing_workers_and_a_rescale_calls_for_every_row(service: Service) -> None:
    """Again after a failure, under the same key: by it every window is there once."""
    cluster = await with_failing_workers(service.sink(idempotency_key="{key}:{window_start}"))
    rows = {request.key: request.body for request in service.requests}
    bodies: dict[str, set[str]] = {}
    for request in service.requests:
        bodies.setdefault(request.key, set()).add(json.dumps(request.body))
    assert {len(different) for different in bodies.values()} == {1}
    assert len(rows) == 7 * cluster.input.rows // 100
    assert sum(row["n"] for row in rows.values()) == cluster.input.rows


# -- answers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "again"), [(408, "0"), (409, "-1"), (425, "nan"), (429, "inf"), (500, "soon"), (503, "1e999")]
)
def test_what_passes_is_sent_again(service: Service, status: int, again: str) -> None:
    """The same request, after a pause; when is left to us where what is said is no time."""
    service.answer = lambda request: (200 if len(service.requests) > 3 else status, {"Retry-After": again})
    write(service.sink(capacity=1), sales(2), Sale)
    assert len(service.requests) == 5
    assert len({request.key for request in service.requests}) == 2


def test_a_service_that_is_away(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is waited for, as long as it takes: a checkpoint that could not be sent is sent with the next one."""
    monkeypatch.setattr(sending, "_PATIENCE_S", 0.2)
    service.answer = lambda request: (200 if len(service.requests) > 12 else 503, {"Retry-After": "0.05"})
    write(service.sink(capacity=1), sales(3), Sale)
    assert sorted(row["id"] for row in service.resources.values()) == [2]
    assert len({request.key for request in service.requests}) == 3


async def test_what_is_said_of_one_that_is_away(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where, and what it answered; one that wants to be left alone for longer is."""
    monkeypatch.setattr(sending, "_PATIENCE_S", 0.2)
    service.answer = lambda request: (503, {"Retry-After": "3600"})
    address = f"http://127.0.0.1:{service.server_port}/hook"
    for url, said in (
        (address, rf"POST {address}: 503 Service Unavailable; check that it runs, and url="),
        ("http://127.0.0.1:1/", r"http://127.0.0.1:1/: .*; check that it runs, and url="),
    ):
        requests = Requests("POST", {}, 1)
        with pytest.raises(ExternalError, match=said):
            await requests.send([(url, "k", "{}")], set(), skips=False, each_its_own=False)
    requests = Requests("POST", {}, 1)
    with pytest.raises(ExternalError, match="503 Service Unavailable"):
        await requests.send([(address, "k", "{}")], set(), skips=False, each_its_own=False)
    with pytest.raises(ExternalError, match=r"has asked not to be called again for 3[56]\d\d s"):
        await requests.send([(address, "k", "{}")], set(), skips=False, each_its_own=False)
    assert len(service.requests) == 2


async def test_an_answer_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a piece of it comes."""
    monkeypatch.setattr(sending, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(sending, "ATTEMPT_S", 0.5)

    gone = asyncio.Event()

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"1\r\nx\r\n")
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()
        gone.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with asyncio.timeout(20):
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(ExternalError, match="TimeoutError; check that it runs"):
            await Requests("POST", {}, 1).send([(address, "k", "{}")], set(), skips=False, each_its_own=False)
        await gone.wait()
    server.close()


def test_what_was_answered_is_not_sent_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that takes some, and then wants a pause, gets all in the end; each once."""
    monkeypatch.setattr(sending, "_PATIENCE_S", 0.1)
    turns = itertools.count()
    service.answer = lambda request: (503 if next(turns) % 4 == 3 else 200, {"Retry-After": "0.2"})
    write(service.sink(capacity=1), sales(9), Sale)
    taken = [request.body["id"] for n, request in enumerate(service.requests) if n % 4 != 3]
    assert taken == list(range(9))


def test_all_requests_wait_when_one_is_told_to(service: Service) -> None:
    """For as long as the latest one is told."""
    told: list[float] = []
    early: list[Any] = []

    def answer(request: Request) -> tuple[int, dict[str, str]]:
        now = time.monotonic()
        if request.body["id"] == 3 and not told:
            told.append(now + 0.5)
            return 429, {"Retry-After": "0.5"}
        if told and now < told[0]:
            early.append(request.body["id"])
            time.sleep(0.3)  # until the other answer has been read
        return 200, {}

    service.answer = answer
    write(service.sink(capacity=2), sales(30), Sale)
    assert len({request.key for request in service.requests}) == 30
    assert len(early) <= 1  # what was on its way already


def writer_of(sink: http.Sink) -> Any:
    return sink.open(schema_of(Sale, "test"), WriteContext("out", 0, "a", 1, lambda: 0))


def rows_of(*rows: Sale) -> pl.DataFrame:
    return pl.DataFrame([vars(row) for row in rows])


def test_checkpoints_are_sent_one_after_the_other(service: Service) -> None:
    """A checkpoint that was given up is still being sent when the next one begins; and none behind the end."""
    held, go = threading.Event(), threading.Event()

    def answer(request: Request) -> tuple[int, dict[str, str]]:
        held.set()
        assert request.body["amount"] != 1 or go.wait(20)
        return 200, {}

    service.answer = answer
    writer = writer_of(service.sink("/{id}", method="PUT"))
    writer.write(rows_of(Sale(1, "s", 1)))
    first = writer.prepare(1).persist
    writer.write(rows_of(Sale(1, "s", 2)))
    second = writer.prepare(2).persist
    with ThreadPoolExecutor(2) as threads:
        sent = [threads.submit(first)]
        assert held.wait(20)
        sent.append(threads.submit(lambda: (first(), second())))
        go.set()
        for each in sent:
            each.result(20)
    assert [request.body["amount"] for request in service.requests] == [1, 2]
    writer.write(rows_of(Sale(1, "s", 3)))
    third = writer.prepare(3).persist
    writer.close()
    with pytest.raises(ExternalError, match="its attempt is over"):
        third()
    assert len(service.requests) == 2


def test_closing_breaks_off_what_is_being_sent(service: Service) -> None:
    """So that an attempt that is over sends no older rows beside the next one."""
    service.answer = lambda request: (503, {})
    writer = writer_of(service.sink())
    writer.write(rows_of(Sale(1, "s", 1)))
    persist = writer.prepare(1).persist
    with ThreadPoolExecutor(1) as threads:
        sending_it = threads.submit(persist)
        wait_for(lambda: service.requests, lambda: "a request has come", 20)
        writer.close()
        assert isinstance(sending_it.exception(20), ExternalError)


def test_a_value_that_comes_back(service: Service) -> None:
    """A service that remembers keys would take it for the one that it has; so rows by address have none."""
    sink = service.sink("/{id}", method="PUT")
    for amount in (1, 2, 1):
        write(sink, [Sale(1, "s", amount)], Sale)
    assert [(request.body["amount"], request.key) for request in service.requests] == [(1, None), (2, None), (1, None)]


@pytest.mark.parametrize("shop", ["", ".", ".."])
def test_addresses_of_something_else(service: Service, shop: str) -> None:
    """What would be the folder of all rows, or the one above it."""
    sink = service.sink("/shops/{shop}", method="PUT")
    with pytest.raises(PenstockError, match=rf"a row makes no address .column shop is '{re.escape(shop)}'"):
        write(sink, [Sale(1, shop, 1)], Sale)
    assert service.requests == []


@pytest.mark.parametrize("shop", ["", ".", ".."])
def test_addresses_with_dots_beside_other_text(service: Service, shop: str) -> None:
    """Are those of rows; in a query too."""
    for path in ("/shops/shop-{shop}", "/shops/{id}?shop={shop}"):
        write(service.sink(path, method="PUT"), [Sale(1, shop, 1)], Sale)
    assert [request.path for request in service.requests] == [f"/shops/shop-{shop}", f"/shops/1?shop={shop}"]


@pytest.mark.parametrize("shop", ["a\nb", " a", "grün", ""])
def test_keys_that_are_no_header(service: Service, shop: str) -> None:
    """Bad rows by the sink's policy."""
    with pytest.raises(PenstockError, match="a header is printable ASCII"):
        write(service.sink(idempotency_key="{shop}"), [Sale(1, shop, 1)], Sale)
    write(service.sink(idempotency_key="{shop}", bad_rows="skip"), [Sale(1, shop, 1), Sale(2, "b", 1)], Sale)
    assert [request.key for request in service.requests] == ["b"]


def test_secrets_that_are_no_header(service: Service) -> None:
    """Said without them."""
    sink = service.sink(headers={"Authorization": Secret("Bearer topsecret\n")})
    with pytest.raises(PenstockError, match=r"headers= 'Authorization': a header is ASCII") as caught:
        write(sink, sales(1), Sale)
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_rows_that_are_refused(service: Service, status: int) -> None:
    """They fail the job by what was sent, or are counted."""
    service.answer = lambda request: (status if request.body["id"] % 5 == 3 else 200, {})
    with pytest.raises(PenstockError, match=rf"POST .*/hook: {status} .*\"id\":.*say bad_rows='skip'"):
        write(service.sink(), sales(10), Sale)
    service.requests.clear()
    p = Pipeline("p")
    p.read(iterables.Source(sales(10), schema=Sale)).write(service.sink(bad_rows="skip")).uid("hook")
    result = p.run()
    assert sorted(request.body["id"] for request in service.requests) == list(range(10))
    shown = [status.metrics for status in result.progress.statuses.values() if "hook" in status.metrics]
    assert sum(metrics["hook"].bad_rows for metrics in shown) == 2


@pytest.mark.parametrize("status", [301, 401, 403, 405, 418])
def test_what_is_always_refused(service: Service, status: int) -> None:
    """Fails the job, whatever the policy for rows."""
    service.answer = lambda request: (status, {"Location": "/elsewhere"})
    with pytest.raises(PenstockError, match=rf"POST .*/hook: {status} .*check url=, and headers= if it wants a login"):
        write(service.sink(bad_rows="skip"), sales(3), Sale)


def test_an_address_that_is_not_there(service: Service) -> None:
    """That of a row is a bad row; one for all is wrong."""
    service.answer = lambda request: (404, {})
    with pytest.raises(PenstockError, match=r"/hook: 404 .*check url="):
        write(service.sink(bad_rows="skip"), sales(3), Sale)
    write(service.sink("/{id}", bad_rows="skip"), sales(3), Sale)


@dataclass
class Maybe:
    id: int | None
    value: float | None


def test_rows_that_make_no_request(service: Service) -> None:
    """For want of what is in the address or the key."""
    rows = [Maybe(1, 1.5), Maybe(None, 2.5)]
    for options in ({"path": "/{id}"}, {"idempotency_key": "{id}"}):
        with pytest.raises(PenstockError, match=r"a row makes no (address|idempotency key) .column id is null."):
            write(service.sink(**options), rows, Maybe)
        write(service.sink(**options, bad_rows="skip"), rows, Maybe)
    assert [request.body["value"] for request in service.requests[-2:]] == [1.5, 1.5]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: http.Sink("h/x"), "url= is an address"),
        (lambda: http.Sink("http://u:p@h/"), "url= has a login in it"),
        (lambda: http.Sink("http://h/", method="PUT"), "every row would replace the one before"),
        (lambda: http.Sink("http://h/", capacity=0), "capacity=0: it is at least 1"),
        (lambda: http.Sink("http://h/", idempotency_key="id"), "has to name the columns of the key in braces"),
        (lambda: http.Sink("http://h/{nope}"), "there is no column .nope."),
        (lambda: http.Sink("http://h/{value}", method="PUT"), "value is float64"),
    ],
)  # fmt: skip
def test_wrong_sinks(make: Any, said: str) -> None:
    """When the pipeline is built."""
    with pytest.raises(PipelineError, match=said):
        Pipeline("p").read(iterables.Source([], schema=Maybe)).write(make())


def test_updates_want_an_address(service: Service) -> None:
    """A row that may replace another."""
    totals = Pipeline("p").read(iterables.Source([], schema=Sale)).key_by("shop").agg(n=count())
    with pytest.raises(PipelineError, match=r"every update would count as a row; write http.Sink\(.*method=.PUT"):
        totals.write(service.sink())
