"""A line chart as SVG without scripts or styles; the page's style sheet colours it."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from pomona.metrics.metric import Metric
from pomona_federation.monitoring.run_history import Point

HEIGHT = 260
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 40  # margins
MOST = 400  # most points in a line


class Line(NamedTuple):
    """A line: its class in the style sheet, its points, and whether their intervals are drawn."""

    kind: str
    points: Sequence[Point]
    band: bool


def chart(lines: Sequence[Line], metric: Metric, width: int, label: str) -> Markup:
    """The chart of one metric over rounds; empty without points.

    Args:
        lines: the last is drawn on top.
        metric: of their values.
        width: of the drawing, in the units of its letters, roughly its final pixels.
        label: text for screen readers.
    """
    lines = [line._replace(points=_thinned(line.points)) for line in lines if line.points]
    if not lines:
        return Markup()
    rounds = [p.round for line in lines for p in line.points]
    values = [metric.scaled(v) for line in lines for p in line.points for v in _seen(p, line.band)]
    first, last = min(rounds), max(*rounds, min(rounds) + 1)
    steps = ticks(min(values), max(values), 5)
    low, high = min(steps[0], *values), max(steps[-1], *values)

    def x(number: float) -> float:
        return round(LEFT + (number - first) / (last - first) * (width - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    parts = [
        Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/><text class="end" x="{}" y="{}">{}</text>').format(
            LEFT, width - RIGHT, y(v), y(v), LEFT - 7, y(v) + 4, _number(v, steps)
        )
        for v in steps
    ]
    parts += [
        Markup('<text x="{}" y="{}">{}</text>').format(x(n), HEIGHT - BOTTOM + 18, n)
        for n in dict.fromkeys(int(v) for v in ticks(first, last, width // 90) if v == int(v) and first <= v <= last)
    ]
    parts.append(Markup('<text x="{}" y="{}">round</text>').format((LEFT + width - RIGHT) / 2, HEIGHT - 4))
    for line in lines:
        if line.band and (known := [p for p in line.points if p.low is not None and p.high is not None]):
            upper = [f"{x(p.round)},{y(metric.scaled(p.high or 0.0))}" for p in known]
            lower = [f"{x(p.round)},{y(metric.scaled(p.low or 0.0))}" for p in reversed(known)]
            parts.append(Markup('<polygon class="spread {}" points="{}"/>').format(line.kind, " ".join(upper + lower)))
        course = " ".join(f"{x(p.round)},{y(metric.scaled(p.mean))}" for p in line.points)
        parts.append(Markup('<polyline class="course {}" points="{}"/>').format(line.kind, course))
        end = line.points[-1]
        parts.append(
            Markup('<circle class="dot {}" cx="{}" cy="{}" r="3.5"/>').format(
                line.kind, x(end.round), y(metric.scaled(end.mean))
            )
        )
    frame = Markup('<svg role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}">{}</svg>')
    return frame.format(label, width, HEIGHT, width, HEIGHT, Markup("").join(parts))


def ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round numbers, at least two, that cover low to high as closely as possible."""
    size = max(abs(low), abs(high), 1.0)
    flat = high - low < 1e-9 * size
    rough = size / 10 if flat else (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * 0.999)
    start, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [k * step for k in range(start, max(end, start + 1) + 1)]


def _number(value: float, steps: Sequence[float]) -> str:
    """A tick as text, with as many decimals as the steps need, or an exponent for long numbers."""
    step = steps[1] - steps[0]
    decimals = next((d for d in range(5) if abs(round(step, d) - step) < step * 1e-6), None)
    long = decimals is None or max(abs(steps[0]), abs(steps[-1])) >= 1e5
    return f"{value:.3g}" if long else f"{value:.{decimals}f}"


def _seen(point: Point, band: bool) -> list[float]:
    ends = (point.low, point.high) if band else ()
    return [v for v in (point.mean, *ends) if v is not None]


def _thinned(points: Sequence[Point]) -> list[Point]:
    """At most ``MOST`` points, evenly spaced over the rounds and including the last."""
    every = math.ceil(len(points) / MOST)
    return [p for k, p in enumerate(points) if (len(points) - 1 - k) % every == 0] if every else []
