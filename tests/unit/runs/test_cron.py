"""Times of cron expressions, above all where clocks change."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.times import from_micros, to_micros
from penstock.errors import UsageError
from penstock.runs.cron import Cron

BERLIN = "Europe/Berlin"


def us(text: str) -> int:
    """Of a moment in UTC."""
    return to_micros(datetime.fromisoformat(text).replace(tzinfo=UTC))


def times(cron: Cron, after: str, count: int) -> list[str]:
    """The times that follow, in UTC."""
    found: list[str] = []
    moment: int | None = us(after)
    for _ in range(count):
        assert moment is not None
        moment = cron.next_after(moment)
        assert moment is not None
        found.append(from_micros(moment).strftime("%m-%d %H:%M"))
    return found


def test_every_night_by_the_clock_on_the_wall() -> None:
    """Half past two is left out when summer begins: then it is three. When it ends it comes twice: the first counts."""
    nightly = Cron("30 2 * * *", BERLIN)
    assert times(nightly, "2026-03-27T12:00", 3) == ["03-28 01:30", "03-29 01:00", "03-30 00:30"]
    assert times(nightly, "2026-10-23T12:00", 4) == ["10-24 00:30", "10-25 00:30", "10-26 01:30", "10-27 01:30"]


def test_between_the_two_hours_of_the_same_name_time_goes_on() -> None:
    """Asked in the second one, the time of the first is over."""
    assert times(Cron("30 2 * * *", BERLIN), "2026-10-25T01:10", 1) == ["10-26 01:30"]


def test_every_hour_goes_by_real_hours() -> None:
    """None is left out and none comes twice."""
    hourly = Cron("0 * * * *", BERLIN)
    assert times(hourly, "2026-10-24T23:30", 4) == ["10-25 00:00", "10-25 01:00", "10-25 02:00", "10-25 03:00"]
    assert times(hourly, "2026-03-28T23:30", 3) == ["03-29 00:00", "03-29 01:00", "03-29 02:00"]


def test_the_time_at_or_before_a_moment() -> None:
    """Also where clocks change, where times are far apart, and at such a time itself."""
    nightly = Cron("30 2 * * *", BERLIN)
    for moment, expected in (
        ("2026-03-29T00:59", "2026-03-28T01:30"),
        ("2026-03-29T01:00", "2026-03-29T01:00"),
        ("2026-10-25T01:10", "2026-10-25T00:30"),
        ("2026-10-25T00:29", "2026-10-24T00:30"),
    ):
        assert nightly.at_or_before(us(moment)) == us(expected)
    assert Cron("0 0 29 2 *", "UTC").at_or_before(us("2026-11-22")) == us("2024-02-29")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("61 * * * *", "minute '61' is none"),
        ("0 24 * * *", "hour '24' is none"),
        ("0 2 0 * *", "day-of-month '0' is none"),
        ("0 2 30 FEB *", "day-of-month '30' is none"),
        ("0 2 * 13 *", "month '13' is none"),
        ("0 2 * * XXX", "day-of-week 'XXX' is none"),
        ("*/0 * * * *", "minute '\\*/0' is none"),
        ("0 0 2 * * *", "it has 6 fields, not 5"),
        ("@daily", "it has 1 fields, not 5"),
        ("", "it has 0 fields, not 5"),
        ("* * */20 * 1L", "no day is ever like that"),
    ],
)
def test_what_is_no_expression_is_refused(expression: str, message: str) -> None:
    """The field is named."""
    with pytest.raises(UsageError, match=message):
        Cron(expression, "UTC")


def test_a_zone_that_there_is_not_is_refused() -> None:
    """Names that would be paths are none either."""
    for name in ("Europe/Atlantis", "../etc/passwd", ""):
        with pytest.raises(UsageError, match="there is no time zone"):
            Cron("0 2 * * *", name)


FIELD = st.text(alphabet="0123456789*/,-#LW MONJAN", max_size=7)


@given(st.lists(FIELD, min_size=5, max_size=5))
def test_whatever_is_written_is_an_expression_or_refused(fields: list[str]) -> None:
    """Nothing else is raised."""
    try:
        cron = Cron(" ".join(fields), "UTC")
    except UsageError:
        return
    assert cron.next_after(us("2026-11-22")) is not None


@given(
    st.sampled_from([BERLIN, "Australia/Lord_Howe", "America/St_Johns", "Pacific/Apia", "Africa/Casablanca", "UTC"]),
    st.sampled_from(
        ["30 2 * * *", "0 2,3 * * *", "*/15 2 * * *", "0 * * * *", "15,45 1-3 * * *", "0 0 * * 1-5", "0 */2 * * *"]
    ),
    st.integers(us("2010-01-01"), us("2030-01-01")),
)
def test_times_rise_and_do_not_depend_on_where_one_begins(timezone: str, expression: str, moment: int) -> None:
    """The next one after any moment between two is the second of them; going back gives the first."""
    cron = Cron(expression, timezone)
    first = cron.at_or_after(moment)
    assert first is not None
    assert first >= moment
    for _ in range(40):
        following = cron.next_after(first)
        assert following is not None
        assert following > first
        between = first + (following - first) // 2
        assert cron.next_after(between) == following, from_micros(between).astimezone(ZoneInfo(timezone))
        assert cron.at_or_before(between) == first
        assert cron.at_or_before(first) == first
        first = following


def test_those_that_come_once_a_day() -> None:
    """Minute and hour are numbers."""
    assert Cron("0 2 * * *", "UTC").once_a_day
    assert not any(Cron(text, "UTC").once_a_day for text in ("* 2 * * *", "0 2,3 * * *", "0 */6 * * *"))
