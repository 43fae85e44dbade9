"""Tables as other programs write them: polars, DuckDB, pandas, R, spreadsheets, REDCap, SAS."""

from datetime import datetime, timedelta
from decimal import Decimal

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from format_lines import Cases
from pyarrow import parquet

from pomona.core.errors import ConfigError, DataError
from pomona.data import data_settings, from_arrays, from_frame, read
from pomona.data.table_settings import TableForm
from pomona.personal import inputs
from pomona.record.model_metadata import ModelMetadata

N = 60
RNG = np.random.Generator(np.random.Philox(0))
PATIENTS = pd.DataFrame(
    {
        "site": np.array(["Nord", "Sued", "Ost"])[np.arange(N) % 3],
        "age": RNG.integers(20, 90, N),
        "crp": RNG.random(N).round(3),
        "sex": np.array(["F", "M"])[RNG.integers(0, 2, N)],
        "y": np.arange(N) % 2,
    }
)
ROLES = {"label_column": "y", "client_column": "site", "categories": ("sex",)}


def table(path, text=None, **settings):
    if text is not None:
        path.write_text(text, encoding="utf-8")
    return read(data_settings(**{"name": "table", "path": path, "label_column": "y", **settings}))


def refused(path, text=None, **settings):
    with pytest.raises((DataError, ConfigError)) as caught:
        table(path, text, **settings)
    return str(caught.value)


def write_arrow(path):
    PATIENTS.to_feather(path)


def write_orc(path):
    from pyarrow import orc

    orc.write_table(pa.Table.from_pandas(PATIENTS), path)


WRITERS = {
    "pandas.csv": lambda path: PATIENTS.to_csv(path, index=False),
    "pandas.csv.gz": lambda path: PATIENTS.to_csv(path, index=False),
    "pandas.parquet": lambda path: PATIENTS.to_parquet(path, index=False),
    "pandas.arrow": write_arrow,
    "pyarrow.orc": write_orc,
    "polars.parquet": lambda path: pl.from_pandas(PATIENTS).write_parquet(path),
    "polars.csv": lambda path: pl.from_pandas(PATIENTS).write_csv(path),
    "polars.arrow": lambda path: pl.from_pandas(PATIENTS).write_ipc(path),
    "duckdb.parquet": lambda path: duckdb.from_df(PATIENTS).write_parquet(str(path)),
    "duckdb.csv": lambda path: duckdb.from_df(PATIENTS).write_csv(str(path)),
}


@pytest.fixture(scope="module")
def expected():
    return read(from_frame(PATIENTS, **ROLES))


@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_gives_the_same_data(name, tmp_path, expected):
    WRITERS[name](tmp_path / name)
    data = table(tmp_path / name, **ROLES)
    assert data.fingerprint == expected.fingerprint
    assert data.owners.names == ("Nord", "Ost", "Sued")


@pytest.mark.parametrize("convert", [pl.from_pandas, pa.Table.from_pandas, duckdb.from_df])
def test_every_frame_gives_the_same_data(convert, expected):
    assert read(from_frame(convert(PATIENTS), **ROLES)).fingerprint == expected.fingerprint


def test_columns_of_files_meet_by_name(tmp_path):
    for name, frame in (("train", PATIENTS), ("test", PATIENTS[list(PATIENTS)[::-1]])):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    data = table(tmp_path, **ROLES)
    np.testing.assert_array_equal(data.x[:N], data.x[N:])


