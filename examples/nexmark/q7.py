"""Nexmark 7, highest bid: the bids with the highest price of every ten seconds.

The largest price of each bidder comes first, so that not all bids have to meet in one subtask; then a window's bidders
are compared as in query 5.
"""

from penstock import Pipeline, col, param, tumbling
from penstock.connectors import files, generate, nexmark

p = Pipeline("nexmark-q7")

bids = nexmark.bids(columns=["auction", "bidder", "price", "at"], interval=param("interval", "10ms"))
(
    p.read(generate.Source(bids, rows=param("bids", 4_600)))
    .key_by("bidder")
    .window(tumbling("10s"))
    .agg(price=col("price").max(), auction=col("auction").max_by("price"), bid_at=col("at").max_by("price"))
    .key_by("window_start")
    .over(within="0s")
    .with_columns(highest=col("price").max())
    .filter(col("price") == col("highest"))
    .select("auction", "bidder", "price", "bid_at", "window_end")
    .write(files.Sink(param("out", "out/q7"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
