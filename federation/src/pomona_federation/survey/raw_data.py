"""A silo's training rows as columns, before any preprocessing: cells of a table, summaries of
images and texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pomona.config import resolve
from pomona.core.errors import DataError
from pomona.data import read
from pomona.data.dataset import Dataset
from pomona.data.preprocessing import MOST_CATEGORIES, RawTable, TableColumn
from pomona.data.settings import DataSettings
from pomona.data.table_settings import Features
from pomona.data.text import FIRST_WORD, PADDING
from pomona.data.validation import blocks
from pomona.objective.dataset import groups_of
from pomona.partition import divide
from pomona_federation.survey.settings import LONGEST, ColumnSpec, ColumnsReply, Term, disclosable

LENGTH = "tokens"  # the column of texts
BATCH = 256  # images


@dataclass(frozen=True)
class RawData:
    """The training rows of a data set.

    Attributes:
        dataset: as read, with the raw cells of a table.
        rows: (n,) numbers of the training rows.
        settings: by which it was read.
    """

    dataset: Dataset
    rows: NDArray[np.int64]
    settings: DataSettings

    @cached_property
    def _table(self) -> RawTable:
        """Everything that can be surveyed, as columns of a table of the training rows."""
        dataset = self.dataset
        if dataset.raw:
            return dataset.raw.rows(self.rows)
        if dataset.kind == "table":
            columns = dataset.columns or tuple(map(str, range(dataset.x.shape[1])))
            return _numbers(columns, np.asarray(dataset.x[self.rows], np.float64))
        if dataset.kind == "text":
            return _numbers(
                (LENGTH,),
                (dataset.x[self.rows] != PADDING).sum(axis=1, keepdims=True, dtype=np.float64),
            )
        return _numbers(*_intensities(dataset.x, self.rows))

    def description(self) -> ColumnsReply:
        """Description of the data, without any of its values.

        Raises DataError for names that no survey can report: their rows would be counted elsewhere.
        """
        dataset, table = self.dataset, self._table
        names = (*(c.name for c in table.columns), *dataset.labels, *dataset.classes)
        if hidden := [name for name in names if not disclosable(name)]:
            raise DataError(
                f"{dataset.name}: {len(hidden)} names of columns or classes are not one line of at "
                f"most {LONGEST} visible characters, first {hidden[0][:40]!r}; rename them in the "
                "file, or leave columns out by data.drop_columns"
            )
        specs = [
            ColumnSpec(
                name=c.name, kind=c.kind, missing=tuple(m for m in c.missing if disclosable(m))
            )
            for c in table.columns
        ]
        named_in_settings = any(
            getattr(self.settings, key, None) not in (None, ())
            for key in ("classes", "label_above")
        )
        return ColumnsReply(
            rows=len(self.rows),
            kind=dataset.kind,
            shape=() if dataset.kind == "table" else dataset.x.shape[1:],
            dtype=dataset.x.dtype.name,
            targets=dataset.targets,
            labels=dataset.labels,
            classes=dataset.classes if named_in_settings and dataset.targets == "classes" else (),
            columns=tuple(specs),
            layout=table.layout,
        )

    @property
    def largest_group(self) -> int:
        """The most training rows of one group, such as a patient; 1 without groups."""
        if (groups := groups_of(self.dataset)) is None:
            return 1
        return int(np.unique(groups[self.rows], return_counts=True)[1].max(initial=1))

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column of numbers or days (n,), NaN for missing values."""
        return self._table.x[:, self._index(name)].astype(np.float64)

    def categories(self, name: str) -> tuple[dict[str, int], int]:
        """Rows of each category of a column, and rows without one."""
        k = self._index(name)
        cells = self._table.x[:, k]
        codes = cells[~np.isnan(cells)].astype(np.int64)
        counts = np.bincount(codes, minlength=len(self._table.values[k]))
        by_category = {
            value: int(n) for value, n in zip(self._table.values[k], counts, strict=True) if n
        }
        return by_category, len(cells) - len(codes)

    def _index(self, name: str) -> int:
        return [column.name for column in self._table.columns].index(name)

    def classes(self) -> dict[str, int]:
        """Rows of each class."""
        counts = np.bincount(self._y.astype(np.int64), minlength=len(self.dataset.classes))
        return {name: int(n) for name, n in zip(self.dataset.classes, counts, strict=True) if n}

    def targets(self) -> dict[str, NDArray[np.float64]]:
        """Other targets (n,) by name; for survival only the times of events, NaN if none was
        observed.
        """
        y, dataset = self._y.astype(np.float64), self.dataset
        if dataset.targets == "survival":
            return {
                dataset.labels[0] if dataset.labels else "time": np.where(
                    y[:, 1] > 0, y[:, 0], np.nan
                )
            }
        if dataset.targets == "segmentation":
            flat = y.reshape(len(y), -1)
            return {
                name: (flat == k).any(axis=1).astype(float)
                for k, name in enumerate(dataset.classes)
            }
        names = dataset.labels or tuple(f"target {k}" for k in range(dataset.n_outputs))
        return {name: y[:, k] for k, name in enumerate(names)}

    @property
    def _y(self) -> NDArray[np.generic]:
        return self.dataset.y[self.rows]

    def word_counts(self) -> dict[Term, int]:
        """The words of texts, and the number of texts with each."""
        dataset = self.dataset
        counts = np.zeros(max(dataset.vocabulary, FIRST_WORD), np.int64)
        for row in self.rows if dataset.words else ():
            counts[np.unique(dataset.x[row])] += 1
        return {
            token: int(n) for token, n in zip(dataset.words, counts[FIRST_WORD:], strict=True) if n
        }


