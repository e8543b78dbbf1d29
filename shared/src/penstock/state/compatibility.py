"""Whether a pipeline that declares other states can read those of a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from penstock.errors import IncompatibleStateError

_WITHOUT_FIELDS: Final = ("namedtuple", "typeddict")
"""What former versions said of such types: nothing of their fields. What does not fit is found when a value is read."""
_WITHOUT_KEY: Final = ("operator_list", "union_list", "broadcast")
"""The kinds of state that are restored without what the snapshot says of them: nobody could widen their values."""


def check_states(operator: str, stored: Mapping[str, Any], declared: Mapping[str, Any]) -> list[str]:
    """Check that the states of a snapshot can be read as `declared`; returns the names that are no longer declared.

    A stored record may lack fields that have a default now, and may have fields that exist no more. Values of keyed
    state may have ints where floats are declared now (see `is_widened`). The time to live may change freely: it applies
    to what is written from now on.

    Raises:
        IncompatibleStateError: kind or type of a state changed.
    """
    for name in stored.keys() & declared.keys():
        old, new = stored[name], declared[name]
        if old["kind"] != new["kind"]:
            raise _incompatible(operator, name, f"{old['kind']} state", f"{new['kind']} state")
        for part in ("key", "value"):
            widens = part == "value" and new["kind"] not in _WITHOUT_KEY and not new.get("exact", False)
            if not _readable(old.get(part), new.get(part), widens=widens):
                raise _incompatible(operator, name, type_text(old[part]), type_text(new[part]))
    return sorted(stored.keys() - declared.keys())


def is_widened(stored: Mapping[str, Any], declared: Mapping[str, Any]) -> bool:
    """Whether a state that `check_states` takes may have ints in its values where floats are declared now."""
    return not _readable(stored["value"], declared["value"], widens=False)


def _incompatible(operator: str, name: str, old: str, new: str) -> IncompatibleStateError:
    return IncompatibleStateError(
        f"operator {operator!r}, state {name!r}: the snapshot holds {old}, the pipeline declares {new}; declare the old "
        "type (fields with defaults may be added), or give the state another name to begin empty"
    )


def _readable(old: Any, new: Any, *, widens: bool) -> bool:
    """Whether values of type `old` can be read as `new`; with `widens` ints as floats."""
    if old == new or (old in _WITHOUT_FIELDS and isinstance(new, dict) and "struct" in new):
        return True
    if isinstance(old, dict) and "union" in old:
        return all(_readable(part, new, widens=widens) for part in cast("dict[str, Any]", old)["union"])
    if isinstance(new, dict) and "union" in new:
        return any(_readable(old, part, widens=widens) for part in cast("dict[str, Any]", new)["union"])
    if not isinstance(old, dict) or not isinstance(new, dict):
        return widens and (old, new) == ("int", "float")
    before, after = cast("dict[str, Any]", old), cast("dict[str, Any]", new)
    if "struct" in before and "struct" in after:
        return _readable_record(before, after, widens=widens)
    if "enum" in before and "enum" in after:
        return set(before["enum"]) <= set(after["enum"])
    if "list" in before and "list" in after:
        return _readable(before["list"], after["list"], widens=widens)
    if "dict" in before and "dict" in after:
        (old_key, old_value), (new_key, new_value) = before["dict"], after["dict"]
        return _readable(old_key, new_key, widens=False) and _readable(old_value, new_value, widens=widens)
    if "tuple" in before and "tuple" in after:
        old_parts, new_parts = before["tuple"], after["tuple"]
        pairs = zip(old_parts, new_parts, strict=False)
        return len(old_parts) == len(new_parts) and all(_readable(*pair, widens=widens) for pair in pairs)
    return False


def _readable_record(before: dict[str, Any], after: dict[str, Any], *, widens: bool) -> bool:
    if before.get("array_like") != after.get("array_like") or before.get("tag") != after.get("tag"):
        return False
    old = {field["name"]: field for field in before["fields"]}
    if before.get("array_like") and list(old) != [field["name"] for field in after["fields"]][: len(old)]:
        return False  # values are found by position: fields may only be added at the end
    return all(
        _readable(old[field["name"]]["type"], field["type"], widens=widens)
        if field["name"] in old
        else not field["required"]
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
