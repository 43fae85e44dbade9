"""Numbers so far from those of the training that they may have another unit, or mark gaps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.data.cell_values import EPOCH, number
from pomona.data.quality.cells import capped, digits
from pomona.data.quality.markers import DAYS, LISTED, outside
from pomona.data.quality.units import BLANK, is_blank
from pomona.record.model_metadata import ModelMetadata

# deviations from the mean: at most one in 25 training rows is further away, however they lie
DISTANT = 5.0
DISTANT_SINGLE = 10.0  # the same for a single row: one in 100
DISTANT_MARKER = 1.8  # the same below the mean for a number that often marks a gap
UNIT_FACTOR = 10.0  # glucose in mg/dl is 18 times that in mmol/l
REPEATED_DIGITS = -66  # no measurement by chance
WIDE = 20.0  # deviation of numbers that are seldom just -7, -8 or -9
FEW_ROWS = 5  # in which no number is far from the others
PIXELS = 100_000  # of an image that are enough
LARGEST_FACTOR = 10.0  # between the deviation of an image's pixels and that of the training's
# of a column: mean, deviation, type, and numbers that mark gaps in any column
Training = tuple[float, float, str, Sequence[float]]


def remarks(x: NDArray[Any], metadata: ModelMetadata) -> list[str]:
    """Return a remark on each column of features x (n, F) that in most rows is too distant, or in
    some has a number or date that often marks a gap, and is distant or apart from the other rows.
    """
    preprocessing = metadata.preprocessing
    shift, scale = (np.resize(v, x.shape[1]) for v in (metadata.shift, metadata.scale))
    mean, deviation = shift, scale
    if preprocessing:
        if preprocessing.shift:  # of the client's own rows; x is standardised
            mean, deviation = np.array(preprocessing.shift), np.array(preprocessing.scale)
        mean = mean + np.array(preprocessing.offsets)
    markers = _markers(metadata)
    names = metadata.columns or tuple(map(str, range(x.shape[1])))
    limit = DISTANT if len(x) > 1 else DISTANT_SINGLE
    lines = []
    for k, column_type in enumerate(_column_types(metadata, x.shape[1])):
        if column_type == "category":
            continue
        z = (np.asarray(x[:, k], np.float64) - shift[k]) / scale[k]
        values = z * deviation[k] + mean[k]
        # 0 and 1 may be rare answers
        distant = (np.abs(z) > limit) & (np.abs(values - 0.5).round(4) != 0.5)
        remark = _remark(values, distant, limit, (mean[k], deviation[k], column_type, markers))
        if remark := remark or _answers(values, mean[k], deviation[k]):
            lines.append((names[k], f"column {names[k]}: {remark}"))
    return capped(lines)


def _remark(
    values: NDArray[Any], distant: NDArray[np.bool], limit: float, training: Training
) -> str:
    """Describe the values (n,) of a column that are distant, if most are, else those that often
    mark a gap; empty for neither.
    """
    mean, deviation, column_type, _ = training
    further = f"more than {limit:g} standard deviations from the training rows' mean"
    if column_type == "number" and _are_small(values, mean, deviation):
        further, distant = "below a tenth of the training rows' mean", np.ones(len(values), bool)
    if 2 * distant.sum() > len(values):
        median, expected = (_text(v, column_type) for v in (np.median(values), mean))
        checked = "its unit" if column_type == "number" else "the dates"
        return (
            f"{distant.sum()} of {len(values)} rows are {further} (median {median}, mean "
            f"{expected}); check {checked}"
        )
    numbers = values.round(4)
    is_listed = np.isin(numbers, DAYS if column_type == "date" else [*LISTED])
    marked = distant & is_listed
    # counts may go on to a marker's number
    if not marked.any() or np.ptp(values) < 2 * np.ptp(values[~marked]):
        further = "below most training rows"
        marked = _negative_markers(numbers, is_listed, training)
    if not marked.any():
        return ""
    return (
        f"{marked.sum()} of {len(values)} rows have {_text(values[marked][0], column_type)}, "
        f"{further}; if it marks a gap, leave these cells empty"
    )


def _answers(values: NDArray[Any], mean: float, deviation: float) -> str:
    """Describe values (n,) beyond 0 and 1 where the training had these alone, as 1 and 2 for yes
    and no: only then is the mean of its squares its mean.
    """
    unknown = values[np.abs(values.round(4) - 0.5) > 0.5]
    if not len(unknown) or not 0 < mean < 1 or abs(mean - mean**2 - deviation**2) > 1e-6:
        return ""
    return (
        f"{len(unknown)} of {len(values)} rows have {digits(unknown[0])} or the like, but all "
        "training rows had 0 or 1; code it as there"
    )


def _are_small(values: NDArray[Any], mean: float, deviation: float) -> bool:
    """Return whether several values are all far closer to 0 than a mean that is not that of a few
    large ones, such as viral loads.
    """
    is_usual = len(values) >= FEW_ROWS and deviation < mean
    return bool(is_usual and ((values != 0) & (np.abs(values) < mean / UNIT_FACTOR)).all())


def _negative_markers(
    values: NDArray[Any], is_listed: NDArray[np.bool], training: Training
) -> NDArray[np.bool]:
    """Return which of the values (n,) are listed, below 0, and unlike the other rows, or, if there
    are few, all rows of the training, or, where few of these were, equal to ``markers``.
    """
    mean, deviation, _, markers = training
    # 77 may be an age, and -1 a change
    marked = is_listed & (values < 0) & (mean > deviation / 4)
    remaining = values[~marked]
    # not degrees Celsius, which may be -7 in one row of five
    seldom_negative = deviation > WIDE or mean > 2 * deviation
    if len(values) < FEW_ROWS or not len(remaining):
        low = values <= max(mean - DISTANT_MARKER * deviation, REPEATED_DIGITS)
        return marked & (low | (seldom_negative & np.isin(values, markers)))
    distant = np.isin(values, outside(values) if marked.any() else ())
    if seldom_negative and (remaining >= 0).all():
        distant |= values < -1
    return marked & distant


def of_images(x: NDArray[Any], metadata: ModelMetadata) -> list[str]:
    """Return a remark on images x (n, ..., C) above 8 bits whose pixels lie elsewhere than those of
    the training, such as none below 0 where most were, or spread over much more or less. Else, and
    of 8 bits, on images of one value if most are.
    """
    if metadata.dtype == "uint8" or not len(x):
        return _blank(x, metadata)
    pixels = [row.reshape(-1, x.shape[-1])[:: max(1, row.size // PIXELS)] for row in x]
    mean = np.array([np.mean(values, axis=0, dtype=np.float64) for values in pixels])
    deviation = np.array([np.std(values, axis=0, dtype=np.float64) for values in pixels])
    shift, scale = np.array(metadata.shift), np.array(metadata.scale)
    factor = deviation / scale
    is_unlike = (abs(mean - shift) > DISTANT * scale) | (factor > LARGEST_FACTOR)
    is_unlike |= (factor > 0) & (factor < 1 / LARGEST_FACTOR)
    lowest = np.array([values.min(axis=0) for values in pixels])
    is_unlike |= (factor > 0) & (lowest >= 0) & (shift < -0.05 * scale)
    if not is_unlike.any():
        return _blank(x, metadata)
    row, channel = np.argwhere(is_unlike)[0]
    expected = [digits(float(np.resize(v, x.shape[-1])[channel])) for v in (shift, scale)]
    return [
        f"{int(is_unlike.any(axis=1).sum())} of {len(x)} images have values unlike the training's: "
        f"mean {digits(mean[row, channel])} and deviation {digits(deviation[row, channel])}, in "
        f"training {expected[0]} and {expected[1]}; do they have another unit or scale?"
    ]


def _blank(x: NDArray[Any], metadata: ModelMetadata) -> list[str]:
    """Return a remark on images x (n, ...) if most are blank."""
    binary = metadata.dtype == "uint8" and max(metadata.scale) < 1  # as the training's
    count = sum(not np.ptp(image) if binary else is_blank(image) for image in x)
    return [f"{count} of {len(x)} images {BLANK}"] * (2 * count > len(x))


def _markers(metadata: ModelMetadata) -> list[float]:
    """Return the numbers that marked gaps in some column of the training."""
    columns = metadata.preprocessing.columns if metadata.preprocessing else ()
    return [number(cell) for column in columns for cell in column.missing]


def _column_types(metadata: ModelMetadata, width: int) -> list[str]:
    """Return the type of each feature's column; flags count as categories."""
    if metadata.preprocessing is None:
        return ["number"] * width
    return [
        column.kind if name == column.name else "category"
        for column in metadata.preprocessing.columns
        for name in column.features
    ]


def _text(value: float, column_type: str) -> str:
    """Return a number, or the date of a number of days."""
    if column_type == "number":
        return digits(value)
    return str(np.datetime64(EPOCH, "D") + np.timedelta64(int(value), "D"))
