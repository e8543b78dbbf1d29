"""Reads the sink topics `read_committed` while everything goes wrong, and holds every row against what is known.

Per key the rows must be exactly the known ones in their order: a row that comes before its turn means that others are
lost, one that comes after it that it is doubled or late. Changes of a join add what was not there and take back
what was; as upserts they end with the rows that hold. So every lost or doubled row is found when the next one of its
key arrives, and at the latest in `complete`.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from tests.chaos.feed import EPOCH, PARTITIONS, Known

from penstock.kafka.clients import confluent_options
from penstock.settings import KafkaSettings

TAGGED: Final = "tagged"
WINDOWS: Final = "windows"
FILTERED: Final = "filtered"
NUMBERED: Final = "numbered"
JOINED: Final = "joined"
NEWEST: Final = "newest"
STRAIGHT: Final = "straight"
SINKS: Final = (TAGGED, WINDOWS, FILTERED, NUMBERED, JOINED, NEWEST, STRAIGHT)

_SHOWN: Final = 20


class Outputs:
    """A thread that reads and compares until it is closed."""

    def __init__(self, settings: KafkaSettings, known: Known) -> None:
        self.problems: list[str] = []
        """Rows that are wrong, doubled or out of order, and what must be lost because a later row is there."""
        self.rows: Counter[str] = Counter()
        """Rows compared, by sink."""
        self.newest: dict[int, int] = dict.fromkeys(range(PARTITIONS), -1)
        """By partition of the source, the highest number seen in `TAGGED`."""
        self._known = known
        self._at: Counter[tuple[str, str]] = Counter()
        """How many rows of a key were seen in a sink, wrong ones not counted."""
        self._joined: set[tuple[int, str, int]] = set()
        """The rows of `JOINED` that were not taken back."""
        self._upserted: dict[bytes, tuple[int, str, int]] = {}
        """The last row of every key of `NEWEST`."""
        self._second: dict[str, int] = {}
        self._windows_seen: set[tuple[str, int]] = set()
        self._stop = threading.Event()
        options = confluent_options(settings, "chaos-outputs")
        options |= {
            "group.id": "chaos-outputs", "isolation.level": "read_committed", "enable.auto.commit": False,
            "auto.offset.reset": "error", "log_level": 0, "fetch.wait.max.ms": 50, "reconnect.backoff.max.ms": 500,
        }  # fmt: skip
        self._consumer = Consumer(options)
        self._consumer.assign([TopicPartition(sink, n, OFFSET_BEGINNING) for sink in SINKS for n in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._run, name="outputs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read no more."""
        self._stop.set()
        self._thread.join(30)
        self._consumer.close()

    def some_since(self, number: int) -> bool:
        """Whether a row of an event with this number or a higher one is there."""
        return max(self.newest.values()) >= number

    def all_since(self, number: int) -> bool:
        """Whether one of every partition of the source is."""
        return min(self.newest.values()) >= number

    def missing(self, *, windows: bool) -> list[str]:
        """What is known and not there (yet)."""
        known, missing = self._known, list[str]()
        for key, ids in known.ids.items():
            for sink in (TAGGED, NUMBERED, STRAIGHT):
                missing += [f"{sink}: {key} #{number}" for number in ids[self._at[sink, key] :]]
        for key, kept in known.kept.items():
            missing += [f"{FILTERED}: {key} #{number}" for number, _ in kept[self._at[FILTERED, key] :]]
        joined = known.joined()
        for sink, held in ((JOINED, self._joined), (NEWEST, set(self._upserted.values()))):
            missing += [f"{sink}: {row}" for row in sorted(joined - held)]
            missing += [f"{sink}: what takes back {row}" for row in sorted(held - joined)]
        if windows:
            missing += [f"{WINDOWS}: {key} +{s} s" for key, s in sorted(known.windows.keys() - self._windows_seen)]
        return missing

    def verdict(self, *, windows: bool) -> str:
        """What is wrong, in a few lines; empty if nothing is."""
        missing = self.missing(windows=windows)
        lines = (
            [f"{len(self.problems)} wrong, doubled or out of order:", *self.problems[:_SHOWN]] if self.problems else []
        )
        lines += [f"{len(missing)} lost:", *missing[:_SHOWN]] if missing else []
        return "\n  ".join(lines)

    # -- the thread -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        check: dict[str, Callable[[dict[str, Any], str], None]] = {
            TAGGED: self._tagged, WINDOWS: self._window, FILTERED: self._filtered, NUMBERED: self._numbered,
            JOINED: self._changed, STRAIGHT: self._straight,
        }  # fmt: skip
        while not self._stop.is_set():
            for message in self._consumer.consume(500, 0.02):
                error, topic = message.error(), message.topic()
                if error is not None:
                    # Broker away, leader not known: it goes on by itself. Positions that are gone it cannot get over.
                    if error.fatal() or error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                        self.problems.append(f"the reader of the sinks cannot go on: {error}")
                        return
                    continue
                assert topic is not None
                value = message.value()
                where = f"{topic}-{message.partition()}@{message.offset()}"
                try:
                    if topic == NEWEST:
                        self._newest(message.key() or b"", value)
                    else:
                        check[topic](json.loads(value or b""), where)
                    self.rows[topic] += 1
                except (ValueError, KeyError, TypeError) as wrong:
                    self.problems.append(f"{where}: {value!r}: {type(wrong).__name__}: {wrong}")

    def _tagged(self, row: dict[str, Any], where: str) -> None:
        self._has_tag(TAGGED, row, where)
        self.newest[int(row["part"])] = max(self.newest[int(row["part"])], int(row["id"]))

    def _straight(self, row: dict[str, Any], where: str) -> None:
        self._has_tag(STRAIGHT, row, where)

    def _has_tag(self, sink: str, row: dict[str, Any], where: str) -> None:
        number, key = int(row["id"]), str(row["key"])
        self._in_turn(sink, key, number, self._known.ids.get(key, []), where)
        if not row["tag"] or not row["process"]:
            self.problems.append(f"{where}: {row}: no tag")

    def _filtered(self, row: dict[str, Any], where: str) -> None:
        number, key = int(row["id"]), str(row["key"])
        kept = self._known.kept.get(key, [])
        at = self._at[FILTERED, key]
        if at < len(kept) and kept[at] == (number, row["doubled"]):
            self._at[FILTERED, key] += 1
        else:
            self._in_turn(FILTERED, key, number, [known for known, _ in kept], where)
            if (number, row["doubled"]) not in kept:
                self.problems.append(f"{where}: {row}: not what was asked for")

    def _numbered(self, row: dict[str, Any], where: str) -> None:
        key, at = str(row["key"]), self._at[NUMBERED, str(row["key"])]
        totals, values = self._known.totals.get(key, []), self._known.values.get(key, [])
        self._in_turn(NUMBERED, key, int(row["id"]), self._known.ids.get(key, []), where)
        if at < len(totals):
            said = (row["number"], row["total"], row["former"])
            known = (at + 1, totals[at], values[(at + 2) // 2 - 1])
            if said != known:
                self.problems.append(f"{where}: {row}: number, total and former should be {known}")

    def _changed(self, row: dict[str, Any], where: str) -> None:
        """A change: what is added was not there, and what is taken back was."""
        content = (int(row["id"]), str(row["key"]), int(row["fifties"]))
        if row["retracted"] != (content in self._joined):
            self.problems.append(f"{where}: {row}: {'not there' if row['retracted'] else 'there already'}")
        (self._joined.discard if row["retracted"] else self._joined.add)(content)

    def _newest(self, key: bytes, value: bytes | None) -> None:
        """Without a value the key has no row any more."""
        if value is None:
            del self._upserted[key]
        else:
            row = json.loads(value)
            self._upserted[key] = (int(row["id"]), str(row["key"]), int(row["fifties"]))

    def _window(self, row: dict[str, Any], where: str) -> None:
        key, start = str(row["key"]), datetime.fromisoformat(row["window_start"])
        second = int((start - EPOCH).total_seconds())
        known = self._known.windows.get((key, second))
        said = (row["rows"], row["total"], row["first"], row["last"])
        if known is None or said != (known.rows, known.total, known.first, known.last):
            self.problems.append(f"{where}: {row}: should be {known}")
        if (key, second) in self._windows_seen:
            self.problems.append(f"{where}: {row}: doubled")
        elif second < self._second.get(key, -1):
            self.problems.append(f"{where}: {row}: after the window of +{self._second[key]} s")
        self._windows_seen.add((key, second))
        self._second[key] = max(second, self._second.get(key, -1))

    def _in_turn(self, sink: str, key: str, number: int, ids: list[int], where: str) -> None:
        at = self._at[sink, key]
        if at < len(ids) and ids[at] == number:
            self._at[sink, key] = at + 1
            return
        if number in ids[:at]:
            self.problems.append(f"{where}: {key} #{number}: doubled, or late; #{ids[at - 1]} was there before")
        elif number in ids:
            lost = ids[at : ids.index(number)]
            self.problems.append(f"{where}: {key} #{number}: {len(lost)} lost before it: {lost[:_SHOWN]}")
            self._at[sink, key] = ids.index(number) + 1
        else:
            self.problems.append(f"{where}: {key} #{number}: never produced")
