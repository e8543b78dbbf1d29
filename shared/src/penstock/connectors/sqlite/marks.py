"""Marks: how far a partition is published, as rows of a table beside the target, with the number of the producer."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Final

from penstock.connectors.sqlite.database import Database, columns_of

MARKS: Final = "penstock_marks"
_OF_JOB: Final = "job = ? and operator = ? and generation = ?"
_KEY: Final = f"{_OF_JOB} and partition = ?"
_MAKE: Final = f"""
create table if not exists {MARKS} (
    job text not null, operator text not null, generation integer not null, partition integer not null,
    producer integer not null, position integer, metadata text, changed text not null default current_timestamp,
    primary key (job, operator, generation, partition))
"""
_NEXT: Final = f"""
insert into {MARKS} (job, operator, generation, partition, producer) values (?, ?, ?, ?, 1)
on conflict (job, operator, generation, partition) do update set producer = producer + 1 returning producer
"""
_MOVE: Final = (
    f"update {MARKS} set position = ?, metadata = ?, changed = current_timestamp where {_KEY} and producer = ?"
)


@dataclass(frozen=True)
class Mark:
    """The mark of a partition."""

    database: Database
    where: str
    """What leads errors."""
    key: tuple[str, str, int, int]
    """Job, operator, generation, partition."""

    def make_table(self) -> None:
        """The table of all marks, if there is none."""
        with self.database.connection("rw", f"{self.where}opening: ") as connection:
            if not columns_of(connection, MARKS):
                connection.execute(_MAKE)

    def next_producer(self) -> int:
        """Give it the next number, for which whatever is being written has to be over."""
        with self.database.transaction(f"{self.where}taking the mark: ") as connection:
            [producer] = connection.execute(_NEXT, self.key).fetchone()
        return producer

    def read(self) -> tuple[int, str] | None:
        """Position and metadata."""
        query = f"select position, metadata from {MARKS} where {_KEY}"
        with self.database.connection("ro", f"{self.where}reading the mark: ") as connection:
            found = connection.execute(query, self.key).fetchone()
        return None if found is None or found[0] is None else found

    def move(self, connection: sqlite3.Connection, producer: int, position: int, metadata: str) -> bool:
        """Move it in the transaction of the caller; False if it has another number by now."""
        return connection.execute(_MOVE, (position, metadata, *self.key, producer)).rowcount == 1


def forget_marks(database: Database, where: str, job: str, operator: str, generation: int) -> None:
    """Remove those of all partitions; where the file is gone, they are."""
    if not database.exists:
        return
    with database.transaction(f"{where}removing marks: ") as connection:
        if columns_of(connection, MARKS):
            connection.execute(f"delete from {MARKS} where {_OF_JOB}", (job, operator, generation))
