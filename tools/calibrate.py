"""Error rates of gain intervals: equal models and models with a known difference, over sites of
many sizes.

    python tools/calibrate.py             # all cells: the table of docs/internals/statistics.md
    python tools/calibrate.py --repeats 200 auroc # a look at some
    python tools/calibrate.py accuracy --cell "13 x 5" --seed 1
    python tools/calibrate.py --groups    # rows of one patient that resemble each other
    python tools/calibrate.py --margin    # verdicts "not worse", and the detectable gain

Each repeat draws new test samples of every client of a cell and two models' answers to them, and
passes them to the functions that ``pomona.gains`` uses. *False claims*: how often the interval
excludes 0 although both models are equally good. *Coverage*: how often it contains the true gain,
here for models of which one is better. *Power*: how often it then excludes 0. Beside them the same
rates of the usual test, which has no minimum size of a site: DeLong's for AUROC, else Student's
paired t over samples (strata: clients).
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import process_time

import numpy as np
from scipy import stats

from pomona.core.rng import stream
from pomona.metrics.influence import Evidence, over_seeds
from pomona.metrics.intervals import Estimate, mean_difference
from pomona.metrics.metric import METRICS
from pomona.record.paired_gain import evidence
from pomona.tasks import TASKS, Task, task_of

Sample = tuple[np.ndarray, np.ndarray, np.ndarray]  # predictions of both models, targets
# samples, events, how much better a is
Draw = Callable[[np.random.Generator, int, int, float], Sample]


def right(draw: np.random.Generator, n: int, _events: int, better: float) -> Sample:
    """Each model is correct on 80 %, and one in five answers differs; a is correct on ``better``
    more.
    """
    kind_draw = draw.random(n)
    a_only, b_only = kind_draw < 0.1 + better / 2, kind_draw > 0.9 + better / 2
    common = draw.random(n) < 0.875
    votes = [
        np.where((common & ~a_only & ~b_only) | exclusive, 1.0, 0.0)
        for exclusive in (a_only, b_only)
    ]
    a, b = (np.stack([vote, 1 - vote], 1) for vote in votes)
    return a, b, np.zeros(n, np.int64)


def skewed_errors(draw: np.random.Generator, n: int, _events: int, better: float) -> Sample:
    """Skewed errors, half of them shared."""
    shared, separate = draw.gamma(2.0, 0.5, n), draw.gamma(1.0, 0.5, (2, n))
    truth = np.zeros((n, 1))
    return (shared + separate[0] - better)[:, None], (shared + separate[1])[:, None], truth


def numbers(draw: np.random.Generator, n: int, _events: int, better: float) -> Sample:
    """Normal numbers, and predictions with half of their errors shared."""
    truth, noise = draw.normal(size=n), draw.normal(size=(3, n))
    a, b = (truth + 0.5 * noise[0] + (0.5 - gain) * noise[k] for k, gain in ((1, better), (2, 0.0)))
    return a[:, None], b[:, None], truth[:, None]


def ranked(draw: np.random.Generator, n: int, events: int, better: float) -> Sample:
    """Normal scores, higher for events, with half of the noise shared."""
    y = (np.arange(n) < events).astype(np.int64)
    noise = draw.normal(size=(3, n))
    scores = [
        (1.0 + gain) * y + 0.7 * noise[0] + 0.7 * noise[k] for k, gain in ((1, better), (2, 0.0))
    ]
    a, b = (np.stack([-s, s], 1) for s in scores)
    return a, b, y


def timed(draw: np.random.Generator, n: int, events: int, better: float) -> Sample:
    """A hazard multiplied by a sample's risk; ``events`` of the times are observed, at random."""
    risk, noise = draw.normal(size=n), draw.normal(size=(3, n))
    time = draw.exponential(size=n) * np.exp(-risk)
    observed = np.zeros(n)
    observed[draw.permutation(n)[:events]] = 1
    scores = [
        risk + 0.7 * noise[0] + (0.7 - gain) * noise[k] for k, gain in ((1, better), (2, 0.0))
    ]
    a, b = (np.exp(-np.exp(s))[:, None] for s in scores)
    return a, b, np.stack([time, observed], 1)


def masked(draw: np.random.Generator, n: int, _events: int, better: float) -> Sample:
    """Pixels of a region found, falsely found and missed, in images that are easy or hard for both
    models.
    """
    ease, size = draw.beta(8, 2, n), draw.integers(50, 500, n)
    counts = []
    for gain in (better, 0.0):
        hits = draw.binomial(size, np.clip(ease + gain + draw.normal(0, 0.05, n), 0, 1))
        false = draw.binomial(size, 0.1, n)
        counts.append(
            np.stack([0 * size, hits, 0 * size, false, 0 * size, size - hits], 1).astype(float)
        )
    return counts[0], counts[1], np.stack([1000 - size, size], 1)


