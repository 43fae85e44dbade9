"""Files of SAS, SPSS and Stata: the lines of ``docs/formats.md``, and tables of all shapes."""

import gzip
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyreadstat
import pytest
import read_columns
import xport
from format_lines import Cases
from hypothesis import given, settings
from hypothesis import strategies as st
from read_columns import note

from pomona.data import formats
from pomona.data.formats import statistics_files
from pomona.data.preprocessing import TableColumn
from pomona.data.table_settings import StatisticsFormat

CASES = Cases("SAS, SPSS and Stata")
SAS = Path(__file__).parent / "sas"


def read(path, **settings):
    """The columns of a file by name, and its notes."""
    return read_columns.read(path, StatisticsFormat(name="table", **settings))


def sav(folder, frame, **options):
    path = folder / "a.sav"
    pyreadstat.write_sav(pd.DataFrame(frame), str(path), **options)
    return path


def dta(folder, frame, formats, **options):
    """A file of Stata whose numbers have the given formats."""
    path = folder / "a.dta"
    frame = pd.DataFrame(frame)
    pyreadstat.write_dta(frame, str(path), variable_format=formats, **options)
    return path


def xpt(folder, columns, rows, **options):
    path = folder / "a.xpt"
    path.write_bytes(xport.library(xport.member("DM", columns, rows, **options)))
    return path


def sas(folder, name):
    """A file that SAS wrote."""
    path = folder / name
    path.write_bytes(gzip.decompress((SAS / f"{name}.gz").read_bytes()))
    return path


def refused(path, *texts, **settings):
    read_columns.refused(path, StatisticsFormat(name="table", **settings), *texts)


@CASES.line("S1")
def _labels(folder):
    frame = {"sex": [1.0, 2, np.nan], "site": ["N", "S", ""], "dose": [1.5, 2, 3]}
    labels = {"sex": {1: "female", 2: "male"}, "site": {"N": "Nord", "S": "Süd"}}
    path = sav(folder, frame, variable_value_labels=labels)
    cells, notes = read(path)
    assert cells == {"sex": ["female", "male", None], "site": ["Nord", "Süd", None],
                     "dose": [1.5, 2, 3]}  # fmt: skip
    assert "sex, site" in note(notes, "labels", "codes")
    cells, notes = read(path, value_labels="codes")
    assert cells == {"sex": [1, 2, None], "site": ["N", "S", None], "dose": [1.5, 2, 3]}
    assert "sex, site" in note(notes, "data.value_labels")


@CASES.line("S2")
def _some_labels(folder):
    path = sav(folder, {"age": [30.0, 98, 40]}, variable_value_labels={"age": {98: "refused"}})
    cells, notes = read(path)
    assert cells == {"age": [30, 98, 40]}
    note(notes, "age", "98 = refused", "1 of 3", "data.missing_values")
    # for a model, as in training, whichever values occur
    labels = {"age": {98: "refused"}, "sex": {1: "female"}, "stage": {2: "late"}}
    path = sav(folder, {name: [98.0, 2, 1] for name in labels}, variable_value_labels=labels)
    categories = [
        TableColumn(name=n, kind="category", values=v)
        for n, v in (("sex", ("female",)), ("stage", ("1", "2")))
    ]
    options = StatisticsFormat(name="table").for_model([TableColumn(name="age"), *categories])
    cells = [array.to_pylist() for array in formats.read([path], options)[0].arrays]
    assert cells == [[98, 2, 1], ["98", "2", "female"], ["98", "2", "1"]]
    path = sav(folder, {"age": [2.0, 1]}, variable_value_labels={"age": {1: "0", 2: "1", 3: "2+"}})
    assert formats.read([path], options)[0].arrays[0].to_pylist() == ["1", "0"]


@CASES.line("S3")
def _declared_missing(folder):
    frame = {"a": [1.0, 98, 150, -1], "b": [1.0, 2, 7, 7], "s": ["x", "ZZ", "y", ""]}
    ranges = {"a": [98, {"lo": 99, "hi": 200}], "b": [7], "s": ["ZZ"]}
    cells, notes = read(sav(folder, frame, missing_ranges=ranges))
    assert cells == {"a": [1, None, None, -1], "b": [1, 2, None, None],
                     "s": ["x", None, "y", None]}  # fmt: skip
    note(notes, "missing", "a (98: 1, 150: 1)", "b (7: 2)", "s (ZZ: 1)")


@CASES.line("S4")
def _stata_gaps(folder):
    frame = {"x": pd.Series([1, "a", 3, "z", "a", None], dtype=object)}
    cells, notes = read(dta(folder, frame, {}, missing_user_values={"x": ["a", "z"]}))
    assert cells == {"x": [1, None, 3, None, None, None]}
    note(notes, "x (.a: 2, .z: 1)")