@pytest.mark.parametrize("program", ["duckdb", "polars", "pandas"])
def test_a_folder_of_parts_is_one_table(program, tmp_path, expected):
    folder = tmp_path / "parts"
    if program == "duckdb":
        duckdb.from_df(PATIENTS).write_parquet(str(folder), partition_by=["site"])
    elif program == "polars":
        folder.mkdir()
        pl.from_pandas(PATIENTS).write_parquet(pl.PartitionBy(folder, key="site"))
    else:
        PATIENTS.to_parquet(folder, partition_cols=["site"])
    data = table(folder, **ROLES)
    assert any("are read as one table" in note and "site" in note for note in data.notes)
    assert data.owners.names == expected.owners.names
    for client in range(3):
        a, b = (np.sort(d.x[d.owners.client == client], axis=0) for d in (data, expected))
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_parts_with_a_header_each_meet_by_name(tmp_path):
    """CSV: the columns of the second part have another order, the third has no rows."""
    (tmp_path / "p0.csv").write_text("age,crp,y\n20,1.5,0\n30,2.5,1\n")
    (tmp_path / "p1.csv").write_text("y,age,crp\n1,40,3.5\n")
    (tmp_path / "p2.csv").write_text("age,crp,y\n")
    data = table(tmp_path)
    assert data.x.tolist() == [[20, 1.5], [30, 2.5], [40, 3.5]]
    assert data.y.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "header",
    [{}, {"header": False}, {"columns": ("age", "crp", "y"), "label_column": "y"}],
    ids=str,
)
def test_equal_first_rows_of_parts_without_a_header_are_rows(tmp_path, header):
    for name, last in (("p0", "30,2.5,1"), ("p1", "40,3.5,0")):
        (tmp_path / f"{name}.csv").write_text(f"20,1.5,0\n{last}\n")
    data = table(tmp_path, **{"label_column": 2, **header})
    assert data.x.tolist() == [[20, 1.5], [30, 2.5], [20, 1.5], [40, 3.5]]
    assert data.y.tolist() == [0, 1, 0, 0]


def test_a_first_row_without_a_header_keeps_the_value_of_its_folder(tmp_path):
    for site in ("Nord", "Ost"):
        (tmp_path / f"site={site}").mkdir()
        (tmp_path / f"site={site}" / "p.csv").write_text("20,1.5,0\n30,2.5,1\n")
    data = table(tmp_path, label_column=2, client_column=3, header=False)
    assert data.owners.names == ("Nord", "Ost")
    assert data.owners.client.tolist() == [0, 0, 1, 1]


def test_a_header_with_numbers_is_left_out_of_further_parts(tmp_path):
    for name in ("p0", "p1"):
        (tmp_path / f"{name}.csv").write_text("2019,y\n20,0\n30,1\n")
    assert table(tmp_path).x.tolist() == [[20], [30]] * 2


def test_a_folder_has_files_of_one_format_and_its_settings(tmp_path):
    (tmp_path / "a.csv").write_text("age;y\n20;0\n30;1\n")
    PATIENTS[["age", "y"]].to_excel(tmp_path / "b.xlsx", index=False)
    message = refused(tmp_path, separator="semicolon")
    assert all(text in message for text in ("2 formats", "a.csv", "b.xlsx", "data.path"))
    (tmp_path / "a.csv").unlink()
    for settings in ({"separator": "semicolon"}, {"encoding": "cp1252"}):
        message = refused(tmp_path, **settings)
        assert all(w in message for w in (*settings, "CSV", "data.format = 'spreadsheet'"))
    assert len(table(tmp_path, decimal="point").x) == N  # a setting of both
    assert len(table(tmp_path, format="spreadsheet", sheet="Sheet1").x) == N
    assert "data.sheet" in refused(tmp_path, sheet="Sheet1")


def test_a_partition_of_a_number_keeps_its_text(tmp_path):
    frame = PATIENTS.assign(site=np.array(["01", "02", "1"])[np.arange(N) % 3])
    duckdb.from_df(frame).write_csv(str(tmp_path / "d"), partition_by=["site"], header=True)
    data = table(tmp_path / "d", **ROLES)
    assert (data.owners.names, len(data)) == (("01", "1", "02"), N)


@pytest.mark.parametrize("arrow_type", [pa.decimal128(30, 3), pa.float16()], ids=str)
def test_a_column_without_gaps_of_a_type_that_arrow_cannot_join_empty(tmp_path, arrow_type):
    values = pa.array(np.arange(N) % 5.0)
    columns = {"v": values.cast(arrow_type), "y": PATIENTS["y"]}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    data = table(tmp_path / "a.parquet", classes=["0", "1"])
    assert np.array_equal(data.x[:, 0], np.arange(N) % 5)


