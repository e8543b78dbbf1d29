"""CSV to frames: quoting, headers, nulls, types, bad records."""

# ruff: noqa: DTZ001 (naive datetimes are what is tested, and the bounds that hypothesis wants)

from __future__ import annotations

import csv
import io
import random
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from penstock.errors import PipelineError
from penstock.formats import csv_quotes
from penstock.formats.csv_decoding import CsvDecoder, header_of
from penstock.formats.encoding import encode_csv
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT64,
    INT8,
    INT64,
    STRING,
    TIME,
    TIMESTAMP,
    Field,
    ListType,
    Schema,
)

TWO = Schema((Field("a", INT64), Field("b", STRING, nullable=True)))


def decoder(schema: Schema = TWO, header: str | None = None, **options: str) -> CsvDecoder:
    return CsvDecoder(schema, (header or ",".join(schema.names)).split(","), "x.csv", **options)  # type: ignore[arg-type]


def test_records_with_quotes_and_newlines() -> None:
    """Quoted texts may hold delimiters, quotes and line ends; columns are matched by name."""
    block = b'"x,y",1,zz\r\n"say ""hi""\nthere",2,\n,3,"q"\n"",4,""\n'
    decoded = decoder(header="b,a,c").decode(block)
    assert not decoded.bad
    assert decoded.frame.rows() == [(1, "x,y"), (2, 'say "hi"\nthere'), (3, None), (4, "")]


def test_bad_records() -> None:
    """Wrong types, missing values and other numbers of columns are told by record; the others stay."""
    block = b'1,a\nx,b\n,c\n4\n5,d,e\n\n6,"f\nf"\n9223372036854775808,g\n1.5,h\n7,\xff\n8,i'
    decoded = decoder().decode(block)
    assert decoded.frame.rows() == [(1, "a"), (6, "f\nf"), (8, "i")]
    assert [(line.index, line.raw) for line in decoded.bad] == [
        (1, b"x,b"),
        (2, b",c"),
        (3, b"4"),
        (4, b"5,d,e"),
        (7, b"9223372036854775808,g"),
        (8, b"1.5,h"),
        (9, b"7,\xff"),
    ]
    reasons = [line.error for line in decoded.bad]
    assert reasons[0] == "a: expected int64, got 'x'"
    assert "missing" in reasons[1]
    assert reasons[2] == "has 1 columns, the header 2"
    assert "UTF" in reasons[6]


def test_values_of_every_type() -> None:
    """Every scalar type is read; texts that do not fit say what was expected."""
    schema = Schema(
        tuple(
            Field(kind.name, kind, nullable=True)
            for kind in (BOOLEAN, INT8, FLOAT64, STRING, BINARY, DATE, TIMESTAMP, DURATION)
        )
    )
    block = b"true,-128,1e3,x,aGk=,2001-02-03,2001-02-03T04:05:06+01:00,PT1S\nFALSE,,,,,,,\n"
    assert decoder(schema).decode(block).frame.rows() == [
        (
            True,
            -128,
            1000.0,
            "x",
            b"hi",
            date(2001, 2, 3),
            datetime(2001, 2, 3, 3, 5, 6, tzinfo=UTC),
            timedelta(seconds=1),
        ),
        (False, None, None, None, None, None, None, None),
    ]
    for index, wrong in enumerate(("yes", "128", "one", None, "*", "2001-02-30", "2001-02-03T04:05:06", "1 s")):
        if wrong is not None:
            record = ",".join(wrong if column == index else "" for column in range(8)).encode()
            decoded = decoder(schema).decode(record)
            assert decoded.frame.height == 0, wrong
            assert schema.names[index] in decoded.bad[0].error
    assert "timezone=" in decoder(schema).decode(b",,,,,,2001-02-03T04:05:06,").bad[0].error


