"""Columns that are in another unit, or counted from another start, at some clients."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import listed
from pomona.data.preprocessing import Floats
from pomona.data.quality.cells import Cells, capped, digits
from pomona.data.quality.idle_columns import is_counted

FEWEST = 3  # values of a client for a median
FEWEST_VALUES = 5  # distinct ones of a column
LEAST = 0.2  # log10 of the smallest factor: inches and centimetres have 2.54, pounds 2.2
APART = 3.0  # smallest gap between the medians of two groups of clients, in deviations within
NEARLY = 2.0  # the same, for the factors below and for factors of a hundred and more
HUNDRED = 1.9
WITHIN = 1.5  # smallest gap, in ranges of the medians of the larger group
TOLERANCE = 0.1  # of a factor's log10
FACTORS = {
    10.0: "",
    100.0: "",
    1000.0: "",
    1e6: "",
    18.02: "mg/dL and mmol/L of glucose?",
    38.67: "mg/dL and mmol/L of cholesterol?",
    88.4: "mg/dL and µmol/L of creatinine?",
    2.54: "inches and centimetres?",
    2.2046: "pounds and kilograms?",
    365.25: "years and days?",
    86400.0: "days and seconds?",
}
STARTS = {  # differences of medians, smaller than a hundredth of them
    273.15: "kelvin and degrees Celsius?",
    25569.0: "days since 1900, as in spreadsheets, and since 1970?",
    10957.0: "days since 1970 and since 2000?",
    36526.0: "days since 1900, as in spreadsheets, and since 2000?",
    3653.0: "days since 1960 and since 1970?",
}
SLIP = 6.0  # a factor among one client's values: their gap, in deviations of either group
RARE = 0.3  # largest share of values in another unit
Logs = NDArray[np.float64]


class Split(NamedTuple):
    """Clients whose values lie apart: which, all others, and log10 of the factor between them."""

    apart: list[int]
    others: list[int]
    factor: float


def notes(cells: Cells) -> list[str]:
    """Warn about columns of numbers whose values differ by a factor between clients, or within."""
    between: list[tuple[str, str]] = []
    within: list[tuple[str, str]] = []
    for k, name in cells.numbers():
        samples = [_logs(sample[:, k]) for sample in cells.samples]
        few = np.concatenate([own[:FEWEST_VALUES] for own in samples])
        if len(np.unique(few)) < min(FEWEST_VALUES, len(few)) and (
            len(np.unique(np.concatenate(samples))) < FEWEST_VALUES
        ):
            continue
        split = _split(samples)
        slips = (
            [] if split else [(i, *slip) for i, own in enumerate(samples) if (slip := _slip(own))]
        )
        if (split or slips) and is_counted(cells.x[:, k]):
            continue
        if split:
            between.append((name, _line(cells, k, split)))
        if slips:
            within.append((name, _slipped(cells, name, slips)))
    return [*capped(between), *capped(within)]


def _logs(values: Floats) -> Logs:
    """Return log10 of the size of values that are neither gaps nor 0."""
    size = np.abs(np.asarray(values, np.float64))
    logs: Logs = np.log10(size[(size > 0) & np.isfinite(size)])
    return logs


def _split(samples: list[Logs]) -> Split | None:
    """Return two groups of clients with a gap between their medians that ordinary differences
    between clients do not have; None without one.
    """
    sites = [i for i, own in enumerate(samples) if len(own) >= FEWEST]
    if len(sites) < 2:
        return None
    middle = {i: float(np.median(samples[i])) for i in sites}
    rest = np.concatenate([samples[i] - middle[i] for i in sites])
    deviation = max(1.4826 * float(np.median(np.abs(rest))), float(rest.std()) / 4, 0.005)
    order = sorted(sites, key=middle.__getitem__)
    gaps = np.diff([middle[i] for i in order])
    cut = int(gaps.argmax()) + 1
    groups = sorted((order[:cut], order[cut:]), key=lambda group: _weight(group, samples))
    apart, others = groups
    factor = float(np.median([middle[i] for i in apart]) - np.median([middle[i] for i in others]))
    sizes = [sum(len(samples[i]) for i in group) for group in groups]
    error = 1.25 * deviation * float(np.sqrt(1 / sizes[0] + 1 / sizes[1]))
    gap, spread = float(gaps.max()) - error, max(middle[i] for i in others)
    spread -= min(middle[i] for i in others)
    near = _near(abs(factor)) is not None or abs(factor) >= HUNDRED
    enough = gap >= (NEARLY if near else APART) * deviation and gap >= WITHIN * spread
    return Split(sorted(apart), sorted(others), factor) if enough and abs(factor) >= LEAST else None


def _weight(group: list[int], samples: list[Logs]) -> tuple[int, int]:
    return len(group), sum(len(samples[i]) for i in group)


def _near(factor: float) -> float | None:
    """Return the known factor near one given by its log10, if there is one."""
    best = min(FACTORS, key=lambda known: abs(np.log10(known) - factor))
    return best if abs(np.log10(best) - factor) <= TOLERANCE else None


def _line(cells: Cells, k: int, split: Split) -> str:
    """Describe a column whose clients are in two groups."""
    (a, low_a), (b, _) = ((g, _median(cells, k, g)) for g in (split.apart, split.others))
    high_b = _median(cells, k, b)
    times = 10 ** abs(split.factor)
    near = _near(abs(split.factor))
    named = listed([cells.names[i] for i in a], 4)
    against = cells.names[b[0]] if len(b) == 1 else "the other clients"
    how = f"{digits(_rounded(times))} times {'more' if split.factor > 0 else 'less'}"
    hint = _hint(low_a, high_b, near)
    return (
        f"column {cells.columns[k].name}: medians differ by a factor of units: {named} has "
        f"{how} than {against} ({digits(low_a)} and {digits(high_b)}){hint}; give all the same "
        "unit"
    )


def _median(cells: Cells, k: int, group: list[int]) -> float:
    medians = [float(np.nanmedian(cells.samples[i][:, k])) for i in group]
    return float(np.median(medians))


def _rounded(times: float) -> float:
    """Round a factor to two digits."""
    digits_left = 1 - int(np.floor(np.log10(times)))
    return round(times, digits_left)


def _hint(a: float, b: float, near: float | None) -> str:
    """Return the units that two medians may have, in brackets."""
    low, high = sorted((a, b))
    if 35 <= low <= 41 and abs(low * 1.8 + 32 - high) < 2:
        return ", °C and °F?"
    for start, text in STARTS.items():
        if abs(high - low - start) < 0.01 * start:
            return f", {text}"
    return f", {FACTORS[near]}" if near and FACTORS[near] else ""


def _slip(logs: Logs) -> tuple[int, float] | tuple[()]:
    """Return how many values of one client are a power of ten times the others, or less, and the
    power; nothing if there are none.
    """
    if len(logs) < 10:
        return ()
    ordered = np.sort(logs)
    cut = int(np.diff(ordered).argmax()) + 1
    low, high = ordered[:cut], ordered[cut:]
    rare = min(len(low), len(high))
    power = float(np.median(high) - np.median(low))
    apart, deviation = float(high[0] - low[-1]), max(float(low.std()), float(high.std()), 0.005)
    fits = round(power) in {1, 2, 3, 6} and abs(power - round(power)) <= TOLERANCE
    if not (fits and 2 <= rare <= RARE * len(logs) and apart >= SLIP * deviation):
        return ()
    return rare, round(power) * (1.0 if len(high) == rare else -1.0)


def _slipped(cells: Cells, name: str, slips: list[tuple[int, int, float]]) -> str:
    """Describe a column in which some values of a client are in another unit."""
    said = [
        f"{n} of {len(cells.samples[i])} rows{f' of {cells.names[i]}' if cells.names else ''} have "
        f"about {digits(10.0 ** abs(power))} times {'more' if power > 0 else 'less'} than the rest"
        for i, n, power in slips
    ]
    return f"column {name}: {listed(said, 3)}; if it is another unit, correct them"
