"""Tables whose changes stand in topics: their rows, and aggregates of them, as files."""

from __future__ import annotations

from dataclasses import dataclass

from penstock import Pipeline, col, count, param
from penstock.connectors import files, kafka

BROKERS = param("brokers", "localhost:9092")
OUT = param("out", "out")


@dataclass
class Account:
    account: str
    town: str
    balance: int


p = Pipeline("tables")
upserts = kafka.ChangeSource(param("upserts", "a"), key="account", schema=Account, end="latest", brokers=BROKERS)
keyed = kafka.ChangeSource(
    param("keyed", "b"), key="account", schema=Account, format="debezium", end="latest", brokers=BROKERS
)
whole = kafka.ChangeSource(
    param("events", "c"), key="account", schema=Account, format="debezium", before_images=True, end="latest",
    brokers=BROKERS,
)  # fmt: skip
for name, source in (("upserts", upserts), ("keyed", keyed), ("whole", whole)):
    accounts = p.read(source)
    accounts.final().write(files.Sink(f"{OUT}/{name}"))
    totals = accounts.key_by("town").agg(n=count(), most=col("balance").max())
    totals.final().write(files.Sink(f"{OUT}/{name}-towns"))
    totals.write(
        kafka.Sink(f"{param('sink', 'x')}-{name}", key="town", format="debezium", brokers=BROKERS, create_partitions=2)
    )