def test_texts_that_a_writer_stored_as_bytes_are_texts(tmp_path, expected):
    stored = pa.Table.from_pandas(PATIENTS)
    for name in ("site", "sex"):
        index = stored.column_names.index(name)
        stored = stored.set_column(index, name, stored[name].cast(pa.binary()))
    parquet.write_table(stored, tmp_path / "t.parquet")
    assert table(tmp_path / "t.parquet", **ROLES).fingerprint == expected.fingerprint
    bad = stored.set_column(0, "site", pa.array([b"\xff\xd8"] * N))
    parquet.write_table(bad, tmp_path / "bad.parquet")
    intervals = duckdb.from_arrow(stored).project("interval 3 day as site, * exclude (site)")
    intervals.write_parquet(str(tmp_path / "intervals.parquet"))
    for name in ("bad", "intervals"):
        message = refused(tmp_path / f"{name}.parquet", **ROLES)
        assert "column site holds bytes that are not UTF-8" in message
        assert "data.drop_columns" in message


GERMAN = "site;crp;plt;y\nA;0,5;787;0\nB;1,25;1.145;1\nA;0,75;12.345.678;0\n"


def test_points_part_thousands_where_the_decimal_mark_is_a_comma(tmp_path):
    data = table(tmp_path / "de.csv", GERMAN, client_column="site", decimal="comma")
    assert data.x.tolist() == [[0.5, 787], [1.25, 1145], [0.75, 12345678]]
    assert any("marks of thousands" in note and "plt (2)" in note for note in data.notes)
    message = refused(tmp_path / "de.csv", client_column="site")
    assert all(text in message for text in ("data.decimal", "'0,5' in crp", "'1.145' in plt"))


@pytest.mark.parametrize("cell", ["1.5", "0.350", "1.1455", "1.145.2"])
def test_a_point_that_is_no_mark_of_thousands_is_refused(tmp_path, cell):
    message = refused(tmp_path / "a.csv", f"plt;y\n787;0\n{cell};1\n", decimal="comma")
    assert f"first '{cell}' in line 3" in message


def test_commas_part_thousands_where_the_decimal_mark_is_a_point(tmp_path):
    data = table(tmp_path / "a.csv", 'plt,y\n787.5,0\n"1,145.5",1\n', decimal="point")
    assert data.x.tolist() == [[787.5], [1145.5]]
    assert "data.decimal=point" in refused(tmp_path / "b.csv", 'plt,y\n787,0\n"1,145",1\n')


def test_points_with_three_digits_among_whole_numbers_are_noted(tmp_path):
    notes = table(tmp_path / "a.csv", "plt;y\n787;0\n1.145;1\n").notes
    assert any("plt" in note and "data.decimal=comma" in note for note in notes)
    assert not any(
        "decimal" in n for n in table(tmp_path / "b.csv", "a;y\n0.350;0\n1.145;1\n").notes
    )


@pytest.mark.parametrize("decimal", [None, "comma"])
def test_exponents_with_a_decimal_comma(tmp_path, decimal):
    data = table(tmp_path / "a.csv", "crp;y\n1,5e-05;0\n1E+02;1\n", decimal=decimal)
    assert data.x.tolist() == np.float32([[1.5e-05], [100]]).tolist()


@pytest.mark.parametrize("cell", ["1'145", "1\u2019145", "1 145", "1\u00a0145", "1\u202f145,5"])
def test_other_marks_of_thousands_are_named(tmp_path, cell):
    message = refused(tmp_path / "a.csv", f"plt;y\n787;0\n{cell};1\n", decimal="comma")
    assert "marks of thousands?" in message
    assert "remove them" in message


def test_percent_signs_are_named(tmp_path):
    assert "percent signs" in refused(tmp_path / "a.csv", "ef,y\n55%,0\n60 %,1\n")


