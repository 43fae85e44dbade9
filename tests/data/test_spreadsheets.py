"""Spreadsheets: the lines of ``docs/formats.md``, and tables of all shapes."""

import re
import zipfile
from datetime import date, datetime, time, timedelta
from xml.etree.ElementTree import fromstring

import numpy as np
import openpyxl
import pytest
import read_columns
import xlwt
from format_lines import Cases
from hypothesis import given, settings
from hypothesis import strategies as st
from odf.opendocument import OpenDocumentSpreadsheet
from odf.table import Table, TableCell, TableRow
from odf.text import P
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from openpyxl.utils.datetime import CALENDAR_MAC_1904
from read_columns import note

from pomona.core.errors import DataError
from pomona.data import data_settings, formats
from pomona.data import read as read_data
from pomona.data.axes import files as data_files
from pomona.data.formats import spreadsheets, workbook_marks
from pomona.data.table_settings import SpreadsheetFormat

CASES = Cases("Spreadsheets")
DAY, MOMENT = date(2024, 3, 1), datetime(2024, 3, 1, 10, 30)


def read(path, **options):
    """The columns of a file by name, and its notes."""
    return read_columns.read(path, SpreadsheetFormat(name="table", **options))


def refused(path, *texts, **options):
    read_columns.refused(path, SpreadsheetFormat(name="table", **options), *texts)


def xlsx(folder, rows, patterns=(), merged=(), change=lambda book: None):
    """A file of openpyxl: rows, number formats by address, merged ranges, and more changes."""
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Daten"
    for row in rows:
        sheet.append(row)
    for address, pattern in dict(patterns).items():
        sheet[address].number_format = pattern
    for area in merged:
        sheet.merge_cells(area)
    change(book)
    path = folder / "a.xlsx"
    book.save(path)
    return path


def xls(folder, rows, errors=()):
    """A file of xlwt; dates get a format, errors are cells of their own."""
    book = xlwt.Workbook()
    sheet = book.add_sheet("Daten")
    for i, row in enumerate(rows):
        for k, value in enumerate(row):
            number_format = "DD.MM.YYYY HH:MM" if isinstance(value, date) else "General"
            if value is not None:
                sheet.write(i, k, value, xlwt.easyxf(num_format_str=number_format))
    for i, k in errors:
        sheet.row(i).set_cell_error(k, 0x2A)  # #N/A
    path = folder / "a.xls"
    book.save(str(path))
    return path


TYPES = {
    bool: ("boolean", "booleanvalue", lambda v: str(v).lower()),
    int: ("float", "value", str),
    float: ("float", "value", repr),
    datetime: ("date", "datevalue", datetime.isoformat),
    date: ("date", "datevalue", date.isoformat),
}


def ods_cell(value, **options):
    if value is None:
        return TableCell()
    if type(value) in TYPES:
        value_type, attribute, text = TYPES[type(value)]
        options = {"valuetype": value_type, attribute: text(value), **options}
    cell = TableCell(**{"valuetype": "string", **options})
    cell.addElement(P(text=str(value)))
    return cell


def ods(folder, rows):
    """A file of odfpy; cells are values or ``ods_cell``, rows are lists or (list, options)."""
    document, table = OpenDocumentSpreadsheet(), Table(name="Daten")
    for row in rows:
        cells, options = row if isinstance(row, tuple) else (row, {})
        line = TableRow(**options)
        for value in cells:
            line.addElement(value if hasattr(value, "qname") else ods_cell(value))
        table.addElement(line)
    document.spreadsheet.addElement(table)
    path = folder / "a.ods"
    document.save(str(path))
    return path


def rewritten(path, name, *replacements):
    """The file with texts of one of its members replaced."""
    with zipfile.ZipFile(path) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    for old, new in replacements:
        assert old in members[name], members[name]
        members[name] = members[name].replace(old, new)
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return path


WRITERS = {".xlsx": xlsx, ".xls": xls, ".ods": ods}
every_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
SHEET = "xl/worksheets/sheet1.xml"
NAMESPACE = b"http://schemas.openxmlformats.org/spreadsheetml/2006/main"


