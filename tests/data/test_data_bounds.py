"""Tables that promise more than a table has: each is one line."""

import pytest

from pomona.core.errors import DataError
from pomona.data import csv_records, parquet
from pomona.data.csv_records import MOST_COLUMNS, heading, records


def test_a_table_has_a_bounded_number_of_columns(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",".join(map(str, range(MOST_COLUMNS))) + "\n")
    assert len(heading(path, True)) == MOST_COLUMNS
    path.write_text(",".join(map(str, range(MOST_COLUMNS + 1))) + "\n")
    with pytest.raises(DataError, match="100001 columns, at most 100000 are read"):
        heading(path, True)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"t": ("int", [2**62])}, "no Parquet that can be read"),  # Python's dates end in the year 9999
        ({"t": ("text", ["x" * (parquet.LONGEST + 1)])}, "a cell has 65537 characters, at most 65536 are read"),
        ({"t": ("text", ["x"] * 4)}, "has 4 rows, at most 3 are read"),
    ],
)
def test_a_parquet_file_that_promises_too_much_is_one_line(column, said, tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    kinds = {"int": pyarrow.timestamp("us"), "text": pyarrow.string()}
    table = pyarrow.table({k: pyarrow.array(values, kinds[kind]) for k, (kind, values) in column.items()})
    write_table(table, tmp_path / "t.parquet")
    monkeypatch.setattr(csv_records, "MOST_ROWS", 3)
    with pytest.raises(DataError, match=said):
        list(records(tmp_path / "t.parquet"))


def test_a_csv_file_has_a_bounded_number_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_records, "MOST_ROWS", 3)
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "1,2\n" * 3)
    assert len(list(records(path))) == 4  # the header and three rows
    path.write_text("x,y\n" + "1,2\n" * 4)
    with pytest.raises(DataError, match="more than 3 rows"):
        list(records(path))


def test_a_parquet_cell_that_unpacks_to_more_than_a_cell_may_have_is_refused_before(tmp_path, monkeypatch):
    pa, files = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    path = tmp_path / "a.parquet"
    columns = pa.table({"a": [1, 2], "b": ["x" * (1 << 24), ""]})
    files.write_table(columns, path, compression="zstd", use_dictionary=False, write_statistics=False)
    assert path.stat().st_size < 1 << 14
    monkeypatch.setattr(files.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("unpacked"))
    with pytest.raises(DataError, match="column b unpacks to 16777"):  # 2^24 = 16,777,216 and a few bytes
        list(parquet.records(path, 10))
