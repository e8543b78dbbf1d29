"""Nexmark 8, monitor new users: who registered and put something up for sale in the same ten seconds.

Persons and auctions become one stream, keyed by the person: a window with both is a result.
"""

from penstock import Pipeline, col, count_if, lit, param, tumbling
from penstock.connectors import files, generate, nexmark

p = Pipeline("nexmark-q8")

interval = param("interval", "10ms")
people = p.read(generate.Source(nexmark.people(interval=interval), rows=param("people", 100)))
auctions = p.read(generate.Source(nexmark.auctions(interval=interval), rows=param("auctions", 300)))
(
    people.select("id", "name", registers=lit(True))
    .union(auctions.select(id="seller", name=lit(None).cast(str), registers=lit(False)))
    .key_by("id")
    .window(tumbling("10s"))
    .agg(name=col("name").max(), registered=count_if(col("registers")), sales=count_if(~col("registers")))
    .filter(col("registered") > 0, col("sales") > 0)
    .select("id", "name", "window_start")
    .write(files.Sink(param("out", "out/q8"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
