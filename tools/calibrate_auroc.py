"""The intervals of one client's AUROC and AUROC gain against DeLong's, also near 1.

    python tools/calibrate_auroc.py               # the tables of docs/internals/statistics.md
    python tools/calibrate_auroc.py --repeats 100 # quickly

*At its size*: DeLong's power with the limit at which its false claims are as frequent as the
product's.
"""

import argparse
from dataclasses import dataclass

import numpy as np
from scipy import stats

from pomona.core.rng import stream
from pomona.metrics.auroc_intervals import Components
from pomona.metrics.intervals import mean_difference
from pomona.metrics.metric import METRICS
from pomona.record.paired_gain import evidence
from pomona.tasks import TASKS

NORMAL = float(stats.norm.ppf(0.975))


@dataclass(frozen=True)
class Cell:
    """Normal scores that an event raises by ``raised``, and for the better model by ``gain`` in
    addition.
    """

    rows: int
    events: int
    raised: float = 1.0
    gain: float = 0.5
    shared: float = 0.5  # share of the noise's variance that both models have

    def area(self, gain: float) -> float:
        """The true AUROC of a model."""
        return float(stats.norm.cdf((self.raised + gain) / np.sqrt(2)))


CELLS = (
    *(Cell(200, 20), Cell(200, 10), Cell(60, 6), Cell(200, 30), Cell(200, 60)),
    *(Cell(200, 20, shared=0.9), Cell(200, 20, 2.0, 0.7), Cell(200, 20, 3.0, 1.0)),
    *(Cell(40, 20, 2.0, 0.7), Cell(40, 20, 3.0, 1.0), Cell(100, 50, 3.0, 0.7)),
    *(Cell(200, 60, 3.0, 0.7, 0.9), Cell(400, 200, 2.0, 0.4), Cell(400, 200, 3.0, 0.7)),
    *(Cell(200, 20, 2.0, 0.25, 0.98), Cell(100, 50, 3.0, 0.3, 0.98)),
)


def simulate(cell: Cell, better: float, repeats: int) -> np.ndarray:
    """For each repeat: the gain, the ends of its interval, and DeLong's standard error."""
    draw, y = stream(0, "areas", cell.rows, cell.events, int(better > 0)), np.zeros(cell.rows, int)
    y[: cell.events] = 1
    shared, separate = np.sqrt(cell.shared), np.sqrt(1 - cell.shared)
    results = []
    for _ in range(repeats):
        noise = draw.normal(size=(3, cell.rows))
        scores = [
            (cell.raised + gain) * y + shared * noise[0] + separate * noise[k]
            for k, gain in ((1, better), (2, 0.0))
        ]
        a, b = (np.stack([-s, s], 1) for s in scores)
        difference = evidence(METRICS["auroc"], TASKS["classes"], a, b, y)
        assert difference
        estimate = mean_difference([difference])
        variance = sum(stratum.var(ddof=1) / len(stratum) for stratum in difference.strata)
        bounds = estimate.interval or (-np.inf, np.inf)
        results.append((estimate.value, *bounds, np.sqrt(max(variance, 1e-30))))
    return np.array(results)


def row(cell: Cell, repeats: int) -> str:
    """A cell's rates in percent."""
    value, low, high, error = simulate(cell, 0.0, repeats).T
    better, low_b, high_b, error_b = simulate(cell, cell.gain, repeats).T
    gain = cell.area(cell.gain) - cell.area(0.0)
    z, z_b = abs(value) / error, abs(better) / error_b
    claims = np.mean((low > 0) | (high < 0))
    rates = [
        claims,
        np.mean((low_b <= gain) & (gain <= high_b)),
        np.mean((low_b > 0) | (high_b < 0)),
    ]
    rates += [np.mean(z > NORMAL), np.mean(abs(better - gain) / error_b <= NORMAL)]
    rates += [np.mean(z_b > NORMAL), np.mean(z_b > np.quantile(z, 1 - claims))]
    areas = f"{cell.area(0.0):.3f}, {cell.area(cell.gain):.3f}"
    name = f"{cell.rows}, {cell.events} | {areas} | {cell.shared:g}"
    return f"| {name} | {' | '.join(f'{100 * rate:.1f}' for rate in rates)} |"


AREAS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
SIZES = ((20, 20), (20, 50), (20, 200), (200, 20), (50, 50), (200, 200), (6, 54))
SPREADS = (1.0, 2.0)  # of the events' scores, relative to the others'


def single(
    events: int, controls: int, spread: float, area: float, repeats: int
) -> tuple[float, float]:
    """The coverage of one AUROC's interval, and of DeLong's."""
    draw, hits = stream(0, "area", events, controls, round(1000 * area)), []
    raised = stats.norm.ppf(area) * np.hypot(1, spread)
    positive = np.arange(events + controls) < events
    for _ in range(repeats):
        scores = draw.normal(size=events + controls)
        scores[positive] = raised + spread * scores[positive]
        components = Components.of(scores, positive)
        assert components
        low, high = components.interval()
        reach = NORMAL * np.sqrt(components.covariance(components))
        hits.append((low <= area <= high, abs(components.area - area) <= reach))
    coverage, usual = np.mean(hits, axis=0)
    return float(coverage), float(usual)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=1000)
    repeats = parser.parse_args().repeats
    print(f"| events, others, spread | {' | '.join(f'{area:g}' for area in AREAS)} |")
    print("| --- |" + " --- |" * len(AREAS))
    for events, controls in SIZES:
        for spread in SPREADS:
            rates = [single(events, controls, spread, area, repeats) for area in AREAS]
            cells = " | ".join(f"{100 * rate:.1f} ({100 * usual:.0f})" for rate, usual in rates)
            print(f"| {events}, {controls}, {spread:g} | {cells} |", flush=True)
    headings = "false claims | coverage | power"
    print(
        f"\n| samples, events | AUROCs | shared | {headings} | DeLong: {headings} | at its size |"
    )
    print("| --- |" + " --- |" * 9)
    for cell in CELLS:
        print(row(cell, repeats), flush=True)


if __name__ == "__main__":
    main()
