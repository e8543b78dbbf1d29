"""A table of Postgres that changes in transactions side by side, and what a log of its changes has to come to."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from postgres_tables import Table
from tests.postgres_server import PostgresServer

from penstock.connectors import postgres
from penstock.settings import Secret

WRITERS: Final = 3
COLUMNS: Final = 'shop text collate "C.utf8", id int, town text, total bigint not null, primary key (shop, id)'


@dataclass
class Order:
    """A row."""

    shop: str
    id: int
    town: str | None
    total: int


Key = tuple[str, int]


class ChangingTable:
    """Orders, changed by several sessions, each of which has keys of its own and perhaps a transaction open."""

    def __init__(self, server: PostgresServer, seed: int, rows: int, *, full: bool) -> None:
        self.table = Table(server, COLUMNS)
        self.name = self.table.name
        self._random = random.Random(seed)
        if full:
            self.table.do("alter table {} replica identity full")
        self.table.do(
            "insert into {} select chr(97 + n %% 26) || n / 100, n, 'Ulm', n from generate_series(1, %s) n", rows
        )
        self._last = rows
        self._large = 0
        self._sessions = [psycopg.connect(server.url) for _ in range(WRITERS)]

    def source(self, **options: Any) -> postgres.ChangeSource[Order]:
        url = Secret(self.table.server.url)
        return postgres.ChangeSource(
            self.name, key=("shop", "id"), schema=Order, url=url, slot=self.name, **options
        )  # fmt: skip

    def change(self, count: int) -> None:
        """Random statements; each session commits or rolls back now and then."""
        for _ in range(count):
            writer = self._random.randrange(WRITERS)
            session = self._sessions[writer]
            self._statement(session, writer)
            chance = self._random.random()
            if chance < 0.3:
                session.commit()
            elif chance < 0.4:
                session.rollback()

    def commit(self) -> None:
        """All that is open."""
        for session in self._sessions:
            session.commit()

    def large(self, rows: int) -> None:
        """One transaction of very many changes, over what all sessions have."""
        self.commit()
        name = self.name
        with self._sessions[0] as session:
            self._large += 1
            shop = f"large{self._large}"
            session.execute(
                f"insert into {name} select %s, 1000000 + n, null, n from generate_series(1, {rows}) n", [shop]
            )
            session.execute(f"update {name} set total = total + 1, town = 'Bonn'")
            session.execute(f"delete from {name} where id > 1000000 and id % 3 = 0")
        self._sessions[0] = psycopg.connect(self.table.server.url)

    def _statement(self, session: Any, writer: int) -> None:
        name, number = self.name, self._random.randrange(1, self._last + 1)
        number -= number % WRITERS - writer
        match self._random.randrange(8):
            case 0 | 1:
                self._last += WRITERS
                fresh = self._last - self._last % WRITERS + writer
                shop = self._random.choice("abcXYZ") + str(fresh % 7)
                session.execute(
                    f"insert into {name} values (%s, %s, 'Jena', 1) on conflict do nothing", [shop, fresh]
                )  # fmt: skip
            case 2:
                session.execute(f"delete from {name} where id = %s", [number])
            case 3:
                session.execute(f"update {name} set shop = 'm' || shop where id = %s and length(shop) < 9", [number])
            case 4:
                session.execute(f"update {name} set town = nullif(town, 'Jena') where id %% 30 = %s", [writer])
            case _:
                session.execute(f"update {name} set total = total + 1 where id = %s", [number])

    def rows(self) -> dict[Key, tuple[Any, ...]]:
        """What is there."""
        return {(shop, id): (town, total) for shop, id, town, total in self.table.do("select * from {}")}

    def close(self) -> None:
        for session in self._sessions:
            session.close()


def replayed(log: Sequence[dict[str, Any]]) -> dict[Key, tuple[Any, ...]]:
    """What a log of changes comes to; no row may be taken back that is not there as it was, or be there twice."""
    held: dict[Key, tuple[Any, ...]] = {}
    for place, row in enumerate(log):
        key, rest = (row["shop"], row["id"]), (row["town"], row["total"])
        if row["retracted"]:
            assert held.pop(key, None) == rest, (place, row)
        else:
            assert key not in held, (place, row, held[key])
            held[key] = rest
    return held