def seeded(
    name: str, draw: np.random.Generator, n: int, events: int, shifts: np.ndarray
) -> list[Sample]:
    """Accuracy or AUROC of two models of several seeds (S, 2), the better the higher their shift.

    A third of the scores' noise is common to all, a third to a model's seeds, and a third
    independent.
    """
    y = (np.arange(n) < events).astype(np.int64)
    shared, separate = draw.normal(size=(2, n)), draw.normal(size=(len(shifts), 2, n))
    scores = 1 + shifts[:, :, None] + 0.6 * (draw.normal(size=n) + shared + separate)
    if name == "accuracy":  # right where the score is above 0
        return [
            (np.stack([a, 1 - a], 1), np.stack([b, 1 - b], 1), 0 * y)
            for a, b in (scores > 0).astype(float)
        ]
    signed = np.where(y, scores, scores - 1 - shifts[:, :, None])
    return [(np.stack([-a, a], 1), np.stack([-b, b], 1), y) for a, b in signed]


METRIC: dict[str, tuple[Task, Draw, float]] = {
    "accuracy": (TASKS["classes"], right, 0.1),
    "mae": (TASKS["regression"], skewed_errors, 0.15),
    "r2": (TASKS["regression"], numbers, 0.15),
    "auroc": (TASKS["classes"], ranked, 0.5),
    "c_index": (task_of("survival", (1.0,)), timed, 0.4),
    "dice": (TASKS["segmentation"], masked, 0.02),
}
CGD = (1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 5, 6, 8)
MIXED = (1, 2, 5, 30, 200)
SITES: dict[str, Sequence[int]] = {
    "1 x 30": (30,),
    "1 x 200": (200,),
    "1 x 8": (8,),
    "3 x 8": (8,) * 3,
    "3 x 30": (30,) * 3,
    "3 x 200": (200,) * 3,
    "1, 2, 5, 30, 200": MIXED,
    "13 of 1 to 8": CGD,
    "20 x 1": (1,) * 20,
    "13 x 2": (2,) * 13,
    "13 x 5": (5,) * 13,
    "13 x 30": (30,) * 13,
    "13 mixed": MIXED * 2 + (30,) * 3,
    "65 x 1": (1,) * 65,
    "65 x 2": (2,) * 65,
    "65 x 30": (30,) * 65,
    "65 mixed": MIXED * 13,
}
EVENTS: dict[str, Sequence[tuple[int, int]]] = {
    "1 x 200, 20 events": ((200, 20),),
    "1 x 200, 10": ((200, 10),),
    "1 x 60, 6": ((60, 6),),
    "3 x 100, 20": ((100, 20),) * 3,
    "3 x 60, 6": ((60, 6),) * 3,
    "5 of 5 %: 12, 8, 4, 2, 2": ((240, 12), (160, 8), (80, 4), (40, 2), (40, 2)),
    "6 of 1, 2, 3, 4, 10, 20": ((9, 1), (20, 2), (30, 3), (40, 4), (60, 10), (100, 20)),
    "12 x 30, 1": ((30, 1),) * 12,
    "13 x 30, 3": ((30, 3),) * 13,
    "13 x 30, 6": ((30, 6),) * 13,
    "13 x 100, 20": ((100, 20),) * 13,
    "65 x 10, 1": ((10, 1),) * 65,
    "65 mixed": ((30, 1), (30, 3), (60, 6), (100, 10), (9, 1)) * 13,
}
SHIFT, SPREAD = 0.5, 0.15  # of the better model, and between the seeds of either
SEEDED = {  # numbers of seeds, and clients
    "accuracy": [(5, "13 x 30"), (3, "13 x 30"), (2, "13 x 30"), (5, "1, 2, 5, 30, 200")],
    "auroc": [(5, "13 x 30, 6"), (3, "13 x 30, 6"), (5, "5 of 5 %: 12, 8, 4, 2, 2")],
}


@dataclass(frozen=True)
class Rates:
    """A cell's rates: shares of the repeats, for the product's interval and for the usual test."""

    false: float
    coverage: float
    power: float
    usual_false: float
    usual_power: float


