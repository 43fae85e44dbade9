"""Columns that are in another unit, or counted from another start, at some clients."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import listed
from pomona.data.preprocessing import Floats
from pomona.data.quality.cells import Cells, capped, digits
from pomona.data.quality.idle_columns import is_counted

MIN_VALUES = 3  # values of a client for a median
MIN_DISTINCT = 5  # distinct ones of a column
MIN_FACTOR = 0.2  # log10 of the smallest factor: inches and centimetres have 2.54, pounds 2.2
MIN_GAP = 3.0  # smallest gap between the medians of two groups of clients, in deviations within
MIN_GAP_OF_FACTOR = 1.6  # the same, for the factors below from ten, and for all from a hundred
TEN, HUNDRED = 0.9, 1.9
MIN_RANGES = 1.5  # smallest gap, in ranges of the medians of the larger group
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
ORIGIN_SHIFTS = {  # differences of medians, smaller than a hundredth of them
    273.15: "kelvin and degrees Celsius?",
    25569.0: "days since 1900, as in spreadsheets, and since 1970?",
    10957.0: "days since 1970 and since 2000?",
    36526.0: "days since 1900, as in spreadsheets, and since 2000?",
    3653.0: "days since 1960 and since 1970?",
}
SLIP = 6.0  # a factor among one client's values: their gap, in deviations of either group
MAX_SHARE = 0.3  # largest share of values in another unit
Logs = NDArray[np.float64]


class Split(NamedTuple):
    """Clients whose values lie apart: which, all others, and log10 of the factor between them."""

    minority: list[int]
    majority: list[int]
    factor: float


def notes(cells: Cells) -> list[str]:
    """Warn about columns of numbers whose values differ by a factor between clients, or within."""
    between_clients: list[tuple[str, str]] = []
    within_client: list[tuple[str, str]] = []
    for k, name in cells.numbers():
        samples = [_logs(sample[:, k]) for sample in cells.samples]
        sampled = np.concatenate([logs[:MIN_DISTINCT] for logs in samples])
        if len(np.unique(sampled)) < min(MIN_DISTINCT, len(sampled)) and (
            len(np.unique(np.concatenate(samples))) < MIN_DISTINCT
        ):
            continue
        split = _split(samples)
        slips = [
            (i, *slip) for i, logs in enumerate(samples) if not split and (slip := _slip(logs))
        ]
        if (split or slips) and is_counted(cells.x[:, k]):
            continue
        if split:
            between_clients.append((name, _line(cells, k, split)))
        if slips:
            within_client.append((name, _slipped(cells, name, slips)))
    return [*capped(between_clients), *capped(within_client)]


def _logs(values: Floats) -> Logs:
    """Return log10 of the size of values that are neither gaps nor 0."""
    size = np.abs(np.asarray(values, np.float64))
    logs: Logs = np.log10(size[(size > 0) & np.isfinite(size)])
    return logs


def _split(samples: list[Logs]) -> Split | None:
    """Return two groups of clients with a gap between their medians that ordinary differences
    between clients do not have; None without one.
    """
    sites = [i for i, logs in enumerate(samples) if len(logs) >= MIN_VALUES]
    if len(sites) < 2:
        return None
    medians = {i: float(np.median(samples[i])) for i in sites}
    residuals = np.concatenate([samples[i] - medians[i] for i in sites])
    deviation = max(1.4826 * float(np.median(np.abs(residuals))), float(residuals.std()) / 4, 0.005)
    deviation *= 1 + 2 * len(sites) / len(residuals)  # medians of few values are close to them
    order = sorted(sites, key=medians.__getitem__)
    gaps = np.diff([medians[i] for i in order])
    boundary = int(gaps.argmax()) + 1
    groups = sorted((order[:boundary], order[boundary:]), key=lambda group: _size(group, samples))
    minority, majority = groups
    factor = float(
        np.median([medians[i] for i in minority]) - np.median([medians[i] for i in majority])
    )
    sizes = [sum(len(samples[i]) for i in group) for group in groups]
    error = 1.25 * deviation * float(np.sqrt(1 / sizes[0] + 1 / sizes[1]))
    gap, spread = float(gaps.max()) - error, max(medians[i] for i in majority)
    spread -= min(medians[i] for i in majority)
    factor_known = _known_factor(abs(factor)) is not None and abs(factor) >= TEN
    min_gap = MIN_GAP_OF_FACTOR if factor_known or abs(factor) >= HUNDRED else MIN_GAP
    separated = gap >= min_gap * deviation and gap >= MIN_RANGES * spread
    return (
        Split(sorted(minority), sorted(majority), factor)
        if separated and abs(factor) >= MIN_FACTOR
        else None
    )


def _size(group: list[int], samples: list[Logs]) -> tuple[int, int]:
    return len(group), sum(len(samples[i]) for i in group)


def _known_factor(factor: float) -> float | None:
    """Return the known factor near one given by its log10, if there is one."""
    closest = min(FACTORS, key=lambda number: abs(np.log10(number) - factor))
    return closest if abs(np.log10(closest) - factor) <= TOLERANCE else None


def _line(cells: Cells, k: int, split: Split) -> str:
    """Describe a column whose clients are in two groups."""
    low, high = (_median(cells, k, group) for group in (split.minority, split.majority))
    hint = _hint(low, high, _known_factor(abs(split.factor)))
    names = listed([cells.names[i] for i in split.minority], 4)
    single = len(split.majority) == 1
    reference = cells.names[split.majority[0]] if single else "the other clients"
    comparison = f"{digits(_rounded(10 ** abs(split.factor)))} times "
    comparison += "more" if split.factor > 0 else "less"
    return (
        f"column {cells.columns[k].name}: medians differ by a factor of units: {names} has "
        f"{comparison} than {reference} ({digits(low)} and {digits(high)}){hint}; give all the "
        "same unit"
    )


def _median(cells: Cells, k: int, group: list[int]) -> float:
    medians = [float(np.nanmedian(cells.samples[i][:, k])) for i in group]
    return float(np.median(medians))


def _rounded(ratio: float) -> float:
    """Round a factor to two digits."""
    digits_left = 1 - int(np.floor(np.log10(ratio)))
    return round(ratio, digits_left)


def _hint(a: float, b: float, factor_known: float | None) -> str:
    """Return the units that two medians may have, in brackets."""
    low, high = sorted((a, b))
    if 35 <= low <= 41 and abs(low * 1.8 + 32 - high) < 2:
        return ", °C and °F?"
    for start, text in ORIGIN_SHIFTS.items():
        if abs(high - low - start) < 0.01 * start:
            return f", {text}"
    if not factor_known or low * high <= 0:  # medians of two signs have no ratio
        return ""
    exact = abs(np.log10(factor_known * low / high)) <= TOLERANCE / 2
    return f", {FACTORS[factor_known]}" if exact and FACTORS[factor_known] else ""


def _slip(logs: Logs) -> tuple[int, float] | tuple[()]:
    """Return how many values of one client are a power of ten times the others, or less, and the
    power; nothing if there are none.
    """
    if len(logs) < 10:
        return ()
    ordered = np.sort(logs)
    boundary = int(np.diff(ordered).argmax()) + 1
    low, high = ordered[:boundary], ordered[boundary:]
    count = min(len(low), len(high))
    power = float(np.median(high) - np.median(low))
    minority, deviation = float(high[0] - low[-1]), max(float(low.std()), float(high.std()), 0.005)
    is_power = round(power) in {1, 2, 3, 6} and abs(power - round(power)) <= TOLERANCE
    if not (is_power and 2 <= count <= MAX_SHARE * len(logs) and minority >= SLIP * deviation):
        return ()
    return count, round(power) * (1.0 if len(high) == count else -1.0)


def _slipped(cells: Cells, name: str, slips: list[tuple[int, int, float]]) -> str:
    """Describe a column in which some values of a client are in another unit."""
    phrases = [
        f"{n} of {len(cells.samples[i])} rows{f' of {cells.names[i]}' if cells.names else ''} have "
        f"about {digits(10.0 ** abs(power))} times {'more' if power > 0 else 'less'} than the rest"
        for i, n, power in slips
    ]
    return f"column {name}: {listed(phrases, 3)}; if it is another unit, correct them"
