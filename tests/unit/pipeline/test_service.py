"""The pipeline service from requests to the ends of runs, with processes in name only."""

from __future__ import annotations

import msgspec
import pytest
from small_pipeline import DONE, SmallPipeline, until

from penstock.coordination.control_topics import REQUESTS
from penstock.observability.metrics import RUN_STAGES, RUNS, RUNS_ENDED, Sample
from penstock.ports import NewRecord
from penstock.runs.run_log import RunHistory, RunOutcome
from penstock.runs.run_views import PIPELINE_VIEW, PipelineView, RunView
from penstock_pipeline import service as service_module
from penstock_pipeline.metrics import pipeline_samples
from penstock_pipeline.request_reader import REQUESTS_READ


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions follow each other faster than in life."""
    monkeypatch.setattr(service_module, "TICK_MS", 20)


async def test_a_run_from_request_to_end() -> None:
    """It waits for the one before, is executed once, and leaves its counts, its output and nothing else."""
    small = SmallPipeline()
    async with small.service() as service:
        await small.submit("one")
        await small.state("one", "RUNNING")
        await small.submit("two")
        await small.submit("two")
        await small.state("two", "QUEUED")

        async def shown() -> bool:
            data = await small.metadata.get(PIPELINE_VIEW)
            assert data is not None
            runs = msgspec.json.decode(data, type=PipelineView).runs
            return [(view.run, view.position) for view in runs] == [("one", 0), ("two", 1)]

        await until(shown, "the queue is shown")
        samples = pipeline_samples(service, small.clock.now_us())
        assert Sample(RUNS, {"state": "RUNNING"}, 1) in samples
        assert Sample(RUN_STAGES, {"run": "one", "pipeline": "flights"}, 1) in samples
        small.children.change("one", alive=False, outcome=DONE, decided=True)
        ended = (await small.state("one", "FINISHED")).ended
        assert ended is not None
        assert ended.counts == DONE.counts
        assert await small.store.output("one") == "what Spark printed"
        await small.state("two", "RUNNING")
        assert small.children.started == [("one", 1), ("two", 1)]

        async def retired() -> bool:
            return await small.store.active() == ["two"] and small.children.forgotten == ["one"]

        await until(retired, "nothing of the first is left")
        assert Sample(RUNS_ENDED, {"state": "FINISHED"}, 1) in pipeline_samples(service, 0)


async def test_requests_that_were_passed_over_are_passed_over_again() -> None:
    """Where it is lost which requests were handled: a cancel that came too late, a submission of what was there."""
    small = SmallPipeline()

    async def read_all() -> bool:
        noted = await small.metadata.get(REQUESTS_READ)
        return noted is not None and int(noted) == (await small.log.offsets(REQUESTS, 0))[1]

    async with small.service():
        for run in ("one", "two"):
            await small.submit(run)
            await small.state(run, "RUNNING")
            await small.submit(run, request=f"{run} is there")
            await until(read_all, "the requests are read")
            small.children.change(run, alive=False, outcome=RunOutcome("FAILED", "the disk is full"), decided=False)
            await small.state(run, "FAILED")
        await small.cancel("one")
        await until(read_all, "the cancel is read")
        await small.submit("one", request="again")
        await small.state("one", "RUNNING")
        await until(read_all, "everything is read")
    await small.metadata.put(REQUESTS_READ, b"-1")
    async with small.service():
        await until(read_all, "everything is read again")
        await small.submit("three")
        await small.state("three", "QUEUED")
    assert (await small.store.history("one")).state == "RUNNING"
    assert not (await small.store.history("one")).cancel_asked
    assert (await small.store.history("two")).state == "FAILED"


async def test_a_run_that_cannot_be_read_stops_no_other() -> None:
    """Such as one of a newer Penstock: it is left as it is, with its process, for whoever can read it."""
    small = SmallPipeline()
    async with small.service():
        await small.submit("one")
        await small.state("one", "RUNNING")
    [first, *_] = await small.blobs.list("runs/log/one/")
    known = await small.blobs.get(first)
    document = msgspec.json.decode(known)
    document["options"]["of_tomorrow"] = 1
    await small.blobs.put(first, msgspec.json.encode(document))
    async with small.service():
        await small.submit("two")
        await small.state("two", "RUNNING")
        await small.cancel("one")
    assert small.children.forgotten == []
    assert await small.store.active() == ["one", "two"]
    await small.blobs.put(first, known)
    async with small.service():
        small.children.change("one", alive=False, outcome=DONE, decided=True)
        await small.state("one", "FINISHED")


async def test_a_service_that_comes_back_finds_its_runs_again() -> None:
    """One still lives and is followed to its end; one died meanwhile and is begun again; one that ended is ended."""
    small = SmallPipeline()
    async with small.service(concurrent=3):
        for run in ("lives", "died", "ended"):
            await small.submit(run, name=run)
            await small.state(run, "RUNNING")
    small.children.change("died", alive=False)
    small.children.change("ended", alive=False, outcome=DONE, decided=True)
    await small.submit("asked-meanwhile", name="another")
    async with small.service(concurrent=3) as service:
        await small.state("ended", "FINISHED")
        died = await small.state("died", "RUNNING", attempts=2)
        await small.state("asked-meanwhile", "RUNNING")
        assert (await small.store.history("lives")).attempts[-1].attempt == 1
        assert service.numbers.lost == 1
        assert "ended without a word" in str(died.records)
        small.children.change("lives", alive=False, outcome=DONE, decided=True)
        await small.state("lives", "FINISHED", attempts=1)


async def test_an_attempt_elsewhere_is_not_repeated() -> None:
    """In another work folder nothing is known of what the run decided."""
    small = SmallPipeline()
    async with small.service():
        await small.submit("one")
        await small.state("one", "RUNNING")
    small.children.place = "there"
    async with small.service():
        ended = (await small.state("one", "FAILED")).ended
        assert ended is not None
        assert "began on host, in a work folder that this pipeline service does not have" in ended.reason


async def test_cancelled_at_work_and_waiting() -> None:
    """Both end without results; asked again, or of what has ended, nothing happens."""
    small = SmallPipeline()
    async with small.service():
        await small.submit("one")
        await small.state("one", "RUNNING")
        await small.submit("two")
        for run in ("two", "one", "one", "unknown"):
            await small.cancel(run)
            await small.cancel(run, "another")
        await small.state("one", "CANCELED")
        await small.state("two", "CANCELED", attempts=0)
        assert small.children.started == [("one", 1)]


async def test_what_failed_is_taken_up_again_when_it_is_submitted_again() -> None:
    """By another request; the one that was sent twice changes nothing, nor does one for a run that finished."""
    small = SmallPipeline()
    async with small.service():
        await small.submit("one")
        await small.state("one", "RUNNING")
        small.children.change("one", alive=False, outcome=RunOutcome("FAILED", "no such column", "  File ..."))
        ended = (await small.state("one", "FAILED")).ended
        assert ended is not None
        assert (ended.reason, ended.frames) == ("no such column", "  File ...")
        await small.submit("one")
        await small.submit("one", request="again")
        await small.state("one", "RUNNING", attempts=1)
        assert small.children.started == [("one", 1), ("one", 2)]
        small.children.change("one", alive=False, outcome=DONE, decided=True)
        await small.state("one", "FINISHED")
        await small.submit("one", request="once more")
        await small.submit("two")
        await small.state("two", "RUNNING")
        assert (await small.store.history("one")).state == "FINISHED"


async def test_settings_of_a_run_are_refused_unless_they_are_allowed() -> None:
    """A run exists nevertheless, and says why it was not executed; so does one whose sources are missing."""
    small = SmallPipeline()
    async with small.service():
        await small.submit("one", conf={"spark.executor.memory": "64g"})
        ended = (await small.state("one", "FAILED", attempts=0)).ended
        assert ended is not None
        assert "--allow-overrides" in ended.reason
    async with small.service(overrides=True):
        await small.submit("two", master="local[1]")
        await small.state("two", "RUNNING")
        await small.blobs.delete("artifacts/a.zip")
        small.children.change("two", alive=False)
        ended = (await small.state("two", "FAILED")).ended
        assert ended is not None
        assert "its sources are not in the store" in ended.reason


async def test_what_cannot_be_read_is_passed_over() -> None:
    """Requests of other versions, and those for jobs, which are the leader's."""
    small = SmallPipeline()
    await small.log.create_topic(REQUESTS, 1)
    await small.log.append(REQUESTS, 0, [NewRecord(b"{}"), NewRecord(b'{"type":"CancelJob","request":"a","job":"b"}')])
    async with small.service() as service:
        await small.submit("one")
        await small.state("one", "RUNNING")

        async def seen() -> bool:
            return service.view.runs == (RunView("one", 0, small.children.progress(await small.store.history("one"))),)

        await until(seen, "the run is shown")


