"""Python functions that SQL calls: row by row, wherever an expression may stand, with types from annotations."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Pipeline
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


def rows(text: str, **functions: Callable[..., Any]) -> list[tuple[Any, ...]]:
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
        ("SELECT a.price FROM bids a JOIN bids b ON f(a.price) = b.price", taxed, "cannot stand here"),
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
