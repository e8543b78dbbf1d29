"""Nexmark 6, average selling price by seller: beside every winning bid the mean of the seller's last ten."""

from winning import winners

from penstock import Pipeline, col, param
from penstock.connectors import files

p = Pipeline("nexmark-q6")

(
    winners(p)
    .key_by("seller")
    .over(rows=10)
    .with_columns(mean_price=col("price").mean())
    .select("seller", "auction", "mean_price")
    .write(files.Sink(param("out", "out/q6"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
