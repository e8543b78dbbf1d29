"""Runs through the REST interface: submitted, looked at, cancelled, found beside jobs."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from small_pipeline import DONE, SmallPipeline
from small_rest import Rest, graph, sources, submission

from penstock.client import NoAnswerError, RefusedError
from penstock.client.documents import ArtifactDescription
from penstock.coordination.job_catalog import JobCatalog
from penstock.errors import PenstockError
from penstock.ports import NewRecord
from penstock.protocol.joblog import Artifact
from penstock.protocol.messages import encode
from penstock.protocol.requests import RunOptions, SubmitJob, SubmitRun, decode_request
from penstock.runs.run_log import RunOutcome
from penstock.spark.run_submission import submit_run
from penstock_pipeline import service as service_module


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions follow each other faster than in life."""
    monkeypatch.setattr(service_module, "TICK_MS", 20)


@pytest.fixture
async def rest() -> AsyncGenerator[Rest]:
    """A dispatcher on its own ports."""
    made = Rest(SmallPipeline())
    yield made
    await made.client.close()
    await made.http.aclose()


async def test_a_service_that_is_older_than_what_asks_says_so(rest: Rest) -> None:
    """It does not know an option that came later: the run does not begin without it, and whoever submits is told."""

    class Newer(RunOptions, frozen=True):
        """What a later version may have."""

        priority: int = 0

    async with rest.service():
        ask = rest.small.log.append

        async def newer(topic: str, partition: int, records: list[NewRecord]) -> object:
            request = decode_request(records[0].value)
            assert isinstance(request, SubmitRun)
            options = Newer(priority=3, **msgspec.structs.asdict(request.options))
            return await ask(topic, partition, [NewRecord(encode(msgspec.structs.replace(request, options=options)))])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rest.small.log, "append", newer)
            with pytest.raises(
                PenstockError, match=r"run later: .*pipeline service.* unknown field `priority`.*version"
            ):
                await submit_run(rest.client, submission("later"), sources(), 20)
        assert not (await rest.client.runs()).runs
        await submit_run(rest.client, submission("now"), sources(), 20)


async def test_a_run_from_submission_to_its_end(rest: Rest) -> None:
    """Found by id, its beginning and its name; with progress while it is at work, with counts afterwards."""
    async with rest.service():
        requested = await rest.client.submit_run(submission("nightly-2026-11-21", parallelism=3), sources())
        assert (await rest.client.run_outcome(requested, 20)).state == "completed"
        await rest.state("nightly-2026-11-21", "RUNNING")
        second = await rest.client.submit_run(submission(), sources())
        assert (await rest.client.run_outcome(second, 20)).state == "completed"
        listed = await rest.client.runs()
        assert [(run.run, run.state, run.parallelism) for run in listed.runs] == [
            (second.job, "QUEUED", 0), ("nightly-2026-11-21", "RUNNING", 3),
        ]  # fmt: skip
        for name in ("nightly-2026-11-21", "nightly"):
            found = (await rest.client.run(name)).summary
            assert found.progress is not None
            assert (found.progress.at, found.progress.stages_done) == ("totals", 1)
        with pytest.raises(RefusedError, match="several runs are called 'flights'"):
            await rest.client.run("flights")
        rest.small.children.change("nightly-2026-11-21", alive=False, outcome=DONE, decided=True)
        await rest.state("nightly", "FINISHED")
        detail = await rest.client.run("nightly")
        assert (detail.counts, detail.summary.progress) == (DONE.counts, None)
        assert (await rest.client.run("flights")).summary.run == second.job
        log = await rest.client.run_log("nightly")
        assert [record["type"] for record in log.records] == ["Submitted", "AttemptBegan", "RunEnded"]
        assert all("graph" not in record for record in log.records)
        assert log.output == "what Spark printed"
        again = await rest.client.submit_run(submission("nightly-2026-11-21"), sources())
        assert again.request == requested.request
        assert [run.state for run in (await rest.client.runs()).runs][1] == "FINISHED"


async def test_a_run_id_submitted_again_with_something_else_is_refused(rest: Rest) -> None:
    """While the run waits, is at work or has finished: its results are others. One that failed is taken up again."""
    async with rest.service():
        first = submission("nightly")
        requested = await rest.client.submit_run(first, sources())
        await rest.small.state("nightly", "RUNNING")
        assert (await rest.client.submit_run(first, sources())).request == requested.request
        parameters = ArtifactDescription("flights.py", parameters={"day": "2026-11-22"})
        other = msgspec.structs.replace(submission("nightly", to_savepoint="out"), artifact=parameters)
        with pytest.raises(
            RefusedError, match=r"'nightly' is RUNNING, .* else: --param day, --to-savepoint. Its results"
        ):
            await rest.client.submit_run(other, sources())
        with pytest.raises(RefusedError, match=r"else: the pipeline's code\."):
            await rest.client.submit_run(first, sources("p = 2"))
        rest.small.children.change("nightly", alive=False, outcome=RunOutcome("FAILED", "no luck", ""))
        await rest.state("nightly", "FAILED")
        rest.small.children.sources = sources("p = 2")
        await rest.client.submit_run(other, sources("p = 2"))
        await rest.small.state("nightly", "RUNNING")


