"""`postgres.ChangeSource` without a server: what is declared, messages of the log, texts of values, positions."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest

from penstock import DecimalType, PipelineError
from penstock.connectors import postgres
from penstock.connectors.change_rows import UNCHANGED as KEPT
from penstock.connectors.postgres.captured_table import CapturedColumn, CapturedTable, reads
from penstock.connectors.postgres.change_log import ChangeLog
from penstock.connectors.postgres.change_positions import ChangePosition, Part
from penstock.connectors.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Relation,
    RelationColumn,
    RowChange,
    Truncate,
    message_of,
)
from penstock.connectors.postgres.text_values import RowImages, RowTexts
from penstock.errors import CorruptDataError
from penstock.settings import Secret
from penstock.types import BINARY, FLOAT32, FLOAT64, INT64, STRING, TIMESTAMP, Field, ListType, Schema, schema_of

URL = "postgresql://user:topsecret@db:5432/shop"


@dataclass
class Order:
    id: int
    town: str | None
    total: int


def source(**options: Any) -> postgres.ChangeSource[Order]:
    return postgres.ChangeSource(
        "orders", **{"key": "id", "schema": Order, "url": Secret(URL), "slot": "orders", **options}
    )  # fmt: skip


# -- declaring ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slot": "Orders-1"}, "slot='Orders-1' is no name of a slot: up to 63 of a-z, 0-9 and _"),
        ({"key": []}, "key= names no column"),
        ({"key": "idd"}, "key: there is no column 'idd'; did you mean 'id'"),
        ({"url": "http://db/shop"}, "url= is an address such as postgresql://"),
        ({"timezone": "Ulm"}, "there is no time zone 'Ulm'"),
    ],
)
def test_what_does_not_fit_is_said(options: dict[str, Any], said: str) -> None:
    """By the connector's name, and what is wrong."""
    with pytest.raises(PipelineError, match=f"postgres.ChangeSource: {said}"):
        source(**options)


def test_a_source_tells_what_it_reads_and_no_secret() -> None:
    """Former rows that are not whole have only their key; what is read of a table is not written to it again."""
    made = source()
    assert "topsecret" not in repr(made)
    assert made.describe() == {
        "table": "orders", "url": "db:5432/shop", "key": ["id"], "slot": "orders", "publication": "orders",
        "bad_rows": "fail",
    }  # fmt: skip
    assert [field.nullable for field in made.schema] == [False, True, True, False]
    assert [field.nullable for field in source(before_images=True).schema] == [False, True, False, False]
    assert "would read what" in made.conflict(postgres.Sink("orders", url=URL, key="id"))
    assert not made.conflict(postgres.Sink("orders_by_town", url=URL, key="id"))


# -- messages -----------------------------------------------------------------------------------------------------------


def tuple_data(*values: bytes | None) -> bytes:
    def part(value: bytes | None) -> bytes:
        if value is None:
            return b"n"
        return b"u" if value == UNCHANGED else b"t" + struct.pack(">I", len(value)) + value

    return struct.pack(">H", len(values)) + b"".join(part(value) for value in values)


def begin(commit_lsn: int, xid: int = 700) -> bytes:
    return b"B" + struct.pack(">QqI", commit_lsn, 0, xid)


def commit(commit_lsn: int) -> bytes:
    """Whose record has eight bytes."""
    return b"C" + struct.pack(">BQQq", 0, commit_lsn, commit_lsn + 8, 0)


def relation(
    *columns: tuple[str, int],
    oid: int = 9,
    name: bytes = b"orders",
    identity: bytes = b"d",
    key: tuple[str, ...] = ("id",),
) -> bytes:
    described = b"".join(
        bytes([identity == b"f" or column in key]) + column.encode() + b"\0" + struct.pack(">Ii", type_oid, -1)
        for column, type_oid in columns
    )
    return (
        b"R"
        + struct.pack(">I", oid)
        + b"public\0"
        + name
        + b"\0"
        + identity
        + struct.pack(">H", len(columns))
        + described
    )


def of_table(kind: bytes, *parts: bytes, oid: int = 9) -> bytes:
    return kind + struct.pack(">I", oid) + b"".join(parts)


