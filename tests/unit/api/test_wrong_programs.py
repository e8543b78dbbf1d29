"""Programs that are wrong are told so when they are built: what is wrong, in which line of the user's file, what to do.

The programs are those that newcomers wrote (issue 13). Each stands in a file and is loaded as `penstock run` loads it;
the message is the line that the command prints. What only a row can show is run, and what only an editor can show is
given to the type checker.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.loading import load_pipeline
from penstock.observability.user_frames import shown_text
from penstock.pipeline import Pipeline

BEGIN = """
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from penstock import *
from penstock.connectors import collecting, files, iterables


@dataclass
class Bid:
    auction: int
    price: float
    at: datetime
    note: str = ""


@dataclass
class Alert:
    auction: int


AT = datetime(2026, 1, 1, tzinfo=UTC)
p = Pipeline("wrong")
bids = p.read(iterables.Source([Bid(1, 2.0, AT)], schema=Bid, event_time="at"))
untimed = p.read(iterables.Source([Bid(1, 2.0, AT)], schema=Bid))
keyed = bids.key_by("auction")
sink = collecting.Sink()
"""


@dataclass(frozen=True)
class Wrong:
    """A program, the line of it that is wrong (it ends in `# here`), and what must be said of it."""

    name: str
    program: str
    said: tuple[str, ...]


def process(body: str, then: str = "keyed.process(Bad())  # here") -> str:
    return f"class Bad(KeyedProcess[Bid, Alert]):\n{textwrap.indent(body, '    ')}\n{then}"


BUILT = [
    Wrong("on_row returns a row", process("def on_row(self, row, ctx):\n    return Alert(row.auction)"),
          ("Bad.on_row returns Alert(row.auction)", "ctx.emit(row)")),
    Wrong("on_row returns its row", process("def on_row(self, row, ctx):\n    if row.price > 1:\n        return row"),
          ("Bad.on_row returns row", "ctx.emit(row)")),
    Wrong("on_row yields a row", process("def on_row(self, row, ctx):\n    yield Alert(row.auction)"),
          ("Bad.on_row yields", "ctx.emit(row)")),
    Wrong("SQL's where", "bids.where(col('price') > 1)  # here", ("where: did you mean 'filter'?",)),
    Wrong("the first rows", "bids.limit(5)  # here", (".collect()", "console.Sink()")),
    Wrong("pandas' verb for nulls", "bids.dropna()  # here", ('.filter(col("price").is_not_null())',)),
    Wrong("Polars' verb of windows", "bids.group_by_dynamic('at', every='1m')  # here", ('.window(tumbling("1m"))',)),
    Wrong("Flink's verb of watermarks", "bids.assign_timestamps_and_watermarks(1)  # here", ('event_time="at"',)),
    Wrong("Spark's verb of batches", "bids.foreachBatch(print)  # here", (".map_batches(function, returns=Class)",)),
    Wrong("a stream that runs", "bids.run()  # here", ("p.run()",)),
    Wrong("a table of a pipeline", "p.table('bids')  # here", ('p.sql("SELECT',)),
    Wrong("the parallelism of a pipeline", "p.set_parallelism(2)  # here", ("p.run(parallelism=4)",)),
    Wrong("a state that is used where the file is imported", process(
        "last = ValueState(float)\ndef on_row(self, row, ctx):\n    pass", "Bad().last.set(1.0)  # here"),
          ("state 'last' was used outside a running pipeline",)),
    Wrong("show", "keyed.agg(n=count()).show()  # here", ("a stream holds no rows before it runs", ".collect()")),
    Wrong("an aggregate as a verb", "keyed.sum('price')  # here", ('.key_by(...).agg(sum=col("price").sum())',)),
    Wrong("plan as a method", "p.plan()  # here", ("plan: is no method", "penstock plan FILE")),
    Wrong("explain", "p.explain()  # here", ("explain: a pipeline has no such method", "penstock plan FILE")),
    Wrong("execute", "p.execute()  # here", ("execute: a pipeline has no such method", "p.run()")),
    Wrong("a verb of a pipeline that is spelled wrong", "p.reed(bids)  # here", ("did you mean 'read'?",)),
    Wrong("col of Polars", "import polars as pl\nbids.filter(pl.col('price') > 1)  # here",
          ("an expression of Polars", "from penstock import col")),
    Wrong("an aggregate of Polars", "import polars as pl\nkeyed.agg(n=pl.len())  # here", ("from penstock import col",)),
    Wrong("a constant of Polars", "import polars as pl\nbids.with_columns(n=col('price') + pl.lit(1))  # here",
          ("an expression of Polars", "from penstock import col")),
    Wrong("on_row is async", process("async def on_row(self, row, ctx):\n    ctx.emit(row)"),
          ("Bad.on_row is async", "write it with def")),
    Wrong("open is async", process("async def open(self, context):\n    pass\ndef on_row(self, row, ctx):\n    pass"),
          ("Bad.open is async", "write it with def")),
    Wrong("close yields", process("def close(self):\n    yield\ndef on_row(self, row, ctx):\n    pass"),
          ("Bad.close yields", "nothing of it runs")),
    Wrong("neither on_row nor on_batch", process("def on_rows(self, row, ctx):\n    pass"),
          ("class Bad has no on_row(self, row, ctx)", "no on_batch(self, frame, ctx)", "'on_rows' is called by nobody")),
    Wrong("on_row behind the library's class", (
        "class Mixin:\n    def on_row(self, row, ctx):\n        ctx.emit(Alert(1))\n"
        'class Bad(KeyedProcess[Bid, Alert], Mixin):\n    pass\nbids.key_by("auction").process(Bad())  # here'),
          ("that of Mixin is hidden by KeyedProcess", "write class Bad(Mixin, KeyedProcess[...])")),
    Wrong("both on_row and on_batch", process(
        "def on_row(self, row, ctx):\n    pass\ndef on_batch(self, frame, ctx):\n    return frame"),
          ("class Bad has both on_row and on_batch", "keep one")),
    Wrong("on_batch yields frames", process("def on_batch(self, frame, ctx):\n    yield frame"),
          ("Bad.on_batch yields", "ctx.emit(frame)")),
    Wrong("on_batch is async", process("async def on_batch(self, frame, ctx):\n    return frame"),
          ("Bad.on_batch is async", "write it with def")),
    Wrong("timers of a batch without event time", process(
        "def on_batch(self, frame, ctx):\n    ctx.event_timers(ctx.keys, frame['at'])\n"
        "def on_timer(self, at, ctx):\n    ctx.emit(Alert(1))", 'untimed.key_by("auction").process(Bad())  # here'),
          ("Bad.on_batch sets an event timer", "use ctx.processing_timers")),
    Wrong("an event timer without event time", process(
        "def on_row(self, row, ctx):\n    ctx.event_timer(row.at)\n"
        "def on_timer(self, at, ctx):\n    ctx.emit(Alert(1))", 'untimed.key_by("auction").process(Bad())  # here'),
          ("Bad.on_row sets an event timer", "event_time='column' at the source")),
    Wrong("timers and no on_timer", process("def on_row(self, row, ctx):\n    ctx.processing_timer(row.at)"),
          ("class Bad has no on_timer(self, at, ctx)",)),
    Wrong("no grouping column", "bids.grouping_sets((), ())  # here", ("grouping_sets: name at least one column",)),
    Wrong("a rollup of nothing", "bids.rollup()  # here",
          ("rollup: name at least one column", '.rollup("country", "city")')),
    Wrong("a grouping column twice", 'bids.rollup("auction", "auction")  # here', ("would be counted twice",)),
    Wrong("a grouping set twice", 'bids.grouping_sets(["auction"], ["auction"])  # here', ("would be counted twice",)),
    Wrong("a grouping column that is not there", 'bids.rollup("action")  # here',
          ("rollup: ", "did you mean 'auction'?")),
    Wrong("too large a cube", "bids.cube(*(f'c{n}' for n in range(11)))  # here", ("2,048 sets", "grouping_sets(...)")),
    Wrong("too many grouping sets", 'bids.grouping_sets(*[["auction"]] * 1_025)  # here',
          ("1,025 sets", "at most 1,024")),
    Wrong("a grouping_id of its own", 'bids.with_columns(grouping_id=lit(1)).rollup("auction")  # here',
          ("'grouping_id' already", "rename it")),
    Wrong("an aggregate of a grouping column", 'bids.rollup("auction").agg(most=col("auction").max())  # here',
          ("reads the grouping column 'auction'", 'auction_value=col')),
    Wrong("a window's aggregate of a grouping column",
          'bids.cube("auction").window(tumbling("1m")).agg(most=col("auction").max())  # here',
          ("reads the grouping column 'auction'",)),
    Wrong("ranks by a grouping column", 'bids.rollup("auction").top(1, by="auction")  # here',
          ("top: by = col(\"auction\") reads the grouping column 'auction'", 'auction_value=col')),
    Wrong("a window's ranks by a grouping column",
          'bids.rollup("auction").window(tumbling("1m")).top(1, by="auction")  # here',
          ("top: by = col(\"auction\") reads the grouping column 'auction'",)),
    Wrong("ranks of updates by a grouping column",
          'keyed.agg(n=count()).rollup("n").top(1, by=col("n") * -1)  # here', ("reads the grouping column 'n'",)),
    Wrong("a gap of a grouping column", 'bids.rollup("auction").window(session(col("auction")))  # here',
          ("session: gap = col(\"auction\") reads the grouping column 'auction'",)),
    Wrong("a frame's aggregate of a grouping column",
          'bids.rollup("auction").over().with_columns(before=lag(col("auction")))  # here',
          ("over: before = ", "reads the grouping column 'auction'")),
    Wrong("one folder in two sinks", 'bids.write(files.Sink("out"))\nuntimed.write(files.Sink("./out"))  # here',
          ("/out is written by", "a.union(b).write(...)")),
    Wrong("the file ends the process", "import sys\nsys.exit(3)  # here", ("exit code 3", '__name__ == "__main__"')),
    Wrong("the size of a window as a number", "tumbling(10)  # here", ("tumbling: size=", '"10s"', "got 10")),
    Wrong("a window that is not called", "keyed.window(tumbling)  # here",
          ("window: window=", 'tumbling("10s")', "call it: tumbling(...)")),
    Wrong("a folder as a sink", 'bids.write("out")  # here', ("write: sink=", 'files.Sink("out")', "got 'out'")),
    Wrong("a file as a source", 'p.read("x.jsonl")  # here', ("read: source=", "files.Source(", "got 'x.jsonl'")),
    Wrong("late rows to a name", 'keyed.window(tumbling("1s")).late_to("late")  # here',
          ("late_to: tag=", 'OutputTag("late")')),
    Wrong("a misspelled verb", 'bids.filtr(col("price") > 1)  # here', ("filtr", "did you mean 'filter'?")),
    Wrong("an aggregate without a key", "bids.agg(n=count())  # here", ("agg: the stream has no key", ".key_by(...)")),
    Wrong("a verb behind a window", 'keyed.window(tumbling("1s")).select("auction")  # here',
          ("select:", "behind agg(...)")),
    Wrong("a key that is computed", 'bids.key_by(col("auction") % 10)  # here',
          ('key_by: col("auction") % 10 has no name', "write key_by(name=")),
    Wrong("a list of keys", 'bids.key_by(["auction", "note"])  # here', ("key_by: *columns", "one by one")),
    Wrong("an expression where a text belongs", 'col("a").str.split(col("r"))  # here',
          ("split: by= takes text", 'got col("r")')),
    Wrong("a class where an instance belongs",
          process("def on_row(self, row, ctx):\n    pass", "keyed.process(Bad)  # here"),
          ("process: process=", "got the class Bad", "give an instance: Bad()")),
    Wrong("a process with a key on a stream without", process(
        "def on_row(self, row, ctx):\n    pass", "bids.process(Bad())  # here"),
          ("process: process=", "needs .key_by(...)")),
    Wrong("a misspelled method", process("def on_rows(self, row, ctx):\n    pass"),
          ("class Bad has no on_row(self, row, ctx)", "'on_rows' is called by nobody")),
    Wrong("a state that is made in __init__", process(
        "def __init__(self):\n    self.last = ValueState(float)\ndef on_row(self, row, ctx):\n    self.last.set(1.0)"),
          ("'last' in __init__", "declare it in the class: last = ValueState(...)")),
    Wrong("an aggregate called as a bound of a window", 'keyed.window(tumbling("1s")).agg(window_start=count())  # here',
          ("window_start", "twice")),
    Wrong("an aggregate called as a key", 'keyed.window(tumbling("1s")).agg(auction=count())  # here',
          ("auction", "twice")),
    Wrong("an aggregate with a reserved name", 'keyed.window(tumbling("1s")).agg(__x=count())  # here',
          ("__x", "reserved")),
    Wrong("an offset as large as its window", 'tumbling("10s", offset="20s")  # here',
          ("tumbling: offset='20s'", "10s", "offset='0s'")),
    Wrong("an offset as large as the way to the next window", 'sliding("20s", "10s", offset="11s")  # here',
          ("sliding: offset='11s'", "offset='1s'")),
    Wrong("a class behind an inferred schema", textwrap.dedent('''
        schema = pa.schema([("auction", pa.int64())])
        parquet.write_table(pa.table({"auction": [1]}, schema=schema), "bids.parquet")
        p.read(files.Source("bids.parquet")).as_(Alert)  # here
        '''), ("as_(Alert): auction may be null", "schema= at the source")),
    Wrong("a misspelled format", 'files.Source("x.parqet", format="parqet")  # here',
          ("files.Source: there is no format='parqet'", "did you mean 'parquet'?")),
    Wrong(
        "a join without a key", "bids.join(bids, within='1m')  # here", ("join: missing a required argument: 'on'",)
    ),
    Wrong(
        "a join in time with a time to live",
        "bids.join(bids, on='auction', within='1m', ttl='1d')  # here",
        ("join: ttl= is for joins without within=",),
    ),
    Wrong(
        "a join with two bounds",
        "bids.join(bids, on='auction', within='1m', window=tumbling('1m'))  # here",
        ("join: give within=, window= or as_of=True",),
    ),
    Wrong(
        "a join as of a time that the right rows are not in",
        "bids.join(bids, on='auction', as_of=True, how='full')  # here",
        ("join: as_of=True asks what held for a left row; how is 'inner' or 'left' then, not 'full'",),
    ),
    Wrong(
        "a join within nothing",
        "bids.join(bids, on='auction', within=('5m', '-5m'))  # here",
        ("join: within=('5m', '-5m') is empty",),
    ),
    Wrong(
        "a join in sessions",
        "bids.join(bids, on='auction', window=session('5m'))  # here",
        ("join: window= takes a window such as tumbling", "got SessionWindow"),
    ),
    Wrong(
        "a join by unlike types",
        "bids.join(bids, on={'auction': 'price'}, within='1m')  # here",
        ("join: auction is int64, price of the other stream is float64, and would never be equal",),
    ),
    Wrong(
        "a join by no column",
        "bids.join(bids, on='action', within='1m')  # here",
        ("join: on", "action", "auction"),
    ),
    Wrong(
        "a join without event time",
        "bids.join(untimed, on='auction', within='1m')  # here",
        ("join: the other stream has no event time, by which rows meet",),
    ),
    Wrong(
        "a join with a name that is there",
        "bids.with_columns(price_right=1).join(bids, on='auction', within='1m')  # here",
        ("join: both sides have a column 'price', and 'price_right' is there as well; give another suffix=",),
    ),
    Wrong(
        "a join of windows by windows",
        "r = bids.key_by('auction').window(tumbling('1m')).agg(n=count())\n"
        "r.join(r, on='auction', window=tumbling('1m'))  # here",
        ("join: there is a column 'window_start' already",),
    ),
    Wrong(
        "a join by a condition on a column that is not there",
        "bids.join(bids, on='auction', where=col('price') > col('limit'))  # here",
        ("join: where: ", "there is no column 'limit'", "price_right"),
    ),
    Wrong(
        "a join by a number",
        "bids.join(bids, on='auction', how='anti', where=col('price_right') + 1)  # here",
        ("join: where: ", "price_right", "is float64, not boolean; compare it with something"),
    ),
    Wrong(
        "a join by an aggregate",
        "bids.join(bids, on='auction', within='1m', where=col('price') > col('price_right').max())  # here",
        ("join: where: ", "is an aggregate"),
    ),
    Wrong(
        "a join as of a time by a condition",
        "bids.join(bids, on='auction', as_of=True, where=col('price') > col('price_right'))  # here",
        ("join: as_of=True takes the newest right row of a key, and where= would pass over it",),
    ),
    Wrong("a join of updates in time", "keyed.agg(n=count()).join(bids, on='auction', within='1m')  # here", ("within",)),
    Wrong("a join of keyed rows", "keyed.join(bids, on='auction')  # here", ("join: do it before key_by",)),
    Wrong(
        "a join whose column says what changes do",
        "bids.with_columns(retracted=1).join(bids, on='auction', how='left', suffix='_2')  # here",
        ("join: there is a column 'retracted' already",),
    ),
    Wrong(
        "a join with updates",
        "bids.join(keyed.agg(n=count()), on='auction', within='1m')  # here",
        ("join: the other stream is one of updates", "leave within=, window= and as_of= out"),
    ),
    Wrong("a window without a key", 'bids.window(tumbling("1s"))  # here',
          ("window: the stream has no key", "key_by(all=lit(1))")),
    Wrong("a key of no columns", "bids.key_by()  # here", ("key_by: name at least one column", "key_by(all=lit(1))")),
    Wrong("group_by", 'bids.group_by("auction")  # here', ("group_by: did you mean 'key_by'?",)),
    Wrong("group_by of updates", 'keyed.agg(n=count()).group_by("n")  # here',
          ("group_by: did you mean 'key_by'?",)),
    Wrong("lag without a key", 'bids.with_columns(x=lag("price"))  # here',
          ("looks at other rows of a key", ".key_by(...).over().with_columns(...)")),
    Wrong("lag on a stream with a key", 'keyed.with_columns(x=lag("price"))  # here',
          ("write .over().with_columns(...)",)),
    Wrong("an aggregate as a column", 'bids.select(col("price").sum())  # here',
          ("is an aggregate; it needs key_by and agg", ".key_by(...).over().with_columns(...)")),
    Wrong("late_to behind agg", 'keyed.window(tumbling("1s")).agg(n=count()).late_to(OutputTag("late"))  # here',
          ("late_to:", "write it before .agg(...)")),
    Wrong("late_to behind agg and select",
          'keyed.window(tumbling("1s")).agg(n=count()).select("n").late_to(OutputTag("late"))  # here',
          ("write it before .agg(...)",)),
    Wrong("late_to behind corrected windows",
          'keyed.window(tumbling("1s")).allowed_lateness("1s").agg(n=count()).late_to(OutputTag("late"))  # here',
          ("write it before .agg(...)",)),
    Wrong("late_to behind triggered windows",
          'keyed.window(tumbling("1s")).trigger(every_rows(1)).agg(n=count()).late_to(OutputTag("late"))  # here',
          ("write it before .trigger(...)",)),
    Wrong("late_to behind top", 'keyed.window(tumbling("1s")).top(1, by="price").late_to(OutputTag("late"))  # here',
          ("write it before .top(...)",)),
    Wrong("late_to behind over", 'keyed.over().with_columns(n=row_number()).late_to(OutputTag("late"))  # here',
          ("write it before .with_columns(...)",)),
    Wrong("a trigger behind agg", 'keyed.window(tumbling("1s")).agg(n=count()).trigger(every_rows(1))  # here',
          ("write it before .agg(...)",)),
    Wrong("rows that are texts", "bids.flat_map(lambda bid: [bid.note], returns=str)  # here",
          ("flat_map: ", "returns str, which is no class of rows", "a dataclass or Struct")),
    Wrong("an aggregate of Polars by nearly its name", 'col("price").approx_nunique()  # here',
          ("did you mean 'approx_n_unique'?",)),
    Wrong("an expression in brackets", 'col("labels")["env"]  # here',
          ('col("labels")[\'env\']', ".map.get('env')", ".list.get(0)", ".struct.field(")),
    Wrong("a side output behind another verb", 'late = OutputTag("late")\n'
          'keyed.window(tumbling("1s")).late_to(late).agg(n=count()).select("n").side(late)  # here',
          ("side: select has no side output 'late'", "take it from the stream that .agg(...) gave")),
    Wrong("explode behind a trigger",
          'keyed.window(tumbling("1s")).trigger(every_rows(1)).agg(n=count()).explode("n")  # here',
          ("this is a stream of updates", "leave .trigger(...) out", ".trigger(purging(...))")),
    Wrong("a window behind a running aggregate", 'keyed.agg(n=count()).window(tumbling("1s"))  # here',
          ("this is a stream of updates", "take .final()", "windows without allowed_lateness")),
    Wrong("a process of updates", 'keyed.agg(n=count()).key_by("n").process(None)  # here',
          ("updates have agg, top, over and window here; process would",)),
    Wrong("a misspelled option", 'files.Sink("out", formt="csv")  # here', ("formt=", "did you mean 'format'?")),
    Wrong("Flink's word for every=", 'sliding("1h", slide="1m")  # here', ("slide=", "did you mean 'every'?")),
    Wrong("an aggregate without a name", "keyed.agg(count())  # here", ("give every aggregate a name: agg(n=count()",)),
    Wrong("count of a column by its name", 'keyed.agg(n=count("note"))  # here', ("write col('price').count()",)),
    Wrong("a text that is meant as it is", 'bids.with_columns(note="fraud")  # here',
          ("there is no column 'fraud'", "the text itself is note=lit('fraud')")),
    Wrong("a negative duration", 'tumbling("-1m")  # here', ("tumbling: must be positive, got '-1m'",)),
    Wrong("a negative lateness", 'keyed.window(tumbling("1m")).allowed_lateness("-1m")  # here',
          ("must be zero or more, got '-1m'",)),
    Wrong("== None", 'bids.filter(col("note") == None)  # here', ("the answer is always null", "write .is_null()")),
    Wrong("!= None", 'bids.filter(col("note") != None)  # here', ("write .is_not_null()",)),
    Wrong("a column as attribute", "bids.price  # here", ("it is a column", "write col('price')", ".collect()['price']")),
    Wrong("a column in brackets", 'keyed["price"]  # here', ("stream['price']: write col('price')",)),
    Wrong("rows of a stream", "for row in bids: pass  # here", ("stream.collect().rows() gives them",)),
    Wrong("distinct by a struct", 'bids.with_columns(s=struct("auction", "price")).distinct("s")  # here',
          ("distinct: s is struct", "key by its fields")),
    Wrong("a join by a struct", 's = bids.with_columns(s=struct("auction", "price"))\ns.join(s, on="s")  # here',
          ("join: on: s is struct", "key by its fields")),
    Wrong("a function that returns no row", "def number(bid: Bid) -> int:\n    return 1\nbids.map(number)  # here",
          ("number returns int", "(wrong.py, line 33)")),
]  # fmt: skip

RUN = [
    Wrong("a moment beyond the calendar, in a function",
        "from datetime import timedelta\nlater = bids.select('auction', at=col('at') + timedelta(days=3_000_000))\n"
        "later.map(lambda row: Alert(row.auction), returns=Alert).write(sink)",
          ("column 'at': +10239-", "within the years 1 to 9999", "filter such rows out")),
    Wrong("a moment beyond the calendar, collected",
        "from datetime import timedelta\nbids.select(at=col('at') - timedelta(days=3_000_000)).write(sink)",
          ("column 'at': -6188-", "within the years 1 to 9999")),
    Wrong("a moment beyond the calendar, within a struct",
        "from datetime import timedelta\nbids.select(s=struct(at=col('at') - timedelta(days=3_000_000))).write(sink)",
          ("a value within 's'", "within the years 1 to 9999")),
    Wrong("a column whose missing values the class does not allow", textwrap.dedent('''
        Path("bids.jsonl").write_text('{"auction": 1, "at": "2026-01-01T00:00:00Z"}\\n')
        p.read(files.Source("bids.jsonl", schema=Bid)).write(sink)
        '''), ("bids.jsonl, line 1", "price: missing", "'... | None'")),
    Wrong("an event time that is null", textwrap.dedent('''
        @dataclass
        class Late:
            auction: int
            at: datetime | None
        Path("bids.jsonl").write_text('{"auction": 1, "at": null}\\n')
        p.read(files.Source("bids.jsonl", schema=Late, event_time="at")).write(sink)
        '''), ("bids.jsonl, line 1", "at: missing", "the event time never may", "bad_rows='skip'")),
    Wrong("a field that the data spells otherwise", textwrap.dedent('''
        Path("bids.jsonl").write_text('{"auction": 1, "Price": 1.0, "at": "2026-01-01T00:00:00Z"}\\n')
        p.read(files.Source("bids.jsonl", schema=Bid)).write(sink)
        '''), ("bids.jsonl, line 1", "price: missing, and the record has 'Price'; call the field so")),
    Wrong("a number for a timestamp in a file", textwrap.dedent('''
        Path("bids.jsonl").write_text('{"auction": 1, "price": 1.0, "at": 1700000000}\\n')
        p.read(files.Source("bids.jsonl", schema=Bid, event_time="at")).write(sink)
        '''), ("bids.jsonl, line 1", "at: a number, and the field is a datetime", 'event_time="at", time_unit="s"')),
    Wrong("an array for lines", textwrap.dedent('''
        Path("bids.jsonl").write_text('[{"auction": 1},\\n{"auction": 2}]\\n')
        p.read(files.Source("bids.jsonl", schema=Bid)).write(sink)
        '''), ("bids.jsonl, line 1", "a JSON array", "each line is to be one object")),
    Wrong("a state of which nothing was set", process(
        "seen = ValueState(int)\ndef on_row(self, row, ctx):\n    seen = self.seen.get()\n    self.seen.set(seen + 1)",
        "keyed.process(Bad()).write(sink)"), ("Bad.on_row raised TypeError", "self.seen.get() is None", "as in .get(0)")),
    Wrong("Flink's name of a state's method", process(
        "seen = ValueState(int)\ndef on_row(self, row, ctx):\n    self.seen.update(1)",
        "keyed.process(Bad()).write(sink)"), ("a ValueState has no 'update'; did you mean 'set'?",)),
    Wrong("a dict that is no row", process("def on_row(self, row, ctx):\n    ctx.emit({'auctoin': 1})",
        "keyed.process(Bad()).write(sink)"), ("a dict lacks auction and has auctoin, which is no column", "Alert(...)")),
    Wrong("a row that a helper returns", process(
        "def alert(self, row):\n    return Alert(row.auction)\ndef on_row(self, row, ctx):\n    return self.alert(row)",
        "keyed.process(Bad()).write(sink)"),
        ("Bad.on_row returned Alert(auction=1), and nobody takes it", "ctx.emit(row)")),
    Wrong("a row that a helper of a timer returns", process(
        "def on_row(self, row, ctx):\n    ctx.event_timer(row.at)\ndef on_timer(self, at, ctx):\n    return ctx.key",
        "keyed.process(Bad()).write(sink)"), ("Bad.on_timer returned 1, and nobody takes it", "ctx.emit(row)")),
    Wrong("Flink's name of emit", process("def on_row(self, row, ctx):\n    ctx.collect(row)",
        "keyed.process(Bad()).write(sink)"), ("a context has no 'collect'; did you mean 'emit'?",)),
    Wrong("several rows emitted as one", process("def on_row(self, row, ctx):\n    ctx.emit([Alert(1)])",
        "keyed.process(Bad()).write(sink)"),
        ("takes one Alert, got [Alert(auction=1)]", "for row in rows: ctx.emit(row)")),
    Wrong("a state as a value", process("seen = ValueState(int)\ndef on_row(self, row, ctx):\n    self.seen += 1",
        "keyed.process(Bad()).write(sink)"), ("a ValueState is no value", ".set(...)")),
    Wrong("a state in brackets", process(
        "seen = MapState(str, int)\ndef on_row(self, row, ctx):\n    self.seen['a'] += 1",
        "keyed.process(Bad()).write(sink)"), ("a MapState is no value", ".set(...)")),
    Wrong("an array in a state", process("seen = ValueState(list[float])\n"
        "def on_row(self, row, ctx):\n    self.seen.set(np.array([1.5]))", "keyed.process(Bad()).write(sink)"),
        ("holds list[float], but was given array([1.5])", ".tolist()")),
    Wrong("a state of a module", process("def on_row(self, row, ctx):\n    last.set(1.0)",
        "last = ValueState(float)\nkeyed.process(Bad()).write(sink)"),
        ("wrong.py, line 35: ", "declare it in the class")),
    Wrong("a column that is spelled wrong", "bids.map(lambda bid: Alert(bid.auctoin), returns=Alert).write(sink)",
        ("no attribute 'auctoin'; did you mean 'auction'?", "row: Bid(auction=1")),
    Wrong("a column in brackets in a function", "bids.map(lambda bid: Alert(bid['auction']), returns=Alert).write(sink)",
        ("a row is an object: write row.name",)),
    Wrong("an async function in map",
        "async def alert(bid: Bid) -> Alert:\n    return Alert(1)\nbids.map(alert).write(sink)",
        ("must return a Alert, got <coroutine", "map_async")),
    Wrong("a key that is spelled otherwise", textwrap.dedent('''
        p.read(iterables.Source([{"auction": 1, "Price": 1.0, "at": AT}], schema=Bid)).write(sink)
        '''), ("row 1: price: missing, and the record has 'Price'",)),
    Wrong("JSON over several lines", textwrap.dedent('''
        Path("bids.json").write_text('{\\n  "auction": 1\\n}\\n')
        p.read(files.Source("bids.json", schema=Bid)).write(sink)
        '''), ("bids.json, line 1", "ends within its JSON", "each line is to be one object", "jq -c .")),
    Wrong("a number for a timestamp in CSV", textwrap.dedent('''
        Path("bids.csv").write_text("auction,price,at,note\\n1,1.0,1700000000,\\n")
        p.read(files.Source("bids.csv", schema=Bid, event_time="at")).write(sink)
        '''), ("bids.csv, line 2", "at: a number, and the field is a datetime", 'time_unit="s"')),
    Wrong("a frame of pandas", process("def on_batch(self, frame, ctx):\n    return frame.to_pandas()",
        "keyed.process(Bad()).write(sink)"), ("gave pandas.DataFrame", "polars.from_pandas(frame)")),
    Wrong("a frame for a batch of Arrow", "import polars as pl\nbids.map_batches(pl.from_arrow, returns=Bid).write(sink)",
        ("must return a pyarrow.RecordBatch, got DataFrame", "frame.to_arrow()")),
    Wrong("a number for a timestamp", textwrap.dedent('''
        row = {"auction": 1, "price": 1.0, "at": 1700000000}
        p.read(iterables.Source([row], schema=Bid, event_time="at")).write(sink)
        '''), ("got the number 1700000000", "declare the column as int", "time_unit='ms'")),
    Wrong("a value of another type", textwrap.dedent('''
        def noted(bid: Bid) -> Alert:
            return Alert("one")
        bids.map(noted).write(sink)
        '''), ("column 'auction' is int64, got 'one'", "row: Bid(auction=1, price=2.0",
            "the function: wrong.py, line 34")),
    Wrong("a value of another type among several", textwrap.dedent('''
        def noted(bid: Bid):
            yield Alert(1)
            yield Alert(None)
        bids.flat_map(noted, returns=Alert).write(sink)
        '''), ("flat_map", "row: Bid(auction=1, price=2.0",
            "the function: wrong.py, line 34")),
    Wrong("a search that finds nothing", textwrap.dedent('''
        names = [(2, "two")]
        def named(bid: Bid) -> Alert:
            return Alert(next(number for number, _ in names if number == bid.auction))
        untimed.map(named).write(sink)
        '''), ("named raised StopIteration", "row: Bid(auction=1, price=2.0")),
    Wrong("a row that fails, and a close that cannot do without it", process(
        "def on_row(self, row, ctx):\n    self.file = open('nowhere/at/all')\ndef close(self):\n    self.file.close()",
        "keyed.process(Bad()).write(sink)"), ("Bad.on_row raised FileNotFoundError", "nowhere/at/all")),
    Wrong("a timer at a number", process(
        "def on_row(self, row, ctx):\n    ctx.event_timer(1.5)\ndef on_timer(self, at, ctx):\n    pass",
        "keyed.process(Bad()).write(sink)"), ("1.5 is no moment", "datetime(..., tzinfo=UTC)")),
]  # fmt: skip

RIGHT = [
    Wrong("numbers of numpy in a state", process(
        "last = ValueState(float)\ncount = ValueState(int)\nmany = ListState(list[float])\n"
        "def on_row(self, row, ctx):\n"
        "    self.last.set(np.float64(1.5))\n    self.count.set(np.int64(2))\n    self.many.add([np.float64(1.5)])\n"
        "    assert type(self.last.get()) is float and type(self.count.get()) is int\n"
        "    ctx.emit(Alert(row.auction))", "keyed.process(Bad()).write(sink)"), ()),
    Wrong("on_row in a mixin",
        "class Mixin:\n    def on_row(self, row, ctx):\n        ctx.emit(Alert(row.auction))\n"
        "class Good(Mixin, KeyedProcess[Bid, Alert]):\n    pass\nkeyed.process(Good()).write(sink)", ()),
    Wrong("columns whose names are no identifiers", textwrap.dedent('''
        names = ("user-id", "@timestamp", "first name", "a.b")
        rows = [dict.fromkeys(names, 1)]
        schema = pa.schema([(name, pa.int64()) for name in names])
        p.read(iterables.Source(rows, schema=schema)).key_by("user-id", "first name").agg(n=col("a.b").sum()).write(sink)
        '''), ()),
]  # fmt: skip


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a folder of its own; what a file imported is forgotten."""
    monkeypatch.chdir(tmp_path)
    paths = list(sys.path)
    yield
    sys.modules.pop("wrong", None)
    sys.path[:] = paths


