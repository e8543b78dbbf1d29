"""Nexmark 0, pass through: every bid as it is. It shows what reading and writing cost alone."""

from penstock import Pipeline, param
from penstock.connectors import files, generate, nexmark

p = Pipeline("nexmark-q0")

p.read(generate.Source(nexmark.bids(), rows=param("bids", 46_000))).select(
    "auction", "bidder", "price", "at", "extra"
).write(files.Sink(param("out", "out/q0"), existing="replace"))

if __name__ == "__main__":
    p.run()
