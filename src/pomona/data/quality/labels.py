"""Features that give the label away: copies of it, codes of it, or the numbers it was made from."""

from collections.abc import Iterator

import numpy as np

from pomona.core.bounds import Targets
from pomona.data.quality.cells import Cells, Values, capped, spread

CHANCE = 1e-6  # largest probability, over all columns, that a column fits the labels by chance
SAMPLED = 500  # rows that rule out most columns
MIN_ROWS = 20
EXACT = 1e-9  # of a correlation, from 1


def copies(cells: Cells) -> list[str]:
    """Warn about each column from which a target follows without an error.

    Of classes, flags and events: each value of the column has one label. Of numbers and times: a
    straight line. A label that is a threshold of a column does not count: it may be the task.
    """
    if len(cells) < MIN_ROWS:
        return []
    sampled = spread(np.arange(len(cells)), SAMPLED)
    sample = np.asarray(cells.raw.x[sampled], np.float64)
    lines: dict[str, str] = {}
    for target, labels, measured in targets(cells):
        explain = _on_a_line if measured else _deciding
        for k, name in cells.columns():
            if (
                name not in lines
                and explain(sample[:, k], labels[sampled], 1.0)
                and (reason := explain(cells.column(k), labels, CHANCE / sample.shape[1]))
            ):
                lines[name] = (
                    f"column {name} gives {target} away: {reason}; if it is known only with the "
                    "label, leave it out by data.drop_columns"
                )
    return capped([*lines.items()])


def targets(cells: Cells) -> Iterator[tuple[str, Values, bool]]:
    """Iterate over targets (N,): name, values, and whether they are measured."""
    dataset, y = cells.dataset, np.asarray(cells.dataset.y, np.float64)
    form: Targets = dataset.targets
    if form == "classes":
        yield "the label", y, False
    elif form == "survival":
        yield from (("the time to the event", y[:, 0], True), ("the event", y[:, 1], False))
    elif form != "segmentation":
        names = dataset.labels or [f"target {k}" for k in range(y.shape[1])]
        for name, values in zip(names, y.T, strict=True):
            label = f"the label {name}" if y.shape[1] > 1 else "the label"
            yield label, values, form != "multilabel"


def _deciding(values: Values, labels: Values, chance: float) -> str:
    """Describe how the values (n,) decide the class, if chance hardly does this; else empty."""
    if _decides(values, labels, chance):
        return "each of its values has one label"
    if _decides(np.isnan(values) * 1.0, labels, chance):
        return "it is empty in all rows of some labels, and in no other row"
    return ""


def _decides(values: Values, labels: Values, chance: float) -> bool:
    """Return whether few values have one label each, with at most this probability by chance."""
    distinct, number, counts = np.unique(values, return_inverse=True, return_counts=True)
    if not 1 < len(distinct) <= min(len(values), SAMPLED) / 4:
        return False
    if np.unique(np.stack([number, labels]), axis=1).shape[1] > len(distinct):
        return False
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    by_value = [np.logaddexp.reduce(n * np.log(shares)) for n in counts if n > 1]
    return bool(sum(by_value) <= np.log(chance))


def _on_a_line(values: Values, target: Values, _chance: float) -> str:
    """Describe how the target (n,) is a linear function of the values, gaps left out; else
    empty.
    """
    counts = ~np.isnan(values)
    x, y = values[counts], target[counts]
    if len(x) < MIN_ROWS or len(np.unique(y[:100])) < 3:
        return ""
    x, y = x - x.mean(), y - y.mean()
    norm = np.sqrt((x**2).sum() * (y**2).sum())
    if not norm or abs((x * y).sum()) / norm < 1 - EXACT:
        return ""
    is_equal = np.array_equal(values.astype(np.float32), target.astype(np.float32))
    return "it is the same" if is_equal else "it is the same in another unit"