def test_naive_timestamps_get_the_zone() -> None:
    """With a zone, timestamps without offset are local times of it."""
    schema = Schema((Field("at", TIMESTAMP),))
    made = CsvDecoder(schema, ["at"], "x.csv", zone=ZoneInfo("Europe/Berlin"))
    assert made.decode(b"2001-07-01 12:00:00\n").frame["at"].to_list() == [datetime(2001, 7, 1, 10, tzinfo=UTC)]


def test_null_text_and_delimiter() -> None:
    """The text for null and the delimiter can be chosen; a quoted null text is a text."""
    decoded = decoder(null="NA", delimiter=";").decode(b'1;NA\n2;"NA"\n3;\n')
    assert decoded.frame["b"].to_list() == [None, "NA", ""]


def test_columns_that_the_file_lacks() -> None:
    """A missing nullable column is null; a missing other one is an error with the nearest name."""
    assert decoder(header="a").decode(b"1\n2\n").frame.rows() == [(1, None), (2, None)]
    with pytest.raises(PipelineError, match=r"no column 'a'; did you mean 'aa'\?"):
        decoder(header="aa,b")
    with pytest.raises(PipelineError, match="twice"):
        decoder(header="a,b,a")


@pytest.mark.parametrize(
    ("header", "advice"),
    [
        ("carrier;delay", r"the columns are separated by ';': write delimiter=';'"),
        ("carrier\tdelay", r"the columns are separated by '\\t': write delimiter='\\t'"),
        ("AA,7", r"the first line, 'AA,7', names none of the columns; .* before it: carrier,delay$"),
        ("carrier,flight", r"no column 'delay'; there are: carrier, flight$"),
    ],
)
def test_what_is_wrong_with_the_first_line_as_a_whole_is_said(header: str, advice: str) -> None:
    """It has another delimiter, or it is a row."""
    with pytest.raises(PipelineError, match=advice):
        decoder(Schema((Field("carrier", STRING), Field("delay", INT64))), header)


def test_nested_columns_are_refused() -> None:
    """A list has no place in CSV."""
    with pytest.raises(PipelineError, match="use jsonl"):
        decoder(Schema((Field("l", ListType(INT64)),)))


def test_empty_text_of_a_column_that_is_not_nullable() -> None:
    """Where a text may not be null, an empty one is empty."""
    assert decoder(Schema((Field("s", STRING), Field("i", INT64)))).decode(b",1\n").frame.rows() == [("", 1)]


def test_header() -> None:
    """Headers may be quoted and begin with a byte order mark."""
    assert header_of(b'\xef\xbb\xbf"a b",c\r\n', ",", "x.csv") == ["a b", "c"]
    with pytest.raises(PipelineError, match="UTF-8"):
        header_of(b"\xff\n", ",", "x.csv")


ROUND = Schema(
    (
        Field("i", INT64, nullable=True),
        Field("s", STRING, nullable=True),
        Field("f", FLOAT64, nullable=True),
        Field("at", TIMESTAMP, nullable=True),
        Field("d", DURATION, nullable=True),
        Field("b", BINARY, nullable=True),
        Field("t", BOOLEAN, nullable=True),
    )
)
rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        st.one_of(
            st.none(),
            st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=5),
            st.sampled_from(['"', "\n", "\r", ",", " "]),
        ),
        st.one_of(st.none(), st.floats(allow_nan=False)),
        st.one_of(
            st.none(), st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda m: m.replace(tzinfo=UTC))
        ),
        st.one_of(st.none(), st.timedeltas(timedelta(days=-9999), timedelta(days=9999))),
        st.one_of(st.none(), st.binary(max_size=4)),
        st.one_of(st.none(), st.booleans()),
    ),
    max_size=5,
)


@settings(max_examples=200, deadline=None)
@given(rows)
def test_what_the_sink_writes_the_source_reads(values: list[tuple[object, ...]]) -> None:
    """Encoding and decoding gives the same frame, whatever the texts hold."""
    frame = pl.DataFrame(values, schema=ROUND.polars(), orient="row")
    decoded = decoder(ROUND).decode(encode_csv(frame, ROUND, header=False))
    assert not decoded.bad
    assert_frame_equal(decoded.frame, frame)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.text('ab,"\n ', max_size=4)), max_size=6), st.data())