@CASES.line("X1")
def _numbers(folder):
    patterns = {"B2": "0%", "C2": '#,##0.00 "€"', "A2": "00000000"}
    path = xlsx(folder, [["id", "share", "cost"], [100000, 0.25, 12.5]], patterns)
    assert read(path)[0] == {"id": ["100000"], "share": ["0.25"], "cost": ["12.5"]}
    for write in (xls, ods):
        path = write(folder, [["id", "x"], [100000, 0.25], [3.0, 1e-7]])
        assert read(path)[0] == {"id": ["100000", "3"], "x": ["0.25", "1e-07"]}
    accounts = '_("$"* #,##0_);_("$"* (#,##0)'  # of the first row, as accountants write
    alike = {"0%": '"+"0%', accounts: "0", "0": 'd" de "mmm', '0"\xa0kg"': '0 "kg"', "0_%": "0"}
    different = {"0%": '0"%"', '0 "kg"': '0 "lb"', "0 [$€-407]": "0 [$$-409]", "0.0%": "General"}
    for first, second in (*alike.items(), *different.items()):
        formats = {f"{c}2": first for c in "ABCD"} | {f"{c}3": second for c in "ABCD"}
        path = xlsx(folder, [[*"wxyz"], [0.5] * 4, [70] * 4], formats)
        addresses = re.findall(r"in (.)2 and", "".join(read(path)[1]))
        assert addresses == [*"ABCD"] * (different.get(first) == second)


@CASES.line("X2")
def _dates(folder):
    for write in WRITERS.values():
        cells, _ = read(write(folder, [["d", "t"], [DAY, MOMENT], [None, None]]))
        assert cells == {"d": ["2024-03-01"], "t": ["2024-03-01T10:30:00"]}
    serial = (DAY - date(1899, 12, 30)).days
    patterns = ["DD.MM.YYYY", "[$-407]d. mmmm yyyy;@", "[$-F800]dddd, mmmm dd, yyyy", "dd/mm/yy;@"]
    names = [f"d{k}" for k in range(len(patterns))]
    addresses = {f"{chr(65 + k)}2": pattern for k, pattern in enumerate(patterns)}
    cells, _ = read(xlsx(folder, [names, [serial] * len(names)], addresses))
    assert cells == {name: ["2024-03-01"] for name in names}


@CASES.line("X3")
def _calendar_of_1904(folder):
    def change(book):
        book.epoch = CALENDAR_MAC_1904

    path = xlsx(folder, [["d"], [MOMENT]], change=change)
    # openpyxl writes dates by the calendar of the book when it saves
    assert b"date1904" in zipfile.ZipFile(path).read("xl/workbook.xml")
    assert read(path)[0] == {"d": ["2024-03-01T10:30:00"]}


@CASES.line("X4")
def _clocks(folder):
    rows = [["t", "long"], [time(10, 30), timedelta(hours=30)], [None, timedelta(seconds=1.5)]]
    cells, notes = read(xlsx(folder, rows))
    assert cells == {"t": ["37800", None], "long": ["108000", "1.5"]}
    note(notes, "seconds", "t, long")
    durations = [
        ods_cell("", valuetype="time", timevalue=v) for v in ("PT30H00M00S", "PT10H30M00S")
    ]
    assert read(ods(folder, [["t"], *([cell] for cell in durations)]))[0] == {
        "t": ["108000", "37800"]
    }


@CASES.line("X5")
def _booleans(folder):
    for write in WRITERS.values():
        assert read(write(folder, [["b"], [True], [False]]))[0] == {"b": ["True", "False"]}


@CASES.line("X6")
def _errors(folder):
    path = xlsx(folder, [["a", "b"], ["#N/A", 1], ["#DIV/0!", 2]])
    assert zipfile.ZipFile(path).read(SHEET).count(b't="e"') == 2
    cells, notes = read(path)
    assert cells == {"a": [None, None], "b": ["1", "2"]}
    note(notes, "2 cells with an error", "A2 (#N/A)", "A3 (#DIV/0!)")


