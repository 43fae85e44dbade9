"""CSV: every cell as the text that the file has."""

from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from pomona.data.formats.columns import Columns


def read(path: Path, settings: object) -> Columns:
    """Read a CSV file; its first record is row 0, whether or not it names the columns."""
    options = csv.ReadOptions(autogenerate_column_names=True, use_threads=False)
    table = csv.read_csv(path, options)
    texts = [column.cast(pa.string()) for column in table.columns]
    names = tuple(map(str, range(len(texts))))
    return Columns(names, tuple(texts), "line", named=False)
