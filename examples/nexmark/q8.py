"""Nexmark 8, monitor new users: who registered and put something up for sale in the same ten seconds."""

from penstock import Pipeline, col, param, tumbling
from penstock.connectors import files, generate, nexmark

p = Pipeline("nexmark-q8")

interval = param("interval", "10ms")
people = p.read(generate.Source(nexmark.people(interval=interval), rows=param("people", 100)))
auctions = p.read(generate.Source(nexmark.auctions(interval=interval), rows=param("auctions", 300)))
(
    people.join(auctions, on={"id": "seller"}, window=tumbling("10s"), how="semi")
    .select("id", "name", window_start=col("at").dt.truncate("10s"))
    .write(files.Sink(param("out", "out/q8"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
