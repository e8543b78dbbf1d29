"""Arguments by name: `name => value`."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import nearest
from penstock.sql.binding.context import Context
from penstock.sql.binding.names import alike
from penstock.sql.syntax import Call, NamedArgument, Part


def named_arguments(context: Context, call: Call, known: Iterable[str]) -> dict[str, Part]:
    """The arguments of a call that have names, by those that the function has.

    Raises:
        SqlError: there is no argument of that name, or it is given twice.
    """
    names = [*known]
    found: dict[str, Part] = {}
    for each in call.arguments:
        if not isinstance(each, NamedArgument):
            continue
        meant = alike(each.name, names)
        if meant is None:
            raise context.error(each.place, f"{call.function} has no argument {each.name}; {nearest(each.name, names)}")
        if meant in found:
            raise context.error(each.place, f"{meant} of {call.function} is given twice; leave one out")
        found[meant] = each.value
    return found


def arguments_in_order(context: Context, call: Call, names: Iterable[str], usage: str) -> list[Part]:
    """The arguments of a call that takes them by place or by name: all of one kind, in the order of the names.

    Raises:
        SqlError: some have names and others have none, there is no such name, or one is missing before another.
    """
    of_kind = [isinstance(each, NamedArgument) for each in call.arguments]
    if not any(of_kind):
        return [*call.arguments]
    if not all(of_kind):
        plain = call.arguments[of_kind.index(False)]
        raise context.error(plain, f"the other arguments of {call.function} have names; name this one, too, or {usage}")
    names = [*names]
    found = named_arguments(context, call, names)
    missing = [name for number, name in enumerate(names) if name not in found and {*names[number:]} & {*found}]
    if missing:
        raise context.error(call, f"{call.function} needs {missing[0]} => ...")
    return [found[name] for name in names if name in found]
