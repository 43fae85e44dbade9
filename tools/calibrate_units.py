"""How often the note on units is a false alarm, and how often a unit that differs is noticed.

python tools/calibrate_units.py [--seed 0] [--columns 300]

Columns are lognormal; sites' medians vary by ``between`` times the deviation within a site.
"""

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pomona.core.rng import stream
from pomona.data.dataset import Dataset, Owners
from pomona.data.quality import units
from pomona.data.quality.cells import Cells

DEVIATIONS = (0.05, 0.3, 0.7, 1.2, 2.0)  # of the logarithm, within a site
FACTORS = (2.2, 2.54, 10, 18.02, 38.67, 88.4, 100, 1000)
Values = NDArray[np.float64]


def is_noted(sites: Sequence[Values]) -> bool:
    """Return whether a column with these values by site gets a note."""
    x = np.concatenate(sites)[:, None]
    client = np.repeat(np.arange(len(sites)), [len(site) for site in sites])
    names = tuple(f"site {i}" for i in range(len(sites)))
    owners = Owners(names, client, np.zeros(len(x), np.int8))
    y = np.zeros(len(x), np.int64)
    dataset = Dataset("drawn", "table", x, y, ("a", "b"), len(x), owners=owners, columns=("v",))
    return bool(units.notes(Cells.from_dataset(dataset)))


def simulated(
    rng: np.random.Generator,
    count: int,
    between: float,
    deviation: float,
    rows: tuple[int, int] = (15, 200),
) -> list[Values]:
    """Return the values of a column at ``count`` sites."""
    medians = rng.normal(0, between * deviation, count)
    return [np.exp(rng.normal(median, deviation, rng.integers(*rows))) for median in medians]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--columns", type=int, default=300)
    options = parser.parse_args()
    rng = stream(options.seed, "calibrate.units")

    def share(between: float, count: int, deviation: float, factor: float = 1.0) -> float:
        hits = 0
        for _ in range(options.columns):
            sites = simulated(rng, count, between, deviation)
            sites[0] *= factor
            hits += int(is_noted(sites))
        return hits / int(options.columns)

    print("deviation within a site:", *DEVIATIONS)
    for between in (0.2, 0.5, 1.0):
        for count in (2, 3, 5, 20):
            shares = [f"{1000 * share(between, count, d):.0f}" for d in DEVIATIONS]
            print(f"false alarms of 1,000, {count} sites, between {between}:", *shares, flush=True)
    for factor in FACTORS:
        shares = [f"{100 * share(0.3, 4, d, factor):.0f} %" for d in DEVIATIONS]
        print(f"noticed, factor {factor}:", *shares, flush=True)


if __name__ == "__main__":
    main()
