"""Whether a pipeline that declares other states can read those of a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from penstock.errors import IncompatibleStateError

_WITHOUT_FIELDS: Final = ("namedtuple", "typeddict")
"""What former versions said of such types: nothing of their fields. What does not fit is found when a value is read."""


def check_states(operator: str, stored: Mapping[str, Any], declared: Mapping[str, Any]) -> list[str]:
    """Check that the states of a snapshot can be read as `declared`; returns the names that are no longer declared.

    A stored record may lack fields that have a default now, and may have fields that exist no more. The time to live
    may change freely: it applies to what is written from now on.

    Raises:
        IncompatibleStateError: kind or type of a state changed.
    """
    for name in stored.keys() & declared.keys():
        old, new = stored[name], declared[name]
        if old["kind"] != new["kind"]:
            raise _incompatible(operator, name, f"{old['kind']} state", f"{new['kind']} state")
        for part in ("key", "value"):
            if not _readable(old.get(part), new.get(part)):
                raise _incompatible(operator, name, type_text(old[part]), type_text(new[part]))
    return sorted(stored.keys() - declared.keys())


def _incompatible(operator: str, name: str, old: str, new: str) -> IncompatibleStateError:
    return IncompatibleStateError(
        f"operator {operator!r}, state {name!r}: the snapshot holds {old}, the pipeline declares {new}; declare the old "
        "type (fields with defaults may be added), or give the state another name to begin empty"
    )


def _readable(old: Any, new: Any) -> bool:
    if old == new or (old in _WITHOUT_FIELDS and isinstance(new, dict) and "struct" in new):
        return True
    if not isinstance(old, dict) or not isinstance(new, dict):
        return isinstance(new, dict) and any(_readable(old, part) for part in _parts(new))
    before, after = cast("dict[str, Any]", old), cast("dict[str, Any]", new)
    if "union" in before:
        return all(_readable(part, after) for part in before["union"])
    if "union" in after:
        return any(_readable(before, part) for part in after["union"])
    if "struct" in before and "struct" in after:
        return _readable_record(before, after)
    if "enum" in before and "enum" in after:
        return set(before["enum"]) <= set(after["enum"])
    if "list" in before and "list" in after:
        return _readable(before["list"], after["list"])
    for kind in ("dict", "tuple"):
        if kind in before and kind in after:
            return len(before[kind]) == len(after[kind]) and all(map(_readable, before[kind], after[kind]))
    return False


def _parts(described: dict[str, Any]) -> list[Any]:
    return described.get("union", [])


def _readable_record(before: dict[str, Any], after: dict[str, Any]) -> bool:
    if before.get("array_like") != after.get("array_like") or before.get("tag") != after.get("tag"):
        return False
    old = {field["name"]: field for field in before["fields"]}
    if before.get("array_like") and list(old) != [field["name"] for field in after["fields"]][: len(old)]:
        return False  # values are found by position: fields may only be added at the end
    return all(
        _readable(old[field["name"]]["type"], field["type"]) if field["name"] in old else not field["required"]
        for field in after["fields"]
    )


def type_text(described: Any) -> str:
    """A described type as people read it."""
    if not isinstance(described, dict):
        return str(described)
    value = cast("dict[str, Any]", described)
    if "struct" in value:
        inner = ", ".join(f"{field['name']}: {type_text(field['type'])}" for field in value.get("fields", []))
        return f"{value['struct']}({inner})"
    if "union" in value:
        return " | ".join(type_text(part) for part in value["union"])
    kind, content = next(iter(value.items()))
    parts = cast("list[Any]", content) if isinstance(content, list) else [content]
    return f"{kind}[{', '.join(type_text(part) for part in parts)}]"