@CASES.line("X7")
def _errors_of_xls(folder):
    cells, notes = read(xls(folder, [["a", "b"], [1, None]], errors=[(1, 1)]))
    assert cells == {"a": ["1"], "b": [None]}
    note(notes, ".xls", "error", "empty")
    assert read(xls(folder, [["a"], [1]]))[1] == ()
    cell = ods_cell("#DIV/0!", stringvalue="", formula="of:=1/0")
    cells, notes = read(ods(folder, [["a", "b"], [1, cell]]))
    assert cells == {"a": ["1"], "b": [None]}
    note(notes, ".ods", "error", "merged", "empty")


@CASES.line("X8")
def _formulas(folder):
    path = xlsx(folder, [["a", "b"], ["=1+1", '="x"']])
    number = b"<f>1+1</f><v></v>", b"<f>1+1</f><v>2</v>"
    text = b'<c r="B2"><f>"x"</f><v></v></c>', b'<c r="B2" t="str"><f>"x"</f><v>x</v></c>'
    rewritten(path, SHEET, *(_plain(pair) for pair in (number, text)))
    rewritten(path, "xl/workbook.xml", (b'fullCalcOnLoad="1"', b""))
    assert read(path) == ({"a": ["2"], "b": ["x"]}, ())
    totals_of = {"SUM(A2:A3)": 1, "SUBTOTAL(109,T[a])": 1, "SUM(B2:B3)": 0, "ROWS(A$2:A4)": 0}
    for formula, totals in totals_of.items():
        path = xlsx(folder, [["a", "b"], [1, 2], [3, 4], [f"={formula}", None]])
        rewritten(path, SHEET, _plain((b"</f><v></v>", b"</f><v>4</v>")))
        rewritten(path, "xl/workbook.xml", (b'fullCalcOnLoad="1"', b""))
        cells, notes = read(path)
        assert cells["a"] == ["1", "3", "4"]
        assert [line for line in notes if "totals" in line and line.endswith(": 4")] == [*notes][
            :totals
        ]


def _plain(pair):
    """openpyxl writes an empty value as <v /> or <v></v>, by the version of its library."""
    old, new = pair
    return old.replace(b"<v></v>", b"<v />"), new


@CASES.line("X9")
def _formulas_without_result(folder):
    path = xlsx(folder, [["a", "b"], ["=1+1", 1], [2, "=1/0"]])
    refused(path, "2 formulas", "A2, B3", "spreadsheet")
    # XlsxWriter writes 0, and asks the next program to compute
    rewritten(path, SHEET, (b"<v />", b"<v>0</v>"))
    refused(path, "A2, B3")
    rewritten(path, SHEET, (b"<v>0</v>", b"<v>7</v>"))
    cells, notes = read(path)
    assert cells == {"a": ["7", "2"], "b": ["1", "7"]}
    note(notes, "computed", "A2, B3")


def _second_sheet(value, state="visible"):
    def change(book):
        sheet = book.create_sheet("Zwei")
        sheet["A1"], sheet.sheet_state = value, state
        book.create_sheet("Leer")

    return change


@CASES.line("X10")
def _several_sheets(folder):
    path = xlsx(folder, [["a"], [1]], change=_second_sheet("b"))
    refused(path, "Daten, Zwei", "data.sheet")
    assert read(path, sheet="Daten")[0] == {"a": ["1"]}
    assert read(path, sheet="Zwei")[0] == {"b": []}


@CASES.line("X11")
def _other_sheets_empty_or_hidden(folder):
    for state in ("hidden", "veryHidden"):
        cells, notes = read(xlsx(folder, [["a"], [1]], change=_second_sheet("b", state)))
        assert cells == {"a": ["1"]}
        note(notes, "Daten", "without Zwei, Leer")


@CASES.line("X12")
def _unknown_sheet(folder):
    refused(xlsx(folder, [["a"], [1]]), "'Date'", "Daten", sheet="Date")


