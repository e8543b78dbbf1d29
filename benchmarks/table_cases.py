"""Joins, streams of changes and state beyond memory, beside DuckDB and Polars on the same rows.

Streams of changes are compared by what holds in the end: their operator is followed by `final`, whose cost counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cases import Bid, Case, Peer, keep_sums, sums_in, write_arrow
from benchmarks.sinks import CountingSink, sums_of
from penstock import KeyedContext, KeyedProcess, ValueState, col, count
from penstock.connectors import files, generate, nexmark
from penstock.types import Field, Schema

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

KEYS = 10_000
INTERVAL = "100us"
"""Between two events of a side: a key has one a second."""


@dataclass
class Ask:
    """What somebody wants for an auction: the other side of joins."""

    auction: int
    ask: int
    at: datetime


# -- inputs and peers ---------------------------------------------------------------------------------------------------


def _write_sides(folder: Path, rows: int, keys: int, *, both: bool) -> None:
    """Bids; or half of the rows are bids and half asks, of the same moments and keys, but drawn independently."""
    import numpy as np
    import polars as pl

    each = rows // 2 if both else rows
    content = nexmark.bids(columns=("auction", "price", "at"), keys=keys, interval=INTERVAL)
    asks = Schema(tuple(Field("ask" if one.name == "price" else one.name, one.type) for one in content.schema))
    sides = (("bids", 42, content.schema), ("asks", 43, asks))
    for name, seed, schema in sides if both else sides[:1]:
        numbers = (np.arange(start, min(each, start + 65_536), dtype=np.int64) for start in range(0, each, 65_536))
        frames = (content.frame(some, seed).rename({"price": schema.names[1]}) for some in numbers)
        write_arrow(folder / f"{name}.arrow", (frame.select(pl.col(schema.names)) for frame in frames), schema)


def _source(name: str, row: type) -> Callable[[Path, int], Any]:
    return lambda folder, rows: files.Source(
        folder / f"{name}.arrow", schema=row, event_time="at", max_out_of_orderness="0s"
    )


def _duckdb(query: str) -> Peer:
    def run(folder: Path, out: Path, rows: int) -> None:
        import duckdb
        import pyarrow as pa
        from pyarrow import ipc

        with duckdb.connect(config={"threads": 1}) as connection:
            for path in folder.glob("*.arrow"):
                connection.register(path.stem, ipc.open_file(pa.memory_map(str(path))).read_all())
            keep_sums(out, connection.sql(query).pl())

    return run


def _polars(query: Callable[..., pl.LazyFrame]) -> Peer:
    """`query` is given bids, and asks where there are any."""

    def run(folder: Path, out: Path, rows: int) -> None:
        import polars as pl

        sides = [pl.scan_ipc(path) for path in (folder / "bids.arrow", folder / "asks.arrow") if path.exists()]
        keep_sums(out, query(*sides).collect(engine="streaming"))

    return run


def _check(price: Any, ask: Any) -> Any:
    """A number of both sides of a pair: sums of it differ where others met, though all rows are there."""
    return (price % 1_000) * (ask % 1_000)


_PAIR = "bids.auction, price, ask, (price % 1000) * (ask % 1000) AS pair"

# -- joins --------------------------------------------------------------------------------------------------------------


def _interval_join(bids: Any, asks: Any, out: Path) -> None:
    joined = bids.join(asks, on="auction", within=("0s", "1s"))
    joined.select("auction", "price", "ask", pair=_check(col("price"), col("ask"))).write(CountingSink(out))


_WITHIN = 'asks."at" BETWEEN bids."at" AND bids."at" + INTERVAL 1 SECOND'
_INTERVAL_SQL = f"SELECT {_PAIR} FROM bids JOIN asks ON bids.auction = asks.auction AND {_WITHIN}"
_INTERVAL_BY_SECOND_SQL = f"""
    WITH pieces AS (SELECT *, unnest([epoch_us("at") // 1000000, epoch_us("at") // 1000000 + 1]) AS piece FROM bids)
    SELECT {_PAIR.replace("bids.", "pieces.")} FROM pieces JOIN asks
    ON pieces.auction = asks.auction AND piece = epoch_us(asks."at") // 1000000 AND {_WITHIN.replace("bids.", "pieces.")}
"""
"""As one writes it who knows that DuckDB hashes by equality alone."""


def _as_of_join(bids: Any, asks: Any, out: Path) -> None:
    joined = bids.join(asks, on="auction", as_of=True)
    joined.select("auction", "price", "ask", pair=_check(col("price"), col("ask"))).write(CountingSink(out))


def _polars_as_of(bids: pl.LazyFrame, asks: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl

    joined = bids.join_asof(asks, on="at", by="auction", check_sortedness=False).drop_nulls("ask")
    return joined.select("auction", "price", "ask", pair=_check(pl.col("price"), pl.col("ask")))


def _updating_join(bids: Any, asks: Any, out: Path) -> None:
    joined = bids.join(asks, on="auction", how="left").final()
    joined.select("auction", "price", "ask", pair=_check(col("price"), col("ask"))).write(CountingSink(out))


def _polars_join(bids: pl.LazyFrame, asks: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl

    joined = bids.join(asks.drop("at"), on="auction", how="left")
    return joined.select("auction", "price", "ask", pair=_check(pl.col("price"), pl.col("ask")))


# -- changes ------------------------------------------------------------------------------------------------------------


def _top(bids: Any, out: Path) -> None:
    best = bids.key_by("auction").top(3, by="price").final()
    best.select("auction", "rank", "price").write(CountingSink(out))


_TOP_SQL = """
    SELECT auction, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS rank, price
    FROM bids QUALIFY rank <= 3
"""


def _polars_top(bids: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl

    best = bids.group_by("auction").agg(pl.col("price").top_k(3).sort(descending=True))
    ranked = best.with_columns(rank=pl.int_ranges(1, pl.col("price").list.len() + 1))
    return ranked.explode("price", "rank").select("auction", "rank", "price")


def _totals(bids: Any, out: Path) -> None:
    totals = bids.key_by("auction").agg(bids=count(), total=col("price").sum()).final()
    totals.select("auction", "bids", "total").write(CountingSink(out))


def _polars_totals(bids: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl

    return bids.group_by("auction").agg(bids=pl.len().cast(pl.Int64), total=pl.col("price").sum())


def _over(bids: Any, out: Path) -> None:
    summed = bids.key_by("auction").over().with_columns(total=col("price").sum())
    summed.select("auction", "price", "total").write(CountingSink(out))


_OVER_SQL = """
    SELECT auction, price, (sum(price) OVER (PARTITION BY auction ORDER BY "at"))::BIGINT AS total FROM bids
"""


def _polars_over(bids: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl

    return bids.select("auction", "price", total=pl.col("price").cum_sum().over("auction"))


# -- state beyond memory ------------------------------------------------------------------------------------------------

NOTE_BYTES = 480
"""Random, so that no compression makes the state smaller than it is."""


@dataclass
class Noted:
    """A payment with a text."""

    account: int
    amount: int
    note: bytes


@dataclass
class Account:
    """What is kept of an account."""

    total: int
    note: bytes


@dataclass
class Balance:
    """What is emitted."""

    account: int
    total: int


class Balances(KeyedProcess[Noted, Balance]):
    """The sum of each account so far, and its newest note."""

    account = ValueState(Account)

    def on_row(self, row: Noted, ctx: KeyedContext[Balance]) -> None:
        before = self.account.get()
        total = row.amount + (before.total if before else 0)
        self.account.set(Account(total, row.note))
        ctx.emit(Balance(row.account, total))


def _accounts(numbers: npt.NDArray[np.int64], rows: int) -> dict[str, Any]:
    """Every account once, in no order, and then as many rows as a quarter of them, of accounts drawn by chance."""
    keys = rows * 4 // 5
    drawn = generate.random_integers(numbers, 1, 0, keys)
    mixed = numbers * 7_919 % keys  # each once: 7,919 is a prime, and no factor of the number of keys
    import numpy as np

    return {"account": np.where(numbers < keys, mixed, drawn), "amount": generate.random_integers(numbers, 1, 1, 1_000)}


def _noted(folder: Path, rows: int) -> Any:
    """The rows; on the way to the last tenth the source fails once, so that the job goes on from a checkpoint."""

    def content(numbers: npt.NDArray[np.int64]) -> Any:
        import numpy as np
        import polars as pl

        failed = folder / "failed"
        if numbers[-1] >= rows * 9 // 10 and not failed.exists():
            failed.touch()
            raise OSError("the source fails once")
        words = NOTE_BYTES // 8
        every = (numbers[:, None] * words + np.arange(words)).ravel()
        notes = generate.random_bits(every, 2).tobytes()
        starts = range(0, len(notes), NOTE_BYTES)
        texts = pl.Series([notes[start : start + NOTE_BYTES] for start in starts], dtype=pl.Binary)
        return pl.DataFrame({**_accounts(numbers, rows), "note": texts})

    return generate.Source(content, schema=Noted, rows=rows)


def _balances(stream: Any, out: Path) -> None:
    stream.key_by("account").process(Balances()).write(files.Sink(out, format="arrow"))


def _balances_of(out: Path, rows: int) -> dict[str, int]:
    import polars as pl

    if (parts := sorted(out.glob("*.arrow"))) and out.name == "penstock":
        return sums_of(pl.concat([pl.read_ipc(path) for path in parts]))
    return sums_in(out, rows)


def _polars_balances(folder: Path, out: Path, rows: int) -> None:
    import numpy as np
    import polars as pl

    frame = pl.DataFrame(_accounts(np.arange(rows, dtype=np.int64), rows))
    keep_sums(out, frame.select("account", total=pl.col("amount").cum_sum().over("account")))


# -- the list -----------------------------------------------------------------------------------------------------------


def _case(
    name: str,
    title: str,
    rows: int,
    build: Callable[..., None],
    peers: dict[str, Peer],
    *,
    keys: Callable[[int], int] = lambda rows: KEYS,
    joins: bool = False,
    counted: str | None = None,
) -> Case:
    return Case(
        name=name,
        title=title,
        rows=rows,
        source=_source("bids", Bid),
        right=_source("asks", Ask) if joins else None,
        build=build,
        result=sums_in,
        counted=None if counted is None else lambda sums: sums[counted],
        peers=peers,
        prepare=lambda folder, rows: _write_sides(folder, rows, keys(rows), both=joins),
    )


CASES = (
    _case(
        "interval-join",
        "interval join, 10,000 keys, each row meets one",
        2_000_000,
        _interval_join,
        {"duckdb": _duckdb(_INTERVAL_SQL), "duckdb by second": _duckdb(_INTERVAL_BY_SECOND_SQL)},
        joins=True,
    ),
    _case(
        "as-of-join",
        "as-of join, 10,000 keys",
        2_000_000,
        _as_of_join,
        {
            "polars": _polars(_polars_as_of),
            "duckdb": _duckdb(
                f'SELECT {_PAIR} FROM bids ASOF JOIN asks ON bids.auction = asks.auction AND bids."at" >= asks."at"'
            ),
        },
        joins=True,
    ),
    _case(
        "updating-join",
        "left join of two tables that grow, a key has one row a side, final()",
        2_000_000,
        _updating_join,
        {
            "polars": _polars(_polars_join),
            "duckdb": _duckdb(f"SELECT {_PAIR} FROM bids LEFT JOIN asks ON bids.auction = asks.auction"),
        },
        keys=lambda rows: rows // 2,
        joins=True,
    ),
    _case(
        "top",
        "the dearest 3 of each of 10,000 keys, final()",
        5_000_000,
        _top,
        {"polars": _polars(_polars_top), "duckdb": _duckdb(_TOP_SQL)},
    ),
    _case(
        "totals",
        "running count and sum of 10,000 keys, final()",
        10_000_000,
        _totals,
        {
            "polars": _polars(_polars_totals),
            "duckdb": _duckdb("SELECT auction, count(*) AS bids, sum(price)::BIGINT AS total FROM bids GROUP BY 1"),
        },
        counted="bids",
    ),
    _case(
        "over",
        "each row beside the total of its key so far, 10,000 keys",
        5_000_000,
        _over,
        {"polars": _polars(_polars_over), "duckdb": _duckdb(_OVER_SQL)},
        counted="rows",
    ),
    Case(
        name="rocksdb",
        title="KeyedProcess, value state of 2 M keys of 0.5 KB in RocksDB, incremental, goes on after a failure",
        rows=2_500_000,
        source=_noted,
        build=_balances,
        result=_balances_of,
        peers={"polars": _polars_balances},
        checkpoint_interval_ms=10_000,
        backend="rocksdb",
        incremental=True,
        fails_once=True,
    ),
)