async def test_cancelled_and_failed(rest: Rest) -> None:
    """Of what has ended nothing can be asked; an error of the user's code comes with its frames."""
    async with rest.service():
        for run in ("one", "two"):
            await rest.client.submit_run(submission(run), sources())
            await rest.small.state(run, "RUNNING")
            if run == "one":
                requested = await rest.client.cancel_run("one")
                assert (await rest.client.run_outcome(requested, 20)).state == "completed"
                await rest.state("one", "CANCELED")
        with pytest.raises(RefusedError, match=r"run flights \(one\) has ended: CANCELED \(asked by a client"):
            await rest.client.cancel_run("one")
        failed = RunOutcome("FAILED", "ZeroDivisionError: division by zero", '  File "flights.py", line 3')
        rest.small.children.change("two", alive=False, outcome=failed)
        await rest.state("two", "FAILED")
        detail = await rest.client.run("two")
        assert (detail.summary.reason, detail.frames) == (failed.reason, failed.frames)
        assert (await rest.client.run("flights")).summary.run == "two"


async def test_what_is_refused(rest: Rest) -> None:
    """Without a service everything that needs one; settings that are not allowed; what is no submission."""
    with pytest.raises(NoAnswerError, match="no pipeline service serves this cluster now"):
        await rest.client.submit_run(submission(), sources())
    async with rest.service():
        with pytest.raises(RefusedError, match="--allow-overrides"):
            await rest.client.submit_run(submission(master="local[1]"), sources())
        with pytest.raises(RefusedError, match=r"'\.\./x' is no id"):
            await rest.client.submit_run(submission("../x"), sources())
        with pytest.raises(RefusedError, match="parallelism"):
            await rest.client.submit_run(submission(parallelism=0), sources())
        with pytest.raises(RefusedError, match="this is no zip"):
            await rest.client.submit_run(submission(), b"no")
        document = msgspec.to_builtins(submission()) | {"graph": {"version": 0}}
        files = {"run": ("run", json.dumps(document).encode()), "sources": ("sources", sources())}
        refused = await rest.http.post("/penstock/v1/runs", files=files)
        assert (refused.status_code, "run.graph: it has format 0" in refused.text) == (400, True)
        with pytest.raises(RefusedError, match="there is no run 'unknown'; there are none"):
            await rest.client.run("unknown")
        assert (await rest.http.get(f"/penstock/v1/runs/one/requests/{uuid.uuid4().hex}")).status_code == 404
        described = (await rest.http.get("/openapi.json")).json()
        assert "RunSubmission" in described["components"]["schemas"]
        assert set(described["paths"]["/penstock/v1/runs/{run}/cancel"]) == {"post"}


async def test_a_name_may_be_a_job_s_or_a_run_s(rest: Rest) -> None:
    """The one that has not ended is meant; where that does not decide it, the id is asked for."""
    job = uuid.uuid4().hex
    artifact = Artifact("artifacts/a.zip", "a", "flights.py")
    await JobCatalog(rest.small.blobs).submit(
        SubmitJob(request=job, job=job, name="flights", graph=graph(), artifact=artifact), "nonce"
    )
    assert ((await rest.client.find("flights")).kind, (await rest.client.find(job[:8])).id) == ("job", job)
    async with rest.service():
        await rest.client.submit_run(submission("nightly"), sources())
        await rest.small.state("nightly", "RUNNING")
        assert (await rest.client.find("nightly")).kind == "run"
        with pytest.raises(RefusedError, match=f"a job and a run are called 'flights': {job}, nightly; give the id"):
            await rest.client.find("flights")
        rest.small.children.change("nightly", alive=False, outcome=DONE, decided=True)
        await rest.state("nightly", "FINISHED")
        assert (await rest.client.find("flights")).kind == "job"
        with pytest.raises(RefusedError, match="did you mean 'flights'"):
            await rest.client.find("flihgts")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"every_us": -1}, "run.options.every_us: -1 is less than 0"),
        ({"every_us": 1, "to_savepoint": "/kept"}, "run.options.to_savepoint: each step leaves a savepoint of its own"),
    ],
)
async def test_a_job_in_steps_that_cannot_be_is_refused(options: dict[str, Any], said: str, rest: Rest) -> None:
    """Before anybody is asked to do it."""
    async with rest.service():
        with pytest.raises(RefusedError, match=said):
            await rest.client.submit_run(submission(**options), sources())


async def test_a_job_in_steps_is_submitted_once(rest: Rest) -> None:
    """At work, with another interval it is refused; ended, it is taken up again with that."""
    async with rest.service():
        requested = await rest.client.submit_run(submission("live", every_us=1_000_000), sources())
        assert (await rest.client.run_outcome(requested, 20)).state == "completed"
        await rest.state("live", "RUNNING")
        with pytest.raises(RefusedError, match="submitted with something else: --every"):
            await rest.client.submit_run(submission("live", every_us=2_000_000), sources())
        await rest.client.cancel_run("live")
        await rest.state("live", "CANCELED")
        again = await rest.client.submit_run(submission("live", every_us=2_000_000), sources())
        assert (await rest.client.run_outcome(again, 20)).state == "completed"
        await rest.state("live", "RUNNING")
        assert (await rest.client.run("live")).options.every_us == 2_000_000
