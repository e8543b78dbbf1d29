"""Draws curves on two logarithmic axes, and bars, as SVG: with nothing but Python, and on a ground of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tools.drawing import svg

Line = Sequence[tuple[float, float]]
COLOURS = ("#0a6f7d", "#b4511f", "#5b4a9c", "#4b5d63")
GRID, QUIET = "#dde4e6", "#4b5d63"
_WIDTH, _HEIGHT = 540, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 84, 52
"""What is around the field of a panel; the legend stands above it."""


@dataclass(frozen=True)
class Panel:
    """Lines by their labels. `y` is what is measured, `x` what it depends on."""

    y: str
    x: str
    lines: Mapping[str, Line]


@dataclass(frozen=True)
class _Axis:
    """Logarithmic, from one power of ten, or of a step between them, to another."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> Iterator[float]:
        """Powers of ten, and 2 and 5 times these where there are few of them."""
        few = self.high / self.low <= 1_000
        for exponent in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1):
            for digit in (1, 2, 5):
                value = digit * 10.0**exponent
                if self.low * 0.999 <= value <= self.high * 1.001 and (few or digit == 1):
                    yield value


def picture(panels: Sequence[Panel]) -> str:
    """Panels beside each other."""
    parts = [part for number, panel in enumerate(panels) for part in _panel(panel, number * _WIDTH)]
    return svg(_WIDTH * len(panels), _HEIGHT, parts)


def _panel(panel: Panel, left: float) -> Iterator[str]:
    points = [point for line in panel.lines.values() for point in line]
    x = _axis([point[0] for point in points], left + _LEFT, left + _WIDTH - _RIGHT)
    y = _axis([point[1] for point in points], _HEIGHT - _BOTTOM, _TOP)
    yield _text(left + 16, 26, panel.y, 'font-weight="600" font-size="14"')
    for value in x.ticks():
        yield _path([(x.place(value), y.start), (x.place(value), y.end)], GRID, 1)
        yield _text(x.place(value), y.start + 18, named(value), f'text-anchor="middle" fill="{QUIET}" font-size="12"')
    for value in y.ticks():
        yield _path([(x.start, y.place(value)), (x.end, y.place(value))], GRID, 1)
        yield _text(x.start - 8, y.place(value) + 4, named(value), f'text-anchor="end" fill="{QUIET}" font-size="12"')
    yield _text((x.start + x.end) / 2, y.start + 40, panel.x, 'text-anchor="middle"')
    for number, (label, line) in enumerate(panel.lines.items()):
        colour = COLOURS[number]
        places = [(x.place(at), y.place(value)) for at, value in line]
        yield _path(places, colour, 2)
        yield from (f'<circle cx="{h:.1f}" cy="{v:.1f}" r="3.5" fill="{colour}"/>' for h, v in places)
        row = 46 + 15 * number
        yield f'<rect x="{left + 16}" y="{row - 8}" width="14" height="4" fill="{colour}"/>'
        yield _text(left + 36, row, label, 'font-size="12"')


def _axis(values: Sequence[float], start: float, end: float) -> _Axis:
    """From the step below the least value to the one above the largest."""
    low, high = _step(min(values), -1), _step(max(values), 1)
    return _Axis(low, high if high > low else low * 10, start, end)


def _step(value: float, way: int) -> float:
    """The next of 1, 2 and 5 times a power of ten, down or up; the value itself if it is one."""
    exponent = math.floor(math.log10(value))
    steps = [digit * 10.0**power for power in (exponent - 1, exponent, exponent + 1) for digit in (1, 2, 5)]
    if way > 0:
        return min(step for step in steps if step >= value * 0.999)
    return max(step for step in steps if step <= value * 1.001)


def bars(title: str, unit: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """Horizontal bars, in groups; those of one label have one colour in all groups."""
    labels = list(dict.fromkeys(label for group in groups.values() for label in group))
    left, right, most = 300, 90, max(value for group in groups.values() for value in group.values())
    parts = [_text(16, 26, f"{title} ({unit})", 'font-weight="600" font-size="14"')]
    top = 46.0
    for name, group in groups.items():
        parts.append(_text(16, top + 9 * len(group) + 4, name))
        for label, value in group.items():
            width = (2 * _WIDTH - left - right) * value / most
            colour = COLOURS[labels.index(label)]
            parts.append(f'<rect x="{left}" y="{top:.0f}" width="{width:.1f}" height="14" rx="2" fill="{colour}"/>')
            parts.append(_text(left + width + 8, top + 12, f"{label} {value:,.0f}", 'font-size="12"'))
            top += 18
        top += 14
    return svg(2 * _WIDTH, top + 4, parts)


def named(value: float) -> str:
    """A value of an axis."""
    for factor, letter in ((1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{value / factor:g} {letter}"
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _path(places: Iterable[tuple[float, float]], colour: str, width: float) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'