@CASES.line("X13")
def _merged_header(folder):
    rows = [["id", "lab", None], [None, "crp", "leu"], [1, 2, 3]]
    path = xlsx(folder, rows, merged=["B1:C1"])
    refused(path, "row 1: B1:C1 are merged", "row 2: no name for column A", "data.header_row")
    path = xlsx(folder, rows, merged=["B1:C1", "A1:A2"])
    refused(path, "data.header_row = 2", "A1:A2", "B1:C1")
    assert read(path, header_row=2)[0] == {"id": ["1"], "crp": ["2"], "leu": ["3"]}
    wide = ods_cell("lab", numbercolumnsspanned=2, numberrowsspanned=1)
    refused(ods(folder, [["id", wide, None], [1, 2, 3]]), "no name for column C")


@CASES.line("X14")
def _merged_downwards(folder):
    rows = [["id", "crp"], ["P1", 1], [None, 2], ["P2", 3]]
    cells, notes = read(xlsx(folder, rows, merged=["A2:A3"]))
    assert cells == {"id": ["P1", "P1", "P2"], "crp": ["1", "2", "3"]}
    note(notes, "merged", "A2:A3")


@CASES.line("X15")
def _merged_across(folder):
    path = xlsx(folder, [["id", "crp"], ["none", None]], merged=["A2:B2"])
    refused(path, "A2:B2", "merged")


@CASES.line("X16")
def _title(folder):
    rows = [["Studie 7"], [], ["id", "crp"], ["P1", 1]]
    path = xlsx(folder, rows)
    refused(path, "row 1", "column B", "data.header_row = 3")
    assert read(path, header_row=3) == ({"id": ["P1"], "crp": ["1"]}, ())
    refused(path, "row 9", header_row=9)


@CASES.line("X25")
def _title_above_a_merged_header(folder):
    """One error says what to do, whatever else is wrong; what it says suffices."""
    rows = [["Studie 7", *[None] * 3], ["Patient", "Labor", None, "Ende"],
            [None, "CRP", "Leuko", None], ["P1", 1, 2, 3], ["P2", 4, None, "=1+1"]]  # fmt: skip
    header = ["A1:D1", "A2:A3", "B2:C2", "D2:D3"]
    path = xlsx(folder, rows, merged=[*header, "B5:C5"])
    refused(path, "data.header_row = 3", "A1:D1", "B2:C2", "B5:C5 are merged", "D5", "formulas")
    rows[-1][-1] = 6
    cells, _ = read(xlsx(folder, rows, merged=header), header_row=3)
    assert cells == {"Patient": ["P1", "P2"], "CRP": ["1", "4"], "Leuko": ["2", None],
                     "Ende": ["3", "6"]}  # fmt: skip
    path = xlsx(folder, rows, merged=["A1:D1", "B2:C2"])
    refused(path, "row 1: A1:D1", "row 2: B2:C2", "row 3: no name for column A, D",
            "one name for each column", "data.header_row")  # fmt: skip
    refused(path, "row 3: no name for column A, D", header_row=3)


@CASES.line("X17")
def _empty_edges(folder):
    def change(book):
        book.active["A6"].value = " "
        book.active["D5"].value = " "

    cells, notes = read(xlsx(folder, [[], ["a", None, "b"], [1, None, None]], change=change))
    assert cells == {"a": ["1"], "b": [None]}
    note(notes, "3 empty rows at the end")
    note(notes, "columns", "left out", "B, D")


@CASES.line("X18")
def _empty_row(folder):
    path = xlsx(folder, [["a", "b"], [1, 2], [], [3, 4]])
    cells, notes = read(path)
    assert cells == {"a": ["1", None, "3"], "b": ["2", None, "4"]}
    note(notes, "1 rows are empty", "rows 3")
    (columns,) = formats.read([path], None)
    assert (columns.row_word, columns.first_row) == ("row", 2)


@CASES.line("X19")
def _row_names(folder):
    for number in (0, 1):
        cells, notes = read(xlsx(folder, [[None, "a"], [number, 5], [number + 1, 6]]))
        assert cells == {"a": ["5", "6"]}
        note(notes, "number the rows", "left out: A")
    refused(xlsx(folder, [[None, "a"], [7, 5], [3, 6]]), "column A", "no name")