def once(
    name: str,
    sizes: Sequence[tuple[int, int]],
    better: float,
    draw: np.random.Generator,
    seeds: int = 1,
) -> list[Evidence]:
    """New test samples of all clients and, with more than one seed, new models."""
    task, sample, _ = METRIC[name]
    if seeds > 1:
        shifts = draw.normal([SHIFT * bool(better), 0], SPREAD, (seeds, 2))
        samples = [seeded(name, draw, n, events, shifts) for n, events in sizes]
    else:
        samples = [[sample(draw, n, events, better)] for n, events in sizes]
    differences = [
        [evidence(METRICS[name], task, *answers) for answers in client] for client in samples
    ]
    return [over_seeds([e for e in client if e]) for client in differences if client[0]]


def usual(differences: Sequence[Evidence]) -> bool:
    """Whether the usual test claims a difference: clients are strata, and strata of one sample add
    no variance.
    """
    k = len(differences)
    strata = [stratum for e in differences for stratum in e.strata or ((),)]
    variance = (
        sum(np.var(stratum, ddof=1) / len(stratum) for stratum in strata if len(stratum) > 1) / k**2
    )
    value = np.mean([e.value for e in differences])
    df = sum(max(len(stratum) - 1, 0) for stratum in strata)
    paired = all(len(e.strata) < 2 for e in differences)
    limit = stats.t.ppf(0.975, max(df, 1)) if paired else stats.norm.ppf(0.975)
    return bool(abs(value) > limit * np.sqrt(variance))


def rates(
    name: str, sizes: Sequence[tuple[int, int]], repeats: int, seed: int = 0, seeds: int = 1
) -> Rates:
    """A cell's rates."""
    results = {}
    for better in (0.0, METRIC[name][2]):
        draw = stream(seed, "calibrate", len(sizes), int(better > 0))
        repetitions = [
            differences
            for _ in range(repeats)
            if (differences := once(name, sizes, better, draw, seeds))
        ]
        estimates = [mean_difference(differences) for differences in repetitions]
        truth = float(np.mean([e.value for e in estimates])) if better else 0.0
        limits = np.array([e.interval or (-np.inf, np.inf) for e in estimates])
        claimed = (limits[:, 0] > 0) | (limits[:, 1] < 0)
        covered = (limits[:, 0] <= truth) & (truth <= limits[:, 1])
        results[better > 0] = (
            claimed.mean(),
            covered.mean(),
            np.mean([usual(differences) for differences in repetitions]),
        )
    false, _, usual_false = results[False]
    power, coverage, usual_power = results[True]
    return Rates(*map(float, (false, coverage, power, usual_false, usual_power)))


MARGIN = 0.05  # of the models that are worse by it
MARGIN_CELLS = ("1 x 200", "3 x 30", "3 x 200", "13 x 5", "13 x 30", "65 x 30")


def margin_rates(
    name: str, sizes: Sequence[tuple[int, int]], repeats: int, seed: int = 0
) -> tuple[float, float, float]:
    """How often a model that is worse by the margin is called not worse (2.5 % is right); the
    median detectable gain of equal models, and how often it is then detected (80 % is promised).
    """

    def estimates_of(better: float, stage: int) -> list[Estimate]:
        draw = stream(seed, "calibrate.margin", len(sizes), stage)
        return [mean_difference(once(name, sizes, better, draw)) for _ in range(repeats)]

    detectable = float(np.median([e.error.detectable() for e in estimates_of(0.0, 0) if e.error]))
    lows = [
        np.array([e.interval[0] if e.interval else -np.inf for e in estimates_of(better, stage)])
        for stage, better in enumerate((-MARGIN, detectable), start=1)
    ]
    return float((lows[0] > -MARGIN).mean()), detectable, float((lows[1] > 0).mean())


def print_margins(repeats: int, seed: int) -> None:
    """Print the table of ``margin_rates``, for the metrics whose true gain is drawn exactly."""
    print("| metric | clients x test samples | false not worse | detectable | found |")
    print("| --- |" + " --- |" * 4)
    for name in ("accuracy", "mae"):
        for cell in MARGIN_CELLS:
            sizes = [(n, 0) for n in SITES[cell]]
            false, detectable, detected = margin_rates(name, sizes, repeats, seed)
            shares = f"{100 * false:.1f} | {detectable:.3f} | {100 * detected:.1f}"
            print(f"| {name} | {cell} | {shares} |", flush=True)


CORRELATIONS = (0.0, 0.5, 0.9)
GROUPED = {  # clients of so many groups (patients), each of so many rows
    "1 x 30 of 5": ((30, 5),),
    "1 x 30 of 1 to 20": ((30, 0),),
    "3 x 10 of 20": ((10, 20),) * 3,
    "13 x 10 of 1 to 20": ((10, 0),) * 13,
    "13 x 30 of 5": ((30, 5),) * 13,
}


