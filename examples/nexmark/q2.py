"""Nexmark 2, selection: the bids for some auctions."""

from penstock import Pipeline, col, param
from penstock.connectors import files, generate, nexmark

p = Pipeline("nexmark-q2")

(
    p.read(generate.Source(nexmark.bids(columns=["auction", "price"]), rows=param("bids", 46_000)))
    .filter(col("auction") % 123 == 0)
    .select("auction", "price")
    .write(files.Sink(param("out", "out/q2"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