@CASES.line("X20")
def _hidden(folder):
    def change(book):
        book.active.row_dimensions[3].hidden = True
        book.active.column_dimensions["B"].hidden = True
        book.active.column_dimensions["D"].hidden = True  # has no cells
        book.active["A2"].font = openpyxl.styles.Font(strike=True)
        book.active["A5"].font = openpyxl.styles.Font(strike=True)  # is empty

    cells, notes = read(xlsx(folder, [["a", "b"], [1, 2], [3, 4]], change=change))
    assert cells == {"a": ["1", "3"], "b": ["2", "4"]}
    note(notes, "1 hidden rows", ": 3")
    note(notes, "1 hidden columns", ": B")
    note(notes, "1 cells that are struck", ": A2")
    rows = [["a"], [1], ([2], {"visibility": "filter"}), [3], ([None], {"visibility": "collapse"})]
    cells, notes = read(ods(folder, rows))
    assert cells == {"a": ["1", "2", "3"]}
    note(notes, "1 hidden rows", ": 3")


@CASES.line("X21")
def _numbers_as_text(folder):
    cells, _ = read(xlsx(folder, [["a", " b "], ["1.5", "'007"], ["1,5", " "]]))
    assert cells == {"a": ["1.5", "1,5"], "b": ["'007", None]}


@CASES.line("X22")
def _foreign(folder):
    for content in (b"\n<html><table><tr><td>a</td></tr>", b"a;b\n1;2\n", b"\0\1\2" * 99):
        path = folder / "a.xls"
        path.write_bytes(content)
        refused(path, "not a readable spreadsheet", "web page", ".csv")
    path = folder / "a.xlsx"
    path.write_bytes(_encrypted())
    refused(path, "password")


def _encrypted():
    """The container in which Excel stores a workbook with a password: a CFB file, version 3, with
    the streams EncryptionInfo and EncryptedPackage, after [MS-CFB].
    """
    free, end_of_chain, fat = b"\xff" * 4, b"\xfe\xff\xff\xff", b"\xfd\xff\xff\xff"
    header = bytes.fromhex("d0cf11e0a1b11ae1") + bytes(16)
    header += b"\x3e\0\3\0\xfe\xff\x09\0\x06\0" + bytes(10)
    header += (1).to_bytes(4, "little") + (1).to_bytes(4, "little") + bytes(4)
    header += (4096).to_bytes(4, "little") + end_of_chain + bytes(4) + end_of_chain + bytes(4)
    header += bytes(4) + free * 108
    table = fat + end_of_chain + b"".join(
        end_of_chain if k == 9 else (k + 3).to_bytes(4, "little") if k < 9 else end_of_chain if k == 17
        else (k + 3).to_bytes(4, "little") for k in range(18)
    )  # fmt: skip
    entries = [_entry("Root Entry", 5, free, free, (1).to_bytes(4, "little"), end_of_chain, 0)]
    entries.append(
        _entry("EncryptionInfo", 2, (2).to_bytes(4, "little"), free, free, b"\2\0\0\0", 4096)
    )
    entries.append(_entry("EncryptedPackage", 2, free, free, free, b"\x0a\0\0\0", 4096))
    directory = b"".join(entries).ljust(512, b"\0")
    return header + table.ljust(512, b"\xff") + directory + bytes(16 * 512)


def _entry(name, object_type, left, right, child, sector, size):
    text = name.encode("utf-16-le")
    entry = text.ljust(64, b"\0") + (len(text) + 2).to_bytes(2, "little") + bytes([object_type, 1])
    return entry + left + right + child + bytes(36) + sector + size.to_bytes(8, "little")


@CASES.line("X23")
def _suffix_of_another(folder):
    path = xlsx(folder, [["a"], [1]]).rename(folder / "b.xls")
    assert read(path)[0] == {"a": ["1"]}
    path = xls(folder, [["a"], [1]]).rename(folder / "c.xlsx")
    assert read(path)[0] == {"a": ["1"]}