async def test_a_pipeline_that_goes_on_for_ever_has_no_other_run() -> None:
    """A run of it would wait for ever: it is refused, with what to do; the same id again is the job itself."""
    small = SmallPipeline()
    async with small.service():
        await small.submit("live", every_us=1_000_000)
        await small.state("live", "RUNNING")
        await small.submit("nightly")
        ended = (await small.state("nightly", "FAILED")).ended
        assert ended is not None
        assert "flights goes on for ever as live, in steps" in ended.reason
        assert "penstock cancel live" in ended.reason
        await small.submit("other", name="ships")
        await small.state("other", "RUNNING")
        small.children.change("live", alive=False)
        await small.state("live", "RUNNING", attempts=2)
        await small.cancel("live")
        await small.state("live", "CANCELED")
        await small.submit("live", request="again", every_us=2_000_000)
        await small.state("live", "RUNNING")


async def test_runs_that_waited_before_a_job_in_steps_are_not_left_waiting() -> None:
    """They go first, and the job begins behind them; one that came later is refused, also if the service dies between."""
    small = SmallPipeline()
    async with small.service():
        await small.submit("busy", name="ships")
        await small.state("busy", "RUNNING")
        await small.submit("nightly")
        await small.submit("live", every_us=1_000_000)
        await small.state("live", "QUEUED")
        small.children.change("busy", alive=False, outcome=DONE, decided=True)
        await small.state("nightly", "RUNNING")
        await small.state("live", "QUEUED", attempts=0)
        small.children.change("nightly", alive=False, outcome=DONE, decided=True)
        await small.state("live", "RUNNING")
    await small.store.announce("late")
    record = msgspec.structs.replace((await small.store.history("nightly")).submitted, run="late", request="late")
    await small.store.append("late", RunHistory(), record)
    async with small.service():
        ended = (await small.state("late", "FAILED", attempts=0)).ended
        assert ended is not None
        assert "flights goes on for ever as live, in steps" in ended.reason
