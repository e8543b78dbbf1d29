"""What the doctor makes of what it sees; that it sees right on real servers is tested in tests/platform."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import ExternalError
from penstock.platform import doctor_checks
from penstock.platform.doctor_checks import CheckFailedError, Checks, Finding, skew_finding
from penstock.platform.doctor_kafka import broker_problems, copy_problems
from penstock.settings import KafkaSettings

FIT: dict[str, str | None] = {
    "transaction.max.timeout.ms": "900000",
    "offsets.retention.minutes": "10080",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "offsets.topic.replication.factor": "3",
    "unclean.leader.election.enable": "false",
}


async def failing(error: Exception) -> str:
    """A check that fails so."""
    raise error


async def test_a_check_that_passes_tells_what_it_saw() -> None:
    """And what to do is left out."""
    checks = Checks("kafka")

    async def work() -> str:
        return "three brokers"

    assert await checks.run("reached", work(), "start it")
    assert checks.findings == [Finding("kafka", "reached", ok=True, detail="three brokers")]


async def test_a_check_that_fails_tells_why_and_what_to_do() -> None:
    """One line of the reason; an error of ours has its advice in itself."""
    checks = Checks("store")
    assert not await checks.run("one", failing(CheckFailedError("seen\nat length")), "do this")
    assert not await checks.run("two", failing(ExternalError("seen; do that")), "do this")
    assert not await checks.run("three", failing(ValueError()), "do this")
    assert [(f.detail, f.advice) for f in checks.findings] == [
        ("seen", "do this"),
        ("seen; do that", ""),
        ("ValueError", "do this"),
    ]


async def test_a_check_that_hangs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer is no reason to wait for ever."""
    monkeypatch.setattr(doctor_checks, "DEADLINE_S", 0.01)
    checks = Checks("redis")

    async def work() -> str:
        await asyncio.Event().wait()
        return "never"

    assert not await checks.run("reached", work(), "look")
    assert checks.findings[0].detail == "no answer within 0 s"


def test_a_clock_between_before_and_after_is_right() -> None:
    """The time that the answer took is nobody's fault."""
    assert skew_finding(15.0, 10.0, 20.0) == "within 1 s of ours"
    assert skew_finding(25.0, 10.0, 20.0) == "within 5 s of ours"
    with pytest.raises(CheckFailedError, match="its clock is 40 s ahead of ours"):
        skew_finding(60.0, 10.0, 20.0)
    with pytest.raises(CheckFailedError, match="its clock is 60 s behind ours"):
        skew_finding(40.0, 100.0, 110.0)


def test_fit_settings_are_fit() -> None:
    """Also if the broker does not tell all of them."""
    assert broker_problems(FIT, 3) == []
    assert broker_problems({}, 3) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("transaction.max.timeout.ms", "10000", "at least 60000"),
        ("offsets.retention.minutes", "60", "at least 2880"),
        ("transaction.state.log.replication.factor", "1", "at least 3"),
        ("transaction.state.log.min.isr", "1", "at least 2"),
        ("offsets.topic.replication.factor", "1", "at least 3"),
        ("unclean.leader.election.enable", "true", "set it false"),
    ],
)
def test_a_setting_that_loses_data_is_named(name: str, value: str, message: str) -> None:
    """With what it should be."""
    (problem,) = broker_problems({**FIT, name: value}, 3)
    assert name in problem
    assert message in problem


@pytest.mark.parametrize(("brokers", "copies"), [(1, 1), (2, 2), (3, 3), (7, 3)])
def test_as_many_copies_as_there_are_brokers_up_to_three_are_fit(brokers: int, copies: int) -> None:
    """By themselves, or because it is said."""
    assert KafkaSettings().copies(brokers) == copies
    assert KafkaSettings(replication=5).copies(brokers) == 5
    for settings in (KafkaSettings(), KafkaSettings(replication=copies)):
        assert copy_problems(settings, brokers, {"penstock.local.commands": copies}) == []


def test_fewer_copies_than_the_brokers_allow_are_found() -> None:
    """In the settings, and of topics that were made when there were fewer brokers."""
    [problem] = copy_problems(KafkaSettings(replication=1), 3, {})
    assert "kafka.replication is 1, brokers: 3" in problem
    [problem] = copy_problems(
        KafkaSettings(), 3, {f"penstock.local.{n}": 1 for n in range(9)} | {"penstock.local.x": 3}
    )
    assert problem.startswith("topics with fewer than 3 copies: penstock.local.0 (1), penstock.local.1 (1), ")
    assert problem.endswith(" and 4 more")
