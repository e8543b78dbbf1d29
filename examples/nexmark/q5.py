"""Nexmark 5, hot items: which auctions had the most bids in the last ten seconds, every two seconds."""

from penstock import Pipeline, col, count, param, sliding
from penstock.connectors import files, generate, nexmark

p = Pipeline("nexmark-q5")

bids = nexmark.bids(columns=["auction", "at"], interval=param("interval", "10ms"))
(
    p.read(generate.Source(bids, rows=param("bids", 4_600)))
    .key_by("auction")
    .window(sliding("10s", every="2s"))
    .agg(bids=count())
    # All results of a window have one event time, so the rows at most 0 s older are all of the window.
    .key_by("window_start")
    .over(within="0s")
    .with_columns(most=col("bids").max())
    .filter(col("bids") == col("most"))
    .select("auction", "bids", "window_start", "window_end")
    .write(files.Sink(param("out", "out/q5"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
