"""Schedules through the REST interface: added, looked at, paused, resumed, removed, refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from small_pipeline import DONE, SetClock, SmallPipeline, until
from small_rest import Rest, graph, sources

from penstock.client import NoAnswerError, RefusedError
from penstock.client.documents import ArtifactDescription
from penstock.client.run_documents import RunOptions, RunSubmission
from penstock.client.schedule_documents import ScheduleSubmission
from penstock.core.times import to_micros
from penstock.runs.schedule_store import SCHEDULES
from penstock_pipeline import schedules as schedules_module
from penstock_pipeline import service as service_module


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions follow each other faster than in life."""
    monkeypatch.setattr(service_module, "TICK_MS", 10)
    monkeypatch.setattr(schedules_module, "REFRESH_MS", 20)


@pytest.fixture
async def rest() -> AsyncGenerator[Rest]:
    """A dispatcher on its own ports."""
    made = Rest(SmallPipeline(SetClock(NOW_US)))
    yield made
    await made.client.close()
    await made.http.aclose()


DAYS = ["orders-2026-11-01", "orders-2026-11-02", "orders-2026-11-03", "orders-2026-11-04", "orders-2026-11-05"]
DAY_US = 86_400_000_000
NOW_US = to_micros(datetime(2026, 11, 3, 10, tzinfo=UTC))


def daily(**changes: Any) -> ScheduleSubmission:
    """Every midnight, from the first of November on."""
    parameters = changes.pop("parameters", {"day": "{day}", "password": "secret"})
    given = ScheduleSubmission(
        name="orders", cron="0 0 * * *", start="2026-11-01", pipeline="flights", graph=graph(),
        artifact=ArtifactDescription("flights.py", parameters),
    )  # fmt: skip
    return replace(given, **changes)


async def test_a_schedule_from_its_addition_to_its_removal(rest: Rest) -> None:
    """Also before there is a service: then the answer says that nothing begins."""
    added = await rest.client.add_schedule(daily(), sources())
    assert (added.changed, added.service, added.summary.behind) == (True, "", 2)
    assert added.parameters == {"day": "{day}", "password": "***"}
    assert [due.run for due in added.due] == DAYS
    assert not (await rest.client.add_schedule(daily(), sources())).changed
    async with rest.service():
        await rest.small.state(DAYS[0], "RUNNING")
        shown = await rest.client.schedule("orders")
        assert (shown.summary.next_state, shown.service) == ("RUNNING", "address")
        paused = await rest.client.pause_schedule("orders")
        assert (paused.changed, paused.summary.state) == (True, "PAUSED")
        assert not (await rest.client.pause_schedule("orders")).changed
        rest.small.children.change(DAYS[0], alive=False, outcome=DONE, decided=True)

        async def ended() -> bool:
            return [one.run for one in (await rest.client.schedule("orders")).ended] == [DAYS[0]]

        await until(ended, "the first day is done")
        assert (await rest.client.resume_schedule("orders")).summary.state == "ACTIVE"
        await rest.small.state(DAYS[1], "RUNNING")
        [listed] = (await rest.client.schedules()).schedules
        assert listed.next is not None
        assert (listed.name, listed.state, listed.behind, listed.next.run) == ("orders", "ACTIVE", 1, DAYS[1])
        assert listed.last is not None
        assert (listed.last.run, listed.last.state) == (DAYS[0], "FINISHED")
        again = await rest.client.submit_run(
            msgspec.convert(
                {
                    "name": "flights", "graph": graph(), "run": DAYS[1],
                    "artifact": {"target": "flights.py", "parameters": {"day": "2026-11-02", "password": "secret"}},
                },
                type=RunSubmission,
            ),
            sources(),
        )  # fmt: skip
        assert (await rest.client.run_outcome(again, 20)).state == "completed"
        gone = await rest.client.remove_schedule("orders")
        assert (gone.summary.state, gone.summary.next_state) == ("REMOVED", "RUNNING")
        assert not (await rest.client.remove_schedule("orders")).changed
        assert (await rest.client.schedules()).schedules == ()
        with pytest.raises(RefusedError, match="there is no schedule 'orders'"):
            await rest.client.schedule("orders")
        with pytest.raises(RefusedError, match="there is no schedule 'orders'"):
            await rest.client.resume_schedule("orders")


async def test_another_schedule_of_the_name_is_refused_unless_it_is_meant(rest: Rest) -> None:
    """What is at work stays what it is; with another start there would be two."""
    await rest.client.add_schedule(daily(), sources())
    with pytest.raises(RefusedError, match=r"with something else: --param password, the pipeline's code, --cron") as no:
        await rest.client.add_schedule(daily(cron="0 1 * * *", parameters={"day": "{day}"}), sources("p = 2"))
    assert no.value.status == 409
    async with rest.service():
        await rest.small.state(DAYS[0], "RUNNING")
        replaced = await rest.client.add_schedule(daily(retries=5, replace=True), sources())
        assert (replaced.changed, replaced.retries) == (True, 5)
        before = replaced.due[0]
        replaced = await rest.client.add_schedule(daily(cron="0 1 * * *", replace=True), sources())
        assert replaced.due[0] == before
        assert replaced.due[1].begin_us == before.end_us
        with pytest.raises(RefusedError, match=f"run {DAYS[0]} of schedule 'orders' is at work"):
            await rest.client.add_schedule(daily(start="2026-10-01", replace=True), sources())


