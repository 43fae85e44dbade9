"""What looks wrong in a data set's content, counted and noted before round 1.

Every check is a pure function from the data, and the partition where splits matter, to notes of one
line: what, where, and what to do. They look at one owner's data or at that of all, as the data set
has them: a silo checks its own alone.
"""

from pomona.data.dataset import Dataset
from pomona.data.quality import (
    client_codes,
    damaged_text,
    dates,
    idle_columns,
    label_copies,
    markers,
    units,
)
from pomona.data.quality.cells import Cells


def content_notes(dataset: Dataset) -> list[str]:
    """Return notes on a data set as read: the cells of a table before gaps are filled."""
    cells = Cells.of(dataset) if dataset.kind == "table" else None
    lines = [*damaged_text.notes(dataset), *client_codes.shared_groups(dataset)]
    lines += client_codes.notes(dataset, cells)
    if cells is None or not len(cells):
        return [*lines, *markers.in_labels(dataset)]
    return [
        *lines,
        *label_copies.notes(dataset, cells),
        *idle_columns.notes(cells),
        *markers.notes(dataset, cells),
        *(units.notes(cells)),
        *dates.notes(cells),
    ]