@CASES.line("S5")
def _sas_gaps(folder):
    cells, notes = read(sas(folder, "tagged-na.sas7bdat"))
    assert cells == {"x": [1, 2, 3, 4, 5, None, None, None]}
    note(notes, "x (.A: 1, .H: 1, .Z: 1)")


@CASES.line("S6")
def _transport_gaps(folder):
    rows = [(value,) for value in (".", "A", "Z", "_", 1.0)]
    cells, _ = read(xpt(folder, [("X", 8, "", 0)], rows))
    assert cells == {"X": [None, None, None, None, 1]}


@CASES.line("S7")
def _transport_numbers(folder):
    columns = [("LONG", 8, "", 0), ("SHORT", 3, "", 0)]
    cells, _ = read(xpt(folder, columns, [(0.0, 0.0), (-0.5, -0.5), (1e-9, 1.0), (0.1, 2.0)]))
    assert cells["SHORT"] == [0, -0.5, 1, 2]
    assert cells["LONG"] == [0, -0.5, pytest.approx(1e-9, 1e-15), pytest.approx(0.1, 1e-15)]


@CASES.line("S8")
def _spss_dates(folder):
    moment = datetime(2024, 3, 1, 10, 30, 5, 250000)
    stored = (moment - datetime(1582, 10, 14)) / timedelta(seconds=1)
    names = {f"d{k}": pattern for k, pattern in enumerate(
        ["DATE11", "ADATE10", "EDATE10", "SDATE10", "MOYR8", "QYR8", "JDATE7", "WKYR10"])}  # fmt: skip
    moments = {"t0": "DATETIME23.2", "t1": "YMDHMS19"}
    frame = {name: [stored, np.nan] for name in names | moments}
    cells, _ = read(sav(folder, frame, variable_format=names | moments))
    assert cells == {
        **{key: [date(2024, 3, 1), None] for key in names},
        **{key: [moment, None] for key in moments},
    }


@CASES.line("S9")
def _stata_dates(folder):
    path = folder / "a.dta"
    day = datetime(2024, 8, 14, 10, 30)
    units = ["td", "tc", "tw", "tm", "tq", "th"]
    frame = pd.DataFrame({unit: [day, pd.NaT] for unit in units})
    frame.to_stata(path, write_index=False, convert_dates={unit: unit for unit in units})
    cells, _ = read(path)
    assert cells == {
        "td": [date(2024, 8, 14), None],
        "tc": [day, None],
        "tw": [date(2024, 8, 12), None],  # week 33 begins 32 weeks after 1 January
        "tm": [date(2024, 8, 1), None],
        "tq": [date(2024, 7, 1), None],
        "th": [date(2024, 7, 1), None],
    }
    days = (date(2024, 8, 14) - date(1960, 1, 1)).days
    patterns = ["%tdDD/NN/CCYY", "%-tdMonth_dd,_CCYY", "%d", "%dD_m_Y", "%td"]
    frame = {f"d{k}": [days] for k in range(len(patterns))}
    formats = {f"d{k}": pattern for k, pattern in enumerate(patterns)}
    cells, _ = read(dta(folder, frame, formats))
    assert cells == {name: [date(2024, 8, 14)] for name in frame}


@CASES.line("S10")
def _sas_dates(folder):
    days = (date(2024, 3, 1) - date(1960, 1, 1)).days
    names = ["DATE", "MMDDYY", "DDMMYYP", "YYMMDDD", "MONYY", "E8601DA", "WEEKDATE", "YYMMDDN"]
    names += ["NLDATEMN", "MINGUO"]
    columns = [(f"D{k}", 8, name, 9) for k, name in enumerate(names)]
    columns += [("T0", 8, "DATETIME", 20), ("T1", 8, "E8601DT", 19), ("T2", 8, "DTDATE", 9)]
    columns += [("T3", 8, "E8601DZ", 19), ("T4", 8, "NLDATMW", 9)]
    rows = [[*[float(days)] * len(names), days * 86400.0 + 1.5, *[days * 86400.0] * 4]]
    cells, _ = read(xpt(folder, columns, rows))
    assert cells == {
        **{f"D{k}": [date(2024, 3, 1)] for k in range(len(names))},
        "T0": [datetime(2024, 3, 1, 0, 0, 1, 500000)],
        "T1": [datetime(2024, 3, 1)],
        **{f"T{k}": [datetime(2024, 3, 1)] for k in (2, 3, 4)},
    }
    cells, _ = read(sas(folder, "dates_xpt.sas7bdat"))
    assert [day.isoformat() for day in cells["dates"]] == cells["string_dates"]
    assert [str(moment) for moment in cells["dt"]] == cells["string_dt"]
    cells, _ = read(sas(folder, "datetime.sas7bdat"))
    assert cells["VAR1"][0] == datetime(2015, 2, 2, 14, 42, 12)
    assert cells["VAR2"] == cells["VAR3"] == cells["VAR4"]
    assert cells["VAR2"][0] == date(2015, 2, 2)


