"""Tables of a program under test that are asked for rows by their key: they answer from the rows that the test gives."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.connectors.lookups import Key, Lookup, LookupClient
from penstock.types import Schema


class GivenLookup(Lookup[Any]):
    """Given rows in place of another system.

    Args:
        lookup: what would be asked.
        rows: the rows of the table, as dicts of its columns.
        key: the columns of its primary key, by which a later row replaces an earlier one; empty if it has none.
    """

    def __init__(self, lookup: Lookup[Any], rows: Sequence[dict[str, Any]], key: Sequence[str]) -> None:
        self.kind = lookup.kind  # pyright: ignore[reportAttributeAccessIssue]
        self.schema, self.row_type, self.calls = lookup.schema, lookup.row_type, lookup.calls
        self._lookup = lookup
        by_key = {tuple(row.get(name) for name in key): row for row in rows} if key else {}
        self.rows = list(by_key.values()) if key else list(rows)

    @property
    def name(self) -> str:
        """See `Lookup.name`."""
        return self._lookup.name

    def client(self, columns: Schema, keys: Schema) -> LookupClient:
        """See `Lookup.client`."""
        return _GivenRows(self.rows, columns.names, keys.names)

    def describe(self) -> Mapping[str, Any]:
        """See `Lookup.describe`."""
        return self._lookup.describe()


class _GivenRows:
    """See `LookupClient`."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], keys: Sequence[str]) -> None:
        self._found: dict[Key, list[bytes]] = {}
        for row in rows:
            document = msgspec.json.encode({name: _plain(row.get(name)) for name in columns})
            self._found.setdefault(tuple(row.get(name) for name in keys), []).append(document)

    async def open(self) -> None:
        pass

    async def ask(self, keys: Sequence[Key]) -> Sequence[Sequence[bytes]]:
        return [self._found.get(key, []) for key in keys]

    async def close(self) -> None:
        pass


def _plain(value: Any) -> Any:
    """A value in the form in which sources of JSON read it."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case _:
            return value