def test_a_file_of_a_model_is_read_by_the_same_rules(tmp_path):
    metadata = ModelMetadata(
        client="A", model="m", network={"name": "logistic"}, kind="table", input_shape=(2,),
        outputs=2, vocabulary=0, words=(), targets="classes", classes=("0", "1"), labels=(),
        columns=("crp", "plt"), others=("site", "y"), shift=(0.0,), scale=(1.0,),
        target_shift=(0.0,), target_scale=(1.0,), form=TableForm(decimal="comma"),
    )  # fmt: skip
    (tmp_path / "a.csv").write_text(GERMAN)
    assert inputs.read(tmp_path / "a.csv", metadata).x.tolist()[1] == [1.25, 1145]
    pl.DataFrame({"plt": [1145], "crp": [1.25]}).write_parquet(tmp_path / "b.parquet")
    assert inputs.read(tmp_path / "b.parquet", metadata).x.tolist() == [[1.25, 1145]]


@pytest.mark.parametrize("line", ["sep=;", '"sep=;"', "SEP=;"])
def test_the_line_that_excel_reads_is_obeyed(tmp_path, line):
    text = f"{line}\nsite;age;y\nA;1;0\nB;2,5;1\n"
    data = table(tmp_path / "a.csv", text, client_column="site")
    assert (data.x.tolist(), data.columns) == ([[1], [2.5]], ("age",))
    assert "in line 4" in refused(
        tmp_path / "a.csv", text.replace("2,5", "x"), client_column="site"
    )
    (tmp_path / "wide.csv").write_bytes(text.encode("utf-16"))
    assert table(tmp_path / "wide.csv", client_column="site").x.tolist() == [[1], [2.5]]


def test_row_names_of_r_are_left_out(tmp_path):
    PATIENTS.to_csv(tmp_path / "a.csv")
    content = (tmp_path / "a.csv").read_text()
    for text in (content, content.removeprefix(",")):  # of write.csv and pandas, and of write.table
        data = table(tmp_path / "a.csv", text, **ROLES)
        assert (data.columns, len(data)) == (("age", "crp", "sex=F", "sex=M"), N)
        assert any("row names" in note for note in data.notes)
    text = "a,y\n1,2,0\n1,4,1\n"
    assert "one name too few" in refused(tmp_path / "a.csv", text)
    data = table(tmp_path / "a.csv", "a,y\n1,0,\n2,1,\n")
    assert data.x.tolist() == [[1], [2]]
    assert any("end with a separator" in note for note in data.notes)


@pytest.mark.parametrize("marker", [".a", ".Z", "._", "UNK", "NASK", "NI", "ASKU", "#DIV/0!", "B"])
def test_markers_of_gaps_name_the_setting_that_reads_them(tmp_path, marker):
    text = f"site,crp,y\nA,{marker},0\nB,2.1,1\n" + "A,1.5,0\nB,2.5,1\n" * 9
    message = refused(tmp_path / "a.csv", text, client_column="site")
    assert f"""data.missing_values={{crp = ["{marker}"]}}""" in message
    settings = {"client_column": "site", "missing_values": {"crp": [marker]}, "missing": "median"}
    data = table(tmp_path / "a.csv", **settings)
    assert data.columns == ("crp", "crp missing")


REDCAP = '"Record ID","Complete?","Age","Complete?","Outcome"\n1,2,40,0,1\n2,0,50,2,0\n3,1,60,2,1\n'


def test_names_that_repeat_are_numbered(tmp_path):
    data = table(tmp_path / "a.csv", REDCAP, label_column="Outcome", drop_columns=["Record ID"])
    assert data.columns == ("Complete?", "Age", "Complete? (2)")
    assert any("'Complete? (2)'" in note for note in data.notes)
    dropped = ["Record ID", "Complete?", "Complete? (2)"]
    data = table(tmp_path / "a.csv", label_column="Outcome", drop_columns=dropped)
    assert data.columns == ("Age",)
    message = refused(tmp_path / "a.csv", label_column="Complete?")
    assert "several columns named 'Complete?'" in message
    assert table(tmp_path / "a.csv", label_column="Complete? (2)").classes == ("0", "2")
    assert table(tmp_path / "a.csv", label_column=1, header=True).classes == ("0", "1", "2")