@CASES.line("S11")
def _times(folder):
    path = sav(folder, {"t": [3600.5, np.nan]}, variable_format={"t": "TIME11.2"})
    assert read(path)[0] == {"t": [3600.5, None]}
    note(read(path)[1], "seconds", "t")
    cells, notes = read(xpt(folder, [("T", 8, "TIME", 8)], [(3600.0,)]))
    assert cells == {"T": [3600]}
    assert note(notes, "seconds", "T")
    cells, notes = read(dta(folder, {"t": [3600500.0]}, {"t": "%tcHH:MM:SS"}))
    assert cells == {"t": [3600.5]}
    assert note(notes, "seconds", "t")


@CASES.line("S12")
def _clock_of_dates(folder):
    moment = datetime(2024, 3, 1, 10, 30)
    stored = (moment - datetime(1960, 1, 1)) / timedelta(milliseconds=1)
    assert read(dta(folder, {"t": [stored]}, {"t": "%tcHH:MM"}))[0] == {"t": [moment]}


@CASES.line("S13")
def _far_dates(folder):
    path = sav(folder, {"d": [1e9, 6306150067200.0, 1e300]}, variable_format={"d": "DATETIME20"})
    cells, notes = read(path)
    assert cells["d"][1:] == [None, None]
    assert cells["d"][0].year == 1614
    note(notes, "9999", "d (2, first in row 2)")


@CASES.line("S14")
def _whole_numbers(folder):
    frame = {"site": [100000.0, 100001.0], "big": [2.0**53, 0.0], "half": [0.5, np.nan]}
    cells, _ = read(sav(folder, frame))
    assert repr(cells["site"]) == "[100000, 100001]"
    assert repr(cells["big"]) == "[9007199254740992.0, 0.0]"
    assert repr(cells["half"]) == "[0.5, None]"


@CASES.line("S15")
def _padding(folder):
    frame = pd.DataFrame({"s": ["Nord  ", "", "  ", " x"]})
    frame.to_stata(folder / "a.dta", write_index=False)
    assert read(folder / "a.dta")[0] == {"s": ["Nord", None, None, " x"]}
    cells, _ = read(xpt(folder, [("S", 8, "$", 8), ("N", 8, "", 0)], [("Nord", 1.0), ("", 2.0)]))
    assert cells["S"] == ["Nord", None]


@CASES.line("S16")
def _names(folder):
    name = "größe_des_tumors_bei_aufnahme_in_die_klinik_in_millimetern"
    assert [*read(sav(folder, {name: [1.0]}))[0]] == [name]
    stata = name[:32]
    pd.DataFrame({stata: [1.0]}).to_stata(folder / "a.dta", write_index=False, version=118)
    assert [*read(folder / "a.dta")[0]] == [stata]


@CASES.line("S17")
def _old_stata(folder):
    for version in (114, 117, 118):
        frame = pd.DataFrame({"s": ["Köln", "Nord"]})
        frame.to_stata(folder / "a.dta", write_index=False, version=version)
        assert read(folder / "a.dta")[0] == {"s": ["Köln", "Nord"]}


@CASES.line("S18")
def _encoding(folder):
    columns, rows = [("S", 8, "$", 8)], [("Köln",)]
    assert read(xpt(folder, columns, rows, encoding="utf-8"))[0] == {"S": ["Köln"]}
    path = xpt(folder, columns, rows, encoding="cp1252")
    refused(path, "UTF-8", "data.encoding")
    assert read(path, encoding="cp1252")[0] == {"S": ["Köln"]}
    assert read(path, encoding="latin-1")[0] == {"S": ["Köln"]}
    path = xpt(folder, columns, rows, encoding="mac-roman")
    assert read(path, encoding="mac-roman")[0] == {"S": ["Köln"]}
    refused(path, "data.encoding", encoding="utf-16")


@CASES.line("S19")
def _catalogue(folder):
    sas(folder, "formats.sas7bcat")
    path = sas(folder, "hadley.sas7bdat")
    cells, notes = read(path)
    assert cells["workshop"][:2] == ["R", "SAS"]
    assert cells["gender"][:4] == ["Female", "Female", "Female", None]
    note(notes, "formats.sas7bcat", "workshop, gender")
    assert read(path, value_labels="codes")[0]["workshop"][:2] == [1, 2]