def test_messages_are_read_as_the_documentation_has_them() -> None:
    """Bytes by hand, by "Logical Replication Message Formats"."""
    assert message_of(begin(0x100, 745)) == Begin(0x100, 745)
    assert message_of(commit(0x100)) == Commit(0x108)
    assert message_of(relation(("id", 20), identity=b"f")) == Relation(
        9, "public.orders", "f", (RelationColumn("id", 20, -1, of_identity=True),)
    )
    assert message_of(of_table(b"I", b"N", tuple_data(b"1", None))) == RowChange(9, [b"1", None])
    assert message_of(of_table(b"U", b"N", tuple_data(b"1", UNCHANGED))) == RowChange(9, [b"1", UNCHANGED])
    changed = of_table(b"U", b"K", tuple_data(b"1", None), b"N", tuple_data(b"2", b""))
    assert message_of(changed) == RowChange(9, [b"2", b""], [b"1", None])
    whole = of_table(b"D", b"O", tuple_data(b"1", b"Ulm"))
    assert message_of(whole) == RowChange(9, None, [b"1", b"Ulm"], old_is_whole=True)
    assert message_of(b"T" + struct.pack(">IBII", 2, 1, 9, 10)) == Truncate((9, 10))
    assert [message_of(kind + b"anything") for kind in (b"Y", b"O", b"M")] == [None] * 3


@pytest.mark.parametrize(
    "data",
    [
        b"", b"S123", b"B\0", of_table(b"I", b"K", tuple_data(b"1")), of_table(b"D", b"N", tuple_data(b"1")),
        of_table(b"I", b"N", b"\0\1t\0\0\0\x09short"), of_table(b"I", b"N", b"\0\1b\0\0\0\1x"), b"R\0\0\0\1public",
    ],
)  # fmt: skip
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    """Never passed over: it may have been a change."""
    with pytest.raises(CorruptDataError, match="no message of pgoutput"):
        message_of(data)


# -- values -------------------------------------------------------------------------------------------------------------


@dataclass
class Everything:
    whole: int
    exact: Annotated[Decimal, DecimalType(10, 2)]
    ratio: float
    truth: bool
    text: str | None
    data: bytes
    at: datetime
    day: date
    moment: time
    span: timedelta
    tags: list[str]


TEXTS = [
    b"-5", b"3.10", b"1e-05", b"t", b'a"b\\c\n\xc3\xa4', b"\\xdead", b"2026-01-01 12:30:15.5+00", b"2026-01-01",
    b"12:30:00.25", b"P1DT-2H3M-0.5S", b'["a",\n "b"]',
]  # fmt: skip
VALUES = (
    -5, Decimal("3.10"), 1e-05, True, 'a"b\\c\nä', b"\xde\xad", datetime(2026, 1, 1, 12, 30, 15, 500_000, UTC),
    date(2026, 1, 1), time(12, 30, 0, 250_000), timedelta(days=1, hours=-2, minutes=3, seconds=-0.5), ["a", "b"],
)  # fmt: skip


def test_texts_become_values() -> None:
    """As they are, one row a line whatever they hold; null is null."""
    schema = schema_of(Everything, "test")
    texts = RowTexts(schema)
    null = [None if field.nullable else text for field, text in zip(schema, TEXTS, strict=True)]
    decoded = RowImages(schema, None).decode([texts.image(TEXTS), texts.image(null)])
    assert not decoded.bad
    assert decoded.frame.rows() == [VALUES, (*VALUES[:4], None, *VALUES[5:])]


@pytest.mark.parametrize(
    ("column", "text", "said"),
    [
        ("ratio", b"NaN", "ratio: NaN is no number that a row can have"),
        ("span", b"P1M", "span: P1M is no interval without months and years"),
        ("text", UNCHANGED, "text: an update left this large value as it was.*replica identity full"),
        ("whole", b"1.5", "Expected `int`"),
        ("exact", b"1.234", "exact"),
        ("at", b"infinity", "RFC3339"),
        ("day", b"0044-03-15 BC", "date"),
    ],
)
def test_values_that_no_row_can_have_are_bad(column: str, text: bytes, said: str) -> None:
    """By column; nothing is rounded or made null."""
    schema = schema_of(Everything, "test")
    values = [text if field.name == column else given for field, given in zip(schema, TEXTS, strict=True)]
    with pytest.raises(ValueError, match=said):  # noqa: PT012 (either of the two)
        bad = RowImages(schema, None).decode([RowTexts(schema).image(values)]).bad
        raise ValueError(bad[0].error)