async def test_what_others_change_at_the_same_time_is_not_lost(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes second decides again, from what is there then."""
    await rest.client.add_schedule(daily(), sources())
    small, create = rest.small, rest.small.blobs.create

    async def slow(key: str, data: bytes) -> None:
        monkeypatch.setattr(small.blobs, "create", create)
        before = await small.schedules.read("orders")
        assert before is not None
        assert await small.schedules.write(before, replace(before, next_us=before.next_us + DAY_US)) is not None
        await create(key, data)

    monkeypatch.setattr(small.blobs, "create", slow)
    paused = await rest.client.pause_schedule("orders")
    assert (paused.changed, paused.summary.state) == (True, "PAUSED")
    assert paused.due[0].run == DAYS[1]


async def test_what_is_refused(rest: Rest) -> None:
    """Before anything is written, with what is wrong about it."""
    for changes, message in (
        ({"cron": "0 25 * * *"}, "hour '25' is none"),
        ({"timezone": "Mars/Base"}, "there is no time zone 'Mars/Base'"),
        ({"name": "../x"}, "'../x' names no schedule"),
        ({"name": ""}, "'' names no schedule"),
        ({"parameters": {"day": "{dya}"}}, "--param day: {dya} is no placeholder"),
        ({"retries": -1}, "--retries -1"),
        ({"options": RunOptions(parallelism=0)}, "schedule.options.parallelism: 0"),
        ({"on_failure": "retry"}, "on_failure"),
    ):  # fmt: skip
        with pytest.raises(RefusedError) as refused:
            await rest.client.add_schedule(daily(**changes), sources())
        assert message in str(refused.value)
    with pytest.raises(NoAnswerError, match="no pipeline service serves this cluster now"):
        await rest.client.add_schedule(daily(options=RunOptions(master="local[1]")), sources())
    async with rest.service():
        with pytest.raises(RefusedError, match="--allow-overrides"):
            await rest.client.add_schedule(daily(options=RunOptions(master="local[1]")), sources())
    document = msgspec.to_builtins(daily()) | {"crontab": "0 0 * * *"}
    files = {"schedule": ("schedule", json.dumps(document).encode()), "sources": ("sources", sources())}
    refused_too = await rest.http.post("/penstock/v1/schedules", files=files)
    assert (refused_too.status_code, "unknown field `crontab`" in refused_too.text) == (400, True)
    for name in ("unknown", "%2e%2e", "a%0a", "{day}"):
        assert (await rest.http.get(f"/penstock/v1/schedules/{name}")).status_code == 404
        assert (await rest.http.delete(f"/penstock/v1/schedules/{name}")).status_code == 404
    assert await rest.small.blobs.list(SCHEDULES) == []
    described = (await rest.http.get("/openapi.json")).json()
    assert "ScheduleSubmission" in described["components"]["schemas"]
    assert set(described["paths"]["/penstock/v1/schedules/{name}"]) == {"get", "delete"}


async def test_of_many_that_add_at_once_one_does(rest: Rest) -> None:
    """Of one content all are told the same, of another one all but one are refused."""
    same = await asyncio.gather(*(rest.client.add_schedule(daily(), sources()) for _ in range(5)))
    assert [one.changed for one in same].count(True) == 1
    others = await asyncio.gather(
        *(rest.client.add_schedule(daily(name="clicks", retries=n), sources()) for n in range(5)),
        return_exceptions=True,
    )
    assert sum(isinstance(one, RefusedError) for one in others) == 4


async def test_what_cannot_be_read_hides_no_other(rest: Rest) -> None:
    """It is listed with the reason, and may be removed where only its zone is unknown. What is not ours is left alone."""
    for name in ("good", "damaged", "elsewhere"):
        await rest.client.add_schedule(daily(name=name), sources())
    blobs = rest.small.blobs
    await blobs.create(f"{SCHEDULES}damaged/{2:020d}", b"{")
    elsewhere = json.loads(await blobs.get(f"{SCHEDULES}elsewhere/{1:020d}"))
    elsewhere["definition"]["timezone"], elsewhere["version"] = "Europe/Atlantis", 2
    await blobs.create(f"{SCHEDULES}elsewhere/{2:020d}", json.dumps(elsewhere).encode())
    for key in ("notes.txt", "good/notes.txt", "other/notes/1"):
        await blobs.create(f"{SCHEDULES}{key}", b"")
    listed = {one.name: one for one in (await rest.client.schedules()).schedules}
    assert [*listed] == ["damaged", "elsewhere", "good"]
    assert {one.state for one in (listed["damaged"], listed["elsewhere"])} == {"STOPPED"}
    assert f"{SCHEDULES}damaged/{2:020d}" in listed["damaged"].reason
    assert "Europe/Atlantis" in listed["elsewhere"].reason
    assert (await rest.client.remove_schedule("elsewhere")).summary.state == "REMOVED"
    async with rest.service():
        await rest.small.state("good-2026-11-01", "RUNNING")
