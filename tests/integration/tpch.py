"""Tables like those of TPC-H, a few hundred orders of them, as facts and as histories of changes.

Keys, foreign keys and domains are those of the benchmark. Of the values that its queries ask for there are more than
among as many rows of its own, so that each finds some.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Final

from penstock.functions.windows.definitions import RETRACTED
from penstock.types import DATE, INT64, STRING, DataType, DecimalType, Field, Schema

Row = dict[str, Any]
Key = tuple[Any, ...]
MONEY: Final = DecimalType(15, 2)
SUPPLIERS, PARTS, CUSTOMERS, ORDERS = 24, 48, 60, 240

COLUMNS: Final[dict[str, dict[str, DataType]]] = {
    "region": {"r_regionkey": INT64, "r_name": STRING, "r_comment": STRING},
    "nation": {"n_nationkey": INT64, "n_name": STRING, "n_regionkey": INT64, "n_comment": STRING},
    "supplier": {
        "s_suppkey": INT64, "s_name": STRING, "s_address": STRING, "s_nationkey": INT64, "s_phone": STRING,
        "s_acctbal": MONEY, "s_comment": STRING,
    },
    "part": {
        "p_partkey": INT64, "p_name": STRING, "p_mfgr": STRING, "p_brand": STRING, "p_type": STRING, "p_size": INT64,
        "p_container": STRING, "p_retailprice": MONEY, "p_comment": STRING,
    },
    "partsupp": {
        "ps_partkey": INT64, "ps_suppkey": INT64, "ps_availqty": INT64, "ps_supplycost": MONEY, "ps_comment": STRING,
    },
    "customer": {
        "c_custkey": INT64, "c_name": STRING, "c_address": STRING, "c_nationkey": INT64, "c_phone": STRING,
        "c_acctbal": MONEY, "c_mktsegment": STRING, "c_comment": STRING,
    },
    "orders": {
        "o_orderkey": INT64, "o_custkey": INT64, "o_orderstatus": STRING, "o_totalprice": MONEY, "o_orderdate": DATE,
        "o_orderpriority": STRING, "o_clerk": STRING, "o_shippriority": INT64, "o_comment": STRING,
    },
    "lineitem": {
        "l_orderkey": INT64, "l_partkey": INT64, "l_suppkey": INT64, "l_linenumber": INT64, "l_quantity": MONEY,
        "l_extendedprice": MONEY, "l_discount": MONEY, "l_tax": MONEY, "l_returnflag": STRING, "l_linestatus": STRING,
        "l_shipdate": DATE, "l_commitdate": DATE, "l_receiptdate": DATE, "l_shipinstruct": STRING, "l_shipmode": STRING,
        "l_comment": STRING,
    },
}  # fmt: skip
KEYS: Final = {
    "region": ("r_regionkey",), "nation": ("n_nationkey",), "supplier": ("s_suppkey",), "part": ("p_partkey",),
    "partsupp": ("ps_partkey", "ps_suppkey"), "customer": ("c_custkey",), "orders": ("o_orderkey",),
    "lineitem": ("l_orderkey", "l_linenumber"),
}  # fmt: skip
COMPLETE: Final = frozenset({"region", "supplier", "partsupp", "orders"})
"""Tables whose changes have the former rows; the others are upserts."""
SCHEMAS: Final = {
    table: Schema(tuple(Field(name, type) for name, type in columns.items())) for table, columns in COLUMNS.items()
}

REGIONS: Final = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
NATIONS: Final = (
    ("ALGERIA", 0), ("ARGENTINA", 1), ("BRAZIL", 1), ("CANADA", 1), ("EGYPT", 4), ("ETHIOPIA", 0), ("FRANCE", 3),
    ("GERMANY", 3), ("INDIA", 2), ("INDONESIA", 2), ("IRAN", 4), ("IRAQ", 4), ("JAPAN", 2), ("JORDAN", 4), ("KENYA", 0),
    ("MOROCCO", 0), ("MOZAMBIQUE", 0), ("PERU", 1), ("CHINA", 2), ("ROMANIA", 3), ("SAUDI ARABIA", 4), ("VIETNAM", 2),
    ("RUSSIA", 3), ("UNITED KINGDOM", 3), ("UNITED STATES", 1),
)  # fmt: skip
ASKED_FOR: Final = (2, 3, 6, 7, 8, 20)
"""Nations where most suppliers and customers are."""
SEGMENTS: Final = ("AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD")
PRIORITIES: Final = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
INSTRUCTIONS: Final = ("DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN")
MODES: Final = ("REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB")
TYPES: Final = (
    "ECONOMY ANODIZED STEEL", "PROMO BURNISHED BRASS", "STANDARD PLATED BRASS", "MEDIUM POLISHED COPPER",
    "SMALL BRUSHED NICKEL", "LARGE PLATED TIN",
)  # fmt: skip
MADE: Final = (("Brand#12", "SM BOX"), ("Brand#23", "MED BOX"), ("Brand#34", "LG CASE"), ("Brand#45", "JUMBO JAR"))
"""Brands with containers."""
COLOURS: Final = ("forest", "green", "almond", "blush", "chocolate", "navy")
TODAY: Final = date(1995, 6, 17)


@dataclass
class Tpch:
    """One state of all tables. The same keys have other rows with another seed."""

    seed: int
    rows: dict[str, dict[Key, Row]] = field(default_factory=dict[str, dict[Key, Row]])

    def __post_init__(self) -> None:
        self.draw = random.Random(f"tpch {self.seed}")
        for table in COLUMNS:
            made = (dict(zip(COLUMNS[table], row, strict=True)) for row in getattr(self, f"_{table}")())
            self.rows[table] = {key_of(table, row): row for row in made}

    def _cents(self, least: float, most: float) -> Decimal:
        return Decimal(self.draw.randint(int(least * 100), int(most * 100))).scaleb(-2)

    def _words(self, *more: str) -> str:
        words = [self.draw.choice(("carefully", "furious", "quick", "ironic", "pending", *more)) for _ in range(4)]
        return " ".join(words)

    def _nation_of(self) -> int:
        return self.draw.choice((*ASKED_FOR, *ASKED_FOR, self.draw.randrange(25)))

    def _phone(self, nation: int) -> str:
        return (
            f"{nation + 10}-{self.draw.randint(100, 999)}-{self.draw.randint(100, 999)}-{self.draw.randint(1000, 9999)}"
        )

    def _region(self) -> Iterator[Key]:
        for number, name in enumerate(REGIONS):
            yield number, name, self._words()

    def _nation(self) -> Iterator[Key]:
        for number, (name, region) in enumerate(NATIONS):
            yield number, name, region, self._words()

    def _supplier(self) -> Iterator[Key]:
        for number in range(1, SUPPLIERS + 1):
            nation = self._nation_of()
            comment = self._words("Customer Complaints") if number % 4 == 0 else self._words()
            name, address = f"Supplier#{number:09}", f"{self._words()[:12]} {number}"
            yield number, name, address, nation, self._phone(nation), self._cents(-999.99, 9999.99), comment

    def _part(self) -> Iterator[Key]:
        for number in range(1, PARTS + 1):
            brand, container = self.draw.choice(MADE)
            name = " ".join(self.draw.sample(COLOURS, 3))
            size = self.draw.choice((3, 9, 14, 15, 15, 15, self.draw.randint(1, 50)))
            price = Decimal(90_000 + number % 200 * 100 + number).scaleb(-2)
            maker = f"Manufacturer#{brand[6]}"
            yield number, name, maker, brand, self.draw.choice(TYPES), size, container, price, self._words()

    def _partsupp(self) -> Iterator[Key]:
        for part in range(1, PARTS + 1):
            for supplier in suppliers_of(part):
                yield part, supplier, self.draw.randint(1, 60), self._cents(1, 1000), self._words()

    def _customer(self) -> Iterator[Key]:
        for number in range(1, CUSTOMERS + 1):
            nation, segment = self._nation_of(), self.draw.choice(SEGMENTS)
            name, address = f"Customer#{number:09}", f"{self._words()[:12]} {number}"
            yield (
                number, name, address, nation, self._phone(nation), self._cents(-999.99, 9999.99), segment, self._words()
            )  # fmt: skip

    def _orders(self) -> Iterator[Key]:
        """As in the benchmark, every third customer has none; their days and states are those of their lines, below."""
        for number in range(1, ORDERS + 1):
            customer = self.draw.choice([each for each in range(1, CUSTOMERS + 1) if each % 3])
            placed = date(1993, 1, 1) + timedelta(days=self.draw.randrange(1_460))
            comment, clerk = self._words("special", "requests"), f"Clerk#{self.draw.randint(1, 9):09}"
            state = "F" if placed < TODAY - timedelta(days=60) else "O"
            priority = self.draw.choice(PRIORITIES)
            yield number, customer, state, self._cents(900, 400_000), placed, priority, clerk, 0, comment

    def _lineitem(self) -> Iterator[Key]:
        for (order,), of in self.rows["orders"].items():
            large = self.draw.random() < 0.1
            for line in range(1, (7 if large else lines_of(order)) + 1):
                yield self._line(order, line, of["o_orderdate"], 38 if large else self.draw.choice((1, 1, 20)))

    def _line(self, order: int, line: int, placed: date, least: int) -> Key:
        part = self.draw.randint(1, PARTS)
        supplier = self.draw.choice(suppliers_of(part))
        quantity = Decimal(self.draw.randint(least, 50 if least > 1 else 25))
        shipped = placed + timedelta(days=self.draw.randint(1, 121))
        committed = placed + timedelta(days=self.draw.randint(30, 90))
        received = shipped + timedelta(days=self.draw.randint(1, 30))
        returned = self.draw.choice("RA") if received <= TODAY else "N"
        return (
            order, part, supplier, line, quantity, quantity * Decimal(90_000 + part * 101).scaleb(-2),
            self._cents(0, 0.1), self._cents(0, 0.08), returned, "O" if shipped > TODAY else "F", shipped, committed,
            received, self.draw.choice(INSTRUCTIONS[:2]), self.draw.choice(MODES), self._words(),
        )  # fmt: skip


def key_of(table: str, row: Mapping[str, Any]) -> Key:
    return tuple(row[name] for name in KEYS[table])


def suppliers_of(part: int) -> list[int]:
    """The four who have a part."""
    return sorted({(part + each * (SUPPLIERS // 4)) % SUPPLIERS + 1 for each in range(4)})


def lines_of(order: int) -> int:
    return order * 5 % 6 + 1


# -- changes ------------------------------------------------------------------------------------------------------------


@dataclass
class History:
    """Changes of a table."""

    table: str
    complete: bool
    """Whether the former row is there where one is replaced or deleted, or a deletion has its key alone."""
    changes: list[Row] = field(default_factory=list[Row])
    held: dict[Key, Row] = field(default_factory=dict[Key, Row])

    def write(self, key: Key, row: Row | None) -> None:
        """Make this the row of the key; None: it has none any more."""
        gone = self.held.pop(key, None)
        if gone is not None and self.complete:
            self.changes.append({**gone, RETRACTED: True})
        elif gone is not None and row is None:
            self.changes.append({**dict(zip(KEYS[self.table], key, strict=True)), RETRACTED: True})
        if row is not None:
            self.held[key] = row
            self.changes.append({**row, RETRACTED: False})


def histories(first: Tpch, second: Tpch) -> dict[str, History]:
    """The rows of the first, of which many are replaced by those of the second, and some are deleted, for good or not.

    Foreign keys hold in the end: an order goes with its lines, and a customer only without orders.
    """
    draw = random.Random("histories")
    found = {table: History(table, table in COMPLETE) for table in COLUMNS}
    gone = {key[0] for key in first.rows["orders"] if draw.random() < 0.15}
    for table, history in found.items():
        before, after = first.rows[table], second.rows[table]
        for key in draw.sample(list(before), len(before)):
            history.write(key, before[key])
        for key in draw.sample(sorted({*before, *after}), len({*before, *after})):
            if (table in ("orders", "lineitem") and key[0] in gone) or (table == "customer" and key[0] % 9 == 0):
                history.write(key, None)
            elif key in after and draw.random() < 0.5:
                if draw.random() < 0.3:
                    history.write(key, None)
                history.write(key, after[key])
    return found
