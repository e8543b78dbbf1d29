"""Errors before rows: every verb checks what it is given when the pipeline is built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from penstock import (
    KeyedProcess,
    OutputTag,
    Pipeline,
    PipelineError,
    Process,
    Trigger,
    col,
    count,
    cumulative,
    every_rows,
    global_,
    purging,
    session,
    sliding,
    struct,
    tumbling,
)
from penstock.api.stream import SourceStream
from penstock.connectors import collecting, iterables


@dataclass
class Bid:
    auction: int
    bidder: int
    price: float
    at: datetime
    channel: str | None
    tags: list[str]


@dataclass
class Total:
    auction: int
    price: float


@dataclass
class Priced:
    auction: int
    price: float


class Identity(Process[Bid, Bid]):
    def on_row(self, row, ctx):
        ctx.emit(row)


class PerAuction(KeyedProcess[Bid, Total]):
    def on_row(self, row, ctx):
        ctx.emit(Total(row.auction, row.price))


class WrongRow(Process[Total, Total]):
    def on_row(self, row, ctx):
        ctx.emit(row)


@pytest.fixture
def bids() -> SourceStream[Bid]:
    return Pipeline("test").read(iterables.Source([], schema=Bid, event_time="at"))


@pytest.fixture
def untimed() -> SourceStream[Bid]:
    return Pipeline("test").read(iterables.Source([], schema=Bid))


def test_an_unknown_column_names_the_nearest(bids):
    """A typo is answered with the column that was probably meant."""
    with pytest.raises(PipelineError, match=r"prise.*did you mean 'price'"):
        bids.filter(col("prise") > 1)
    with pytest.raises(PipelineError, match=r"key_by: there is no column 'auktion'; did you mean 'auction'"):
        bids.key_by("auktion")
    with pytest.raises(PipelineError, match=r"drop: there is no column"):
        bids.drop("nothing")
    with pytest.raises(PipelineError, match=r"rename: there is no column"):
        bids.rename({"x": "y"})


def test_types_are_checked_before_rows(bids):
    """An expression whose operands do not fit is refused with both types."""
    with pytest.raises(PipelineError, match=r"with_columns.*string"):
        bids.with_columns(x=col("price") + col("channel"))
    with pytest.raises(PipelineError, match=r"filter: .* is float64, not boolean"):
        bids.filter(col("price") * 2)


def test_columnar_verbs_know_their_columns(bids):
    """Schemas follow the verbs."""
    assert bids.select("auction", double=col("price") * 2).schema.names == ("auction", "double")
    assert bids.with_columns(price=col("price") * 2, cents=col("price") * 100).schema.names[-1] == "cents"
    assert "tags" not in bids.drop("tags").schema
    assert bids.rename({"price": "amount"}).schema.names[2] == "amount"
    assert str(bids.explode("tags").schema.field("tags")) == "tags: string or null"


def test_a_window_needs_event_time(untimed):
    """Without event time there is nothing to cut windows by; the message says where to say it."""
    with pytest.raises(PipelineError, match=r"window: the stream has no event time; say event_time='column'"):
        untimed.key_by("auction").window(tumbling("10s"))


def test_a_map_needs_its_output_type(bids):
    """A function without annotation cannot be typed; the message says what to write."""
    with pytest.raises(PipelineError, match=r"map: .*<lambda> does not say what rows it returns"):
        bids.map(lambda row: row)
    assert bids.map(lambda row: Total(row.auction, row.price), returns=Total).schema.names == ("auction", "price")


def test_annotations_give_the_output_type(bids):
    """The annotated return type is the schema of the output."""

    def total(bid: Bid) -> Total:
        return Total(bid.auction, bid.price)

    def many(bid: Bid) -> Iterator[Total]:
        yield Total(bid.auction, bid.price)

    assert bids.map(total).schema.names == ("auction", "price")
    assert bids.flat_map(many).schema.names == ("auction", "price")


def test_verbs_in_the_wrong_place_say_where_they_belong(bids):
    """Column verbs come before key_by, keyed processes after it, and updates cannot be aggregated again."""
    keyed = bids.key_by("auction")
    with pytest.raises(PipelineError, match="filter: do it before key_by"):
        _ = keyed.filter
    with pytest.raises(PipelineError, match="a KeyedProcess needs"):
        bids.process(PerAuction())
    with pytest.raises(PipelineError, match="after key_by only a KeyedProcess runs"):
        keyed.process(Identity())
    running = keyed.agg(total=col("price").sum())
    with pytest.raises(PipelineError, match="stream of updates"):
        _ = running.explode
    corrected = keyed.window(tumbling("10s")).allowed_lateness("1m").agg(bids=count())
    with pytest.raises(PipelineError, match="stream of updates"):
        _ = corrected.window


def test_windows_check_their_sizes():
    """A slide beyond the size would lose rows; sizes are positive durations."""
    with pytest.raises(PipelineError, match="leave gaps"):
        sliding("10s", every="11s")
    with pytest.raises(PipelineError, match="must be positive"):
        tumbling("0s")
    with pytest.raises(PipelineError, match="is not a duration"):
        session("soon")
    with pytest.raises(PipelineError, match="no whole number of steps of 7h"):
        cumulative("1d", every="7h")
    with pytest.raises(PipelineError, match="there is no time zone 'Berlin'"):
        tumbling("1d", timezone="Berlin")
    with pytest.raises(PipelineError, match=r"offset='-11s' is not less than 10s"):
        tumbling("10s", offset="-11s")


def test_an_offset_may_shift_windows_back():
    """`-6h` and `18h` are the same days, as in Flink."""
    assert tumbling("1d", offset="-6h") == tumbling("1d", offset="18h")
    assert sliding("2d", "1d", offset=timedelta(hours=-6)) == sliding("2d", "1d", offset="18h")


def test_a_trigger_that_never_fires_is_refused(bids):
    """Nobody would notice that nothing comes."""
    with pytest.raises(PipelineError, match=r"Trigger\(\) overrides none of on_row.* so no window would ever"):
        bids.key_by("auction").window(tumbling("10s")).trigger(Trigger())
    with pytest.raises(PipelineError, match=r"purging\(Trigger\(\)\) overrides none of on_row"):
        bids.key_by("auction").window(tumbling("10s")).trigger(purging(Trigger()))


def test_rows_of_windows_are_sent_once(bids):
    """Typed, and refused where they would be corrected, where there is no end, and where names are taken."""
    windowed = bids.key_by("auction").window(tumbling("10s"))
    ranked = windowed.top(3, by="price")
    assert ranked.schema.names[:4] == ("auction", "window_start", "window_end", "rank")
    assert set(ranked.schema.names[4:]) == set(bids.schema.names) - {"auction"}
    assert windowed.deduplicate("last").schema.names == (
        "auction",
        "window_start",
        "window_end",
        *ranked.schema.names[4:],
    )
    for verb in (lambda windows: windows.top(1, by="price"), lambda windows: windows.deduplicate()):
        with pytest.raises(PipelineError, match="sent once, when a window ends; leave allowed_lateness out"):
            verb(windowed.allowed_lateness("1s"))
        with pytest.raises(PipelineError, match="a global window has no end"):
            verb(bids.key_by("auction").window(global_()))
        with pytest.raises(PipelineError, match=r"leave \.trigger\(\.\.\.\) out"):
            verb(windowed.trigger(every_rows(2)))
        with pytest.raises(PipelineError, match="there is a column 'window_end' already; rename it before key_by"):
            verb(bids.with_columns(window_end=col("price")).key_by("auction").window(tumbling("10s")))
        with pytest.raises(PipelineError, match="all columns are keys"):
            verb(bids.select(price="auction").key_by("price").window(tumbling("10s")))
    with pytest.raises(PipelineError, match="n must be 1 or more"):
        windowed.top(0, by="price")


@pytest.mark.parametrize("gap", [col("price"), col("auction").sum(), col("note")])
def test_the_gap_of_a_session_is_a_duration(bids, gap):
    """What is none is refused where it is written, and so is a column that does not exist."""
    with pytest.raises(PipelineError, match="session"):
        bids.key_by("auction").window(session(gap))


def test_a_window_result_has_keys_bounds_and_aggregates(bids):
    """The columns of a window's result."""
    result = bids.key_by("auction").window(tumbling("10s")).agg(bids=count(), revenue=col("price").sum())
    assert result.schema.names == ("auction", "window_start", "window_end", "bids", "revenue")


