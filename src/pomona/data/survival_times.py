"""Times to an event as targets, and the intervals that a network learns of them.

y is (N, 2) float32: a time above 0 in any unit, and 1 where the event was seen then, 0 where it had not happened yet
(censored). What is learnt of training rows is where the intervals end.
"""

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import ConfigError, DataError
from pomona.data.dataset import Dataset, Learn
from pomona.data.settings import DataSettings


def timed(dataset: Dataset, settings: DataSettings) -> Dataset:
    """A data set whose targets are times, with its intervals given, or learnt once the training rows are known.

    Raises ConfigError for names of targets.
    """
    if settings.classes:
        raise ConfigError("data.classes names classes or targets, and a time to an event is neither; take it out")
    learn = partial(_learnt, settings.time_edges, settings.intervals, dataset.learn)
    return replace(dataset, labels=(), edges=settings.time_edges, learn=learn)


def edges(y: NDArray[np.generic], intervals: int) -> tuple[float, ...]:
    """Ends of at most so many intervals: quantiles of the times at which an event was seen, each itself such a time.

    An event falls into each interval about as often; the last ends with the last event. Fewer where times are alike.
    """
    times = np.asarray(y, dtype=float)
    seen = times[times[:, 1] > 0, 0]
    ends = np.quantile(seen, np.arange(1, intervals + 1) / intervals, method="inverted_cdf")
    return tuple(np.unique(ends).tolist())


def _learnt(
    given: tuple[float, ...], intervals: int, before: Learn | None, dataset: Dataset, rows: NDArray[np.int64]
) -> Dataset:
    y = dataset.y[rows]
    if not y[:, 1].any():
        raise DataError(
            f"{dataset.name}: none of the {len(rows)} training rows has an event (1), all are censored; give rows with "
            "events, or look at the order of data.label_columns: time, event"
        )
    known = before(dataset, rows) if before else dataset
    return replace(known, edges=given or edges(y, intervals), learn=dataset.learn if known.learn else None)