def read_raw(
    settings: DataSettings, seed: int, member: int, specs: Sequence[ColumnSpec] = ()
) -> RawData:
    """Read a silo's data for a survey, and find its training rows as a run of this seed does.

    Args:
        settings: the silo's own section data.
        seed: of the survey.
        member: the silo's position among all silos.
        specs: how the columns of a table are read; inferred from the data if empty.

    Raises:
        ConfigError: settings that do not fit the data.
        DataError: data that cannot be read.
    """
    lenient: DataSettings = settings
    if isinstance(settings, Features):
        lenient = settings.model_copy(update={**_lenient(settings), **_agreed_reading(specs)})
    dataset = read(lenient, keep_raw=True)
    explicit = settings.model_dump(mode="json", exclude_unset=True)
    run = resolve({"clients": 1, "workers": 1, "seed": seed, "data": explicit})
    partition = divide(dataset, lenient, run.partition, 1, seed, member)
    return RawData(dataset, partition.clients[0].train, settings)


def _lenient(settings: Features) -> Mapping[str, object]:
    """Settings under which gaps and categories are not errors, as their treatment is still
    undecided.
    """
    categories = "encode" if settings.categories == "refuse" else settings.categories
    return {
        "missing": "median",
        "categories": categories,
        "category_limit": MOST_CATEGORIES,
        "fit": "pooled",
    }


def _agreed_reading(specs: Sequence[ColumnSpec]) -> Mapping[str, object]:
    if not specs:
        return {}
    columns = {k: tuple(f.name for f in specs if f.kind == k) for k in ("category", "date")}
    markers = {spec.name: spec.missing for spec in specs if spec.missing}
    return {"categories": columns["category"], "dates": columns["date"], "missing_values": markers}


def _numbers(names: Sequence[str], x: NDArray[np.float64]) -> RawTable:
    return RawTable(tuple(TableColumn(name=name) for name in names), x, ((),) * len(names))


def channel(number: int, statistic: str) -> str:
    """Name of a column that summarises a channel of images: its ``mean``, or the mean of its
    ``square``.
    """
    return f"channel {number} {statistic}"


def _intensities(
    x: NDArray[np.generic], rows: NDArray[np.int64]
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """For each image (n, 2 C): mean and mean square of each channel."""
    channels, moments = x.shape[-1], np.empty((len(rows), 2 * x.shape[-1]))
    for offset, batch in blocks(rows, BATCH):
        values = np.asarray(x[batch], np.float64).reshape(len(batch), -1, channels)
        moments[offset : offset + len(batch)] = np.hstack(
            [values.mean(axis=1), (values**2).mean(axis=1)]
        )
    return tuple(
        channel(k, statistic) for statistic in ("mean", "square") for k in range(channels)
    ), moments
