"""The interval of one client's AUROC gain against DeLong's test, with many more draws than
``calibrate.py`` affords.

    python tools/calibrate_auroc.py               # the table of docs/internals/statistics.md
    python tools/calibrate_auroc.py --repeats 500 # a look

DeLong's components and the rules of ``metrics.intervals`` are computed here for 500 draws at once,
and so are random signs. *At its size*: DeLong's power with the limit at which its false claims are
as frequent as the product's.
"""

import argparse
from dataclasses import dataclass

import numpy as np
from scipy import stats

from pomona.core.rng import stream
from pomona.metrics.influence import FEW
from pomona.metrics.intervals import ENOUGH

_BLOCK = 500


@dataclass(frozen=True)
class Cell:
    """Normal scores that an event raises by ``raised``, and for the better model by ``more`` in
    addition.
    """

    rows: int
    events: int
    raised: float = 1.0
    gain: float = 0.5
    shared: float = 0.5  # share of the noise's variance that both models have


CELLS = (
    *(Cell(200, 20), Cell(200, 10), Cell(60, 6), Cell(200, 30), Cell(200, 60)),
    *(Cell(200, 20, shared=0.9), Cell(200, 20, 2.0, 0.7), Cell(200, 20, 3.0, 1.0)),
)


def components(cell: Cell, better: float, draw: np.random.Generator) -> list[np.ndarray]:
    """Each event's (_BLOCK, events) and each other sample's contribution to the difference; and
    both models' AUROC.
    """
    y, noise = np.arange(cell.rows) < cell.events, draw.normal(size=(_BLOCK, 3, cell.rows))
    shared, separate = np.sqrt(cell.shared), np.sqrt(1 - cell.shared)
    wins = []
    for k, gain in ((1, better), (2, 0.0)):
        score = (cell.raised + gain) * y + shared * noise[:, 0] + separate * noise[:, k]
        wins.append(score[:, y, np.newaxis] > score[:, np.newaxis, ~y])
    gained = wins[0].astype(float) - wins[1]
    return [gained.mean(2), gained.mean(1), *(won.mean((1, 2)) for won in wins)]


def is_significant(units: np.ndarray) -> np.ndarray:
    """Whether a difference holds against random signs (R,), if few units carry it: see
    ``metrics.intervals``.
    """
    squares = units**2
    significant: np.ndarray = squares.sum(1) ** 2 >= ENOUGH * (squares**2).sum(1)
    few = units[~significant]
    if len(few):
        signs = 2.0 * stream(0, "signs").integers(0, 2, (9999, few.shape[1])) - 1
        sums, observed = np.abs(signs @ few.T), np.abs(few.sum(1))
        p = ((sums > observed * (1 + 1e-9)).mean(0) + (sums >= observed * (1 - 1e-9)).mean(0)) / 2
        significant[~significant] = (p <= 0.05) & ((few != 0).sum(1) >= FEW)
    return significant


def simulated(cell: Cell, better: float, repeats: int) -> tuple[np.ndarray, ...]:
    """For each repeat: the difference, its error, degrees of freedom, whether it holds, both
    AUROCs.
    """
    draw, blocks = stream(0, "areas", cell.rows, cell.events, int(better > 0)), []
    for _ in range(0, repeats, _BLOCK):
        *strata, a, b = components(cell, better, draw)
        variances = np.stack([stratum.var(1, ddof=1) / stratum.shape[1] for stratum in strata])
        free = np.array([[stratum.shape[1] - 1.0] for stratum in strata])
        variance = np.maximum(variances.sum(0), 1e-30)
        df = variance**2 / np.maximum((variances**2 / free).sum(0), 1e-60)
        significant = np.all([is_significant(stratum) for stratum in strata], axis=0)
        blocks.append(np.stack([strata[0].mean(1), np.sqrt(variance), df, significant, a, b]))
    return tuple(np.concatenate(blocks, axis=1))


def row(cell: Cell, repeats: int) -> str:
    """A cell's rates in percent."""
    value, error, df, significant, *_ = simulated(cell, 0.0, repeats)
    better, error_b, df_b, significant_b, a, b = simulated(cell, cell.gain, repeats)
    z, z_b, deviation = (
        abs(value) / error,
        abs(better) / error_b,
        abs(better - better.mean()) / error_b,
    )
    limit, limit_b, normal = stats.t.ppf(0.975, df), stats.t.ppf(0.975, df_b), stats.norm.ppf(0.975)
    claims = np.mean((z > limit) * significant)
    rates = [claims, np.mean(deviation <= limit_b), np.mean((z_b > limit_b) * significant_b)]
    rates += [np.mean(z > normal), np.mean(deviation <= normal), np.mean(z_b > normal)]
    rates += [np.mean(z_b > np.quantile(z, 1 - claims))]
    name = f"{cell.rows}, {cell.events} | {b.mean():.3f}, {a.mean():.3f} | {cell.shared:.1f}"
    return f"| {name} | {' | '.join(f'{100 * rate:.1f}' for rate in rates)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=4000)
    repeats = parser.parse_args().repeats
    headings = "false claims | coverage | power"
    print(f"| samples, events | AUROCs | shared | {headings} | DeLong: {headings} | at its size |")
    print("| --- |" + " --- |" * 9)
    for cell in CELLS:
        print(row(cell, repeats), flush=True)


if __name__ == "__main__":
    main()