@CASES.line("X24")
def _no_names(folder):
    refused(xlsx(folder, [[1, 2], [3, 4]]), "row 1", "names")


@CASES.line("X26")
def _rounded(folder):
    rows = [["id", "n"], [12345678901234567, 1], [12345678901234569, 2]]
    note(read(xlsx(folder, rows))[1], "16 digits", "id")
    assert read(xlsx(folder, [["id"], [123456789012345]]))[1] == ()
    assert read(xlsx(folder, [["copies"], [2.5e15], [1234.5]]))[1] == ()


@CASES.line("X27")
def _raised(folder):
    """Excel keeps 7 with a footnote 2 as a text; libraries read 72. Letters are errors anyway."""
    for alignment in ("superscript", "subscript", "baseline"):

        def change(book, alignment=alignment):
            for address, text in (("A3", "7"), ("B3", "kg/m")):
                run = TextBlock(InlineFont(vertAlign=alignment), "2")
                book.active[address] = CellRichText(text, run)

        path = xlsx(folder, [["a", "unit"], [5, "kg"], [7, "kg"]], change=change)
        assert openpyxl.load_workbook(path).active["A3"].value == "72"
        for source in (path, _with_shared_texts(path)):
            cells, notes = read(source)
            assert cells == {"a": ["5", "72"], "unit": ["kg", "kg/m2"]}
            assert len(notes) == (alignment != "baseline")
            assert all("raised or lowered digits" in x and x.endswith(": A3") for x in notes)


def _with_shared_texts(path):
    """The file with the text of A3 in a list of texts, as Excel writes it."""
    with zipfile.ZipFile(path) as archive:
        (text,) = re.findall(rb'<c r="A3".*?<is>(.*?)</is></c>', archive.read(SHEET))
    rewritten(path, SHEET, (b't="inlineStr"><is>' + text + b"</is>", b't="s"><v>1</v>'))
    with zipfile.ZipFile(path, "a") as archive:
        texts = b"<si><t>kg</t></si><si>" + text + b"</si></sst>"
        archive.writestr("xl/sharedStrings.xml", b'<sst xmlns="%s">' % NAMESPACE + texts)
    return path


@pytest.mark.parametrize("name", CASES.names)
def test_line(name, tmp_path):
    CASES.functions[name](tmp_path)


def test_the_document_and_the_cases_have_the_same_lines():
    CASES.check()


@every_writer
def test_an_empty_file_is_one_line(write, tmp_path):
    refused(write(tmp_path, []), "values")


@every_writer
def test_a_table_without_rows_has_its_names(write, tmp_path):
    assert read(write(tmp_path, [["a", "b"]])) == ({"a": [], "b": []}, ())


VALUES = st.one_of(
    st.none(),
    st.integers(-(10**6), 10**6),
    st.sampled_from([0.5, 1e-9, 1e15]),
    st.booleans(),
    st.text("abß", min_size=1, max_size=5),
    st.dates(date(1950, 1, 1), date(2100, 1, 1)),
)
EXPECTED = {type(None): lambda v: None, date: date.isoformat, float: lambda v: f"{v:.15g}"}


@pytest.mark.long
@every_writer
@settings(max_examples=40)
@given(data=st.data())
def test_a_table_of_any_shape_comes_back(write, tmp_path_factory, data):
    """Down to one cell, columns of gaps, several types in a column."""
    width = data.draw(st.integers(1, 3))
    row = st.lists(VALUES, min_size=width, max_size=width)
    rows = [*data.draw(st.lists(row, max_size=4)), [1] * width]
    path = write(tmp_path_factory.mktemp("shape"), [[f"c{k}" for k in range(width)], *rows])
    columns = spreadsheets.read(path, None)
    cells = zip(*(array.to_pylist() for array in columns.arrays), strict=True)
    expected = [tuple(EXPECTED.get(type(v), str)(v) for v in row) for row in rows]
    assert [tuple(row) for row in cells] == [tuple(map(_excel_text, row)) for row in expected]


