"""Python functions that SQL calls: row by row, wherever an expression may stand, with types from annotations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Accumulator, Pipeline
from penstock.api.stream import Stream
from penstock.api.update_streams import UpsertStream
from penstock.connectors import iterables
from penstock.embedded import EmbeddedSettings, run_pipeline
from penstock.errors import PipelineError, UserCodeError
from penstock.loading import load_pipeline

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Bid:
    auction: int
    price: float
    at: datetime
    who: str | None


BIDS = [Bid(n % 3, float(n), START + timedelta(minutes=n), None if n % 4 == 0 else f"u{n % 5}") for n in range(20)]


def taxed(price: float, rate: float = 1.5) -> float:
    return price * rate


def shouted(who: str | None) -> str | None:
    return None if who is None else who.upper()


def later(at: datetime) -> datetime:
    return at + timedelta(hours=1)


def rows(text: str, **functions: Callable[..., Any] | Accumulator[Any, Any]) -> list[tuple[Any, ...]]:
    pipeline = Pipeline("functions")
    bids = pipeline.read(iterables.Source(BIDS, event_time="at"))
    found: Stream[Any] | UpsertStream = pipeline.sql(text, bids=bids, **functions)
    return sorted((found.final() if isinstance(found, UpsertStream) else found).collect().rows(), key=str)


def test_a_function_is_called_wherever_an_expression_may_stand() -> None:
    assert rows("SELECT taxed(price) FROM bids WHERE taxed(price, 2.0) > 30", taxed=taxed) == sorted(
        [(b.price * 1.5,) for b in BIDS if b.price * 2 > 30], key=str
    )
    assert rows("SELECT later(at) FROM bids WHERE price = 3", later=later) == [(START + timedelta(minutes=63),)]
    assert rows("SELECT DISTINCT shouted(who) FROM bids", shouted=shouted) == sorted(
        {(shouted(b.who),) for b in BIDS}, key=str
    )
    best = sorted(BIDS, key=lambda bid: -taxed(bid.price))[:2]
    assert rows("SELECT price FROM bids ORDER BY taxed(price) DESC LIMIT 2", taxed=taxed) == sorted(
        [(b.price,) for b in best], key=str
    )


def test_a_function_of_groups_and_one_within_another() -> None:
    text = "SELECT shouted(who) AS w, SUM(taxed(taxed(price))), taxed(SUM(price)) FROM bids GROUP BY shouted(who)"
    groups = {shouted(bid.who): 0.0 for bid in BIDS}
    for bid in BIDS:
        groups[shouted(bid.who)] += bid.price
    assert rows(text, taxed=taxed, shouted=shouted) == sorted(
        [(who, total * 2.25, total * 1.5) for who, total in groups.items()], key=str
    )


@pytest.mark.parametrize("kind", ["", "LEFT", "FULL"])
def test_a_function_stands_in_conditions_of_joins(kind: str) -> None:
    """Of the columns of one side; with INNER JOIN also of both."""
    text = (
        f"SELECT a.price, b.price FROM (SELECT * FROM bids WHERE price < 9) AS a {kind} JOIN bids AS b "
        "ON taxed(a.price) = taxed(b.price, 0.75) AND taxed(b.price) < 20"
    )
    pairs = [(a.price, b.price) for a in BIDS[:9] for b in BIDS if a.price * 2 == b.price and b.price * 1.5 < 20]
    if kind:
        pairs += [(a.price, None) for a in BIDS[:9] if a.price not in {a for a, _ in pairs}]
    if kind == "FULL":
        pairs += [(None, b.price) for b in BIDS if b.price not in {b for _, b in pairs}]
    assert rows(text, taxed=taxed) == sorted(pairs, key=str)
    if not kind:
        both = "SELECT a.price, b.price FROM bids AS a JOIN bids AS b ON taxed(a.price, b.price) = 12"
        assert rows(both, taxed=taxed) == sorted(
            [(a.price, b.price) for a in BIDS for b in BIDS if a.price * b.price == 12], key=str
        )


def test_a_function_of_changes_takes_back_what_it_gave() -> None:
    text = """
    SELECT taxed(total) FROM (SELECT auction, SUM(price) AS total FROM bids GROUP BY auction) WHERE taxed(total) > 90
    """
    totals = [sum(b.price for b in BIDS if b.auction == each) for each in range(3)]
    assert rows(text, taxed=taxed) == sorted([(t * 1.5,) for t in totals if t * 1.5 > 90], key=str)


def test_results_of_windows_stay_final() -> None:
    pipeline = Pipeline("functions")
    bids = pipeline.read(iterables.Source(BIDS, event_time="at"))
    text = """
    SELECT window_start, taxed(MAX(price)) FROM TUMBLE(TABLE bids, DESCRIPTOR(at), INTERVAL '10' MINUTE)
    WHERE taxed(price) > 0 GROUP BY window_start, window_end
    """
    found = pipeline.sql(text, bids=bids, taxed=taxed)
    assert isinstance(found, Stream)
    assert [price for _, price in sorted(found.collect().rows())] == [13.5, 28.5]


def untyped(price):  # pyright: ignore
    return price


async def awaited(price: float) -> float:
    return price


def spread(*prices: float) -> float:
    return sum(prices)


@pytest.mark.parametrize(
    ("text", "function", "reason"),
    [
        ("SELECT f(who) FROM bids", taxed, "price of F is DOUBLE, and this is STRING"),
        ("SELECT f() FROM bids", taxed, "F takes 1 to 2 arguments, not 0: F.price DOUBLE, rate DOUBLE"),
        ("SELECT f(DISTINCT price) FROM bids", taxed, "function of one row"),
        ("SELECT a.price FROM bids a LEFT JOIN bids b ON f(a.price, b.price) > 1", taxed, "cannot stand here"),
        ("SELECT f(CASE WHEN price > 1 THEN price END) FROM bids", taxed, "may be NULL"),
        ("SELECT f(price) FROM bids", untyped, "price has no annotation"),
        ("SELECT f(price) FROM bids", awaited, "async"),
        ("SELECT f(price) FROM bids", spread, "by their place"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(PipelineError, match=reason):
        rows(text, f=function)


def test_a_name_of_sql_is_not_for_a_function() -> None:
    with pytest.raises(PipelineError, match="SQL has a function UPPER"):
        rows("SELECT upper(who) FROM bids", upper=shouted)
    with pytest.raises(PipelineError, match="takes a stream"):
        rows("SELECT 1", limit=7)  # pyright: ignore[reportArgumentType]


def wrong(price: float) -> int:
    return "x"  # pyright: ignore[reportReturnType]


def nothing(price: float) -> int:
    return None  # pyright: ignore[reportReturnType]


def failing(price: float) -> int:
    raise ValueError(f"no {price}")


@pytest.mark.parametrize(
    ("function", "reason"),
    [(wrong, "returned what is no int64"), (nothing, "returned None"), (failing, r"raised ValueError: no 0.0; on 0.0")],
)
def test_a_function_that_fails_is_named_with_its_values(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(UserCodeError, match=reason):
        rows("SELECT f(price) FROM bids", f=function)


# -- functions that give rows ------------------------------------------------------------------------------------------


@dataclass
class Letter:
    letter: str
    place: int


def letters(text: str | None) -> Iterator[Letter] | None:
    return None if text is None else (Letter(letter, place) for place, letter in enumerate(text))


def halves(price: float, times: int = 2) -> list[float]:
    return [price / times] * times


def stopping(price: float) -> Iterator[float]:
    yield price
    raise ValueError("no more")


@pytest.mark.parametrize(
    "tables",
    ["bids CROSS JOIN LATERAL TABLE(letters(who)) AS l (letter, place)", "bids, LATERAL TABLE(letters(who))",
     "bids, TABLE(letters(who)) AS l", "bids, letters(who)", "bids CROSS JOIN UNNEST(letters(who)) AS l (letter, place)"],
)  # fmt: skip
def test_a_function_gives_rows_in_from(tables: str) -> None:
    found = rows(f"SELECT price, letter, place FROM {tables} WHERE place > 0", letters=letters)
    assert found == sorted([(b.price, b.who[1], 1) for b in BIDS if b.who is not None], key=str)


def test_rows_of_functions_are_joined_as_those_of_unnest() -> None:
    kept = rows("SELECT price, letter FROM bids LEFT JOIN LATERAL TABLE(letters(who)) AS l ON TRUE", letters=letters)
    assert kept == sorted(
        [(b.price, letter) for b in BIDS for letter in (b.who or [None])],  # type: ignore[list-item]
        key=str,
    )
    assert rows("SELECT SUM(half) AS s FROM bids, halves(price, 4) AS h (half)", halves=halves) == [(190.0,)]
    assert rows("SELECT half FROM TABLE(halves(3)) AS h (half)", halves=halves) == [(1.5,), (1.5,)]
    chained = "SELECT COUNT(*) AS n FROM bids, halves(price) AS h (half), halves(COALESCE(half, 0)) AS g (quarter)"
    assert rows(chained, halves=halves) == [(80,)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT 1 AS one FROM bids, f(price)", "F gives DOUBLE, and a function in FROM gives rows; annotate"),
        (
            "SELECT 1 AS one FROM bids RIGHT JOIN LATERAL TABLE(letters(who)) AS l ON TRUE",
            "joined by CROSS JOIN or LEFT",
        ),
        ("SELECT price FROM bids, letters(price)", "text of LETTERS is STRING, and this is DOUBLE; CAST it"),
        ("SELECT price FROM bids, letters()", "LETTERS takes 1 arguments, not 0"),
        ("SELECT price FROM bids, letters(who) AS l (a, b, c)", "3 names are given, and there are 2"),
        (
            "SELECT letter FROM (SELECT auction, MAX(who) AS w FROM bids GROUP BY auction), letters(w)",
            "before grouping",
        ),
    ],
)
def test_functions_that_give_no_rows_are_refused_in_from(text: str, reason: str) -> None:
    with pytest.raises(PipelineError, match=reason):
        rows(text, f=taxed, letters=letters)


def test_a_function_that_fails_behind_some_rows_is_named() -> None:
    with pytest.raises(UserCodeError, match=r"stopping.* raised ValueError: no more; on 0.0"):
        rows("SELECT x FROM bids, stopping(price) AS s (x)", stopping=stopping)


# -- aggregates --------------------------------------------------------------------------------------------------------


class Longest(Accumulator[str, str | None]):
    """The longest text, the first of equal ones by the alphabet, of at most so many letters."""

    accumulator_type = str

    def create(self) -> str:
        return ""

    def add(self, accumulator: str, text: str, most: int) -> str:
        return self.merge(accumulator, text[:most])

    def merge(self, left: str, right: str) -> str:
        return min(left, right, key=lambda text: (-len(text), text))

    def result(self, accumulator: str) -> str | None:
        return accumulator or None


class Nulls(Accumulator[int, int]):
    accumulator_type = int

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, value: str | None) -> int:
        return accumulator + (value is None)

    def merge(self, left: int, right: int) -> int:
        return left + right

    def result(self, accumulator: int) -> int:
        return accumulator


def longest(bids: Iterable[Bid], most: int) -> str | None:
    texts = [bid.who[:most] for bid in bids if bid.who is not None]
    return min(texts, key=lambda text: (-len(text), text), default=None)


class Counting(Nulls):
    """What rows that may be retracted have come to."""

    def retract(self, accumulator: int, value: str | None) -> int:
        return accumulator - (value is None)


def test_an_accumulator_with_retract_is_an_aggregate_of_updates() -> None:
    of_newest = (
        "SELECT auction, nulls(who) AS n FROM (SELECT who, auction, MAX(price) AS p FROM bids GROUP BY who, auction) "
        "GROUP BY auction"
    )
    expected = [(auction, int(any(b.who is None for b in BIDS if b.auction == auction))) for auction in range(3)]
    assert rows(of_newest, nulls=Counting) == expected
    with pytest.raises(
        PipelineError, match="Nulls does not say how one is taken away; give the class a method `def retract"
    ):
        rows(of_newest, nulls=Nulls)


def test_an_accumulator_is_an_aggregate() -> None:
    of_keys = "SELECT auction, longest(who, 2) AS l, nulls(who) AS n FROM bids GROUP BY auction HAVING nulls(who) > 1"
    groups = [[bid for bid in BIDS if bid.auction == auction] for auction in range(3)]
    expected = [(auction, longest(bids, 2), sum(b.who is None for b in bids)) for auction, bids in enumerate(groups)]
    assert rows(of_keys, longest=Longest(), nulls=Nulls) == [row for row in expected if row[2] > 1]
    late = [bid for bid in BIDS if bid.price > 7]
    of_all = "SELECT longest(who, 1) FILTER (WHERE price > 7) || '!' AS l, nulls(who) AS n FROM bids"
    assert rows(of_all, longest=Longest, nulls=Nulls) == [(f"{longest(late, 1)}!", 5)]
    of_none = "SELECT longest(who, 1) AS l, nulls(who) AS n, nulls(NULL) AS m FROM bids WHERE price > 99"
    assert rows(of_none, longest=Longest, nulls=Nulls) == [(None, 0, 0)]


def test_accumulators_of_windows_subqueries_and_rows_so_far() -> None:
    windows = """
    SELECT window_start, nulls(who) AS n FROM TUMBLE(TABLE bids, DESCRIPTOR(at), INTERVAL '10' MINUTE)
    GROUP BY window_start, window_end
    """
    assert rows(windows, nulls=Nulls) == [(START, 3), (START + timedelta(minutes=10), 2)]
    within = "SELECT price FROM bids WHERE price = (SELECT nulls(who) FROM bids)"
    assert rows(within, nulls=Nulls) == [(5.0,)]
    view = "WITH v AS (SELECT auction, nulls(who) AS n FROM bids GROUP BY auction) SELECT MAX(n) AS m FROM v"
    assert rows(view, nulls=Nulls) == [(2,)]
    so_far = "SELECT price, nulls(who) OVER (ORDER BY at) AS n FROM bids"
    assert rows(so_far, nulls=Nulls) == sorted(
        [(b.price, sum(o.who is None for o in BIDS[: place + 1])) for place, b in enumerate(BIDS)], key=str
    )


class Untyped(Nulls):
    def add(self, accumulator, value):  # type: ignore[no-untyped-def] # pyright: ignore
        return accumulator


class Asking(Nulls):
    def __init__(self, needed: int) -> None: ...


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT longest(who) FROM bids", r"LONGEST takes 2 arguments, not 1: LONGEST\(text STRING, most BIGINT\)"),
        ("SELECT longest(DISTINCT who, 1) FROM bids", r"LONGEST\(DISTINCT ...\) is not supported"),
        ("SELECT longest(price, 1) FROM bids", "text of LONGEST is STRING, and this is DOUBLE; CAST it"),
        ("SELECT price FROM bids WHERE nulls(who) > 1", "an aggregate cannot stand in WHERE"),
        ("SELECT nulls(longest(who, 1)) FROM bids", "an aggregate cannot stand within another one"),
        (
            "SELECT nulls(x) FROM (SELECT auction, MAX(who) AS x FROM bids GROUP BY auction)",
            "does not say how one is taken away",
        ),
    ],
)
def test_aggregates_that_do_not_fit_are_refused(text: str, reason: str) -> None:
    with pytest.raises(PipelineError, match=reason):
        rows(text, longest=Longest, nulls=Nulls)


@pytest.mark.parametrize(
    ("aggregate", "reason"), [(Untyped, "value of add has no annotation"), (Asking, "made without arguments")]
)
def test_accumulators_that_sql_cannot_use_are_refused(aggregate: Any, reason: str) -> None:
    with pytest.raises(PipelineError, match=reason):
        rows("SELECT f(who) FROM bids", f=aggregate)


def test_a_file_names_functions_of_the_modules_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "priced_by_sql.py").write_text("def taxed(price: float) -> float:\n    return price * 2\n")
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"price": n}) + "\n" for n in range(3)))
    (tmp_path / "job.sql").write_text(
        "CREATE FUNCTION gross AS 'priced_by_sql.taxed' LANGUAGE PYTHON;\n"
        "CREATE TABLE out (gross DOUBLE) WITH ('connector' = 'filesystem', 'path' = 'out', 'format' = 'json');\n"
        "INSERT INTO out SELECT gross(price) FROM read_jsonl('in.jsonl') WHERE price IS NOT NULL;"
    )
    with pytest.raises(PipelineError, match="may be NULL"):
        load_pipeline("job.sql", {})
    text = (tmp_path / "job.sql").read_text().replace("gross(price)", "gross(COALESCE(price, 0))")
    (tmp_path / "job.sql").write_text(text)
    run_pipeline(load_pipeline("job.sql", {}), EmbeddedSettings(durable=False), directory=None, resume=False)
    lines = [line for part in (tmp_path / "out").glob("part-*") for line in part.read_text().splitlines()]
    assert sorted(json.loads(line)["gross"] for line in lines) == [0.0, 2.0, 4.0]
