"""A table's file read to its columns and notes, or refused."""

import pytest

from pomona.core.errors import DataError
from pomona.data import formats


def read(path, settings):
    """The columns of a file by name, and its notes."""
    (columns,) = formats.read([path], settings)
    cells = [array.to_pylist() for array in columns.arrays]
    return dict(zip(columns.names, cells, strict=True)), columns.notes


def note(notes, *texts):
    """The only note with all these words."""
    (line,) = [line for line in notes if all(text in line for text in texts)]
    return line


def refused(path, settings, *texts):
    with pytest.raises(DataError) as error:
        read(path, settings)
    assert all(text in str(error.value) for text in (path.name, *texts)), str(error.value)