def test_only_sessions_with_lateness_say_what_is_retracted(bids):
    """Their windows can vanish; those of other kinds, and sessions that are sent once, cannot."""
    sessions = bids.key_by("auction").window(session("10s"))
    assert "retracted" not in sessions.agg(bids=count()).schema.names
    assert sessions.allowed_lateness("1m").agg(bids=count()).schema.names[3:] == ("retracted", "bids")
    assert "retracted" not in bids.key_by("auction").window(tumbling("1s")).allowed_lateness("1m").agg(n=count()).schema


def test_a_process_must_fit_the_rows(bids):
    """The row class of a process is compared with the stream's columns."""
    with pytest.raises(PipelineError, match=r"there is no column|takes Total"):
        bids.drop("price").process(WrongRow())


def test_side_outputs_must_exist(bids):
    """A tag that nobody emits to is refused on a window, and needs a row class on a process."""
    result = bids.key_by("auction").window(tumbling("10s")).agg(bids=count())
    with pytest.raises(PipelineError, match="side: window has no side output 'late'"):
        result.side(OutputTag("late"))
    with pytest.raises(PipelineError, match="say what rows 'odd' carries"):
        bids.process(Identity()).side(OutputTag("odd"))


def test_as_checks_names_types_and_nulls(bids):
    """`as_` gives columns a class only where they agree."""
    two = bids.select("auction", "price")
    assert two.as_(Priced).schema.names == ("auction", "price")
    assert bids.select("price", "auction").as_(Priced).schema.names == ("auction", "price")
    with pytest.raises(PipelineError, match="the class lacks"):
        bids.as_(Priced)
    with pytest.raises(PipelineError, match="is string, the class says float64"):
        bids.select("auction", price=col("channel").fill_null("")).as_(Priced)