REPEATS = "redcap_event_name,redcap_repeat_instrument,redcap_repeat_instance"


@pytest.mark.parametrize(
    "header", [f"record_id,{REPEATS}", "Record ID,Event Name,Repeat Instrument,Repeat Instance"]
)
def test_records_of_redcap_with_several_rows_are_explained(tmp_path, header):
    record = header.partition(",")[0]
    rows = [f"{k},base,,,{20 + k},{k % 2}\n{k},base,labs,1,,\n" for k in range(9)]
    text, path = f"{header},age,y\n" + "".join(rows), tmp_path / "redcap.csv"
    hints = "instrument", "data.unlabelled=drop", f"data.group_column='{record}'"
    message = refused(path, text)
    assert all(hint in message for hint in hints)
    settings = {"unlabelled": "drop", "keep_columns": ("age",)}
    assert not any("several rows for each" in note for note in table(path, **settings).notes)
    filled = text.replace(",,\n", ",50,1\n")
    notes = [n for n in table(path, filled, **settings).notes if "several rows for each" in n]
    assert all(hint in notes[0] for hint in hints)
    grouped = table(path, group_column=record, **settings).notes
    assert not any("several rows for each" in note for note in grouped)


def test_a_column_without_values_in_the_rows_that_are_kept_is_noted(tmp_path):
    text = "id,event,crp,age,y\n" + "".join(
        f"{k},base,,{40 + k},{k % 2}\n{k},labs,1.{k},,\n" for k in range(8)
    )
    settings = {"unlabelled": "drop", "missing": "median", "drop_columns": ["id", "event"]}
    data = table(tmp_path / "a.csv", text, **settings)
    data = data.learn(data, np.arange(len(data)))
    assert len(data) == 8
    assert any("crp: no value in any of the 8 rows" in note for note in data.notes)


@pytest.mark.parametrize(
    ("magic", "name"),
    [
        (b"$FL2@(#) SPSS DATA FILE", "SPSS"),
        (b"<stata_dta><header><release>118", "Stata"),
        (b"s\x02\x01\x00", "Stata"),
        (b"HEADER RECORD*******LIBRARY", "SAS file"),
        (bytes(12) + b"\xc2\xea\x81\x60", "SAS"),
        (b"PK\x03\x04", ".xlsx"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", ".xls "),
        (b"PAR1\x15\x04", "Parquet"),
        (b"ARROW1\0\0", "Arrow"),
        (b"<html><table>", "HTML"),
        (b'[{"age": 3}]', "JSON"),
        (b"BZh91AY", "compressed"),
        (b"MATLAB 5.0 MAT-file, Platform", "another program"),
        (b"X\n\0\0\0\3", "R: write.csv"),  # saveRDS
        (b"RDX3\nX\n\0", "R: write.csv"),  # save
    ],
)
def test_a_file_of_another_format_is_named(tmp_path, magic, name):
    (tmp_path / "a.csv").write_bytes(magic + b"\n\x00\x01\n")
    message = refused(tmp_path / "a.csv")
    assert name in message
    assert "not CSV" in message


def test_an_empty_line_below_one_row_of_cells_between_blanks(tmp_path):
    assert table(tmp_path / "a.txt", "age y\n40 0\n\n41 1\n").x[:, 0].tolist() == [40, 41]


def test_feather_of_version_1_is_named(tmp_path):
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(64))
    assert "Feather of version 1" in refused(tmp_path / "a.feather")