def test_a_large_value_that_was_left_as_it_was_is_known_by_the_kept_row() -> None:
    """Of texts and bytes, where a row of the same key is replaced; a moved one has no former row by its key."""
    schema = Schema((Field("id", INT64), Field("text", STRING), Field("scan", BINARY), Field("tags", ListType(STRING))))
    image = RowTexts(schema, keeps=True).image([b"1", UNCHANGED, UNCHANGED, b"[]"])
    assert RowImages(schema, None).decode([image]).frame.row(0)[1:3] == (KEPT, KEPT.encode())
    assert KEPT.encode() == UNCHANGED
    with pytest.raises(ValueError, match="tags: an update left this large value as it was"):
        RowTexts(schema, keeps=True).image([b"1", b"t", b"\\x00", UNCHANGED])
    log = log_of()
    updated = of_table(b"U", b"N", tuple_data(b"8", b"1", b"x", UNCHANGED))
    moved = of_table(b"U", b"K", tuple_data(None, b"1", None, None), b"N", tuple_data(b"8", b"2", b"x", UNCHANGED))
    messages = [begin(200), relation(*COLUMNS), updated, moved]
    changes = [change for data in messages if (change := log.feed(0, data)) is not None]
    assert [[image.has_former for image in change.images] for change in changes] == [[True], [False, False]]


def test_which_columns_can_be_read() -> None:
    """Wider and narrower numbers, digits of seconds; no float from a number that would be rounded."""
    assert reads("integer", INT64)
    assert reads("numeric(20,0)", INT64)
    assert reads("uuid", STRING)
    assert reads("timestamp(3) with time zone", TIMESTAMP)
    assert reads("jsonb", ListType(INT64))
    for column, kind in [
        ("double precision", FLOAT32), ("numeric", FLOAT64), ("text", INT64), ("integer[]", ListType(INT64)),
        ("timestamp without time zone", TIMESTAMP),
    ]:  # fmt: skip
        assert not reads(column, kind)


# -- positions ----------------------------------------------------------------------------------------------------------


def test_what_a_snapshot_sees() -> None:
    """As Postgres does it, with 32 bits of an id, also beyond the first 2 ** 32 of them."""
    part = Part("100:110:103,105", 0, None)
    assert [xid for xid in range(95, 115) if part.sees(xid)] == [
        95,
        96,
        97,
        98,
        99,
        100,
        101,
        102,
        104,
        106,
        107,
        108,
        109,
    ]
    wrapped = Part(f"{(1 << 32) - 2}:{(1 << 32) + 5}:{(1 << 32) - 1},{(1 << 32) + 3}", 0, None)
    seen = [xid for xid in [(1 << 32) - 3, (1 << 32) - 2, (1 << 32) - 1, 0, 2, 3, 4, 5, 6] if wrapped.sees(xid)]
    assert seen == [(1 << 32) - 3, (1 << 32) - 2, 0, 2, 4]


POSITION = ChangePosition(lsn=100, table=9, owner="o", fence=1, read=True)


def test_a_position_forgets_parts_that_the_log_has_passed() -> None:
    """Not before: a change may still be in the rows that were read."""
    position = ChangePosition(100, 9, "o", 1).with_rows(Part("1:1:", 150, ("3",))).with_rows(Part("1:1:", 150, ("5",)))
    position = position.with_rows(Part("2:2:", 180, None))
    assert [part.upto for part in position.parts] == [("5",), None]
    assert position.read
    assert position.with_changes(179).parts == position.parts
    assert position.with_changes(180).parts == ()
    assert msgspec.convert(msgspec.to_builtins(position), ChangePosition) == position


# -- the log ------------------------------------------------------------------------------------------------------------

TABLE = CapturedTable(
    9, "public.orders", key=("id",),
    columns={
        name: CapturedColumn(oid, -1, kind, kind, not_null=True, generated=False, collation=None)
        for name, oid, kind in [("id", 20, "bigint"), ("town", 25, "text"), ("total", 20, "bigint")]
    },
)  # fmt: skip
COLUMNS = (("total", 20), ("id", 20), ("extra", 25), ("town", 25))


