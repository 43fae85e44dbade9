"""What looks wrong in a data set's content, counted and noted before round 1.

Every check is a pure function from the cells, with their clients and labels, to notes of one line:
what, where, and what to do. They look at one owner's data or at that of all, as the data set has
them: a silo checks its own alone. Equal rows are checked once the splits are known
(``repeated_rows``).
"""

from pomona.data.dataset import Dataset
from pomona.data.quality import answers, columns, dates, labels, markers, units
from pomona.data.quality.cells import Cells

CHECKS = (
    answers.damaged_letters,
    answers.dates_among_names,
    answers.shared_groups,
    answers.classes,
    answers.categories,
    answers.codes,
    labels.copies,
    columns.concepts,
    columns.identifiers,
    columns.rounded,
    columns.constant,
    columns.empty,
    columns.flattened,
    columns.totals,
    markers.in_features,
    markers.in_labels,
    units.notes,
    units.of_images,
    dates.notes,
)


def content_notes(dataset: Dataset) -> list[str]:
    """Return notes on a data set as read: the cells of a table before gaps are filled."""
    cells = Cells.from_dataset(dataset)
    return [line for check in CHECKS for line in check(cells)]
