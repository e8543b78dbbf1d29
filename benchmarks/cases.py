"""What is measured: inputs, pipelines, what peers do for the same result, and how results are compared.

A `Case` runs in child processes only: importing this module loads no data library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.sinks import CountingSink, sums_of, total
from penstock import (
    BatchContext,
    KeyedBatchContext,
    KeyedContext,
    KeyedProcess,
    Process,
    ValueState,
    col,
    count,
    tumbling,
)
from penstock.connectors import files, generate, nexmark
from penstock.types import Schema

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

COLUMNS = ("auction", "price", "at")
INTERVAL = "2us"
"""Between two events: 4.6 million bids in a window of ten seconds."""
WINDOW_S = 10

Peer = Callable[[Path, Path, int], None]
"""(folder of the input, folder of the output, rows)."""


@dataclass
class Bid:
    """A bid without its texts."""

    auction: int
    price: int
    at: datetime


@dataclass
class Total:
    """What `map` and the process function emit."""

    auction: int
    total: int


@dataclass(frozen=True)
class Case:
    """One benchmark."""

    name: str
    title: str
    rows: int
    source: Callable[[Path, int], Any]
    build: Callable[..., None]
    """Adds verbs and a sink to the stream of the source, and of the other one; the last argument is the folder of the
    output."""
    result: Callable[[Path, int], Any]
    """What came out: a frame in order, or sums."""
    counted: Callable[[Any], int] | None = lambda sums: sums["rows"]
    """How many input rows a result is made of; None where a result does not say it."""
    peers: Mapping[str, Peer] = field(default_factory=dict[str, Peer])
    prepare: Callable[[Path, int], None] | None = None
    input: str = ""
    """Cases of one name here share their input."""
    parallelism: int = 1
    checkpoint_interval_ms: int = 2_000
    target: int | None = None
    """Rows per second."""
    right: Callable[[Path, int], Any] | None = None
    """The other source, of a join."""
    backend: Literal["fs", "rocksdb"] = "fs"
    incremental: bool = False
    fails_once: bool = False
    """Whether the source fails once; the job then goes on from its newest checkpoint, and that counts, too."""


# -- inputs -------------------------------------------------------------------------------------------------------------


def _write_bids(folder: Path, rows: int, keys: int, kind: str, *, skewed: bool) -> None:
    """Bids as Arrow or JSON lines, in batches as a source reads them; `skewed`: every other one is of auction 0."""
    import numpy as np
    import polars as pl

    content = nexmark.bids(columns=COLUMNS, keys=keys, interval=INTERVAL)
    numbers = (np.arange(start, min(rows, start + 65_536), dtype=np.int64) for start in range(0, rows, 65_536))
    auction = pl.when(pl.int_range(pl.len()) % 2 == 0).then(0).otherwise("auction") if skewed else pl.col("auction")
    frames = (content.frame(some, 42).with_columns(auction.alias("auction")).select(COLUMNS) for some in numbers)
    if kind == "arrow":
        write_arrow(folder / "bids.arrow", frames, content.schema)
    else:
        _write_json(folder / "bids.jsonl", frames, content.schema)


def write_arrow(path: Path, frames: Iterator[pl.DataFrame], schema: Schema) -> None:
    from pyarrow import ipc

    with ipc.new_file(path, schema.arrow()) as file:
        for frame in frames:
            file.write_table(frame.to_arrow().cast(schema.arrow()))


def _write_json(path: Path, frames: Iterator[pl.DataFrame], schema: Schema) -> None:
    from penstock.formats.encoding import encode_jsonl

    with open(path, "wb") as file:
        file.writelines(encode_jsonl(frame, schema) for frame in frames)


def _bids_in(name: str) -> Callable[[Path, int], Any]:
    return lambda folder, rows: files.Source(folder / name, schema=Bid, event_time="at", max_out_of_orderness="0s")


def _generated_bids(keys: int) -> Callable[[Path, int], Any]:
    return lambda folder, rows: generate.Source(nexmark.bids(columns=COLUMNS, keys=keys, interval=INTERVAL), rows=rows)


# -- the keyed window ---------------------------------------------------------------------------------------------------


def _window(stream: Any, out: Path) -> None:
    aggregates = {"bids": count(), "total": col("price").sum(), "highest": col("price").max()}
    stream.key_by("auction").window(tumbling(f"{WINDOW_S}s")).agg(**aggregates).write(files.Sink(out, format="arrow"))


def _windows_of(out: Path, rows: int) -> pl.DataFrame:
    import polars as pl

    parts = [pl.read_ipc(path) for path in sorted(out.glob("*.arrow"))]
    columns = [
        pl.col("auction", "bids", "total", "highest").cast(pl.Int64),
        pl.col("window_start").cast(pl.Datetime("us")),
    ]
    return pl.concat([part.select(columns) for part in parts]).sort("window_start", "auction")


def _polars_window(scan: Callable[[Path], pl.LazyFrame]) -> Peer:
    def run(folder: Path, out: Path, rows: int) -> None:
        import polars as pl

        aggregates = [
            pl.len().alias("bids"), pl.col("price").sum().alias("total"), pl.col("price").max().alias("highest"),
        ]  # fmt: skip
        window = pl.col("at").dt.truncate(f"{WINDOW_S}s").alias("window_start")
        result = scan(folder).group_by("auction", window).agg(aggregates)
        result.sink_ipc(out / "result.arrow", compression="uncompressed", engine="streaming")

    return run


def _scan_arrow(folder: Path) -> pl.LazyFrame:
    import polars as pl

    return pl.scan_ipc(folder / "bids.arrow")


def _scan_json(folder: Path) -> pl.LazyFrame:
    import polars as pl

    schema = {"auction": pl.Int64, "price": pl.Int64, "at": pl.String}
    frame = pl.scan_ndjson(folder / "bids.jsonl", schema=schema)
    return frame.with_columns(pl.col("at").str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us"))


def _duckdb_window(relation: str) -> Peer:
    def run(folder: Path, out: Path, rows: int) -> None:
        import duckdb
        import pyarrow as pa
        from pyarrow import ipc

        with duckdb.connect(config={"threads": 1}) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            if relation == "arrow":
                connection.register("bids", ipc.open_file(pa.memory_map(str(folder / "bids.arrow"))).read_all())
                source = "bids"
            else:
                columns = "{auction: 'BIGINT', price: 'BIGINT', \"at\": 'TIMESTAMP'}"
                source = f"read_json('{folder / 'bids.jsonl'}', format='newline_delimited', columns={columns})"
            reader = connection.sql(
                f"SELECT auction, time_bucket(INTERVAL '{WINDOW_S} seconds', \"at\"::TIMESTAMP) AS window_start, "
                "count(*) AS bids, sum(price)::BIGINT AS total, max(price) AS highest FROM "
                f"{source} GROUP BY ALL"
            ).to_arrow_reader(65_536)
            with ipc.new_file(out / "result.arrow", reader.schema) as file:
                for batch in reader:
                    file.write_batch(batch)

    return run


# -- functions per row --------------------------------------------------------------------------------------------------


def _double(bid: Bid) -> Total:
    return Total(bid.auction, bid.price * 2)


def _map(stream: Any, out: Path) -> None:
    stream.map(_double).write(CountingSink(out))


class RunningTotal(KeyedProcess[Bid, Total]):
    """The sum of the prices of an auction so far."""

    sum = ValueState(int)

    def on_row(self, row: Bid, ctx: KeyedContext[Total]) -> None:
        value = self.sum.get(default=0) + row.price
        self.sum.set(value)
        ctx.emit(Total(row.auction, value))


def _process(stream: Any, out: Path) -> None:
    stream.key_by("auction").process(RunningTotal()).write(CountingSink(out))


class RunningTotals(KeyedProcess[Bid, Total]):
    """The same for all rows of a batch."""

    sum = ValueState(int)

    def on_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> pl.DataFrame:
        import polars as pl

        before = self.sum.get_many(ctx.keys, default=0)
        totals = frame.select("auction", total=before + pl.col("price").cum_sum().over("auction"))
        self.sum.set_many(ctx.keys, totals["total"])
        return totals


class Doubled(Process[Bid, Total]):
    """What `_double` makes of each, for all rows of a batch."""

    def on_batch(self, frame: pl.DataFrame, ctx: BatchContext) -> pl.DataFrame:
        import polars as pl

        return frame.select("auction", total=pl.col("price") * 2)


def _process_batches(stream: Any, out: Path) -> None:
    stream.key_by("auction").process(RunningTotals()).write(CountingSink(out))


def _map_batches(stream: Any, out: Path) -> None:
    stream.process(Doubled()).write(CountingSink(out))


def sums_in(out: Path, rows: int) -> dict[str, int]:
    return total(out)


def _generated_frame(keys: int, rows: int) -> pl.DataFrame:
    import numpy as np

    content = nexmark.bids(columns=COLUMNS, keys=keys, interval=INTERVAL)
    return content.frame(np.arange(rows, dtype=np.int64), 42)


def keep_sums(out: Path, frame: pl.DataFrame) -> None:
    (out / "sums-0.json").write_text(json.dumps(sums_of(frame)))


def _polars_map(folder: Path, out: Path, rows: int) -> None:
    import polars as pl

    frame = _generated_frame(10_000, rows)
    keep_sums(out, frame.select("auction", (pl.col("price") * 2).alias("total")))


def _python_map(folder: Path, out: Path, rows: int) -> None:
    """The loop one would write by hand."""
    import polars as pl

    frame = _generated_frame(10_000, rows)
    results = [_double(Bid(*row)) for row in frame.select("auction", "price", "at").iter_rows()]
    columns = {"auction": [result.auction for result in results], "total": [result.total for result in results]}
    keep_sums(out, pl.DataFrame(columns))


def _polars_process(folder: Path, out: Path, rows: int, keys: int = 10_000) -> None:
    import polars as pl

    frame = _generated_frame(keys, rows)
    keep_sums(out, frame.select("auction", pl.col("price").cum_sum().over("auction").alias("total")))


def _polars_process_of_many(folder: Path, out: Path, rows: int) -> None:
    _polars_process(folder, out, rows, 1_000_000)


def _python_process(folder: Path, out: Path, rows: int) -> None:
    """The loop one would write by hand."""
    import polars as pl

    frame = _generated_frame(10_000, rows)
    sums: dict[int, int] = {}
    results: list[Total] = []
    for row in frame.select("auction", "price", "at").iter_rows():
        bid = Bid(*row)
        sums[bid.auction] = value = sums.get(bid.auction, 0) + bid.price
        results.append(Total(bid.auction, value))
    columns = {"auction": [result.auction for result in results], "total": [result.total for result in results]}
    keep_sums(out, pl.DataFrame(columns))


# -- a large state ------------------------------------------------------------------------------------------------------


def _distinct(folder: Path, rows: int) -> Any:
    """Every key once, then all twice more: from the first third on the state keeps its size while checkpoints go on."""
    keys = rows // 3

    def content(numbers: npt.NDArray[np.int64]) -> dict[str, Any]:

        auctions = numbers % keys
        return {
            "auction": auctions,
            "price": auctions,
            "at": (numbers // 1_000 + 1_700_000_000_000_000).astype("M8[us]"),
        }

    return generate.Source(content, schema=Bid, rows=rows, event_time="at", max_out_of_orderness="0s", timezone="UTC")


def _large_state(stream: Any, out: Path) -> None:
    aggregates = {"bids": count(), "total": col("price").sum(), "highest": col("price").max()}
    stream.key_by("auction").window(tumbling("1d")).agg(**aggregates).write(CountingSink(out))


def _polars_distinct(folder: Path, out: Path, rows: int) -> None:
    import numpy as np
    import polars as pl

    auctions = np.arange(rows, dtype=np.int64) % (rows // 3)
    frame = pl.DataFrame({"auction": auctions, "price": auctions})
    aggregates = [pl.len().cast(pl.Int64).alias("bids"), pl.col("price").sum().alias("total"),
                  pl.col("price").max().alias("highest")]  # fmt: skip
    keep_sums(out, frame.lazy().group_by("auction").agg(aggregates).collect(engine="streaming"))


# -- the list -----------------------------------------------------------------------------------------------------------


def _window_case(
    name: str, kind: str, keys: int, parallelism: int, rows: int, target: int | None, *, skewed: bool = False
) -> Case:
    scan = _scan_arrow if kind == "arrow" else _scan_json
    words = f"{keys // 1_000_000} M" if keys >= 1_000_000 else f"{keys:,}"
    skew = ", half of the rows of one" if skewed else ""
    return Case(
        name=name,
        title=f"window of 10 s, {words} keys{skew}, {kind} in, arrow out, parallelism {parallelism}",
        rows=rows,
        source=_bids_in("bids.arrow" if kind == "arrow" else "bids.jsonl"),
        build=_window,
        result=_windows_of,
        counted=lambda windows: windows["bids"].sum(),
        peers={"polars": _polars_window(scan), "duckdb": _duckdb_window(kind)},
        prepare=lambda folder, rows: _write_bids(folder, rows, keys, kind, skewed=skewed),
        input=f"{kind}-{keys}-{skewed}-{{rows}}",
        parallelism=parallelism,
        target=target,
    )


CASES = (
    _window_case("window-arrow", "arrow", 1_000_000, 1, 20_000_000, 3_000_000),
    _window_case("window-arrow-exchange", "arrow", 1_000_000, 2, 20_000_000, 3_000_000),
    _window_case("window-json", "json", 1_000_000, 1, 10_000_000, 800_000),
    _window_case("window-json-exchange", "json", 1_000_000, 2, 10_000_000, 800_000),
    _window_case("window-arrow-few-keys", "arrow", 10_000, 1, 20_000_000, 3_000_000),
    _window_case("window-arrow-few-keys-exchange", "arrow", 10_000, 2, 20_000_000, 3_000_000),
    _window_case("window-arrow-skewed-exchange", "arrow", 10_000, 2, 20_000_000, None, skewed=True),
    Case(
        name="map",
        title="map in Python, two fields out",
        rows=5_000_000,
        source=_generated_bids(10_000),
        build=_map,
        result=sums_in,
        peers={"polars": _polars_map, "python": _python_map},
        target=1_000_000,
    ),
    Case(
        name="process",
        title="KeyedProcess, value state of 10,000 keys",
        rows=2_000_000,
        source=_generated_bids(10_000),
        build=_process,
        result=sums_in,
        peers={"polars": _polars_process, "python": _python_process},
        target=300_000,
    ),
    Case(
        name="process-stateless-batches",
        title="Process with on_batch, two fields out",
        rows=10_000_000,
        source=_generated_bids(10_000),
        build=_map_batches,
        result=sums_in,
        peers={"polars": _polars_map},
        target=3_000_000,
    ),
    Case(
        name="process-batches",
        title="KeyedProcess with on_batch, value state of 10,000 keys",
        rows=5_000_000,
        source=_generated_bids(10_000),
        build=_process_batches,
        result=sums_in,
        peers={"polars": _polars_process},
        target=1_000_000,
    ),
    Case(
        name="process-batches-many-keys",
        title="KeyedProcess with on_batch, value state of 1 M keys",
        rows=5_000_000,
        source=_generated_bids(1_000_000),
        build=_process_batches,
        result=sums_in,
        peers={"polars": _polars_process_of_many},
        target=1_000_000,
    ),
    Case(
        name="snapshot",
        title="snapshots of 10 M keys of columnar aggregates",
        rows=30_000_000,
        source=_distinct,
        build=_large_state,
        result=sums_in,
        counted=lambda sums: sums["bids"],
        peers={"polars": _polars_distinct},
        checkpoint_interval_ms=500,
    ),
)
