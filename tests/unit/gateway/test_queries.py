"""Queries without an end: rows as they come, a buffer that holds them back, and how they are ended."""

from __future__ import annotations

import asyncio
from typing import Any

from small_gateway import Endless, small_gateway, until

CAPACITY = 50


def replayed(rows: list[Any]) -> dict[Any, Any]:
    """What is left of rows of a key and a value, each of which must fit what is there."""
    held: dict[Any, Any] = {}
    for kind, key, value in rows:
        if kind in ("UPDATE_BEFORE", "DELETE"):
            assert held.pop(key) == value
        else:
            assert kind in ("INSERT", "UPDATE_AFTER")
            assert key not in held
            held[key] = value
    return held


async def test_rows_come_in_pages_and_are_final_where_none_is_replaced() -> None:
    async with small_gateway() as gateway:
        await gateway.endless()
        rows = await gateway.rows(await gateway.begin("SELECT price, auction FROM bids"), most=7_000)
        assert rows[:7_000] == [["INSERT", number, number % 3] for number in range(7_000)]


async def test_rows_that_are_replaced_say_so() -> None:
    async with small_gateway() as gateway:
        await gateway.endless()
        query = "SELECT auction, COUNT(*) AS n FROM bids GROUP BY auction"
        operation = await gateway.begin(query)
        rows = await gateway.rows(operation, most=40)
        assert [row[:2] for row in rows[:3]] == [["INSERT", 0], ["INSERT", 1], ["INSERT", 2]]
        assert {row[0] for row in rows} == {"INSERT", "UPDATE_BEFORE", "UPDATE_AFTER"}
        assert replayed(rows).keys() <= {0, 1, 2}
        assert await gateway.get(f"{operation}/status") == {"status": "FINISHED"}  # its results can be fetched


async def test_rows_that_are_gone_are_deleted() -> None:
    async with small_gateway() as gateway:
        await gateway.endless()
        query = "SELECT auction, n FROM (SELECT auction, COUNT(*) AS n FROM bids GROUP BY auction) WHERE n < 100000"
        rows = await gateway.rows(await gateway.begin(query), most=6)
        assert replayed(rows)
        top = "SELECT price, auction FROM bids ORDER BY price DESC LIMIT 2"
        rows = await gateway.rows(await gateway.begin(top), most=30)
        assert len(replayed(rows)) <= 2
        assert {row[0] for row in rows} & {"DELETE", "UPDATE_BEFORE"}


async def test_a_slow_reader_holds_the_pipeline_back() -> None:
    async with small_gateway(buffer_rows=CAPACITY) as gateway:
        endless = await gateway.endless()
        operation = await gateway.begin("SELECT price FROM bids")
        first = await gateway.page(operation)
        results = gateway.found.operation(operation.rpartition("/")[2]).results
        assert results is not None
        await until(lambda: results.rows.full)
        read = endless.read
        for _ in range(20):  # more than once through the loops of both threads
            await asyncio.sleep(0)
            await gateway.get(f"{operation}/status")
        assert endless.read == read
        assert len(results.rows) == CAPACITY
        page = await gateway.get(first["nextResultUri"])
        assert len(page["results"]["data"]) <= CAPACITY
        rows = await gateway.rows(await gateway.begin("SELECT price FROM bids"), most=1_000)
        assert [row[1] for row in rows] == list(range(len(rows)))


async def test_cancel_close_and_the_end_of_a_session_end_the_run() -> None:
    async with small_gateway(buffer_rows=CAPACITY) as gateway:
        await gateway.endless()
        session = gateway.found
        for method, path, status in (("POST", "/cancel", "CANCELED"), ("DELETE", "/close", "CLOSED")):
            operation = await gateway.begin("SELECT price FROM bids")
            await gateway.page(operation)
            run = session.operation(operation.rpartition("/")[2]).run
            assert run is not None
            assert not run.ended.done()
            answer = await gateway.http.request(method, operation + path)
            assert answer.json() == {"status": status}
            await until(run.ended.done)
            assert run.ended.cancelled()
            if path == "/cancel":
                assert await gateway.get(f"{operation}/status") == {"status": "CANCELED"}
                assert "in CANCELED status" in (await gateway.get(f"{operation}/result/1", 500))["errors"][1]
                refused = await gateway.post(f"{operation}/cancel", status=500)
                assert "from CANCELED to CANCELED" in refused["errors"][1]
        operation = await gateway.begin("SELECT price FROM bids")
        await gateway.page(operation)
        assert len(gateway.sessions.runs) == 1
        await gateway.delete(f"/v3/sessions/{gateway.session}")
        await until(lambda: not len(gateway.sessions.runs))


