"""Whether an answer has the shape of one that Flink 2.3 gave: `flink_samples`, recorded from a cluster, long texts cut.

Keys and types count, values do not; a whole number where Flink had a fraction is fine, as is one of the values that Flink
gives for what it does not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent / "flink_samples"
_ID: Final = re.compile(r"[0-9a-f]{32}")
_LEFT_OUT: Final = re.compile(r"\.\.\.\(\d+ more\)")
FREE: Final = (
    "user-config",
    "status-duration",
    "accumulator-results",
    "applications[0].jobs",
    "user-task-accumulators",
)
"""Maps whose keys are data."""
FREE_LISTS: Final = (
    "user-accumulators",
    "user-task-accumulators",
    "concurrentExceptions",
    "garbageCollectors",
    "options",
)
"""Lists that are empty here."""


def sample(name: str) -> Any:
    """What Flink answered."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def differences(expected: Any, found: Any, where: str = "") -> Iterator[str]:
    """In what the shapes differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        yield from _of_maps(expected, found, where)
    elif isinstance(expected, list) and isinstance(found, list):
        yield from _of_lists(expected, found, where)
    elif not _same_kind(expected, found):
        yield f"{where}: {found!r} where Flink has {expected!r}"


def _of_maps(expected: dict[str, Any], found: dict[str, Any], where: str) -> Iterator[str]:
    if where.endswith(FREE):
        return
    if expected and all(_ID.fullmatch(key) for key in expected):
        likes = list(expected.values())
        for key, value in found.items():
            if not _ID.fullmatch(key):
                yield f"{where}: {key!r} is no id"
            yield from differences(likes[0], value, f"{where}.<id>")
        return
    for key in sorted(expected.keys() ^ found.keys()):
        yield f"{where}: {key!r} is {'missing' if key in expected else 'not in it'}"
    for key in expected.keys() & found.keys():
        yield from differences(expected[key], found[key], f"{where}.{key}")


def _of_lists(expected: list[Any], found: list[Any], where: str) -> Iterator[str]:
    likes = [one for one in expected if not (isinstance(one, str) and _LEFT_OUT.fullmatch(one))]
    if not likes or where.endswith(FREE_LISTS):
        return
    likes += [_pending(one) for one in likes if isinstance(one, dict) and one.get("className") == "completed"]
    for number, one in enumerate(found):
        tried = [list(differences(like, one, f"{where}[{number}]")) for like in likes]
        yield from min(tried, key=len)


def _pending(completed: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint under way, of which there is no sample: what a completed one has before it is complete."""
    if "ack_timestamp" in completed:  # a subtask: more than these are not sure to be there
        return {key: completed[key] for key in ("className", "index", "status")}
    return {key: value for key, value in completed.items() if key not in ("external_path", "discarded")}


def _same_kind(expected: Any, found: Any) -> bool:
    unknown = (None, "NaN")
    if expected in unknown or found in unknown:
        return found in unknown or isinstance(found, int | float | str | dict)
    if isinstance(expected, bool) or isinstance(found, bool):
        return isinstance(expected, bool) and isinstance(found, bool)
    if isinstance(expected, float):
        return isinstance(found, int | float)
    return type(expected) is type(found)
