"""Columns and images that are in another unit at some clients, or in some rows of a client."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import listed
from pomona.data.quality.cells import SAMPLE, Cells, Values, capped, digits, spread
from pomona.data.quality.columns import is_unique
from pomona.data.quality.labels import targets

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
    18.02: " (mg/dL and mmol/L of glucose?)",
    38.67: " (mg/dL and mmol/L of cholesterol?)",
    88.4: " (mg/dL and µmol/L of creatinine?)",
    12.0: " (years and months?)",
    30.44: " (months and days?)",
    2.54: " (inches and centimetres?)",
    2.2046: " (pounds and kilograms?)",
    365.25: " (years and days?)",
    86400.0: " (days and seconds?)",
}
SLIP = 6.0  # a factor among one client's values: their gap, in deviations of either group
IMAGES, PIXELS = 20, 10_000  # of a client, and of an image, that are enough
ENOUGH_IMAGES = 10  # of a data set without clients
MAX_FACTOR = 10.0  # between the ranges of two clients' images
BLANK = "have one value in all pixels, or of 0 to 255 two such as 0 and 1; check them"
BELOW_ZERO = 0.05  # of a range: less may come from resampling
MAX_SHARE = 0.3  # largest share of values in another unit


class Split(NamedTuple):
    """Clients whose values lie apart: which, all others, and log10 of the factor between them."""

    minority: list[int]
    majority: list[int]
    factor: float


def notes(cells: Cells) -> list[str]:
    """Warn about columns of numbers whose values differ by a factor between clients, or within."""
    lines = []
    for name, samples in _measured(cells):
        logs = [_logs(sample) for sample in samples]
        if len(np.unique(np.concatenate(logs))) < MIN_DISTINCT:
            continue
        split = _split(logs)
        line = _described(cells.names, samples, split) if split else _slips(cells, logs)
        if line:
            lines.append((name, f"{name}: {line}"))
    return capped(lines)


def _measured(cells: Cells) -> Iterator[tuple[str, list[Values]]]:
    """Iterate over columns of numbers that are no identifiers, and targets that are measured: their
    names, and a sample of each client's values.
    """
    for k, name in cells.columns("number"):
        if not is_unique(cells.raw.x[:, k]):
            yield f"column {name}", [sample[:, k] for sample in cells.samples]
    for name, values, measured in targets(cells):
        if measured:
            yield name, [values[spread(rows, SAMPLE)] for rows in cells.by_client]


def _logs(values: Values) -> Values:
    """Return log10 of the size of values that are neither gaps nor 0."""
    size = np.abs(values)
    logs: Values = np.log10(size[(size > 0) & np.isfinite(size)])
    return logs


def _split(samples: list[Values]) -> Split | None:
    """Return two groups of clients with a gap between their medians that ordinary differences
    between clients do not have; None without one.
    """
    logs = {i: sample for i, sample in enumerate(samples) if len(sample) >= MIN_VALUES}
    if len(logs) < 2:
        return None
    medians = {i: float(np.median(sample)) for i, sample in logs.items()}
    groups = _groups(logs, medians)
    low, high = ([medians[i] for i in group] for group in groups)
    factor = float(np.median(low) - np.median(high))
    deviation = _deviation([logs[i] - medians[i] for i in logs])
    rows = np.array([len(np.concatenate([logs[i] for i in group])) for group in groups])
    gap = max(min(low) - max(high), min(high) - max(low))
    gap -= 1.25 * deviation * float(np.sqrt((1 / rows).sum()))
    if gap < MIN_RANGES * (max(high) - min(high)) or not _is_unit(factor, gap / deviation):
        return None
    return Split(sorted(groups[0]), sorted(groups[1]), factor)


def _groups(logs: dict[int, Values], medians: dict[int, float]) -> tuple[list[int], list[int]]:
    """Return the clients on either side of the largest gap between medians, the fewer first."""
    order = sorted(medians, key=medians.__getitem__)
    boundary = int(np.diff([medians[i] for i in order]).argmax()) + 1
    groups = order[:boundary], order[boundary:]
    sizes = [(len(group), sum(len(logs[i]) for i in group)) for group in groups]
    return groups if sizes[0] <= sizes[1] else groups[::-1]


def _is_unit(factor: float, gap: float) -> bool:
    """Return whether a factor, by its log10, is of a unit, for a gap in deviations."""
    usual = abs(factor) >= HUNDRED or (abs(factor) >= TEN and _unit_factor(factor) is not None)
    return abs(factor) >= MIN_FACTOR and gap >= (MIN_GAP_OF_FACTOR if usual else MIN_GAP)


def _deviation(residuals: list[Values]) -> float:
    """Return the deviation of values from the median of their client; it is at least 0.005."""
    residual = np.concatenate(residuals)
    robust = 1.4826 * float(np.median(np.abs(residual)))
    # medians of few values are close to them
    return max(robust, float(residual.std()) / 4, 0.005) * (1 + 2 * len(residuals) / len(residual))


def _unit_factor(factor: float) -> float | None:
    """Return the known factor near one given by its log10, if there is one."""
    closest = min(FACTORS, key=lambda unit: abs(np.log10(unit) - abs(factor)))
    return closest if abs(np.log10(closest) - abs(factor)) <= TOLERANCE else None


def _described(names: Sequence[str], samples: Sequence[Values], split: Split) -> str:
    """Describe a column whose clients are in two groups."""
    groups = split.minority, split.majority
    low, high = (float(np.median([np.nanmedian(samples[i]) for i in group])) for group in groups)
    single = len(split.majority) == 1
    reference = names[split.majority[0]] if single else "the other clients"
    ratio = float(f"{10 ** abs(split.factor):.1e}")  # two digits
    unit = _unit_factor(split.factor)
    return (
        f"medians differ by a factor of units: {listed([names[i] for i in split.minority], 4)} has "
        f"{digits(ratio)} times {'more' if split.factor > 0 else 'less'} than {reference} "
        f"({digits(low)} and {digits(high)}){FACTORS[unit] if unit else ''}; give all the same unit"
    )


def _slips(cells: Cells, samples: list[Values]) -> str:
    """Describe values of a client that are a power of ten times its others, or less."""
    phrases = []
    for i, logs in enumerate(samples):
        ordered = np.sort(logs)
        boundary = int(np.diff(ordered).argmax()) + 1 if len(logs) >= 10 else 1
        low, high = ordered[:boundary], ordered[boundary:]
        count = min(len(low), len(high))
        if not 2 <= count <= MAX_SHARE * len(logs):
            continue
        power, deviation = np.median(high) - np.median(low), max(low.std(), high.std(), 0.005)
        is_power = round(power) in {1, 2, 3, 6} and abs(power - round(power)) <= TOLERANCE
        if is_power and high[0] - low[-1] >= SLIP * deviation:
            client = f" of {cells.names[i]}" if cells.names else ""
            phrases.append(
                f"{count} of {len(cells.samples[i])} rows{client} have about {10 ** round(power)} "
                f"times {'more' if len(high) == count else 'less'} than the rest"
            )
    return f"{listed(phrases, 3)}; if it is another unit, correct them" if phrases else ""


def of_images(cells: Cells) -> list[str]:
    """Warn about ranges of images' values that differ by a large factor, and about clients whose
    values lie on both sides of 0 where others' do not, or whose images are mostly of one value.
    """
    if cells.dataset.kind != "image" or (cells.sites < 2 and len(cells.dataset) < ENOUGH_IMAGES):
        return []
    x, sites = cells.dataset.x, zip(cells.names or ["this data set"], cells.by_client, strict=True)
    images = {name: [x[k] for k in spread(rows, IMAGES)] for name, rows in sites if len(rows)}
    blank = [name for name, sample in images.items() if np.mean([*map(is_blank, sample)]) > 0.5]
    line = f"most images of {listed(blank, 4)} {BLANK}"
    scales = _scales({name: sample for name, sample in images.items() if name not in blank})
    return [line, *scales] if blank else scales


def is_blank(image: NDArray[Any]) -> bool:
    """Return whether an image has one value in all pixels, or of 256 two next to each other."""
    return int(np.ptp(image)) <= int(image.dtype == np.uint8)


def _scales(images: Mapping[str, Sequence[NDArray[Any]]]) -> list[str]:
    """Warn about another range of values in some clients' images."""
    names, ranges = [*images], np.array([*map(_range, images.values())]).reshape(-1, 2)
    low, width = ranges[:, 0], ranges[:, 1] - ranges[:, 0]
    is_negative = low < -BELOW_ZERO * width
    # 0: almost all of one colour
    if width.max(initial=0) > MAX_FACTOR * width.min(initial=np.inf) > 0:
        pair = width.argmin(), width.argmax()
    elif 0 < is_negative.sum() < len(is_negative):
        pair = low.argmin(), low.argmax()
    else:
        return []
    texts = [f"from {' to '.join(map(digits, ranges[k]))} at {names[k]}" for k in pair]
    return [
        f"most values of images lie {texts[0]}, but {texts[1]}: if that is another unit or scale "
        "(stored numbers and HU, 0 to 1), convert all to one"
    ]


def _range(images: Sequence[NDArray[Any]]) -> Values:
    """Return the range of most of an image's values, of 99 %: medians over a client's images."""
    samples = [image.reshape(-1)[:: max(1, image.size // PIXELS)] for image in images]
    medians: Values = np.median([np.percentile(values, [0.5, 99.5]) for values in samples], axis=0)
    return medians