def test_records_are_those_of_pythons_csv_module(values: list[tuple[int, str]], data: st.DataObject) -> None:
    """Splitting at any record's end gives the same rows, which are those that the standard library reads."""
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerows(values)
    block = out.getvalue().encode()
    made = decoder()
    ends = made.ends(block).tolist()
    assert len(ends) == len(values)
    cut = data.draw(st.sampled_from([0, *ends]))
    frame = pl.concat([made.decode(block[:cut]).frame, made.decode(block[cut:]).frame])
    assert frame.rows() == values


@pytest.mark.parametrize("null", ["", "NULL", "-1", "true", "1.5", "-"])
def test_a_value_that_looks_like_null_is_none(null: str) -> None:
    """It is quoted, whatever its type."""
    schema = Schema(
        tuple(
            Field(name, kind, nullable=True)
            for name, kind in (("s", STRING), ("i", INT64), ("b", BOOLEAN), ("f", FLOAT64))
        )
    )
    rows = {"s": [null, None, "x"], "i": [-1, None, 2], "b": [True, None, False], "f": [1.5, None, -1.0]}
    frame = pl.DataFrame(rows, schema=schema.polars())
    decoded = decoder(schema, null=null).decode(encode_csv(frame, schema, header=False, null=null))
    assert decoded.bad == []
    assert_frame_equal(decoded.frame, frame)


@pytest.mark.parametrize(
    ("block", "rows", "bad"),
    [
        (b'a\r"', [], [0]),
        (b'1,x\na\r"\n"\n2,y\n', [(1, "x"), (2, "y")], [1]),
        (b"1,x\ny\r3,z\n4,w\n", [(1, "x"), (4, "w")], [1]),
        (b'1,5" pipe\n2,y\n3,z\n', [(1, '5" pipe'), (2, "y"), (3, "z")], []),
    ],
)
def test_line_ends_and_quotes_within_unquoted_values(block: bytes, rows: list[object], bad: list[int]) -> None:
    """The parser has other records there than lines were found: what is wrong is told of the right one."""
    decoded = decoder().decode(block)
    assert decoded.frame.rows() == rows
    assert [line.index for line in decoded.bad] == bad


@settings(deadline=None)
@given(st.lists(st.sampled_from([b"1", b"x", b",", b'"', b"\r", b"\n", b"\xc3\xa9", b" "]), max_size=30).map(b"".join))
def test_any_bytes_are_rows_or_bad_records(block: bytes) -> None:
    """Nothing is raised, and a record is told of once."""
    decoded = decoder().decode(block)
    indexes = [line.index for line in decoded.bad]
    assert indexes == sorted(set(indexes))


@pytest.mark.parametrize("line", [b'x,"",', b'x,"y",', b'"x",y,', b'x,"a ""b""",'])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_what_is_empty_behind_quotes_is_null(line: bytes, end: bytes) -> None:
    """Also at the end of a block, which needs no line end."""
    schema = Schema((Field("a", STRING), Field("b", STRING), Field("c", STRING, nullable=True)))
    for records in (1, 2, 3):
        decoded = CsvDecoder(schema, schema.names, "x").decode((line + (end or b"\n")) * (records - 1) + line + end)
        assert decoded.frame["c"].to_list() == [None] * records


def test_a_byte_order_mark_within_a_file_is_text() -> None:
    """Wherever a block begins; that of the file stands before its header."""
    schema = Schema((Field("a", STRING),))
    assert CsvDecoder(schema, ["a"], "x").decode("\ufeffa\n\ufeffb\n".encode()).frame.rows() == [
        ("\ufeffa",),
        ("\ufeffb",),
    ]


