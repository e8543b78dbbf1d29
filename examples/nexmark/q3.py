"""Nexmark 3, local items: who sells things of category 10 in Oregon, Idaho or California.

A join by key alone, of two streams of rows: nothing can be taken back, so its results are rows as well. As in the query,
nothing is ever forgotten; `ttl=` would bound what is kept.
"""

from penstock import Pipeline, col, param
from penstock.connectors import files, generate, nexmark

p = Pipeline("nexmark-q3")

people = p.read(generate.Source(nexmark.people(), rows=param("people", 1_000)))
auctions = p.read(generate.Source(nexmark.auctions(), rows=param("auctions", 3_000)))
(
    auctions.filter(col("category") == 10)
    .select("seller", auction="id")
    .join(people.filter(col("state").is_in(["OR", "ID", "CA"])), on={"seller": "id"})
    .select("name", "city", "state", "auction")
    .write(files.Sink(param("out", "out/q3"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
