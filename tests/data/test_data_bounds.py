"""Table files that declare more than they contain: each is a one-line error."""

from io import BytesIO

import pytest

from pomona.core.errors import DataError
from pomona.data import parquet, parquet_pages, table_file
from pomona.data.settings import CsvForm
from pomona.data.table_file import MOST_COLUMNS, opened


def test_a_table_has_a_bounded_number_of_columns(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",".join(map(str, range(MOST_COLUMNS))) + "\n")
    assert len(opened(path, CsvForm(), True).columns) == MOST_COLUMNS
    path.write_text(",".join(map(str, range(MOST_COLUMNS + 1))) + "\n")
    with pytest.raises(DataError, match="100001 columns, at most 100000 are read"):
        opened(path, CsvForm(), True)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (
            {"t": ("int", [2**62])},
            "not a readable Parquet file",
        ),  # Python's dates end in the year 9999
        (
            {"t": ("text", ["x" * (parquet.LONGEST + 1)])},
            "a cell has 65537 characters, at most 65536 are read",
        ),
        ({"t": ("text", ["x"] * 4)}, "has 4 rows, at most 3 are read"),
    ],
)
def test_a_parquet_file_that_promises_too_much_is_one_line(column, said, tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    kinds = {"int": pyarrow.timestamp("us"), "text": pyarrow.string()}
    table = pyarrow.table(
        {k: pyarrow.array(values, kinds[kind]) for k, (kind, values) in column.items()}
    )
    write_table(table, tmp_path / "t.parquet")
    monkeypatch.setattr(table_file, "MOST_ROWS", 3)
    with pytest.raises(DataError, match=said):
        list(opened(tmp_path / "t.parquet", CsvForm(), True).rows())


def test_a_csv_file_has_a_bounded_number_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(table_file, "MOST_ROWS", 3)
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "1,2\n" * 3)
    assert len(list(opened(path, CsvForm(), True).rows())) == 3
    path.write_text("x,y\n" + "1,2\n" * 4)
    with pytest.raises(DataError, match="more than 3 rows"):
        list(opened(path, CsvForm(), True).rows())


@pytest.fixture
def parquet_file(tmp_path):
    """Write columns as a Parquet file; return its path."""
    pa, files = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))

    def write(columns, **how):
        files.write_table(
            pa.table(columns), tmp_path / "t.parquet", **{"compression": "zstd", **how}
        )
        return tmp_path / "t.parquet"

    return write


@pytest.mark.parametrize("dictionary", [False, True])
def test_pages_that_unpack_to_more_than_is_read_at_once_are_refused_before(
    dictionary, parquet_file, monkeypatch
):
    from pyarrow import parquet as pq

    long = ["x" * (1 << 16) + str(number) for number in range(256)]  # 2^24 bytes and more
    path = parquet_file(
        {"a": range(256), "b": long},
        use_dictionary=dictionary,
        data_page_size=1 << 25,
        dictionary_pagesize_limit=1 << 25,
    )
    assert path.stat().st_size < 1 << 15
    monkeypatch.setattr(parquet, "MOST", 1 << 25)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("unpacked"))
    with pytest.raises(
        DataError,
        match=r"up to column b 3[34]\d{6} bytes are unpacked at once, at most 33554432 are",
    ):
        list(parquet.records(path, 256))


def test_a_parquet_text_that_a_dictionary_repeats_is_read_in_few_rows(parquet_file, monkeypatch):
    from pyarrow import parquet as pq

    path, asked, read = parquet_file({"a": ["x" * 1000] * 4000}), [], pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches", lambda t, n, **how: asked.append(n) or read(t, n, **how)
    )
    monkeypatch.setattr(parquet, "MOST", 20_080)
    assert len(list(parquet.records(path, 4000))) == 4001
    assert asked == [20]  # a plain page of one entry has its 1,000 bytes and their number, in 4
    monkeypatch.setattr(parquet, "MOST_IN_ALL", 3_999_999)
    with pytest.raises(DataError, match="more than 3999999 characters"):
        list(parquet.records(path, 4000))


@pytest.mark.parametrize(
    "how", [{}, {"data_page_version": "2.0"}, {"use_dictionary": False}, {"compression": "none"}]
)
def test_parquet_pages_are_found_where_they_are(how, parquet_file):
    path = parquet_file(
        {"a": range(5000), "b": [str(i) for i in range(5000)]}, row_group_size=2000, **how
    )
    from pyarrow.parquet import read_metadata

    about = read_metadata(path)
    with path.open("rb") as raw:
        for number, group in enumerate(parquet_pages.groups(raw)):
            for place, chunk in enumerate(group):
                stated = about.row_group(number).column(place)
                assert chunk[7, parquet_pages.I64] == stated.total_compressed_size
                assert stated.total_uncompressed_size / 2 - 200 < parquet_pages.largest_page(
                    chunk, raw
                )
                assert parquet_pages.largest_page(chunk, raw) < stated.total_uncompressed_size


@pytest.mark.parametrize(
    "field", [b"\x88\x80\x08", b"\x08"]
)  # 65540, of which the last 16 bits are 4; and 4
def test_a_second_list_of_row_groups_is_damage(field, parquet_file):
    """pyarrow takes the last one, by the last 16 bits: 46 kB that unpacked to 3 GB were hidden
    so.
    """
    hidden = (
        bytes([parquet_pages.LIST]) + field + bytes([parquet_pages.STRUCTURE])
    )  # of no row groups
    path = parquet_file({"a": [1, 2]})
    whole = path.read_bytes()
    size = int.from_bytes(whole[-8:-4], "little")
    footer = whole[-8 - size : -9] + hidden + b"\x00"
    path.write_bytes(whole[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(DataError, match="its metadata or a page's header are damaged"):
        list(parquet.records(path, 2))


@pytest.mark.parametrize(
    "header",
    [
        b"\x25\x02\x05\x04\x06\x00",  # field 2, then field 2 again
        b"\x25\x02\x05" + b"\x84\x80\x08" + b"\x06\x00",  # field 2, then 65538
        b"\x19\xf7" + b"\xff" * 8 + b"\x7f",  # 2^63 doubles that are not there
        b"\x29\x18\x00\x00",  # field 2 of the metadata: texts where pyarrow reads structures
        b"\x19" * 3000,  # a list of a list of a list
    ],
)
def test_a_page_header_that_others_may_read_otherwise_is_damaged(header):
    """The doubles were counted without a byte of theirs being read."""
    with pytest.raises(ValueError, match="a page's header"):
        parquet_pages._structure(BytesIO(header))


def test_a_parquet_file_with_lists_is_refused_by_column(parquet_file):
    with pytest.raises(DataError, match=r"column b\S* holds lists; leave it out"):
        list(parquet.records(parquet_file({"a": [1], "b": [[1, 2]]}), 9))


def test_a_damaged_parquet_file_is_one_line(parquet_file):
    path = parquet_file({"a": ["x", "y", "x"], "b": [1.5, 2, None]})
    whole, ends = path.read_bytes(), set()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            ends.add(len(list(parquet.records(path, 3))))
        except DataError as fault:
            ends.add(f"lines: {len(str(fault).splitlines())}")
    assert ends == {4, "lines: 1"}
