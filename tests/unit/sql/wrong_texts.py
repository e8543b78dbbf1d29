"""Texts that are wrong, and what is said of them: `wrong_texts.txt` has each text behind `# `, and the message below.

`python tests/unit/sql/wrong_texts.py` writes the messages anew; read the difference before it is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from penstock import Pipeline
from penstock.connectors import iterables
from penstock.errors import PenstockError
from penstock.sql.parsing import statements
from penstock.sql.programs import Program, Session
from penstock.sql.text import SqlText

FILE = Path(__file__).with_suffix(".txt")


@dataclass
class Bid:
    auction: int
    price: float
    at: datetime
    tags: list[str]
    who: str | None


@dataclass
class Auction:
    id: int
    item: str
    seller: str | None


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def message(text: str) -> str:
    """What is said of a text over streams `bids`, which has event time, and `auctions`, which has none."""
    pipeline = Pipeline("wrong")
    bids = pipeline.read(iterables.Source([Bid(1, 2.0, NOW, [], None)], event_time="at"))
    auctions = pipeline.read(iterables.Source([Auction(1, "x", None)]))
    streams = {"bids": bids._rows, "auctions": auctions._rows}
    try:
        whole = SqlText(text)
        assert Program.of(whole).settings.state_ttl_us is None
        session = Session(pipeline.plan, streams)
        for part in statements(whole):
            session.execute(whole, part, lambda rows: None)
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def entries() -> Iterator[tuple[str, str]]:
    """Every text and its message."""
    for entry in FILE.read_text(encoding="utf-8").split("\n\n"):
        head, _, body = entry.strip("\n").partition("\n")
        if head.startswith("# "):
            yield head.removeprefix("# "), body


def main() -> None:
    texts = [text for text, _ in entries()]
    FILE.write_text("\n\n".join(f"# {text}\n{message(text)}" for text in dict.fromkeys(texts)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
