"""Table files that hold or promise too much: each is a one-line error."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from pomona.core.errors import DataError, PomonaError
from pomona.data import data_settings, formats, read
from pomona.data.formats import csv, transfer
from pomona.data.table_settings import CsvForm


def columns(path):
    return formats.read([path], CsvForm())[0]


@pytest.mark.long
def test_a_table_has_a_bounded_number_of_columns(tmp_path, monkeypatch):
    monkeypatch.setattr(csv, "MOST_COLUMNS", 300)
    path = tmp_path / "t.csv"
    path.write_text(",".join(map(str, range(300))) + "\n")
    assert len(columns(path).names) == 300
    path.write_text(",".join(map(str, range(301))) + "\n")
    with pytest.raises(DataError, match="301 columns; the limit is 300"):
        columns(path)


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "arrow"])
def test_a_table_has_a_bounded_number_of_rows(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(transfer, "MOST_ROWS", 3)
    path = tmp_path / f"t.{suffix}"
    for rows in (3, 5):
        frame = pa.table({"x": range(rows)}).to_pandas()
        if suffix == "parquet":
            frame.to_parquet(path)
        elif suffix == "arrow":
            frame.to_feather(path)
        else:
            frame.to_csv(path, index=False)
        if rows == 3:
            assert columns(path).arrays[0].to_pylist()[-1] in (2, "2")
            continue
        with pytest.raises(DataError, match=r"more than .* 3 rows"):
            columns(path)


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    """A dictionary repeats a text of a kilobyte in every row: 4 MB of 5 kB."""
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"a": ["x" * 1000] * 4000}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(transfer, "MOST_BYTES", 1 << 20)
    with pytest.raises(DataError, match=r"more than .* 1048576 bytes"):
        columns(path)


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["parquet", "arrow", "orc"])
def test_a_damaged_file_is_one_line(tmp_path, suffix):
    path, table = tmp_path / f"t.{suffix}", pa.table({"a": ["x", "y", "x"], "b": [1.5, 2, None]})
    if suffix == "parquet":
        parquet.write_table(table, path)
    elif suffix == "orc":
        from pyarrow import orc

        orc.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    content, outcomes = path.read_bytes(), set()
    for i in range(0, len(content), max(1, len(content) // 20)):
        path.write_bytes(content[:i] + bytes([content[i] ^ 0x41]) + content[i + 1 :])
        try:
            outcomes.add(len(columns(path)) >= 0)
        except PomonaError as fault:
            outcomes.add(f"lines: {len(str(fault).splitlines())}")
    assert outcomes <= {True, "lines: 1"}
    assert "lines: 1" in outcomes


def test_a_text_that_is_not_utf_8_is_named(tmp_path):
    """Arrow's texts are checked before this process sees them."""
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.int32([0, 2]).tobytes()), pa.py_buffer(b"\xff\xfe")]
    )
    parquet.write_table(pa.table({"a": bad, "y": [0]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"not a readable Parquet file \(.*UTF-?8"):
        read(data_settings(name="table", path=tmp_path / "t.parquet", label_column="y"))
