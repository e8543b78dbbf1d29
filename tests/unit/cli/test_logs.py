"""What `penstock logs` prints: when what happened, every line once however often it looks, what workers logged."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec
import pytest

from penstock.cli import logs
from penstock.cli.logs import added, record_text
from penstock.client import ClusterClient
from penstock.client.documents import Failures, JobLog

JOB = "ab" * 16


def test_lines_have_times_where_they_are_known() -> None:
    """Of a submission and of whatever record says when it was written."""
    submitted = {"type": "Submit", "seq": 0, "submitted_us": 1_767_225_600_000_000, "name": "counts"}
    assert record_text(submitted) == "   0  2026-01-01 00:00:00Z submitted: counts"
    complete = {"type": "Complete", "seq": 7, "checkpoint": 3, "at_us": 1_767_225_661_000_000}
    assert "2026-01-01 00:01:01Z checkpoint 3 complete" in record_text(complete)
    assert record_text({"type": "Leader", "seq": 1, "epoch": 2}).endswith("leader of epoch 2 took over")


@pytest.mark.parametrize(
    ("before", "now", "news"),
    [
        ("", "ab", "ab"),
        ("ab", "ab", ""),
        ("ab", "abc", "c"),
        ("abc", "cde", "de"),
        ("abc", "xyz", "xyz"),
        ("aa", "aaa", "a"),
    ],
)
def test_what_is_new_in_a_list_that_forgets(before: str, now: str, news: str) -> None:
    """The longest end of what was known before is where the news begins."""
    assert "".join(added(tuple(before), tuple(now))) == news


async def test_following_says_everything_once_until_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records and failures as they come; a dispatcher that does not answer meanwhile is waited for."""
    monkeypatch.setattr(logs, "POLL_S", 0.01)
    records: list[dict[str, Any]] = [{"type": "Leader", "seq": n, "epoch": n + 1} for n in range(4)]
    looks = 0

    def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal looks
        if request.url.path.endswith("/log"):
            return httpx2.Response(200, content=msgspec.json.encode(JobLog(JOB, tuple(records[:looks]))))
        if request.url.path.endswith("/failures"):
            return httpx2.Response(200, content=msgspec.json.encode(Failures(JOB, ("it broke",) * (looks > 2), "")))
        looks += 1
        if looks == 2:
            return httpx2.Response(503, content=b"{}")
        summary = {"job": JOB, "name": "counts", "parallelism": 1, "submitted_us": 0}
        state = "FINISHED" if looks == 4 else "RUNNING"
        document = {"summary": {**summary, "state": state}, "attempts": 1, "restored": None, "vertices": []}
        return httpx2.Response(200, json={**document, "checkpoints": [], "failures": [], "graph": {}})

    async with ClusterClient("http://localhost", httpx2.MockTransport(answer)) as cluster:
        await logs._show(cluster, JOB, logs._History(), follow=True)
    printed = capsys.readouterr().out
    assert [printed.count(f"leader of epoch {n}") for n in (1, 2, 3, 4)] == [1, 1, 1, 1]
    assert printed.count("it broke") == 1
    assert printed.count("waiting for a dispatcher") == 1


def test_a_failed_attempt_says_where_and_shows_the_users_frames() -> None:
    """The worker in the line, the frames below it; an attempt that only publishes says so."""
    record = {
        "type": "AttemptFailed", "seq": 4, "attempt": "a", "attempt_number": 2, "reason": "v1[0]: ZeroDivisionError",
        "worker": "tm-1-0", "frames": "jobs.py, line 7, in rate\n    return 1 / n", "at_us": 1_767_225_600_000_000,
    }  # fmt: skip
    first, *frames = record_text(record).splitlines()
    assert first.endswith("attempt 2 failed: v1[0]: ZeroDivisionError (worker tm-1-0)")
    assert [line.strip() for line in frames] == ["jobs.py, line 7, in rate", "return 1 / n"]
    begin = {"type": "Begin", "seq": 5, "attempt_number": 3, "parallelism": 2, "publishes_only": True}
    assert record_text(begin).endswith("parallelism 2, to publish what is complete")
