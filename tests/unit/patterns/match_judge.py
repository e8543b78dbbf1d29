"""Matches by their definition: every way to give rows to the variables of a pattern, then what skipping leaves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.functions.patterns.definitions import Alternatives, Forbidden, Group, Part, Skip, Variable

Fulfils = Callable[[Any, Any, tuple[tuple[int, str], ...]], bool]
"""Whether a row fulfils a condition behind rows that are matched."""
Found = tuple[tuple[int, str], ...]
"""Numbers of rows and the names of their variables."""


@dataclass(frozen=True)
class Step:
    """A row of an unrolled pattern."""

    name: str
    condition: Any
    contiguity: str
    guards: tuple[tuple[Any, bool], ...]
    within_us: int | None
    until: Any
    greedy: tuple[Step, ...]
    """Further occurrences, which must not come first."""


@dataclass(frozen=True)
class Word:
    """An unrolled pattern: its rows, and what must not come behind them."""

    steps: tuple[Step, ...] = ()
    guards: tuple[tuple[Any, bool], ...] = ()
    greedy: tuple[Step, ...] = ()


def words(
    group: Group,
    word: Word,
    most: int,
    contiguity: str | None = None,
    within: int | None = None,
    behind: tuple[Forbidden, ...] = (),
) -> Iterator[Word]:
    """The unrolled group, with what must not come `behind` it."""
    if len(word.steps) > most:
        return
    if not group.parts:
        yield word
        return
    part, rest = group.parts[0], Group(group.parts[1:])
    if contiguity is not None:
        limits = [each for each in (within, part.within_us) if each is not None]
        part = replace(part, contiguity=contiguity, within_us=min(limits, default=None))
    bodies = [each.body for each in rest.parts]
    own = tuple(itertools.takewhile(lambda body: isinstance(body, Forbidden), bodies))
    for longer in part_words(part, word, most, own + behind if len(own) == len(bodies) else own):
        yield from words(rest, longer, most, behind=behind)


def part_words(part: Part, word: Word, most: int, behind: tuple[Forbidden, ...]) -> Iterator[Word]:
    body, times = part.body, part.times
    if isinstance(body, Forbidden):
        yield replace(word, guards=(*word.guards, (body.condition, body.immediately)))
        return
    waiting, number = [(word, part.contiguity)], 0
    while waiting:
        ends, over = [each for each, _ in waiting], number >= times.least
        between = tuple((each.condition, each.immediately) for each in behind if over or not each.immediately)
        if number:
            waiting = [(replace(each, guards=each.guards + between), near) for each, near in waiting]
        for end, (each, near) in zip(ends, waiting, strict=True) if over else ():
            more = times.most is None or number < times.most
            if times.greedy and more and isinstance(body, Variable):
                yield replace(end, greedy=(*end.greedy, step_of(part, body, near, each, number)))
            else:
                yield end
        if number == times.most or number > most:
            return
        waiting = [
            (longer, times.contiguity)
            for each, near in waiting
            for longer in body_words(part, near, each, most, number, behind)
        ]
        number += 1


def body_words(
    part: Part, near: str, word: Word, most: int, number: int, behind: tuple[Forbidden, ...]
) -> Iterator[Word]:
    body, until = part.body, part.times.until
    if isinstance(body, Variable):
        if len(word.steps) < most:
            yield Word((*word.steps, step_of(part, body, near, word, number)))
        return
    assert not isinstance(body, Forbidden)
    if until is not None and number:
        word = replace(word, guards=(*word.guards, (until, False)))
    for group in body.groups if isinstance(body, Alternatives) else (body,):
        yield from words(group, word, most, near, part.within_us, behind)


def step_of(part: Part, body: Variable, near: str, word: Word, number: int) -> Step:
    """One more occurrence of a variable, behind so many."""
    until = part.times.until
    guards = word.guards if until is None or not number else (*word.guards, (until, False))
    return Step(body.name, body.condition, near, guards, part.within_us, until, word.greedy)


def matches(
    pattern: Group, rows: Sequence[Any], times: Sequence[int], within: int | None, fulfils: Fulfils
) -> set[Found]:
    """All of them, at whatever time they are known."""
    found: set[Found] = set()

    def go_on(steps: tuple[Step, ...], end: Word, taken: Found) -> None:
        last = taken[-1][0] if taken else -1
        if not steps:
            behind = range(last + 1, len(rows) if within is None else _until(times, times[taken[0][0]] + within))
            if all(_free(range(last + 1, behind.stop), guard, rows, fulfils, taken) for guard in end.guards):
                found.add(taken)
            return
        for number in takes(steps[0], taken):
            go_on(steps[1:], end, (*taken, (number, steps[0].name)))

    def takes(step: Step, taken: Found) -> list[int]:
        """The rows that may come next."""
        last = taken[-1][0] if taken else -1
        greedy = {number for each in step.greedy for number in takes(each, taken)}
        able: list[int] = []
        for number in range(last + 1, len(rows)):
            if taken:
                if within is not None and times[number] - times[taken[0][0]] >= within:
                    break
                if step.within_us is not None and times[number] - times[last] >= step.within_us:
                    break
                if not all(_free(range(last + 1, number + 1), guard, rows, fulfils, taken) for guard in step.guards):
                    break
                if step.contiguity == "next" and number > last + 1:
                    break
            if number in greedy:
                if taken:
                    break
                continue
            if fulfils(step.condition, rows[number], taken):
                if step.until is None or not fulfils(step.until, rows[number], taken):
                    able.append(number)
                if taken and step.contiguity != "followed_by_any":
                    break
        return able

    for word in {*words(pattern, Word(), len(rows))}:
        if word.steps:
            go_on(word.steps, word, ())
    return found


def _until(times: Sequence[int], end: int) -> int:
    return next((number for number, time in enumerate(times) if time >= end), len(times))


def _free(between: range, guard: tuple[Any, bool], rows: Sequence[Any], fulfils: Fulfils, taken: Found) -> bool:
    condition, immediately = guard
    looked_at = between[:1] if immediately else between
    return not any(fulfils(condition, rows[number], taken) for number in looked_at)


def passed_by(match: Found, skip: Skip) -> int:
    """The first row at which another match may begin."""
    named = [number for number, name in match if name == skip.variable]
    return {
        "none": -1, "next": match[0][0] + 1, "past_last": match[-1][0] + 1,
        "first": named[0] if named else match[0][0], "last": named[-1] if named else match[0][0],
    }[skip.to]  # fmt: skip
