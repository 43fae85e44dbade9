"""The picture at the top of a report: each run's gain over training alone with its interval, and
the clients as dots; without such a baseline, the clients' values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

import numpy as np

from pomona.record.paired_gain import Gain
from pomona.results.gain_presentation import MINUS, Gains, gained_over, interval, signed
from pomona.results.method_colours import Style
from pomona.results.run_numbers import Run, baseline, comparable, evaluated
from pomona.results.seeds import over_seeds
from pomona.results.wording import capital

MOST_DOTS = 200
"""More clients than this are drawn as so many quantiles of them: dots would cover each other."""
TICKS = 5
"""Maximum number of ticks that labels of five characters leave room for at 390 pixels."""


@dataclass(frozen=True)
class Strip:
    """A row of the picture.

    Attributes:
        label, style: of the run.
        text: the mean in numbers; ``range_text``: its interval, empty if it has none.
        mean, low, high, dots: positions in percent of the width.
    """

    label: str
    style: Style
    text: str
    range_text: str
    mean: float
    low: float
    high: float
    dots: list[float]


@dataclass(frozen=True)
class Overview:
    """The picture: its title, rows, and ticks as (position in percent, label).

    ``zero``: position of no gain; None if the rows are values, not gains.
    """

    title: str
    strips: list[Strip]
    ticks: list[tuple[float, str]]
    zero: float | None
    note: str


@dataclass(frozen=True)
class _Row:
    """A run with its clients' values or gains, and their mean; ``gain`` has its interval, if
    known.
    """

    run: Run
    values: Mapping[int, float]
    mean: float
    gain: Gain | None = None

    @classmethod
    def of_gains(cls, gains: Gains) -> "_Row":
        """Return the row of a run's gains."""
        mean = gains.mean.value if gains.mean else float(np.mean([*gains.differences.values()]))
        return cls(gains.run, gains.differences, mean, gains.mean)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the mean."""
        return self.gain.interval if self.gain else None


def overview(runs: Sequence[Run]) -> Overview | None:
    """Return the picture; None if no client has a value or the runs cannot be ranked."""
    compared = [run for run in over_seeds(list(runs)) if run.mean is not None]
    if not compared or not comparable(compared):
        return None
    metric, base = compared[0].metric, baseline(compared, compared[0])
    rows = [_Row.of_gains(g) for g in gained_over(compared, base) if g.differences]
    if base and rows:
        unit = " (percentage points)" if metric.percent else ""
        title = f"Gain in {metric.title} over {base.label}, training alone{unit}"
        scale, sign = _scale(rows, 0.0), "+"
        note = f"{_bar(rows)}, {evaluated(base, *compared)}; above 0 is better"
    else:
        rows = [_Row(run, run.values, run.mean) for run in compared if run.mean is not None]
        title = f"{capital(metric.heading)} by client{'' if metric.higher else ', less is better'}"
        scale, sign = _scale(rows), ""
        note = f"Bar: mean over clients, {evaluated(*compared)}"
    return Overview(
        title,
        [_strip(row, scale, sign) for row in rows],
        [(scale.position(v), _tick(metric.scaled(v), sign)) for v in scale.ticks],
        scale.position(0.0) if sign else None,
        f"{note}; {_dots(rows)}.",
    )


def _bar(rows: Sequence[_Row]) -> str:
    """Describe the bars of gains."""
    few = any(row.gain and row.gain.excluded for row in rows)
    intervals = sum(row.interval is not None for row in rows)
    text = f"Bar: mean over {'the clients with enough test samples' if few else 'clients'}"
    if not intervals:
        return f"{text}, without an interval"
    text += " with its 95 % interval" + (" where it has one" if intervals < len(rows) else "")
    return text + (", not corrected for the number of runs" if intervals > 1 else "")


def _dots(rows: Sequence[_Row]) -> str:
    """Describe the dots."""
    if max(len(row.values) for row in rows) <= MOST_DOTS:
        return "a dot for each client"
    return f"{MOST_DOTS} dots are quantiles of the clients"


def _strip(row: _Row, scale: "_Scale", sign: str) -> Strip:
    metric, ordered = row.run.metric, sorted(row.values.values())
    if len(ordered) > MOST_DOTS:
        step = (len(ordered) - 1) / (MOST_DOTS - 1)
        ordered = [ordered[round(i * step)] for i in range(MOST_DOTS)]
    low, high = row.interval or (row.mean, row.mean)
    return Strip(
        label=row.run.label,
        style=row.run.style,
        text=signed(metric, row.mean) if sign else metric.number(row.mean),
        range_text=interval(metric, row.gain) if row.gain and row.interval else "",
        mean=scale.position(row.mean),
        low=scale.position(low),
        high=scale.position(high),
        dots=[scale.position(value) for value in ordered],
    )


def _tick(value: float, sign: str) -> str:
    return f"{value:{sign}g}".replace("-", MINUS) if value else "0"


def _scale(rows: Sequence[_Row], *values: float) -> "_Scale":
    """Return a scale for all numbers of the rows, and further values."""
    ends = (end for row in rows for end in (row.mean, *(row.interval or ())))
    return _Scale.covering([*values, *ends, *(v for row in rows for v in row.values.values())])


@dataclass(frozen=True)
class _Scale:
    """A linear scale from ``low`` to ``high``, with ticks at round numbers."""

    low: float
    high: float
    ticks: list[float]

    @classmethod
    def covering(cls, values: Sequence[float]) -> "_Scale":
        """Cover all values, with ticks at multiples of 1, 2 or 5 times a power of ten."""
        low, high = min(values), max(values)
        size = max(abs(low), abs(high))
        width = high - low if high - low > 1e-9 * size else size or 1.0
        low, high = low - 0.03 * width, high + 0.03 * width
        power = 10.0 ** floor(log10(high - low))
        steps = (factor * power for factor in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0))
        step = next(s for s in steps if (high - low) / s <= TICKS)
        return cls(low, high, [i * step for i in range(ceil(low / step), floor(high / step) + 1)])

    def position(self, value: float) -> float:
        """Return a value's position, in percent of the width."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)
