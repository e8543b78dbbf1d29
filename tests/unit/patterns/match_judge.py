"""Matches by their definition: every way to give rows to the variables of a pattern, then what skipping leaves."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Word:
    """An unrolled pattern: its rows, and what must not come behind them."""

    steps: tuple[Step, ...] = ()
    guards: tuple[tuple[Any, bool], ...] = ()
    greedy: tuple[tuple[Any, bool], ...] = ()


def words(
    group: Group, word: Word, most: int, contiguity: str | None = None, within: int | None = None
) -> Iterator[Word]:
    if len(word.steps) > most:
        return
    if not group.parts:
        yield word
        return
    part, rest = group.parts[0], Group(group.parts[1:])
    if contiguity is not None:
        limits = [each for each in (within, part.within_us) if each is not None]
        part = replace(part, contiguity=contiguity, within_us=min(limits, default=None))
    for longer in part_words(part, word, most):
        yield from words(rest, longer, most)


def part_words(part: Part, word: Word, most: int) -> Iterator[Word]:
    body, times = part.body, part.times
    if isinstance(body, Forbidden):
        yield replace(word, guards=(*word.guards, (body.condition, body.immediately)))
        return
    waiting, number = [(word, part.contiguity)], 0
    while waiting:
        for each, _ in waiting if number >= times.least else ():
            more = times.most is None or number < times.most
            greedy = times.greedy and more and number > 0 and isinstance(body, Variable)
            yield replace(each, greedy=(*each.greedy, (body.condition, times.contiguity == "next"))) if greedy else each
        if number == times.most or number > most:
            return
        waiting = [
            (longer, times.contiguity)
            for each, near in waiting
            for longer in body_words(part, near, each, most, number)
        ]
        number += 1


def body_words(part: Part, near: str, word: Word, most: int, number: int) -> Iterator[Word]:
    body, until = part.body, part.times.until
    if until is not None and number:
        word = replace(word, guards=(*word.guards, (until, False)))
    if isinstance(body, Variable):
        guards = (*word.guards, *word.greedy)
        step = Step(body.name, body.condition, near, guards, part.within_us, until)
        if len(word.steps) < most:
            yield Word((*word.steps, step))
        return
    for group in body.groups if isinstance(body, Alternatives) else (body,):
        yield from words(group, word, most, near, part.within_us)


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
        step, rest = steps[0], steps[1:]
        wants = lambda n: (  # noqa: E731
            fulfils(step.condition, rows[n], taken)
            and not (step.until is not None and fulfils(step.until, rows[n], taken))
        )
        for number in range(last + 1, len(rows)):
            if taken:
                if within is not None and times[number] - times[taken[0][0]] >= within:
                    return
                if step.within_us is not None and times[number] - times[last] >= step.within_us:
                    return
                if not all(_free(range(last + 1, number + 1), guard, rows, fulfils, taken) for guard in step.guards):
                    return
                if step.contiguity == "next" and number > last + 1:
                    return
            if wants(number):
                go_on(rest, end, (*taken, (number, step.name)))
                if taken and step.contiguity != "followed_by_any":
                    return

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
