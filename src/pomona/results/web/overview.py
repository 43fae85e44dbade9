"""The picture at the top of a report: each run's gain over training alone with its interval, and
the clients as dots; without such a baseline, the clients' values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from pomona.metrics.nan_safe import mean_of_known
from pomona.results.gain_presentation import MINUS, Gains, gained_over, interval, signed
from pomona.results.method_colours import Style
from pomona.results.run_numbers import Run, baseline
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


def overview(runs: Sequence[Run]) -> Overview | None:
    """Return the picture; None if no client has a value."""
    compared = over_seeds(list(runs))
    base = baseline(compared, compared[0])
    gains = [gained for gained in gained_over(compared, base) if gained.differences]
    if base and gains:
        return _of_gains(gains, base)
    rows = [run for run in compared if run.values and run.mean is not None]
    if not rows or len({run.metric for run in rows}) > 1:
        return None
    return _of_values(rows)


def _of_gains(gains: Sequence[Gains], base: Run) -> Overview:
    metric = gains[0].run.metric
    unit = "percentage points" if metric.percent else metric.title
    means = {
        g.run: g.mean.value if g.mean else mean_of_known(g.differences.values()) or 0.0
        for g in gains
    }
    ranges = {g.run: g.mean.interval if g.mean and g.mean.interval else None for g in gains}
    scale = _Scale.covering(
        [0.0, *means.values()]
        + [end for bounds in ranges.values() if bounds for end in bounds]
        + [value for g in gains for value in g.differences.values()]
    )
    strips = [
        _strip(
            g.run,
            scale,
            signed(metric, means[g.run]),
            interval(metric, g.mean) if g.mean and g.mean.interval else "",
            means[g.run],
            ranges[g.run],
            g.differences,
        )
        for g in gains
    ]
    return Overview(
        f"Gain in {metric.title} over {base.label}, training alone"
        + (f" ({unit})" if metric.percent else ""),
        strips,
        [
            (scale.position(v), f"{metric.scaled(v):+.4g}".replace("-", MINUS).replace("+0", "0"))
            for v in scale.ticks
        ],
        scale.position(0.0),
        _note(gains[0].run, len(gains[0].differences)),
    )


def _of_values(runs: Sequence[Run]) -> Overview:
    metric = runs[0].metric
    scale = _Scale.covering([value for run in runs for value in run.values.values()])
    strips = []
    for run in runs:
        assert run.mean is not None
        strips.append(_strip(run, scale, metric.number(run.mean), "", run.mean, None, run.values))
    return Overview(
        f"{capital(metric.heading)} by client",
        strips,
        [(scale.position(v), f"{metric.scaled(v):.4g}") for v in scale.ticks],
        None,
        _note(runs[0], len(runs[0].values)),
    )


def _note(run: Run, clients: int) -> str:
    """Describe the marks."""
    dots = "a dot a client" if clients <= MOST_DOTS else f"{MOST_DOTS} quantiles of the clients"
    return f"Bar: mean over clients with its 95 % interval, {run.moment}; {dots}."


def _strip(
    run: Run,
    scale: "_Scale",
    text: str,
    range_text: str,
    mean: float,
    bounds: tuple[float, float] | None,
    values: Mapping[int, float],
) -> Strip:
    low, high = bounds or (mean, mean)
    ordered = sorted(values.values())
    step = max(1.0, len(ordered) / MOST_DOTS)
    dots = [ordered[int(i * step)] for i in range(min(len(ordered), MOST_DOTS))]
    return Strip(
        label=run.label,
        style=run.style,
        text=text,
        range_text=range_text,
        mean=scale.position(mean),
        low=scale.position(low),
        high=scale.position(high),
        dots=[scale.position(value) for value in dots],
    )


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
        width = high - low or abs(high) or 1.0
        low, high = low - 0.03 * width, high + 0.03 * width
        power = 10.0 ** floor(log10(high - low))
        steps = (factor * power for factor in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0))
        step = next(s for s in steps if (high - low) / s <= TICKS)
        return cls(low, high, [i * step for i in range(ceil(low / step), floor(high / step) + 1)])

    def position(self, value: float) -> float:
        """Return a value's position, in percent of the width."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)
