"""Nexmark 4, average price for a category: the mean of the winning bids of its auctions."""

from winning import winners

from penstock import Pipeline, col, param
from penstock.connectors import files

p = Pipeline("nexmark-q4")

(
    winners(p)
    .key_by("category")
    .agg(mean_price=col("price").mean())
    .final()
    .write(files.Sink(param("out", "out/q4"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