def test_unions_need_equal_columns(bids):
    """Streams of different columns cannot be one."""
    with pytest.raises(PipelineError, match="union: the columns differ"):
        bids.union(bids.drop("tags"))


def test_unions_are_of_one_pipeline_and_all_have_event_time_or_none(bids):
    """What is wrong is named, and what to do."""
    with pytest.raises(PipelineError, match="union: another stream is of another pipeline"):
        bids.union(Pipeline("other").read(iterables.Source([], schema=Bid, event_time="at")))
    timeless = bids._pipeline.read(iterables.Source([], schema=Bid))
    with pytest.raises(PipelineError, match=r"without: number 2 of 2\); say event_time='column' at their sources"):
        bids.union(timeless)


def test_a_struct_is_no_key(bids):
    """No hash is made of one; its fields can be."""
    both = bids.with_columns(both=struct("auction", "bidder"))
    with pytest.raises(PipelineError, match=r"a struct cannot be a key, key by its fields: col\('both'\)\.struct"):
        both.key_by("both")
    both.key_by(number=col("both").struct.field("auction"))


def test_rows_of_a_stream_are_final(bids):
    """Nothing replaces them."""
    with pytest.raises(AttributeError, match="its rows replace no others, so they are final as they are"):
        _ = bids.final


def test_dead_letters_need_the_policy(bids):
    """Bad records go to dead_letters only where the source says so."""
    with pytest.raises(PipelineError, match="say bad_rows='dead_letter'"):
        bids.dead_letters()


def test_two_operators_cannot_share_a_uid(bids):
    """A uid names one operator."""
    first = bids.filter(col("price") > 1).uid("same")
    with pytest.raises(PipelineError, match="two operators are named 'same'"):
        first.filter(col("price") > 2).uid("same")
    with pytest.raises(PipelineError, match="uid: key_by is no operator of its own"):
        bids.key_by("auction").uid("keyed")


def test_naive_literals_are_refused(bids):
    """Event time is UTC: a naive datetime could be anything."""
    with pytest.raises(PipelineError, match="no time zone"):
        bids.filter(col("at") > datetime(2026, 1, 1))  # noqa: DTZ001
    bids.filter(col("at") > datetime(2026, 1, 1, tzinfo=UTC))


def test_a_pipeline_runs_from_a_script():
    """`p.run()` runs embedded and returns what became of the job."""
    rows: list[Total] = [Total(1, 2.0), Total(1, 3.0), Total(2, 4.0)]
    sink = collecting.Sink()
    p = Pipeline("script")
    p.read(iterables.Source(rows, schema=Total)).key_by("auction").agg(total=col("price").sum()).write(sink)
    result = p.run()
    assert result is not None
    assert result.state == "FINISHED"
    newest = {row["auction"]: row["total"] for row in sink.rows}
    assert newest == {1: 5.0, 2: 4.0}


def test_late_to_leaves_the_windows_it_is_called_on_as_they_are():
    """Two ways to go on from the same windows do not know of each other."""
    p = Pipeline("late")
    windows = p.read(iterables.Source([], schema=Bid, event_time="at")).key_by("auction").window(tumbling("10s"))
    late = OutputTag("late")
    kept = windows.late_to(late)
    assert kept is not windows
    assert kept.agg(n=count()).side(late).schema.names == ("auction", "bidder", "price", "at", "channel", "tags")
    with pytest.raises(PipelineError, match="no side output 'late'"):
        windows.agg(n=count()).side(late)


def test_a_constant_is_a_column_where_an_expression_is_taken():
    """Text names a column, as everywhere."""
    p = Pipeline("constants")
    stream = p.read(iterables.Source([], schema=Bid)).with_columns(one=1, rate=0.5, known=True)
    assert [str(stream.schema.field(name, "").type) for name in ("one", "rate", "known")] == [
        "int64",
        "float64",
        "boolean",
    ]


def test_keys_may_be_computed(bids):
    """They have a name, and are a further column; a plain column is a key as its name is."""
    assert bids.key_by(col("auction"))._node.keys == ("auction",)
    keyed = bids.key_by("auction", dear=col("price") > 100)
    assert keyed._node.keys == ("auction", "dear")
    assert keyed.window(tumbling("10s")).agg(n=count()).schema.names[:2] == ("auction", "dear")
    with pytest.raises(PipelineError, match=r'key_by: col\("auction"\) % 10 has no name; write key_by\(name=col'):
        bids.key_by(col("auction") % 10)
    with pytest.raises(PipelineError, match="there is a column 'price' already; give price= another name"):
        bids.key_by(price=col("price") * 2)


def test_a_union_goes_by_the_names_of_columns(bids):
    """In the order of the first stream; columns that differ are still refused."""
    names = bids.schema.names
    turned = bids.select(*reversed(names))
    assert bids.union(turned).schema.names == names
    with pytest.raises(PipelineError, match="the columns differ"):
        bids.union(bids.drop(names[0]))