def _excel_text(text):
    return {"1e+15": str(10**15)}.get(text, text)


@every_writer
def test_decimal_commas_in_texts_next_to_numbers(write, tmp_path):
    rows = [
        ["crp", "died"],
        *([(1.145, "1,145", 15.5, "15,5")[k % 4], "yn"[k % 2]] for k in range(8)),
    ]
    path = write(tmp_path, rows)
    with pytest.raises(DataError, match=r"data\.decimal=comma"):
        read_data(data_settings(name="table", path=path, label_column="died"))
    settings = data_settings(name="table", path=path, label_column="died", decimal="comma")
    data = read_data(settings)
    assert np.allclose(data.x[:, 0], [1.145, 1.145, 15.5, 15.5] * 2)
    text = "crp;died\n1,145;y\n1.145;n\n"  # at a hospital that sends CSV
    (tmp_path / "b.csv").write_text(text)
    clients = [{"name": file.stem, "train": file} for file in (tmp_path / "b.csv", path)]
    settings = data_settings(clients=clients, label_column="died", decimal="comma")
    assert np.allclose(read_data(settings).x[:4, 0], [1.145, 1145, 1.145, 1.145])


def test_settings_of_a_format_that_some_clients_have(tmp_path):
    """A workbook with two sheets behind a CSV, whichever comes first."""
    path = xlsx(tmp_path, [["age", "died"], [20, "y"], [30, "n"]], change=more_cells)
    (tmp_path / "b.csv").write_text("age;died\n21,5;y\n31,5;n\n")
    files = [path, tmp_path / "b.csv"]
    for order in (files, files[::-1]):
        clients = [{"name": file.stem, "train": file} for file in order]
        with pytest.raises(DataError, match=r"set data\.sheet"):
            read_data(data_settings(clients=clients, label_column="died"))
        chosen = data_settings(clients=clients, label_column="died", sheet="Daten", decimal="comma")
        assert sorted(read_data(chosen).x[:, 0].tolist()) == [20, 21.5, 30, 31.5]


def test_clients_are_sheets_of_one_workbook(tmp_path):
    def sites(book):
        book.active.title = "North"
        south = book.create_sheet("Süd 1.5")
        for row in (["died", "age"], ["n", 40], ["y", 50], ["y", 60]):
            south.append(row)

    path = xlsx(tmp_path, [["age", "died"], [20, "y"], [30, "n"]], change=sites)
    clients = [
        {"name": name, "train": f"{path}#{sheet}"}
        for name, sheet in (("north", "North"), ("south", "Süd 1.5"))
    ]
    data = read_data(data_settings(clients=clients, label_column="died"))
    assert data.x[:, 0].tolist() == [20, 30, 40, 50, 60]
    assert data.owners.names == ("north", "south")
    assert data.owners.client.tolist() == [0, 0, 1, 1, 1]
    north = data_settings(path=f"{path}#North", label_column="died")
    assert read_data(north).x[:, 0].tolist() == [20, 30]
    assert data_files(north) == (path,)
    for sheet, message in (("Nort", r"'Nort'.*North"), ("", r"North, Süd 1\.5.*\.xlsx#")):
        path_of_sheet = f"{path}#{sheet}" if sheet else path
        section = [{"name": "north", "train": path_of_sheet}]
        with pytest.raises(DataError, match=message):
            read_data(data_settings(clients=section, label_column="died"))


def more_cells(book):
    """Add a sheet with a legend."""
    book.create_sheet("Legende").append(["age", "in years"])


def test_a_cell_without_its_shared_text_has_no_raised_digits() -> None:
    raised = "<si><r><t>7</t></r><r><rPr><vertAlign val='superscript'/></rPr><t>2</t></r></si>"
    values = {2: "", 3: "<v>9</v>", 4: "<v>0</v>"}
    cells = "".join(f"<c r='A{row}' t='s'>{value}</c>" for row, value in values.items())
    rows, texts = (fromstring(f"<x>{part}</x>") for part in (cells, raised))
    assert list(workbook_marks._raised([rows], [*texts])) == ["A4"]