@pytest.mark.parametrize("arrow_type", [pa.decimal128(10, 3), pa.decimal256(50, 3)])
def test_decimals_are_the_numbers_of_csv(tmp_path, arrow_type):
    """Arrow gives 0.14300000000000002 for 0.143, and so for one in seven decimals."""
    cells = [Decimal(k).scaleb(-3) for k in range(2000)]
    y = [k % 2 for k in range(2000)]
    parquet.write_table(
        pa.table({"a": pa.array(cells, arrow_type), "y": y}), tmp_path / "a.parquet"
    )
    data = read(data_settings(name="table", path=tmp_path / "a.parquet", label_column="y"), True)
    assert data.raw.x[:, 0].tolist() == [float(cell) for cell in cells]


def test_gaps_of_databases_and_typographic_minus_signs(tmp_path):
    """MySQL, PostgreSQL and Hive write a gap as a backslash with N."""
    text = "t,grade,y\n" + "\u22121.5,low,0\n\\N,\\N,1\n2,high,0\n3,high,1\n"
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    settings = {"label_column": "y", "missing": "median", "categories": ("grade",)}
    kept = read(data_settings(name="table", path=tmp_path / "a.csv", **settings), keep_raw=True)
    assert np.array_equal(kept.raw.x[:, 0], [-1.5, np.nan, 2, 3], equal_nan=True)
    assert kept.raw.values[1] == ("low", "high")


def test_a_value_that_cannot_be_a_measurement_is_refused(tmp_path):
    """One limit for cells, typed columns, frames, arrays and targets."""
    text = "age,y\n40,0\n1e30,1\n"
    message = refused(tmp_path / "a.csv", text)
    assert "column age" in message
    assert "'1e30' in line 3" in message
    assert "1e30" in refused(tmp_path / "b.csv", text, label_column="age", targets="regression")
    for value, good in ((1e30, False), (-1e19, False), (1e18, True)):
        frame = pd.DataFrame({"age": [40.0, value], "y": [0, 1]})
        frame.to_parquet(tmp_path / "t.parquet")
        x = np.array([[40.0], [value]])
        for construct in (
            lambda frame=frame: from_frame(frame, label_column="y"),
            lambda: data_settings(name="table", path=tmp_path / "t.parquet", label_column="y"),
            lambda x=x: from_arrays(x, [0, 1]),
            lambda x=x: from_arrays(x[:1].repeat(2, 0), x[:, 0], targets="regression"),
        ):
            if good:
                read(construct())
                continue
            with pytest.raises(DataError, match=r"row 1|row 2"):
                read(construct())


def test_lines_above_the_names(tmp_path):
    lines = "age,crp,y\n" + "".join(f"{k},{k / 7:.2f},{'ab'[k % 2]}\n" for k in range(12))
    path = tmp_path / "x.csv"
    assert "line 3 names the columns, remove" in refused(path, f"Ward 3\n2024-03-01\n{lines}")
    assert "line 3 names the columns, remove" in refused(path, f"# ward 3\n# by PH\n{lines}")
    assert "line 3 has a cell 'y'" in refused(path, f"Ward 3,,\n,,\n{lines}")


def test_numbers_of_32_bits_are_those_of_csv(tmp_path):
    """A marker of gaps, and names of categories, where -9.9 is stored as -9.8999996."""
    frame = PATIENTS.assign(
        crp=np.where(np.arange(N) % 5, PATIENTS.crp, -9.9).astype(np.float32),
        age=np.where(np.arange(N) % 3, 0.1, 2.5).astype(np.float32),
    )
    options = {**ROLES, "categories": ("sex", "age"), "missing": "median"}
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_stata(tmp_path / "t.dta", write_index=False)
    for name in ("t.csv", "t.parquet", "t.dta"):
        data = table(tmp_path / name, missing_values={"crp": [-9.9]}, **options)
        assert np.isnan(data.raw.x).sum() == N // 5
        assert {"age=0.1", "age=2.5"} <= {*data.columns}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("quantity", ["duration", "time"])
