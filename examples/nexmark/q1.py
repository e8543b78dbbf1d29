"""Nexmark 1, currency conversion: the price of every bid in euros, of 0.908 to the dollar."""

from penstock import Pipeline, col, param
from penstock.connectors import files, generate, nexmark

p = Pipeline("nexmark-q1")

p.read(generate.Source(nexmark.bids(), rows=param("bids", 46_000))).select(
    "auction", "bidder", "at", "extra", price=col("price") * 0.908
).write(files.Sink(param("out", "out/q1"), existing="replace"))

if __name__ == "__main__":
    p.run()
