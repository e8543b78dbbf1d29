"""The client: several dispatchers, clear errors, nothing sent twice by accident."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from penstock.client import ClusterClient, NoAnswerError, RefusedError
from penstock.client.documents import NO_COORDINATOR, ArtifactDescription, Requested, Submission
from penstock.core.blocking import run_blocking
from penstock.errors import CorruptDataError, UsageError
from penstock.testing.virtual_time import VirtualLoop

LIST = {"jobs": [], "leader": "one"}


class Dispatchers:
    """Answers by host; remembers who was asked."""

    def __init__(self, **hosts: httpx2.Response | Exception) -> None:
        self.hosts = hosts
        self.asked: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        answer = self.hosts[request.url.host]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self) -> ClusterClient:
        return ClusterClient(",".join(f"http://{host}" for host in self.hosts), httpx2.MockTransport(self))


async def test_the_next_dispatcher_is_asked_and_remembered() -> None:
    """One refuses connections, one is not available: the third answers, and comes first from then on."""
    dispatchers = Dispatchers(
        a=httpx2.ConnectError("refused"),
        b=httpx2.Response(503, json={"errors": ["no leader"]}),
        c=httpx2.Response(200, json=LIST),
    )
    async with dispatchers.client() as client:
        assert (await client.jobs()).leader == "one"
        assert (await client.jobs()).leader == "one"
    assert [request.url.host for request in dispatchers.asked] == ["a", "b", "c", "c"]


async def test_a_request_sent_to_the_next_dispatcher_keeps_its_id() -> None:
    """The first one's answer was lost: whatever it did, the request is one."""
    asked = {"job": "1" * 32, "request": "2" * 32}
    dispatchers = Dispatchers(a=httpx2.ReadError("reset"), b=httpx2.Response(202, json=asked))
    async with dispatchers.client() as client:
        assert await client.cancel("counts") == Requested("1" * 32, "2" * 32)
    first, second = dispatchers.asked
    assert first.content == second.content
    assert b'"request":"' in first.content


async def test_when_nobody_answers_all_are_named() -> None:
    """One error with every address and its reason."""
    dispatchers = Dispatchers(
        a=httpx2.ConnectTimeout("slow"), b=httpx2.ReadTimeout("slow"), c=httpx2.Response(503, text="<html>")
    )
    async with dispatchers.client() as client:
        with pytest.raises(NoAnswerError) as raised:
            await client.overview()
    text = str(raised.value)
    assert "http://a: no dispatcher answers there" in text
    assert "http://b: the dispatcher does not answer in time" in text
    assert "http://c: HTTP 503" in text


class NotYet(Dispatchers):
    """Answers 503 until the request of that number."""

    def __init__(self, until: int, error: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(a=httpx2.Response(202, json={"job": "1" * 32, "request": "2" * 32}))
        self.until, self.error, self.headers = until, error, headers

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        answer = super().__call__(request)
        refused = httpx2.Response(503, json={"errors": [self.error]}, headers=self.headers)
        return answer if len(self.asked) >= self.until else refused


def leaderless(until: int) -> NotYet:
    """No coordinator leads until the request of that number."""
    return NotYet(until, f"{NO_COORDINATOR}; start one")


def busy(until: int) -> NotYet:
    """Others are submitting until the request of that number."""
    return NotYet(until, "8 submissions are being read", {"Retry-After": "2"})


SUBMISSION = Submission("counts", {}, ArtifactDescription("counts.py"))


def test_a_submission_waits_for_a_leader() -> None:
    """As just after a start; it is told once, and sent as one request."""
    dispatchers, told = leaderless(until=4), list[str]()

    async def submitted() -> Requested:
        async with dispatchers.client() as client:
            return await client.submit(SUBMISSION, b"", waiting=told.append)

    assert run_blocking(submitted(), VirtualLoop) == Requested("1" * 32, "2" * 32)
    assert told == ["no coordinator leads the cluster yet; waiting up to 30 s for one"]
    assert len(dispatchers.asked) == 4


def test_a_submission_does_not_wait_for_ever_nor_for_anything_else(capsys: pytest.CaptureFixture[str]) -> None:
    """Half a minute; other answers of 503 are told at once."""
    dispatchers = leaderless(until=1_000)

    async def submitted(to: Dispatchers) -> float:
        begun = asyncio.get_running_loop().time()
        async with to.client() as client:
            with pytest.raises(NoAnswerError):
                await client.submit(SUBMISSION, b"")
        return asyncio.get_running_loop().time() - begun

    assert 30 <= run_blocking(submitted(dispatchers), VirtualLoop) < 31
    assert capsys.readouterr().err.count("waiting up to 30 s") == 1
    away = Dispatchers(a=httpx2.Response(503, json={"errors": ["Kafka does not answer"]}))
    assert run_blocking(submitted(away), VirtualLoop) < 0.5
    assert len(away.asked) == 1


def test_a_dispatcher_that_is_busy_is_asked_again_when_it_says() -> None:
    """Half a minute at most."""

    async def submitted(to: Dispatchers) -> float:
        begun = asyncio.get_running_loop().time()
        async with to.client() as client:
            await client.submit(SUBMISSION, b"")
        return asyncio.get_running_loop().time() - begun

    assert 4 <= run_blocking(submitted(busy(until=3)), VirtualLoop) < 5
    with pytest.raises(NoAnswerError, match="8 submissions are being read"):
        run_blocking(submitted(busy(until=1_000)), VirtualLoop)


async def test_a_refusal_is_not_tried_elsewhere() -> None:
    """4xx is an answer."""
    dispatchers = Dispatchers(a=httpx2.Response(404, json={"errors": ["there is no job x"]}), b=httpx2.Response(200))
    async with dispatchers.client() as client:
        with pytest.raises(RefusedError, match="there is no job x") as raised:
            await client.job("x")
    assert raised.value.status == 404
    assert len(dispatchers.asked) == 1


async def test_answers_of_something_else_are_named() -> None:
    """Another service listens there."""
    async with Dispatchers(a=httpx2.Response(200, text="hello")).client() as client:
        with pytest.raises(CorruptDataError, match="no answer of a Penstock dispatcher"):
            await client.jobs()


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "?x"])
async def test_what_cannot_be_a_job_is_not_sent(name: str) -> None:
    """It would lead to another path."""
    dispatchers = Dispatchers(a=httpx2.Response(200, json=LIST))
    async with dispatchers.client() as client:
        with pytest.raises(UsageError, match="names no job"):
            await client.job(name)
    assert dispatchers.asked == []


@pytest.mark.parametrize("address", ["", "localhost:8081", " , ", "http://[::1", "http://host:port", "http://host\x00"])
def test_addresses_are_checked(address: str) -> None:
    """Before anything is asked."""
    with pytest.raises(UsageError):
        ClusterClient(address)