def test_times_and_durations_are_seconds(quantity, unit, tmp_path):
    if quantity == "duration":
        arrow_type = pa.duration(unit)
    else:
        arrow_type = (pa.time32 if unit in {"s", "ms"} else pa.time64)(unit)
    stored = [timedelta(seconds=60 * k) for k in range(N)]
    if quantity == "time":
        stored = [(datetime(2000, 1, 1) + entry).time() for entry in stored]
    frame = pa.table({"age": pa.array(stored, arrow_type), "y": [k % 2 for k in range(N)]})
    parquet.write_table(frame, tmp_path / "t.parquet")
    options = {"label_column": "y"}
    for data in (table(tmp_path / "t.parquet", **options), read(from_frame(frame, **options))):
        assert data.x[:, 0].tolist() == [60 * k for k in range(N)]
        assert any("read in seconds, without a zone: age" in note for note in data.notes)
    coded = frame.set_column(0, "age", frame["age"].dictionary_encode())
    assert any("zone: age" in note for note in read(from_frame(coded, **options)).notes)
    parquet.write_table(coded, tmp_path / "c.parquet")  # Arrow reads durations as whole numbers
    notes = table(tmp_path / "c.parquet", **options).notes
    assert any(f"{quantity}s are read" in x or "times and" in x for x in notes if "age" in x)


def test_markers_of_gaps_are_compared_by_value(tmp_path):
    """A date that is stored with a time, and a number with the decimal mark of its file."""
    days = pd.to_datetime(np.where(np.arange(N) % 5, "2024-03-01", "1900-01-01"))
    options = {"dates": ("visit",), "missing_values": {"visit": ["1900-01-01"]}}
    for visit in (days, days.tz_localize("UTC")):
        PATIENTS.assign(visit=visit).to_parquet(tmp_path / "t.parquet")
        data = table(tmp_path / "t.parquet", missing="median", **ROLES, **options)
        assert np.isnan(data.raw.x).sum() == N // 5
    text = "crp;y\n0,5;0\n99,9;1\n1.099,9;0\n"
    for marker, gaps in ((99.9, [1]), ("99,9", [1]), (1099.9, [2]), ("1.099,9", [2]), (0.5, [0])):
        markers = {"missing": "median", "missing_values": {"crp": [marker]}}
        data = table(tmp_path / "t.csv", text, decimal="comma", **markers)
        assert np.flatnonzero(np.isnan(data.raw.x[:, 0])).tolist() == gaps


def test_a_time_that_a_marker_says_is_a_gap_is_refused(tmp_path):
    text = "age,day,y\n20,2024-03-01,0\n30,1900-01-01,1\n"
    markers = {"*": ["1900-01-01"]}
    message = refused(tmp_path / "t.csv", text, time_column="day", missing_values=markers)
    assert "time column day: 1 of 2 cells are gaps, first '1900-01-01' in line 3" in message


def test_categories_with_a_decimal_comma_are_those_with_a_point(tmp_path):
    (tmp_path / "train.csv").write_text("a;g;y\n1,5;0,5;0\n2,5;1;1\n")
    (tmp_path / "test.csv").write_text("a;g;y\n1.5;0.5;0\n2.5;1;1\n")
    data = table(tmp_path, categories=("g",))
    assert data.raw.values == ((), ("0.5", "1"))


def test_tables_of_a_folder_that_are_neither_train_nor_test_are_named(tmp_path):
    for name in ("train", "val", "test"):
        (tmp_path / f"{name}.csv").write_text("a,y\n1,0\n2,1\n")
    assert any("neither train nor test: val.csv;" in note for note in table(tmp_path).notes)
    (tmp_path / "val.csv").rename(tmp_path / "README.txt")
    assert not any("neither" in note for note in table(tmp_path).notes)


def test_a_folder_that_the_hubs_library_saved_is_read_without_its_cache(tmp_path):
    """``Dataset.save_to_disk`` writes a stream, and ``map`` keeps its results next to it."""
    rows = pa.table({"age": [20.0, 30.0], "y": ["a", "b"]})
    for name in ("data-00000-of-00001.arrow", "cache-5f2a.arrow"):
        with pa.ipc.new_stream(tmp_path / name, rows.schema) as file:
            file.write_table(rows)
    (tmp_path / "state.json").write_text("{}")
    data = read(data_settings(name="table", path=tmp_path, label_column="y"))
    assert data.x.tolist() == [[20], [30]]
    with pytest.raises(DataError, match=r"no training images; .* --data table"):
        read(data_settings(name="images", path=tmp_path))


