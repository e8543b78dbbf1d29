"""What people call jobs and runs by: an id, its beginning, or a name; and what to say of a name that is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from penstock.errors import nearest
from penstock_dispatcher.refusing import RestError

Kind = Literal["job", "run"]

SHORTEST_PREFIX: Final = 6
LIST_THEM: Final = "list them with penstock jobs --all"
_SHOWN: Final = 5


def meant_by_prefix(kind: Kind, prefix: str, ids: Iterable[str]) -> str | None:
    """The only id that begins so; None if there is none, or too little is given of it.

    Raises:
        RestError: there are several.
    """
    matching = sorted(one for one in ids if one.startswith(prefix)) if len(prefix) >= SHORTEST_PREFIX else []
    if len(matching) > 1:
        raise RestError(409, f"several {kind}s have ids that begin with {prefix}: {_some(matching)}; give more of it")
    return matching[0] if matching else None


def meant_by_name(
    kind: Kind,
    name: str,
    *generations: Mapping[str, str],
    known: Iterable[str],
    states: Mapping[str, str] | None = None,
) -> str:
    """The only id of this name in the first of the generations (id to name) that has any.

    Args:
        kind: what is looked for.
        name: how it is called.
        generations: ids with their names; those of the first come before those of the next.
        known: the names that there are.
        states: of ids, to tell several of one name apart.

    Raises:
        RestError: there are several in it, or none has it; says what was probably meant, of what is `known`.
    """
    for names in generations:
        matching = sorted(one for one, called in names.items() if called == name)
        if len(matching) > 1:
            told = [f"{one} ({states[one].lower()})" if states and one in states else one for one in matching]
            raise RestError(409, f"several {kind}s are called {name!r}: {_some(told)}; give the id")
        if matching:
            return matching[0]
    raise RestError(404, f"there is no {kind} {name!r}; {_nearest(name, sorted(set(known)))}")


def has_ended(kind: Kind, name: str, one: str, state: str, reason: str) -> RestError:
    """Nothing can be asked of it any more."""
    return RestError(409, f"{kind} {name} ({one}) has ended: {state}{f' ({reason})' if reason else ''}")


def _some(ids: list[str]) -> str:
    """A few ids, and how many more there are."""
    return ", ".join(ids[:_SHOWN]) + (f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else "")


def _nearest(name: str, known: list[str]) -> str:
    """What was probably meant, or where to look."""
    if not known:
        return "there are none"
    close = nearest(name, known)
    return close if close.startswith("did you mean") else LIST_THEM