@CASES.line("S20")
def _no_catalogue(folder):
    cells, notes = read(sas(folder, "hadley.sas7bdat"))
    assert cells["workshop"][:2] == [1, 2]
    note(notes, "formats.sas7bcat", "workshop (format WORKSHOP)", "gender (format $GENDER)")


@CASES.line("S21")
def _several_data_sets(folder):
    column = [("X", 8, "", 0)]
    members = [xport.member(name, column, [(1.0,)]) for name in ("DM", "LB")]
    path = folder / "a.xpt"
    path.write_bytes(xport.library(*members))
    refused(path, "DM, LB")


@CASES.line("S22")
def _foreign(folder):
    path = folder / "a.xpt"
    path.write_bytes(b"**COMPRESSED** **COMPRESSED**".ljust(160))
    refused(path, "SAS", "save it again")
    path = folder / "idl.sav"
    path.write_bytes(b"SR\0\4" + bytes(100))
    refused(path, "SPSS", "save it again")
    content = sav(folder, {"a": [1.5] * 99}).read_bytes()
    path = folder / "cut.sav"
    path.write_bytes(content[: -len(content) // 4])
    refused(path, "SPSS", "save it again")
    path = folder / "a.sav.gz"
    path.write_bytes(gzip.compress(content))
    refused(path, "unpack")


@CASES.line("S23")
def _shared_label(folder):
    labels = {"y": {1: "yes", 2: "no", 3: "yes"}}
    cells, notes = read(sav(folder, {"y": [1.0, 2, 3]}, variable_value_labels=labels))
    assert cells == {"y": ["yes", "no", "yes"]}
    note(notes, "y (several codes", "yes")


@CASES.line("S24")
def _other_files_of_spss(folder):
    stored = (datetime(2024, 3, 1) - datetime(1582, 10, 14)).total_seconds()
    frame = pd.DataFrame({"A": [1.0, np.nan], "D": [stored, np.nan]})
    patterns = {"D": "DATE11"}
    pyreadstat.write_por(frame, str(folder / "a.por"), variable_format=patterns)
    pyreadstat.write_sav(frame, str(folder / "a.zsav"), compress=True, variable_format=patterns)
    for name in ("a.por", "a.zsav"):
        assert read(folder / name)[0] == {"A": [1, None], "D": [date(2024, 3, 1), None]}


@CASES.line("S25")
def _business_days(folder):
    cells, notes = read(dta(folder, {"d": [10.0]}, {"d": "%tbsimple"}))
    assert cells == {"d": [10]}
    assert note(notes, "business", "d")


@pytest.mark.parametrize("name", CASES.names)
def test_line(name, tmp_path):
    CASES.functions[name](tmp_path)


def test_the_document_and_the_cases_have_the_same_lines():
    CASES.check()


def _write_xpt(frame, path):
    pyreadstat.write_xport(frame, str(path), file_format_version=8)


WRITERS = {
    ".sav": lambda frame, path: pyreadstat.write_sav(frame, str(path)),
    ".por": lambda frame, path: pyreadstat.write_por(frame, str(path)),
    ".xpt": _write_xpt,
    ".dta": lambda frame, path: frame.to_stata(path, write_index=False, version=118),
}
NUMBERS = st.one_of(st.none(), st.integers(-(10**6), 10**6).map(float), st.sampled_from([0.5, 1e9]))
TEXTS = st.one_of(st.none(), st.text("abß1 ", min_size=1, max_size=5))


@pytest.mark.long
@pytest.mark.parametrize("suffix", WRITERS)
@settings(max_examples=40)
@given(data=st.data())
def test_a_table_of_any_shape_comes_back(suffix, tmp_path_factory, data):
    """Down to one row, columns of gaps, blanks."""
    rows = data.draw(st.integers(1, 4))
    letters = TEXTS if suffix != ".por" else st.sampled_from(["a", "b1", None])
    lists = {
        "N": data.draw(st.lists(NUMBERS, min_size=rows, max_size=rows)),
        "T": data.draw(st.lists(letters, min_size=rows, max_size=rows)),
    }
    frame = pd.DataFrame({"N": pd.Series(lists["N"], dtype=float),
                          "T": pd.Series([t or "" for t in lists["T"]], dtype=object)})  # fmt: skip
    path = tmp_path_factory.mktemp("shape") / f"a{suffix}"
    WRITERS[suffix](frame, path)
    columns = statistics_files.read(path, None)
    numbers, texts = (array.to_pylist() for array in columns.arrays)
    assert numbers == lists["N"]
    assert texts == [(text or "").rstrip() or None for text in lists["T"]]
    assert columns.names == ("N", "T")
    assert columns.notes == ()