def test_points_of_thousands_count_for_nothing_in_names(tmp_path):
    text = "a;who;y\n0,5;1;1\n1,5;1.000;1.000\n2,5;1000;1000\n"
    data = table(tmp_path / "t.csv", text, client_column="who")
    assert data.owners.client.tolist() == data.y.tolist() == [0, 1, 1]


def test_a_column_of_lists_of_durations_can_be_left_out(tmp_path):
    lists = pa.array([[timedelta(1)]] * N, pa.list_(pa.duration("s")))
    parquet.write_table(pa.table(PATIENTS).append_column("l", lists), tmp_path / "t.parquet")
    data = table(tmp_path / "t.parquet", drop_columns=("l",), **ROLES)
    assert data.raw.x.shape == (N, 3)


def test_decimals_of_32_bits(tmp_path):
    stored = pa.array([Decimal("1.25"), None] * 2, pa.decimal32(5, 2))
    parquet.write_table(pa.table({"a": stored, "y": [0, 0, 1, 1]}), tmp_path / "t.parquet")
    assert table(tmp_path / "t.parquet", missing="median").raw.x[0].tolist() == [1.25]


CASES = Cases("CSV, Parquet and Arrow")
TESTS = {
    "T1": "test_every_writer_gives_the_same_data",
    "T2": "test_every_frame_gives_the_same_data",
    "T3": "test_a_folder_of_parts_is_one_table",
    "T4": "test_texts_that_a_writer_stored_as_bytes_are_texts",
    "T5": "test_the_line_that_excel_reads_is_obeyed",
    "T6": "test_row_names_of_r_are_left_out",
    "T7": "test_names_that_repeat_are_numbered",
    "T8": "test_points_part_thousands_where_the_decimal_mark_is_a_comma",
    "T9": "test_exponents_with_a_decimal_comma",
    "T10": "test_other_marks_of_thousands_are_named",
    "T11": "test_markers_of_gaps_name_the_setting_that_reads_them",
    "T12": "test_a_file_of_another_format_is_named",
    "T13": "test_a_value_that_cannot_be_a_measurement_is_refused",
    "T14": "test_records_of_redcap_with_several_rows_are_explained",
    "T15": "test_lines_above_the_names",
    "T16": "test_numbers_of_32_bits_are_those_of_csv",
    "T17": "test_times_and_durations_are_seconds",
}


def test_each_line_of_the_document_has_a_test():
    assert sorted(CASES.names) == sorted(TESTS)
    assert all(callable(globals()[name]) for name in TESTS.values())


OUT_OF_RANGE = {  # a date that Python cannot represent, next to ordinary ones
    "date32": pa.array(np.where(np.arange(N) == 3, 2**31 - 1, np.arange(N)).astype(np.int32)).view(
        pa.date32()
    ),
    **{
        str(unit): pa.array(np.where(np.arange(N) == 3, 2**62, np.arange(N))).view(unit)
        for unit in (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.duration("s"))
    },
}


@pytest.mark.parametrize("arrow_type", OUT_OF_RANGE)
def test_a_date_out_of_range_is_named_not_a_traceback(arrow_type, tmp_path):
    path = tmp_path / "a.parquet"
    frame = pa.Table.from_pandas(PATIENTS).append_column("seen", OUT_OF_RANGE[arrow_type])
    parquet.write_table(frame, path)
    reason = refused(path, **ROLES)
    assert "seen" in reason
    data = table(path, drop_columns=("seen",), **ROLES)
    assert len(data.x) == N
    if arrow_type != "duration[s]":
        dated = refused(path, time_column="seen", **ROLES)
        assert "out of range" in dated
        assert "seen" in dated
