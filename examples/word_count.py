"""Word count: how often each word stands in the names of 3,376 American airports."""

from dataclasses import dataclass
from pathlib import Path

from penstock import Pipeline, col, count, param
from penstock.connectors import files

DATA = Path(__file__).parent / "data" / "airports.csv"


@dataclass
class Airport:
    name: str


p = Pipeline("word-count")

(
    p.read(files.Source(DATA, schema=Airport))
    .select(word=col("name").str.to_lowercase().str.extract_all("[a-z]+"))
    .explode("word")
    .filter(col("word").is_not_null())
    .key_by("word")
    .agg(times=count())
    .final()  # each word once, when the input has ended; without it every batch sends the counts so far
    .write(files.Sink(param("out", "out/word_count"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