def grouped(
    draw: np.random.Generator, sizes: tuple[int, int], correlation: float, better: float
) -> Evidence | None:
    """One client's right and wrong answers, correlated within groups, a third of it common to both
    models; of 0 rows a group, each has 1 to 20.
    """
    count, rows = sizes
    lengths = draw.integers(1, 21, count) if not rows else np.full(count, rows)
    group = np.repeat(np.arange(count), lengths)
    scores = [
        np.sqrt(correlation) * between[group] + np.sqrt(1 - correlation) * within
        for between, within in zip(_shared(draw, count), _shared(draw, len(group)), strict=True)
    ]
    a, b = (
        np.stack([right, 1 - right], 1)
        for right in ((s > -0.8 - gain) * 1.0 for s, gain in zip(scores, (better, 0), strict=True))
    )
    y = np.zeros(len(group), np.int64)
    return evidence(METRICS["accuracy"], TASKS["classes"], a, b, y, group)


def _shared(draw: np.random.Generator, n: int) -> list[np.ndarray]:
    """Two standard normal vectors with a correlation of a third."""
    common = draw.normal(size=n)
    return [np.sqrt(1 / 3) * common + np.sqrt(2 / 3) * draw.normal(size=n) for _ in range(2)]


def print_groups(repeats: int, seed: int) -> None:
    """Print false claims and coverage of gains over groups of correlated rows."""
    print("| clients x groups of rows | correlation | false claims | coverage |")
    print("| --- |" + " --- |" * 3)
    truth = float(stats.norm.cdf(0.8 + 0.3) - stats.norm.cdf(0.8))
    for name, sites in GROUPED.items():
        for correlation in CORRELATIONS:
            draw = stream(seed, "calibrate.groups", len(sites), int(10 * correlation))
            shares = []
            for better, gain in ((0.0, 0.0), (0.3, truth)):
                estimates = [
                    mean_difference(
                        [e for size in sites if (e := grouped(draw, size, correlation, better))]
                    )
                    for _ in range(repeats)
                ]
                bounds = np.array([e.interval or (-np.inf, np.inf) for e in estimates])
                shares.append(float(((bounds[:, 0] <= gain) & (gain <= bounds[:, 1])).mean()))
            rates = f"{100 * (1 - shares[0]):.1f} | {100 * shares[1]:.1f}"
            print(f"| {name} | {correlation:g} | {rates} |", flush=True)


def cells(names: Sequence[str]) -> Iterator[tuple[str, str, Sequence[tuple[int, int]], int]]:
    """Metric, name, clients (test samples, events) and number of seeds of each cell."""
    for name in names:
        ranks = name in ("auroc", "c_index")
        sites = EVENTS if ranks else {key: [(n, 0) for n in sizes] for key, sizes in SITES.items()}
        if name == "r2":  # of one row it is undefined
            sites = {key: sizes for key, sizes in sites.items() if max(sizes) > (1, 0)}
        yield from ((name, key, sizes, 1) for key, sizes in sites.items())
        yield from (
            (name, f"{seeds} seeds: {key}", sites[key], seeds)
            for seeds, key in SEEDED.get(name, ())
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("metrics", nargs="*", default=list(METRIC))
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cell", help="only the cells of these clients, as in the table")
    parser.add_argument("--margin", action="store_true", help="the table of the margin")
    parser.add_argument("--groups", action="store_true", help="the table of grouped rows")
    options = parser.parse_args()
    if options.groups:
        print_groups(options.repeats, options.seed)
        return
    if options.margin:
        print_margins(options.repeats, options.seed)
        return
    began = process_time()
    print(
        "| metric | clients x test samples | false claims | coverage | power | usual test: false "
        "| power |"
    )
    print("| --- |" + " --- |" * 6)
    for name, sites, sizes, seeds in cells(options.metrics or list(METRIC)):
        if options.cell not in (None, sites):
            continue
        start = process_time()
        r = rates(name, sizes, options.repeats, options.seed, seeds)
        row = (r.false, r.coverage, r.power, r.usual_false, r.usual_power)
        print(
            f"| {name} | {sites} | {' | '.join(f'{100 * v:.1f}' for v in row)} |",
            f"{process_time() - start:.0f} s",
            flush=True,
        )
    print(
        f"{options.repeats} repeats a cell, seed {options.seed}, {process_time() - began:.0f} s of "
        "one processor"
    )


if __name__ == "__main__":
    main()