def test_what_is_behind_microseconds_is_cut() -> None:
    """Rounding could make it another day."""
    schema = Schema((Field("at", TIMESTAMP), Field("time", TIME)))
    decoded = CsvDecoder(schema, schema.names, "x").decode(b"2026-01-01T23:59:59.9999999Z,23:59:59.9999999\n")
    at = datetime(2026, 1, 1, 23, 59, 59, 999_999, tzinfo=UTC)
    assert decoded.frame.rows() == [(at, at.time())]


def lines_with(damage: dict[int, bytes]) -> bytes:
    return b"".join(damage.get(n, b'%d,"text, %d"' % (n, n)) + b"\n" for n in range(1_000))


@pytest.mark.parametrize(
    ("damage", "rows", "bad"),
    [
        ({10: b'10,5" pipe'}, 1_000, []),
        ({10: b'10,5" pipe', 500: b"x,y"}, 999, [500]),
        ({500: b"x,y", 510: b'510,5" pipe', 900: b'z,7" pipe'}, 998, [500, 900]),
        ({10: b'10,"pipe', 500: b"x,y"}, 998, [10, 500]),
        ({10: b'10,"pipe', 11: b'11,"rod', 500: b"x,y"}, 997, [10, 11, 500]),
        ({998: b"x,y", 999: b'999,"pipe'}, 998, [998, 999]),
    ],
)
def test_a_quote_that_is_none_costs_no_other_line(damage: dict[int, bytes], rows: int, bad: list[int]) -> None:
    """Within a value without quotes it is text; one that is opened and not closed makes its line bad, and says so."""
    block, made = lines_with(damage), decoder()
    assert made.ends(block, last=True).tolist() == CsvDecoder.ends(decoder(), block.replace(b'"', b" ")).tolist()
    decoded = made.decode(block)
    assert (decoded.frame.height, [line.index for line in decoded.bad]) == (rows, bad)
    assert all(line.raw == damage[line.index] for line in decoded.bad)
    opened = [line.index for line in decoded.bad if line.error.startswith("a quote before a value is not closed")]
    assert opened == [index for index in bad if b',"' in damage[index]]
    inches = sum(b'5" pipe' in line for line in damage.values())
    assert decoded.frame["b"].str.contains('5" pipe', literal=True).sum() == inches


@pytest.mark.parametrize("seed", range(20))
def test_records_do_not_depend_on_how_a_file_comes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its quotes are: those of a buffer are the first ones of any longer one, and each decodes to the same."""
    monkeypatch.setattr(csv_quotes, "MOST_QUOTED", 12)
    chance, made = random.Random(seed), decoder()
    text = b"".join(chance.choices([b"1", b"x", b",", b'"', b'""', b'\n1,"', b'"\n', b"\n"], k=60))
    whole = made.ends(text, last=True).tolist()
    for end in range(len(text)):
        known = made.ends(text[:end]).tolist()
        assert known == whole[: len(known)], text[:end]
    decoded, start, records = made.decode(text), 0, list[bytes]()
    for end in [*whole, len(text)]:
        records += [text[start:end]] if end > start else []
        start = end
    apart = [made.decode(record) for record in records]
    assert decoded.frame.rows() == [row for each in apart for row in each.frame.rows()]
    assert [line.index for line in decoded.bad] == [index for index, each in enumerate(apart) for _ in each.bad]


def test_what_is_in_quotes_for_too_long_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So no line far below is waited for."""
    monkeypatch.setattr(csv_quotes, "MOST_QUOTED", 20)
    block = b'1,"pipe\n' + b"2,rod\n" * 5 + b'3,"x"\n4,"' + b"y" * 15 + b'\n"\n'
    decoded = decoder().decode(block)
    assert [(line.index, line.raw) for line in decoded.bad] == [(0, b'1,"pipe')]
    assert decoded.frame.rows() == [(2, "rod")] * 5 + [(3, "x"), (4, "y" * 15 + "\n")]
    assert decoder().ends(block[:20]).tolist() == []
    assert decoder().ends(block[:30]).tolist() == [8, 14, 20, 26]
