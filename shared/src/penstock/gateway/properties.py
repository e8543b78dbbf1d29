"""Properties of a session: those of Penstock's SQL, those that a client keeps for itself, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import UsageError, nearest
from penstock.sql.programs import MAX_PARALLELISM, NAME, TTL
from penstock.sql.syntax import Part, ResetOption, SetOption
from penstock.sql.text import SqlText

_OF_SQL: Final = (NAME, TTL, MAX_PARALLELISM)
_OF_CLIENTS: Final = "sql-client."
"""How to show results: Flink's client asks the session for what it has set there."""
DML_SYNC: Final = "table.dml-sync"
"""Whether INSERT INTO is an operation until its run has ended."""
_MODE: Final = "execution.runtime-mode"
_OF_RESULTS: Final = "table."
"""What begins so changes results; nothing else of Flink's configuration does, which concerns Flink's own processes."""


@dataclass
class Properties:
    """The properties of a session beside the settings of its SQL."""

    values: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def waits_for_inserts(self) -> bool:
        """Whether INSERT INTO is an operation until its run has ended."""
        return self.values.get(DML_SYNC) == "true"

    def open(self, given: Mapping[str, str]) -> Iterator[SqlText]:
        """Take what a session is opened with; gives the SET for each that is a setting of Penstock's SQL.

        Flink's client sends its whole configuration, most of which is about Flink's own processes: it is kept, to be
        shown.

        Raises:
            UsageError: it would change results, and Penstock does not know it.
        """
        for key, value in given.items():
            if key in _OF_SQL:
                yield _set(key, value, "properties")
            elif key == DML_SYNC:
                self._take_sync(value)
            elif key.startswith(_OF_RESULTS):
                raise _unknown("properties", key)
            elif key == _MODE and value.lower() != "streaming":
                raise UsageError(
                    f"properties: {key!r} is not needed: a query ends if its tables have an end; leave it out"
                )
            else:
                self.values[key] = value

    def known(self, given: Mapping[str, str], where: str) -> Iterator[SqlText]:
        """The SET for each of these.

        Raises:
            UsageError: there is no such setting of Penstock's SQL.
        """
        for key, value in given.items():
            if key not in _OF_SQL:
                raise _unknown(where, key)
            yield _set(key, value, where)

    def take(self, part: Part) -> bool:
        """Whether a statement is about these properties alone, and is done."""
        if isinstance(part, SetOption) and part.key is not None and part.value is not None:
            if part.key == DML_SYNC:
                self._take_sync(part.value)
                return True
            if part.key.startswith(_OF_CLIENTS):
                self.values[part.key] = part.value
                return True
        if isinstance(part, ResetOption):
            if part.key is None:
                mine = [key for key in self.values if key == DML_SYNC or key.startswith(_OF_CLIENTS)]
                for key in mine:
                    del self.values[key]
            elif part.key == DML_SYNC or part.key.startswith(_OF_CLIENTS):
                self.values.pop(part.key, None)
                return True
        return False

    def _take_sync(self, value: str) -> None:
        if value.lower() not in ("true", "false"):
            raise UsageError(f"{DML_SYNC} is true or false, not {value!r}")
        self.values[DML_SYNC] = value.lower()


def _set(key: str, value: str, where: str) -> SqlText:
    quoted = value.replace("'", "''")
    return SqlText(f"SET '{key}' = '{quoted}'", f"<{where}>")


def _unknown(where: str, key: str) -> UsageError:
    return UsageError(f"{where}: there is no setting {key!r}; {nearest(key, (*_OF_SQL, DML_SYNC))}")
