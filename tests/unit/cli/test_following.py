"""Jobs and runs are followed in the same way: until their end, through silence, and let go on by a signal."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest
from rich.console import Console

from penstock.cli import following
from penstock.cli.following import Follower
from penstock.cli.job_following import JobFollower
from penstock.cli.run_following import RunFollower
from penstock.client import ClusterClient, NoAnswerError
from penstock.client.documents import JobDetail, JobState, JobSummary
from penstock.client.run_documents import RunDetail, RunOptions, RunState, RunSummary


def job(state: JobState) -> JobDetail:
    return JobDetail(JobSummary("0123456789", "bids", state, 1, 1), 1, None, (), (), (), {})


def run(state: RunState) -> RunDetail:
    return RunDetail(RunSummary("nightly", "bids", state, 1), {}, RunOptions())


@dataclass
class Cluster:
    """Answers with one after the other, with the last one for ever; None: no dispatcher answers."""

    answers: Sequence[Any]
    asked: int = 0
    looked: asyncio.Event = field(default_factory=asyncio.Event)

    async def job(self, _: str) -> Any:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        self.looked.set()
        if answer is None:
            raise NoAnswerError("nobody is there")
        return answer

    run = job


def followers(cluster: Cluster, out: io.StringIO) -> dict[str, Follower[Any]]:
    client, console = cast("ClusterClient", cast("object", cluster)), Console(file=out, width=200)
    return {"job": JobFollower(client, "0123456789", console), "run": RunFollower(client, "nightly", console)}


@pytest.mark.parametrize(("kind", "detail"), [("job", job), ("run", run)])
async def test_it_is_followed_through_silence_to_its_end(
    kind: str, detail: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That nobody answers is said once each time, a state when it changes."""
    monkeypatch.setattr(following, "POLL_S", 0.0)
    cluster = Cluster([None, None, detail("RUNNING"), detail("RUNNING"), None, detail("FAILED")])
    out = io.StringIO()
    ended = await followers(cluster, out)[kind].follow()
    assert ended is not None
    assert ended.summary.state == "FAILED"
    silence = f"waiting for a dispatcher to answer; the {kind} is not touched by that (nobody is there)"
    assert out.getvalue().splitlines() == [silence, "bids: running", silence]


async def test_only_a_failure_that_others_follow_is_said_to_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--restart none`, and when a strategy has given up, the last one is the end."""
    monkeypatch.setattr(following, "POLL_S", 0.0)
    ended, out = msgspec.structs.replace(job("FAILED"), failures=("v0[0]: once", "v0[0]: twice")), io.StringIO()
    await followers(Cluster([ended]), out)["job"].follow()
    again, last = out.getvalue().splitlines()[:2]
    assert again == "failed, and starts again from the newest checkpoint: v0[0]: once"
    assert last == "failed: v0[0]: twice"


@pytest.mark.parametrize(
    ("kind", "detail", "how"),
    [
        ("job", job, "end it with penstock stop 01234567 (with a savepoint) or penstock cancel 01234567"),
        ("run", run, "end it with penstock cancel nightly"),
    ],
)
async def test_a_signal_lets_it_go_on(kind: str, detail: Any, how: str) -> None:
    """And the user is told how it is ended."""
    cluster, out = Cluster([detail("RUNNING")]), io.StringIO()
    follower = followers(cluster, out)[kind]
    work = asyncio.create_task(follower.follow())
    async with asyncio.timeout(10):
        await cluster.looked.wait()
        os.kill(os.getpid(), signal.SIGINT)
        assert await work is None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().remove_signal_handler(number)
    said = out.getvalue()
    assert f"detached: {kind} {follower.followed} goes on; look with penstock status {follower.followed[:8]}" in said
    assert how in said