async def test_a_query_that_nobody_has_fetched_yet_can_be_cancelled() -> None:
    """At whatever moment: while it is planned, while it starts, or while it fills the buffer."""
    async with small_gateway(buffer_rows=1) as gateway:
        await gateway.endless()
        for wait in (0, 1, 5, 20, 80):
            operation = await gateway.begin("SELECT price FROM bids")
            for _ in range(wait):
                await gateway.get(f"{operation}/status")
            assert await gateway.post(f"{operation}/cancel") == {"status": "CANCELED"}
            await until(lambda: not len(gateway.sessions.runs))


async def test_a_statement_that_waits_for_its_run_can_be_cancelled() -> None:
    async with small_gateway() as gateway:
        await gateway.endless()
        await gateway.run("SET 'table.dml-sync' = 'true'")
        await gateway.run("CREATE TABLE shown (price BIGINT) WITH ('connector' = 'print')")
        operation = await gateway.begin("INSERT INTO shown SELECT price FROM bids WHERE price < 0")
        await until(lambda: len(gateway.sessions.jobs.rows()) == 1)
        assert await gateway.get(f"{operation}/status") == {"status": "RUNNING"}
        waiting = await gateway.get(f"{operation}/result/0")
        assert waiting == {"resultType": "NOT_READY", "nextResultUri": f"{operation}/result/0?rowFormat=JSON"}
        assert await gateway.post(f"{operation}/cancel") == {"status": "CANCELED"}
        await until(lambda: gateway.sessions.jobs.rows()[0][2] == "CANCELED")


async def test_jobs_of_insert_into_are_stopped_by_their_ids() -> None:
    async with small_gateway() as gateway:
        await gateway.endless()
        await gateway.run("CREATE TABLE shown (price BIGINT) WITH ('connector' = 'print')")
        operation = await gateway.begin("INSERT INTO shown SELECT price FROM bids WHERE price < 0")
        job = (await gateway.page(operation))["jobID"]
        await gateway.run(f"STOP JOB '{job}'")
        await until(lambda: gateway.sessions.jobs.rows()[0][2] == "CANCELED")
        assert await gateway.get(f"{operation}/status") == {"status": "CANCELED"}


async def test_rows_before_a_failure_are_given_before_it() -> None:
    async with small_gateway() as gateway:
        await gateway.endless(endless=Endless(failing_at=100_000))
        operation = await gateway.begin("SELECT price FROM bids")
        page, count = await gateway.page(operation), 0
        while "errors" not in page:
            count += len(page["results"]["data"])
            page = (await gateway.http.get(page["nextResultUri"])).json()
        assert "the reader is broken" in page["errors"][1]
        assert 0 < count <= 100_000
        assert await gateway.get(f"{operation}/status") == {"status": "ERROR"}


async def test_sessions_of_which_nothing_is_heard_are_closed_with_all_that_they_have_started() -> None:
    async with small_gateway(idle_timeout_ms=1_000) as gateway:
        await gateway.endless()
        other = (await gateway.post("/sessions", {}))["sessionHandle"]
        await gateway.page(await gateway.begin("SELECT price FROM bids"))
        await gateway.run("CREATE TABLE shown (price BIGINT) WITH ('connector' = 'print')")
        await gateway.page(await gateway.begin("INSERT INTO shown SELECT price FROM bids WHERE price < 0"))
        assert len(gateway.sessions.runs) == 2
        gateway.clock.ms = 600
        await gateway.post(f"/sessions/{other}/heartbeat")
        gateway.clock.ms = 1_000
        gateway.sessions.close_idle()
        assert len(gateway.sessions) == 1
        await until(lambda: not len(gateway.sessions.runs))
        assert [row[2] for row in gateway.sessions.jobs.rows()] == ["CANCELED"]
        gateway.clock.ms = 1_600
        gateway.sessions.close_idle()
        assert len(gateway.sessions) == 0