def written(program: str) -> tuple[Path, int | None]:
    """The file of a program, and the number of its line that is wrong."""
    path = Path("wrong.py")
    text = BEGIN + program + "\n"
    path.write_text(text)
    marked = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# here")]
    return path, marked[0] if marked else None


def loaded(program: Wrong) -> Pipeline:
    path, _ = written(program.program)
    pipeline = load_pipeline(str(path), {})
    assert isinstance(pipeline, Pipeline)
    return pipeline


@pytest.mark.parametrize("wrong", BUILT, ids=lambda wrong: wrong.name)
def test_it_is_said_when_the_pipeline_is_built(wrong: Wrong) -> None:
    """With the file, the line, and what to write instead."""
    path, line = written(wrong.program)
    with pytest.raises(PenstockError) as error:
        load_pipeline(str(path), {})
    text = shown_text(error.value)
    assert text.startswith(f"wrong.py, line {line}: "), text
    for part in wrong.said:
        assert part in text


@pytest.mark.parametrize("wrong", RUN, ids=lambda wrong: wrong.name)
def test_what_a_row_shows_is_said_with_its_place(wrong: Wrong) -> None:
    """What no plan can know."""
    pipeline = loaded(wrong)
    with pytest.raises(PenstockError) as error:
        pipeline.run(durable=False)
    text = shown_text(error.value)
    for part in wrong.said:
        assert part in text


@pytest.mark.parametrize("right", RIGHT, ids=lambda right: right.name)
def test_what_was_refused_for_no_reason_runs(right: Wrong) -> None:
    """Newcomers wrote it too."""
    assert loaded(right).run(durable=False).state == "FINISHED"
