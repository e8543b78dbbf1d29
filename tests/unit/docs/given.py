"""What the Python blocks of a page find beside what they define: classes, streams and modules that its text speaks of.

`GIVEN` has a function per page whose blocks are parts of a pipeline; blocks of other pages stand by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import redis as redis_client

import penstock
from penstock import Pattern, Pipeline, count, tumbling
from penstock.connectors import files, http, iceberg, iterables, kafka, opensearch, postgres, sqlite
from penstock.connectors import redis as redis_connector
from penstock.settings import Secret


@dataclass
class Account:
    account: str
    name: str


@dataclass
class Alert:
    order: int
    at: datetime


@dataclass
class Bid:
    auction: int
    price: float
    at: datetime


@dataclass
class Customer:
    id: str
    name: str


@dataclass
class Enriched:
    id: int
    customer: str
    name: str


@dataclass
class Limit:
    id: str
    most: float


@dataclass
class Order:
    id: int
    order: int
    customer: str
    account: str
    town: str
    currency: str
    price: float
    total: float
    at: datetime


@dataclass
class Payment:
    order: int
    account: str
    amount: float
    paid_at: datetime


@dataclass
class Rate:
    currency: str
    euros: float
    since: datetime


@dataclass
class Rated:
    account: str
    amount: float
    risk: float


@dataclass
class Total:
    auction: int
    price: float


def everything() -> dict[str, Any]:
    """A pipeline, its streams, and all names of Penstock."""
    p = Pipeline("of-the-docs")
    names = {name: getattr(penstock, name) for name in penstock.__all__}
    classes = {
        kind.__name__: kind
        for kind in (Account, Alert, Bid, Customer, Enriched, Limit, Order, Payment, Rate, Rated, Total)
    }
    modules = {
        "files": files, "http": http, "iceberg": iceberg, "kafka": kafka, "opensearch": opensearch, "postgres": postgres,
        "sqlite": sqlite, "time": time,
    }  # fmt: skip
    return names | classes | modules | {
        "Iterator": Iterator,
        "Secret": Secret,
        "datetime": datetime,
        "timedelta": timedelta,
        "database": "postgresql://localhost/shop",
        "token": "t",
        "redis": redis_connector,
        "p": p,
        "bids": p.read(iterables.Source([], schema=Bid, event_time="at")),
        "orders": p.read(iterables.Source([], schema=Order, event_time="at")),
        "payments": p.read(iterables.Source([], schema=Payment, event_time="paid_at")),
    }  # fmt: skip


def _async() -> dict[str, Any]:
    return everything() | {"redis": redis_client}


def _iceberg() -> dict[str, Any]:
    found = everything()
    per_minute = found["orders"].key_by("customer").window(tumbling("1m")).agg(orders=count())
    return found | {"per_minute": per_minute}


@dataclass
class Login:
    user: str
    status: str
    at: datetime


def _patterns() -> dict[str, Any]:
    read = Pipeline("logins").read(iterables.Source([], schema=Login, event_time="at"))
    return everything() | {"logins": read, "Pattern": Pattern}


GIVEN: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "docs/async.md": _async,
    "docs/changes.md": everything,
    "docs/files.md": everything,
    "docs/http.md": everything,
    "docs/iceberg.md": _iceberg,
    "docs/joins.md": everything,
    "docs/kafka.md": everything,
    "docs/postgres.md": everything,
    "docs/opensearch.md": everything,
    "docs/patterns.md": _patterns,
    "docs/redis.md": everything,
    "docs/sql.md": everything,
    "docs/sqlite.md": everything,
    "docs/time.md": everything,
    "docs/windows.md": everything,
}