def fed(log: ChangeLog, *messages: bytes) -> list[tuple[tuple[bytes | None, ...], bool]]:
    """The images of the changes: values, and whether they are taken back."""
    changes = [change for data in messages if (change := log.feed(0, data)) is not None]
    return [(tuple(image.values), image.retracted) for change in changes for image in change.images]


def log_of(position: ChangePosition = POSITION, **options: Any) -> ChangeLog:
    return ChangeLog(source(**options).capture, TABLE, position)


def insert(number: int) -> bytes:
    return of_table(b"I", b"N", tuple_data(b"7", str(number).encode(), b"x", b"Ulm"))


def test_changes_of_rows_that_replace_others() -> None:
    """By key: a new key takes the former one back; columns by name, those that nobody reads are left out."""
    log = log_of()
    moved = of_table(b"U", b"K", tuple_data(None, b"1", None, None), b"N", tuple_data(b"8", b"2", b"x", None))
    deleted = of_table(b"D", b"K", tuple_data(None, b"2", None, None))
    other = of_table(b"I", b"N", tuple_data(b"1"), oid=10)
    assert fed(log, begin(200), relation(*COLUMNS), insert(1), moved, other, deleted, commit(200)) == [
        ((b"1", b"Ulm", b"7"), False), ((b"1",), True), ((b"2", None, b"8"), False), ((b"2",), True),
    ]  # fmt: skip
    assert log.position == replace_position(lsn=208)


def replace_position(**changes: Any) -> ChangePosition:
    return msgspec.structs.replace(POSITION, **changes)


def test_changes_with_whole_former_rows() -> None:
    """What an update left as it was comes from the former row; one that changes nothing that is read is no change."""
    log = log_of(before_images=True)
    old = tuple_data(b"7", b"1", b"x", b"a large text")
    updated = of_table(b"U", b"O", old, b"N", tuple_data(b"8", b"1", b"x", UNCHANGED))
    unchanged = of_table(b"U", b"O", old, b"N", tuple_data(b"7", b"1", b"y", UNCHANGED))
    got = fed(log, begin(200), relation(*COLUMNS, identity=b"f"), updated, unchanged, of_table(b"D", b"O", old))
    assert got == [
        ((b"1", b"a large text", b"7"), True), ((b"1", b"a large text", b"8"), False),
        ((b"1", b"a large text", b"7"), True),
    ]  # fmt: skip


def test_a_large_transaction_goes_on_where_it_was_left() -> None:
    """Its changes are counted; what comes before it again is skipped; the log may have come on in silence."""
    log = log_of()
    whole = [relation(*COLUMNS), *(insert(number) for number in range(1, 6)), commit(200)]
    assert len(fed(log, begin(150), commit(150), begin(200), *whole[:4])) == 3
    position = log.position
    assert position == replace_position(lsn=158, commit=200, done=3)
    again = log_of(position)
    assert again.feed(190, b"") is None
    assert (again.position.commit, again.position.done) == (200, 3)
    assert fed(again, begin(150), insert(9), commit(150), begin(200)) == []
    assert again.position.done == 3
    assert [values[0] for values, _ in fed(again, *whole)] == [b"4", b"5"]
    assert again.position == replace_position(lsn=208)
    again.feed(300, b"")
    assert again.position == replace_position(lsn=300)


def test_a_table_that_is_altered() -> None:
    """Columns that come are ignored; ones that go, the same name for another table, no former rows: each is said."""
    log = log_of()
    assert fed(log, relation(*COLUMNS, ("more", 25)), begin(200), of_table(b"I", b"N", tuple_data(*[b"1"] * 5)))
    log.feed(0, relation(("id", 23), ("town", 25), ("total", 20)))
    assert log.retyped == {"id": (23, -1)}
    with pytest.raises(
        PipelineError, match="orders at db:5432/shop: it was altered: there is no column town, total any"
    ):
        log.feed(0, relation(("id", 20)))
    with pytest.raises(PipelineError, match="the table was made anew; start the job anew"):
        log.feed(0, relation(*COLUMNS, oid=77))
    with pytest.raises(PipelineError, match="replica identity is not full any more"):
        log_of(before_images=True).feed(0, relation(*COLUMNS))
    [change] = [log.feed(0, message) for message in (b"T" + struct.pack(">IBI", 1, 0, 9),)]
    assert change is not None
    assert change.truncates
