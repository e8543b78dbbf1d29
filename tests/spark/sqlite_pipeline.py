"""From a table of SQLite to others, added and by key."""

from penstock import Pipeline, col, count, param
from penstock.connectors import sqlite

file = param("file", "")

p = Pipeline("shops")
sales = p.read(sqlite.Source(file, "sales", splits=3))
sales.filter(col("amount") > 5).write(sqlite.Sink(param("out", ""), "large"))
sales.key_by("shop").agg(sales=count(), total=col("amount").sum()).write(
    sqlite.Sink(param("out", ""), "totals", key="shop")
)
